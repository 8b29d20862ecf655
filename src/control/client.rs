//! The command line's side of the control socket.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::protocol::{Envelope, ErrorKind, PROTOCOL, Reply, Request, RouteQuery};
use crate::failure::Failure;
use crate::ipfw::{self, call::Call};
use crate::snapshot::{Finding, NeighborRow, RouteRow, Snapshot};

pub(super) const UPDATE: &str = "use the `ferrule` program of the same release as the daemon";

/// Longest wait for an answer line: a reload of large rule sets takes its time.
const ANSWER: Duration = Duration::from_secs(120);

/// Longest wait for the socket of a daemon that is about to have one.
const STARTING: Duration = Duration::from_secs(5);

/// A connection to the running daemon.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    reader: BufReader<UnixStream>,
}

impl Client {
    /// Connects; waits a few seconds for the socket of a daemon that starts. One that has its socket and does not serve yet is
    /// waited for with the first answer.
    ///
    /// # Errors
    /// [`Failure::Runtime`] that says that the daemon does not run and how to start it, or that this user may not connect.
    pub fn connect(path: impl AsRef<Path>) -> Result<Client, Failure> {
        let path = path.as_ref().to_owned();
        let deadline = Instant::now() + STARTING;
        let stream = loop {
            match UnixStream::connect(&path) {
                Ok(stream) => break stream,
                // Its socket comes after its lock, and goes before it: it starts, or gives its devices back.
                Err(e) if nobody_listens(&e) && holder(&path).is_some() && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(e) => return Err(explain(&path, &e)),
            }
        };
        let timeouts = stream.set_read_timeout(Some(ANSWER)).and_then(|()| stream.set_write_timeout(Some(ANSWER)));
        timeouts.map_err(|e| explain(&path, &e))?;
        Ok(Client { path, reader: BufReader::new(stream) })
    }

    fn broken(&self, what: &str) -> Failure {
        Failure::runtime(format!("the daemon at {} {what}; its log says why", self.path.display()))
    }

