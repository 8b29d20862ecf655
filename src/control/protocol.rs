//! The words of the control socket: one JSON object per line in each direction.
//!
//! A client sends `{"version":1,"request":{"ask":"snapshot"}}`; the daemon answers with one or more lines, the last of
//! which has `"more":false` where there can be several. The version changes when an old client would misread an answer.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::ipfw;
use crate::ipfw::call::Call;
use crate::snapshot::{Finding, NeighborRow, RouteRow, Snapshot};

/// Version of the protocol.
pub const PROTOCOL: u32 = 1;

/// Longest request line in bytes of a client that may only ask.
pub const REQUEST_MAX: usize = 64 * 1024;

/// Longest request line in bytes of a client that may change things: a file of firewall commands.
pub const CHANGE_MAX: usize = ipfw::call::LONGEST as usize;

/// Rows in one line of a long answer.
pub const ROWS_PER_LINE: usize = 1000;

/// A request with its version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// [`PROTOCOL`] of the client.
    pub version: u32,
    /// What it wants.
    pub request: Request,
}

/// What a client may ask.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Everything but routes and neighbours.
    Snapshot,
    /// Routes.
    Routes(RouteQuery),
    /// Neighbours.
    Neighbors,
    /// Checks of the running gateway.
    Doctor,
    /// Read the file again (or another one) and put it in force.
    Reload {
        /// Another file than the one in force, as an absolute path.
        path: Option<PathBuf>,
    },
    /// Put a file in force; with a time, take it back unless confirmed by then.
    Apply {
        /// Absolute path.
        path: PathBuf,
        /// Seconds to wait for [`Request::Confirm`].
        confirm_s: Option<u64>,
    },
    /// `ipfw` or `sysctl`, as they were called.
    Ipfw {
        /// The call.
        call: Box<Call>,
        /// What is shown is wanted as data, too.
        json: bool,
    },
    /// Keep what the last [`Request::Apply`] brought.
    Confirm,
    /// Drain and end.
    Stop,
}

impl Request {
    /// Whether it changes anything, and so needs the write group.
    pub fn writes(&self) -> bool {
        match self {
            Request::Ipfw { call, .. } => ipfw::command::writes(call),
            Request::Snapshot | Request::Routes(_) | Request::Neighbors | Request::Doctor => false,
            Request::Reload { .. } | Request::Apply { .. } | Request::Confirm | Request::Stop => true,
        }
    }
}

/// Which routes are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouteQuery {
    /// Only those of this family: 4 or 6.
    pub family: Option<u8>,
    /// Only the one that a packet to this address would take.
    pub lookup: Option<std::net::IpAddr>,
    /// At most so many.
    pub limit: Option<u64>,
}

/// An answer line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Request::Snapshot`].
    Snapshot {
        /// It.
        snapshot: Box<Snapshot>,
    },
    /// To [`Request::Routes`].
    Routes {
        /// Some of them.
        rows: Vec<RouteRow>,
        /// Whether another line follows.
        more: bool,
    },
    /// To [`Request::Neighbors`].
    Neighbors {
        /// Some of them.
        rows: Vec<NeighborRow>,
        /// Whether another line follows.
        more: bool,
    },
    /// To [`Request::Doctor`].
    Doctor {
        /// All of them.
        findings: Vec<Finding>,
    },
    /// To [`Request::Ipfw`].
    Ipfw {
        /// What the program prints and ends with.
        reply: ipfw::call::Reply,
        /// What it shows, as data.
        rows: Option<serde_json::Value>,
    },
    /// It was done.
    Done {
        /// What was done, for people.
        text: String,
    },
    /// It was not done.
    Error {
        /// Whose fault.
        kind: ErrorKind,
        /// What to do about it.
        text: String,
    },
}

/// Kind of an error answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The line is no request of this protocol.
    Protocol,
    /// The client may not ask this.
    Denied,
    /// The file or an argument is wrong; nothing was touched.
    Input,
    /// The daemon could not do it.
    Failed,
    /// Too many clients.
    Busy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_round_trip_and_stay_as_documented() {
        let cases = [
            (Request::Snapshot, r#"{"version":1,"request":{"ask":"snapshot"}}"#),
            (Request::Reload { path: None }, r#"{"version":1,"request":{"ask":"reload","path":null}}"#),
            (
                Request::Apply { path: "/etc/f.toml".into(), confirm_s: Some(60) },
                r#"{"version":1,"request":{"ask":"apply","path":"/etc/f.toml","confirm_s":60}}"#,
            ),
            (Request::Stop, r#"{"version":1,"request":{"ask":"stop"}}"#),
        ];
        for (request, text) in cases {
            let envelope = Envelope { version: PROTOCOL, request };
            assert_eq!(serde_json::to_string(&envelope).unwrap(), text);
            assert_eq!(serde_json::from_str::<Envelope>(text).unwrap(), envelope);
        }
        let short = r#"{"version":1,"request":{"ask":"routes","lookup":"192.0.2.1"}}"#;
        let Request::Routes(query) = serde_json::from_str::<Envelope>(short).unwrap().request else { panic!() };
        assert_eq!(query.lookup, "192.0.2.1".parse().ok());
    }

    #[test]
    fn unknown_words_are_refused() {
        for text in [
            r#"{"version":1,"request":{"ask":"format-disk"}}"#,
            r#"{"version":1,"request":{"ask":"apply","path":"/x","confirm_s":1,"force":true}}"#,
            r#"{"request":{"ask":"stop"}}"#,
        ] {
            assert!(serde_json::from_str::<Envelope>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_questions_are_readable_by_the_read_only_group() {
        assert!(!Request::Snapshot.writes() && !Request::Doctor.writes());
        assert!(!Request::Neighbors.writes() && !Request::Routes(RouteQuery::default()).writes());
        assert!(Request::Stop.writes() && Request::Confirm.writes() && Request::Reload { path: None }.writes());
        assert!(Request::Apply { path: "/x".into(), confirm_s: None }.writes());
    }
}
