#![forbid(unsafe_code)]
//! How long a state lives without packets, and how TCP segments change that (libalias(3); the figures of FreeBSD's `alias_db.h`).

/// Life time of an idle state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Life {
    /// A TCP connection that both ends, or a reset, have closed.
    Dead,
    /// UDP, ICMP and other protocols.
    Minute,
    /// A TCP connection that one end has closed.
    HalfClosed,
    /// A TCP connection that is not yet up.
    Opening,
    /// A TCP connection that is up.
    Connected,
}

impl Life {
    /// How many there are.
    pub const COUNT: usize = 5;

    /// Seconds.
    pub fn seconds(self) -> u32 {
        match self {
            Life::Dead => 10,
            Life::Minute => 60,
            Life::HalfClosed => 90,
            Life::Opening => 300,
            Life::Connected => 86_400,
        }
    }
}

/// Seconds for which the address of a first fragment is remembered.
pub(super) const FRAGMENT_SECONDS: u32 = 10;

/// Life time of a new state.
pub(super) fn initial(protocol: u8) -> Life {
    if protocol == 6 { Life::Opening } else { Life::Minute }
}

/// What one end of a TCP connection has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum End {
    Silent,
    Open,
    Closed,
}

/// What both ends of a TCP connection have said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TcpState {
    inside: End,
    outside: End,
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

impl TcpState {
    /// Nothing seen.
    pub const NEW: TcpState = TcpState { inside: End::Silent, outside: End::Silent };

    /// Notes the flags of a segment; Some where the life time changes with it.
    pub fn segment(&mut self, from_inside: bool, flags: u8) -> Option<Life> {
        let (end, other) =
            if from_inside { (&mut self.inside, self.outside) } else { (&mut self.outside, self.inside) };
        let next = match *end {
            End::Silent if flags & RST != 0 => End::Closed,
            End::Silent if flags & SYN != 0 => End::Open,
            End::Open if flags & (FIN | RST) != 0 => End::Closed,
            _ => return None,
        };
        *end = next;
        match (next, other) {
            (End::Closed, End::Open) => Some(Life::HalfClosed),
            (End::Closed, _) => Some(Life::Dead),
            (End::Open, End::Open) => Some(Life::Connected),
            _ => None,
        }
    }

    /// How `show` names it.
    pub fn label(self) -> &'static str {
        match (self.inside, self.outside) {
            (End::Open, End::Open) => "connected",
            (End::Closed, End::Open) | (End::Open, End::Closed) => "half-closed",
            (End::Closed, _) | (_, End::Closed) => "closed",
            _ => "opening",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_opens_and_closes() {
        let mut tcp = TcpState::NEW;
        assert_eq!(tcp.segment(true, SYN), None);
        assert_eq!(tcp.segment(false, 0x12), Some(Life::Connected));
        assert_eq!(tcp.label(), "connected");
        assert_eq!(tcp.segment(true, 0x10), None);
        assert_eq!(tcp.segment(false, 0x11), Some(Life::HalfClosed));
        assert_eq!(tcp.segment(true, 0x11), Some(Life::Dead));
        assert_eq!(tcp.segment(true, SYN), None, "a closed end stays closed until the state is gone");
    }

    #[test]
    fn a_reset_ends_what_never_opened() {
        let mut tcp = TcpState::NEW;
        assert_eq!(tcp.segment(true, SYN), None);
        assert_eq!(tcp.segment(false, RST | 0x10), Some(Life::HalfClosed), "the inside end counts as open");
        let mut tcp = TcpState::NEW;
        assert_eq!(tcp.segment(false, RST), Some(Life::Dead));
    }
}
