#![forbid(unsafe_code)]
//! Keep-alives: the segments that find out whether both ends of an idle TCP connection are still there (`dyn_keepalive`).

use ferrule_dataplane::forward::probe::{self, Probe};
use ferrule_dataplane::rate::TokenBucket;
use ferrule_dataplane::stage::Context;

use super::dynamic::{FlowKey, Keepalive};

/// Keep-alives of a worker in a second, and at once. A state gets four chances before its end, five seconds apart: one that finds no token
/// finds one later.
const RATE: (u32, u32) = (20_000, 1_000);

/// Sends them, so many a second.
pub struct Keepalives {
    bucket: TokenBucket,
}

impl Default for Keepalives {
    fn default() -> Keepalives {
        Keepalives { bucket: TokenBucket::new(RATE.0, RATE.1) }
    }
}

impl Keepalives {
    /// Sends one, where there is a buffer and a token. None to link-local addresses: no route leads there.
    pub fn send(&mut self, keepalive: &Keepalive, context: &mut Context<'_>) {
        let zone = match keepalive.key {
            FlowKey::V4 { .. } => 0,
            FlowKey::V6 { zone, .. } => zone,
        };
        if zone != 0 || !self.bucket.take(context.now) {
            return;
        }
        let ((source, destination), (source_port, destination_port)) =
            (keepalive.key.addresses(), keepalive.key.ports());
        let probe = Probe {
            source,
            destination,
            ports: (source_port, destination_port),
            sequence: keepalive.sequence,
            acknowledgement: keepalive.acknowledgement,
        };
        probe::keepalive(&probe, context);
    }
}
