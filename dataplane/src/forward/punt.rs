//! stub
use crate::{packet::*, verdict::PuntClass};
pub fn class(_p: &Packet) -> PuntClass {
    PuntClass::Other
}
