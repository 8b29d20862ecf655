//! stub
use crate::{packet::*, stage::Context};
#[inline(always)]
pub fn segment_len(p: &Packet) -> usize {
    p.ip_len()
}
pub fn fragment(p: Packet, _m: usize, c: &mut Context<'_>, _o: &mut Vec<Packet>) {
    c.discard(p, crate::verdict::DropReason::FragmentationNeeded)
}
