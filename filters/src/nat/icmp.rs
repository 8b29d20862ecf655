#![forbid(unsafe_code)]
//! ICMP errors: they belong to the flow of the packet that they quote.

use ferrule_dataplane::packet::Packet;

use super::flow::{self, ICMP};
use super::rewrite::{self, End};
use super::{Nat, Outcome};

impl Nat {
    /// An error from outside about a packet that we sent: back to the inside host, quoting what that host sent.
    pub(super) fn error_incoming(&mut self, packet: &mut Packet) -> Outcome {
        let Some(quoted) = flow::quoted(packet) else { return Outcome::Ignored };
        let known = self.known_incoming(&quoted.key).map(|m| (m.address, m.port));
        let redirected = || match quoted.key.protocol {
            ICMP => None,
            _ => self.redirects.incoming(&quoted.key, self.address, None),
        };
        let Some((address, port)) = known.or_else(redirected) else { return Outcome::Ignored };
        rewrite::quoted_end(packet, &quoted, End::Source, address, port);
        rewrite::end(packet, End::Destination, address, None);
        Outcome::Done
    }

    /// An error from inside about a packet that came from outside: it leaves quoting what the outside sent. Its own source changes where it
    /// is the host that the packet was for; a router inside keeps its address, as with libalias.
    pub(super) fn error_outgoing(&mut self, packet: &mut Packet) -> Outcome {
        let Some(quoted) = flow::quoted(packet) else { return Outcome::Ignored };
        let Some(alias) = self.known_outgoing(&quoted.key.reversed()) else { return Outcome::Ignored };
        rewrite::quoted_end(packet, &quoted, End::Destination, alias.address, alias.port);
        if packet.source_v4() == quoted.key.far {
            rewrite::end(packet, End::Source, alias.address, None);
        }
        Outcome::Done
    }
}
