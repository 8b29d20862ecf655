//! stub
use crate::{arena::Arena, packet::*};
pub fn looks_partial(_p: &Packet) -> bool {
    false
}
pub fn complete(_a: &Arena, _p: &mut Packet) {}
pub fn complete_guessed(_a: &Arena, _p: &mut Packet) {}