    fn send(&mut self, request: Request) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(&Envelope { version: PROTOCOL, request })
            .map_err(|e| Failure::runtime(format!("cannot write the request: {e}")))?;
        line.push(b'\n');
        // A daemon that refuses writes why and closes before reading: its line is looked for below.
        match self.reader.get_mut().write_all(&line) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(e) => Err(self.broken(&format!("does not take the request ({e})"))),
        }
    }

    fn receive(&mut self) -> Result<Reply, Failure> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => return Err(self.broken("closed the connection")),
            Ok(_) => {}
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Err(self.broken(&format!("did not answer in {} s", ANSWER.as_secs())));
            }
            Err(e) => return Err(self.broken(&format!("cannot be read ({e})"))),
        }
        let reply = serde_json::from_str(&line)
            .map_err(|e| Failure::runtime(format!("cannot read the daemon's answer ({e}): {UPDATE}")))?;
        match reply {
            Reply::Error { kind: ErrorKind::Input, text } => Err(Failure::Input(text)),
            Reply::Error { text, .. } => Err(Failure::Runtime(text)),
            reply => Ok(reply),
        }
    }

    /// Sends a request and reads the first answer line.
    ///
    /// # Errors
    /// What the daemon refused ([`Failure::Input`] for a bad file), or that it does not answer.
    pub fn ask(&mut self, request: Request) -> Result<Reply, Failure> {
        self.send(request)?;
        self.receive()
    }

    fn surprised(&self, reply: &Reply) -> Failure {
        let _ = reply;
        Failure::runtime(format!("the daemon answered something else than was asked: {UPDATE}"))
    }

    /// Everything but routes and neighbours.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn snapshot(&mut self) -> Result<Snapshot, Failure> {
        match self.ask(Request::Snapshot)? {
            Reply::Snapshot { snapshot } => Ok(*snapshot),
            other => Err(self.surprised(&other)),
        }
    }

    /// Routes.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn routes(&mut self, query: RouteQuery) -> Result<Vec<RouteRow>, Failure> {
        let mut reply = self.ask(Request::Routes(query))?;
        let mut all = Vec::new();
        loop {
            match reply {
                Reply::Routes { rows, more } => {
                    all.extend(rows);
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(self.surprised(&other)),
            }
            reply = self.receive()?;
        }
    }

    /// Neighbours.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn neighbors(&mut self) -> Result<Vec<NeighborRow>, Failure> {
        let mut reply = self.ask(Request::Neighbors)?;
        let mut all = Vec::new();
        loop {
            match reply {
                Reply::Neighbors { rows, more } => {
                    all.extend(rows);
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(self.surprised(&other)),
            }
            reply = self.receive()?;
        }
    }

    /// Findings of the running daemon.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn doctor(&mut self) -> Result<Vec<Finding>, Failure> {
        match self.ask(Request::Doctor)? {
            Reply::Doctor { findings } => Ok(findings),
            other => Err(self.surprised(&other)),
        }
    }

    /// A call of `ipfw` or `sysctl`, and what it shows as data where that is wanted.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn ipfw(&mut self, call: Call, json: bool) -> Result<(ipfw::call::Reply, Option<serde_json::Value>), Failure> {
        match self.ask(Request::Ipfw { call: Box::new(call), json })? {
            Reply::Ipfw { reply, rows } => Ok((reply, rows)),
            other => Err(self.surprised(&other)),
        }
    }

    /// A request that changes something; returns what the daemon says it did.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn change(&mut self, request: Request) -> Result<String, Failure> {
        match self.ask(request)? {
            Reply::Done { text } => Ok(text),
            other => Err(self.surprised(&other)),
        }
    }

    /// Asks the daemon to stop and waits until it is gone.
    ///
    /// # Errors
    /// When it refuses or is still there after `patience`.
    pub fn stop(mut self, patience: Duration) -> Result<String, Failure> {
        let until = Instant::now() + patience;
        let text = self.change(Request::Stop)?;
        let _ = self.reader.get_ref().set_read_timeout(Some(patience));
        let mut rest = String::new();
        match self.reader.read_line(&mut rest) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {}
            Err(_) => return Err(self.broken(&format!("is still draining after {} s", patience.as_secs()))),
        }
        // It lets its clients go before it gives the devices back; its lock, which its helper holds too, goes last.
        while !is_unlocked(&self.path) {
            if Instant::now() >= until {
                return Err(self.broken(&format!("is still giving its devices back after {} s", patience.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(text)
    }
}

/// Whether nobody holds the lock beside the socket; where it cannot be looked at there is nothing to wait for.
fn is_unlocked(socket: &Path) -> bool {
    let Ok(file) = File::open(socket.with_extension("lock")) else { return true };
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).is_ok()
}

fn nobody_listens(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// The living process that holds the lock beside the socket.
fn holder(socket: &Path) -> Option<String> {
    let pid = std::fs::read_to_string(socket.with_extension("lock")).ok()?.trim().to_owned();
    // The lock is tried only while its process lives, and never while the file is new and empty: a daemon that takes it at
    // that moment would find it taken.
    let held = !pid.is_empty() && Path::new("/proc").join(&pid).exists() && !is_unlocked(socket);
    held.then_some(pid)
}

fn explain(path: &Path, error: &io::Error) -> Failure {
    let at = path.display();
    if let Some(pid) = holder(path).filter(|_| nobody_listens(error)) {
        return Failure::runtime(format!(
            "the ferrule daemon (process {pid}) is starting, or ending, and does not listen on {at}; try again, and see its log"
        ));
    }
    Failure::runtime(match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
            "the ferrule daemon is not running (nothing listens on {at})\n\
             start it with: sudo ferrule run /etc/ferrule/gateway.toml   (or: sudo systemctl start ferrule)"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "you may not use the control socket {at}\n\
             become root, or join the group named in [control] of gateway.toml"
        ),
        _ => format!("cannot connect to the control socket {at}: {error}"),
    })
}
