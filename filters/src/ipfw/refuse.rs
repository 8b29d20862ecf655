#![forbid(unsafe_code)]
//! What the sender of a refused packet is sent.

use ferrule_dataplane::forward::icmp::{self, IcmpError, Unreachable};
use ferrule_dataplane::forward::{abort, reset};
use ferrule_dataplane::packet::Packet;
use ferrule_dataplane::stage::Context;

use super::execute::Decision;

/// Sends it, within the worker's limits.
pub fn answer(decision: Decision, packet: &Packet, context: &mut Context<'_>) {
    match decision {
        Decision::Unreach(4, mtu) => {
            let mtu = mtu.map_or_else(|| packet.ip_len() as u32, u32::from);
            icmp::error(IcmpError::FragmentationNeeded { mtu }, packet, context);
        }
        Decision::Unreach(code, _) | Decision::Unreach6(code) => {
            icmp::error(IcmpError::Unreachable(Unreachable::Code(code)), packet, context);
        }
        // As many resets a second as ICMP errors, out of the same bucket: a flood of SYNs must not become one of RSTs.
        Decision::Reset | Decision::Abort => {
            if !context.icmp_limit.take(context.now) {
                context.counters.icmp_suppressed.add(1);
            } else if decision == Decision::Abort {
                abort::abort(packet, context);
            } else {
                reset::reset(packet, context);
            }
        }
        _ => {}
    }
}
