#![forbid(unsafe_code)]
//! Passes of the link layer, where `net.link.ether.ipfw` is 1: before the pass of IP on the way in, behind it on the way out.
//!
//! Every frame meets them, ARP and neighbour discovery too, and only in them `mac` and `mac-type` hold, as on FreeBSD. On the way out the frame
//! has the addresses that it leaves with; where the neighbour is still to be found its address is zero.

use ferrule_dataplane::batch::Batch;
use ferrule_dataplane::packet::{Flags, Packet};
use ferrule_dataplane::stage::{Context, Hook};
use ferrule_dataplane::verdict::Verdict;

use super::stage::Ipfw;

/// Whether the link layer's pass sees a frame: what is not dropped yet, and no reset or keep-alive of our own.
fn is_seen(packet: &Packet) -> bool {
    let skips = packet.flags.has(Flags::GENERATED) && matches!(packet.protocol, 6 | 132);
    matches!(packet.verdict(), Verdict::Forward | Verdict::Host(_)) && !skips
}

impl Ipfw {
    /// Whether the link layer has passes of its own.
    #[inline(always)]
    pub(super) fn has_layer2(&self) -> bool {
        self.holdings.services.as_ref().is_some_and(|services| services.has_layer2())
    }

    /// The link layer's pass over a batch.
    #[inline(never)]
    pub(super) fn link_pass(&mut self, hook: Hook, batch: &mut Batch, context: &mut Context<'_>) {
        for packet in batch.packets_mut() {
            if !is_seen(packet) || hook == Hook::Out && packet.verdict() != Verdict::Forward {
                continue;
            }
            if hook == Hook::Out && !packet.flags.any(Flags::FROM_HOST.with(Flags::LINK_READY)) {
                let rewrite = context.shared.fib.adjacencies.rewrite(packet.adjacency);
                packet.frame.header_mut()[..12].copy_from_slice(&rewrite.macs());
            }
            let key = self.key(hook, true, packet);
            self.judge_from(hook, true, key, 0, packet, context);
        }
    }
}
