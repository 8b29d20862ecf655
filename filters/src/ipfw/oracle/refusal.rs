#![forbid(unsafe_code)]
//! What a refused packet's sender is told.

use ferrule_config::ipfw::ast::Action;

use super::outcome::Verdict;
use super::view::{ETHERNET, Family, View, long, protocol, word};

const TCP_RST: u8 = 4;

/// The verdict of `unreach`, `unreach6`, `reset`, `reset6`, `abort` and `abort6`: [`Verdict::Deny`] where nothing is to be sent.
pub fn verdict(action: &Action, frame: &[u8], view: &View) -> Verdict {
    if frame[0] & 1 == 1 || view.later_fragment {
        return Verdict::Deny;
    }
    match view.family {
        Family::V4 => verdict4(action, frame, view),
        Family::V6 => verdict6(action, frame, view),
        Family::Other => Verdict::Deny,
    }
}

fn verdict4(action: &Action, frame: &[u8], view: &View) -> Verdict {
    let icmp_answer = view.protocol == protocol::ICMP
        // Echo, router solicitation, time stamp, information and mask requests may be answered.
        && !view.upper.is_some_and(|at| matches!(frame[at], 8 | 10 | 13 | 15 | 17));
    if view.destination.is_multicast() || icmp_answer {
        return Verdict::Deny;
    }
    match action {
        Action::Unreach(code, mtu) => Verdict::Unreach { code: *code, mtu: if *code == 4 { *mtu } else { None } },
        Action::Reset => reset(view),
        Action::Abort => abort(frame, view),
        // The version 6 forms say nothing to IPv4.
        _ => Verdict::Deny,
    }
}

fn verdict6(action: &Action, frame: &[u8], view: &View) -> Verdict {
    let icmp_answer = view.protocol == protocol::ICMPV6
        // Echo requests, group membership and node information queries may be answered.
        && !matches!(view.icmp6_type, 128 | 130 | 139);
    if view.destination.is_multicast() || icmp_answer {
        return Verdict::Deny;
    }
    match action {
        Action::Unreach6(code) => Verdict::Unreach6 { code: *code },
        Action::Reset6 => reset(view),
        Action::Abort6 => abort(frame, view),
        Action::Unreach(code, _) => Verdict::Unreach6 { code: code_of_6(*code) },
        // What has no counterpart becomes "administratively prohibited", also these two.
        Action::Reset | Action::Abort => Verdict::Unreach6 { code: 1 },
        _ => Verdict::Deny,
    }
}

/// RFC 7915, section 4.2, as far as FreeBSD follows it.
fn code_of_6(code: u8) -> u8 {
    match code {
        0 | 1 | 5 | 6 | 7 | 11 | 12 => 0,
        3 => 4,
        _ => 1,
    }
}

fn reset(view: &View) -> Verdict {
    if view.protocol == protocol::TCP && view.tcp_flags & TCP_RST == 0 { Verdict::Reset } else { Verdict::Deny }
}

/// ABORT is not sent for an ABORT, nor where no verification tag is known (RFC 9260, section 8.4).
fn abort(frame: &[u8], view: &View) -> Verdict {
    let (protocol::SCTP, Some(at)) = (view.protocol, view.upper) else { return Verdict::Deny };
    let tag = long(frame, at + 4);
    let length = match view.family {
        Family::V4 => view.ip_length.min(view.end - ETHERNET),
        _ => view.end - ETHERNET,
    };
    let behind = length.saturating_sub(view.header_length + 12);
    let mut answer = tag != 0;
    if behind >= 4 {
        match frame[at + 12] {
            // INIT: has tag 0 and stands alone; the tag to use is its initiate tag.
            1 if tag != 0 => answer = false,
            1 if behind > usize::from(word(frame, at + 14)) + 3 => answer = false,
            1 if behind >= 8 => answer = long(frame, at + 16) != 0,
            6 => answer = false,
            _ => {}
        }
    }
    if answer { Verdict::Abort } else { Verdict::Deny }
}
