//! `ferrule privilege-test`: drops privileges as the daemon does, then tries what must fail and what must still work.

#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType};
use serde::{Deserialize, Serialize};

use super::{Plan, Report, drop};
use crate::failure::Failure;

/// One attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// What was tried.
    pub what: String,
    /// Whether it should work.
    pub should_work: bool,
    /// The error; None when it worked.
    pub error: Option<String>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfTest {
    /// What [`drop`] reported.
    pub report: Report,
    /// What was tried.
    pub attempts: Vec<Attempt>,
}

impl SelfTest {
    /// Attempts that did not go as they should.
    pub fn surprises(&self) -> Vec<&Attempt> {
        self.attempts.iter().filter(|a| a.should_work != a.error.is_none()).collect()
    }
}

/// Drops privileges by this plan and tries. Whoever calls it cannot do much else afterwards.
///
/// # Errors
/// When privileges cannot be dropped.
pub fn self_test(plan: &Plan) -> Result<SelfTest, Failure> {
    let report = drop(plan)?;
    let mut attempts = Vec::new();
    let mut attempt = |what: &str, should_work, result: Result<(), String>| {
        attempts.push(Attempt { what: what.to_owned(), should_work, error: result.err() });
    };
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let socket = |family, kind| rustix::net::socket(family, kind, None).map(|_| ()).map_err(|e| text(&e));

    attempt("open /etc/shadow", false, std::fs::File::open("/etc/shadow").map(|_| ()).map_err(|e| text(&e)));
    attempt("open a file that anybody may read, off the list", false, off_the_list());
    attempt("write to /tmp", false, write_somewhere());
    attempt("socket(AF_PACKET)", false, socket(AddressFamily::PACKET, SocketType::RAW));
    attempt("socket(AF_XDP)", false, socket(AddressFamily::XDP, SocketType::RAW));
    attempt("run a program", false, Command::new("/bin/true").status().map(|_| ()).map_err(|e| text(&e)));
    let root = rustix::process::Uid::ROOT;
    attempt("become root again", false, rustix::thread::set_thread_uid(root).map_err(|e| text(&e)));
    let admin = [caps::Capability::CAP_SYS_ADMIN].into_iter().collect();
    let gain = caps::set(None, caps::CapSet::Effective, &admin);
    attempt("gain CAP_SYS_ADMIN", false, gain.map_err(|e| text(&e)));

    attempt("socket(AF_NETLINK)", true, socket(AddressFamily::NETLINK, SocketType::RAW));
    attempt("a thread with its own memory", true, thread());
    attempt("a socket pair", true, pair());
    attempt("sleep and the clock", true, {
        let begin = std::time::Instant::now();
        std::thread::sleep(Duration::from_millis(2));
        if begin.elapsed() >= Duration::from_millis(2) { Ok(()) } else { Err("time stands still".into()) }
    });
    for path in &plan.read {
        if path.is_file() {
            let result = std::fs::read(path).map(|_| ()).map_err(|e| text(&e));
            attempt(&format!("read {}", path.display()), true, result);
        }
    }
    Ok(SelfTest { report, attempts })
}

/// /etc/hostname or /etc/os-release: readable by all, and not in any sensible plan.
fn off_the_list() -> Result<(), String> {
    for path in ["/etc/os-release", "/etc/hostname", "/etc/hosts"] {
        match std::fs::File::open(path) {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e.to_string()),
        }
    }
    Err("there is no such file here".into())
}

fn write_somewhere() -> Result<(), String> {
    let path = format!("/tmp/ferrule-privilege-test-{}", std::process::id());
    let result = std::fs::write(Path::new(&path), "x");
    if result.is_ok() {
        let _ = std::fs::remove_file(&path);
    }
    result.map_err(|e| e.to_string())
}

fn thread() -> Result<(), String> {
    let thread = std::thread::Builder::new().name("self-test".into()).spawn(|| vec![1u8; 8 << 20].len());
    match thread.map_err(|e| e.to_string())?.join() {
        Ok(n) if n == 8 << 20 => Ok(()),
        _ => Err("the thread did not end well".into()),
    }
}

fn pair() -> Result<(), String> {
    let (mut a, mut b) = UnixStream::pair().map_err(|e| e.to_string())?;
    let mut byte = [0];
    a.write_all(b"x").and_then(|()| b.read_exact(&mut byte)).map_err(|e| e.to_string())
}
