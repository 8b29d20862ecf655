//! stub
use crate::{packet::*, stage::Context};
pub fn refuse(_r: super::Refusal, _p: &Packet, _c: &mut Context<'_>) {}
