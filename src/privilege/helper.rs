//! The privileged helper: a child that stays root when the daemon no longer is, and does the few things it knows on request:
//! re-opening a port, restoring a setting. Descriptors come back over the socket (SCM_RIGHTS, unix(7)).
//!
//! It is started before anything is open, as `ferrule helper` with its end of a socket pair as standard input. When the daemon
//! is gone, however it went, the socket ends, and the helper puts the box right ([`Actions::daemon_gone`]) and ends, too.

#![forbid(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;

/// Longest message in bytes.
const MESSAGE_MAX: usize = 64 * 1024;
/// Most descriptors in a message: the kernel's own limit (SCM_MAX_FD, unix(7)).
const DESCRIPTORS_MAX: usize = 253;
/// How long the daemon waits for the helper.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    action: String,
    arguments: Value,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Answer {
    Done(Value),
    Failed(String),
}

/// What the helper does. It trusts nothing in the arguments: the daemon may have been taken over.
pub trait Actions {
    /// Does it; returns the result and descriptors to hand over.
    ///
    /// # Errors
    /// Why not, for the daemon's log.
    fn call(
        &mut self,
        action: &str,
        arguments: &Value,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(Value, Vec<OwnedFd>), String>;

    /// The daemon ended: restore what it did not.
    fn daemon_gone(&mut self);
}

/// The daemon's side.
pub struct Helper {
    socket: Mutex<OwnedFd>,
    child: Mutex<Child>,
    /// An answer was given up on: the next one read would be that one, so nothing is asked any more.
    broken: AtomicBool,
}

fn told<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> Failure {
    move |e| Failure::runtime(format!("privileged helper: {what}: {e}"))
}

/// Waits until there is something to read, whatever signals come meanwhile; false when the time is up.
fn wait(socket: &OwnedFd, patience: Duration) -> rustix::io::Result<bool> {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other? > 0),
        }
    }
}

impl Helper {
    /// Starts `program helper`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(program: &Path) -> Result<Helper, Failure> {
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.map_err(told("socketpair"))?;
        // A group of its own: Ctrl-C is for the daemon, which the helper outlives.
        let child = Command::new(program)
            .arg("helper")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(told("cannot start it"))?;
        Ok(Helper { socket: Mutex::new(ours), child: Mutex::new(child), broken: AtomicBool::new(false) })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap_or_else(|e| e.into_inner()).id()
    }

    /// Asks for an action and waits for the answer.
    ///
    /// # Errors
    /// When the helper refuses, does not answer, or is gone.
    pub fn call(
        &self,
        action: &str,
        arguments: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Value, Vec<OwnedFd>), Failure> {
        self.call_within(PATIENCE, action, arguments, descriptors)
    }

    /// As [`Helper::call`], for what takes its time.
    ///
    /// # Errors
    /// As [`Helper::call`].
    pub fn call_within(
        &self,
        patience: Duration,
        action: &str,
        arguments: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Value, Vec<OwnedFd>), Failure> {
        let arguments = serde_json::to_value(arguments).map_err(told("arguments"))?;
        let message = serde_json::to_vec(&Call { action: action.to_owned(), arguments }).map_err(told("arguments"))?;
        // One call at a time: held over the answer, so that answers are not mixed up.
        let socket = self.socket.lock().unwrap_or_else(|e| e.into_inner());
        if self.broken.load(Ordering::Acquire) {
            return Err(Failure::runtime("privileged helper: an earlier answer never came; restart the daemon"));
        }
        send(socket.as_fd(), &message, descriptors).map_err(told("cannot ask"))?;
        if !wait(&socket, patience).map_err(told("poll"))? {
            self.broken.store(true, Ordering::Release);
            return Err(Failure::runtime(format!(
                "privileged helper: no answer to `{action}` in {} s",
                patience.as_secs()
            )));
        }
        match receive(socket.as_fd()).map_err(told("cannot read its answer"))? {
            Some((bytes, descriptors)) => match serde_json::from_slice(&bytes).map_err(told("answer"))? {
                Answer::Done(value) => Ok((value, descriptors)),
                Answer::Failed(text) => Err(Failure::runtime(format!("privileged helper: {action}: {text}"))),
            },
            None => Err(Failure::runtime("privileged helper: it is gone; restart the daemon")),
        }
    }

    /// Lets the helper go and waits until it has put the box right; at most so long.
    ///
    /// # Errors
    /// When it does not end.
    pub fn finish(self, patience: Duration) -> Result<(), Failure> {
        drop(self.socket);
        let mut child = self.child.into_inner().unwrap_or_else(|e| e.into_inner());
        let deadline = std::time::Instant::now() + patience;
        loop {
            if child.try_wait().map_err(told("wait"))?.is_some() {
                return Ok(());
            }
            if std::time::Instant::now() > deadline {
                return Err(Failure::runtime("privileged helper: it does not end"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The helper's side: answers until the daemon is gone.
///
/// # Errors
/// When standard input is no such socket.
pub fn serve_stdin(actions: &mut dyn Actions) -> Result<(), Failure> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(told("standard input"))?;
    if rustix::net::sockopt::socket_type(&socket) != Ok(SocketType::SEQPACKET) {
        return Err(Failure::input("`ferrule helper` is started by the daemon, not by hand"));
    }
    // Outlives the daemon to restore: what ends the daemon must not end it.
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, ignored.clone()).map_err(told("signals"))?;
    }
    serve(socket.as_fd(), actions)
}

/// As [`serve_stdin`] over any such socket.
///
/// # Errors
/// When the socket fails.
pub fn serve(socket: BorrowedFd<'_>, actions: &mut dyn Actions) -> Result<(), Failure> {
    let result = loop {
        let (bytes, descriptors) = match receive(socket) {
            Ok(Some(message)) => message,
            Ok(None) => break Ok(()),
            Err(e) => break Err(told("socket")(e)),
        };
        let outcome = match serde_json::from_slice::<Call>(&bytes) {
            Ok(call) => actions.call(&call.action, &call.arguments, descriptors),
            Err(e) => Err(format!("no call: {e}")),
        };
        let (answer, descriptors) = match outcome {
            Ok((value, descriptors)) => (Answer::Done(value), descriptors),
            Err(text) => (Answer::Failed(text), Vec::new()),
        };
        let Ok(bytes) = serde_json::to_vec(&answer) else { continue };
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        if send(socket, &bytes, &borrowed).is_err() {
            break Ok(());
        }
    };
    actions.daemon_gone();
    result
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    if bytes.len() > MESSAGE_MAX || descriptors.len() > DESCRIPTORS_MAX {
        return Err(rustix::io::Errno::MSGSIZE);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(rustix::io::Errno::MSGSIZE);
    }
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).map(|_| ())
    })
}

/// A message and its descriptors; None at the end.
fn receive(socket: BorrowedFd<'_>) -> rustix::io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let message = match message {
        Ok(message) => message,
        Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = part {
            descriptors.extend(fds);
        }
    }
    if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(rustix::io::Errno::MSGSIZE);
    }
    if message.bytes == 0 {
        return Ok(None);
    }
    bytes.truncate(message.bytes);
    Ok(Some((bytes, descriptors)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    #[derive(Default)]
    struct Fake {
        calls: Vec<String>,
        gone: bool,
    }

    impl Actions for Fake {
        fn call(
            &mut self,
            action: &str,
            arguments: &Value,
            fds: Vec<OwnedFd>,
        ) -> Result<(Value, Vec<OwnedFd>), String> {
            self.calls.push(format!("{action} {arguments} {}", fds.len()));
            match action {
                "open" => {
                    let path = arguments["path"].as_str().ok_or("no path")?;
                    let file = File::open(path).map_err(|e| e.to_string())?;
                    Ok((Value::from("opened"), vec![file.into()]))
                }
                "write" => {
                    let mut file = File::from(fds.into_iter().next().ok_or("no descriptor")?);
                    file.write_all(b"from the helper").map_err(|e| e.to_string())?;
                    Ok((Value::Null, Vec::new()))
                }
                other => Err(format!("unknown action {other}")),
            }
        }

        fn daemon_gone(&mut self) {
            self.gone = true;
        }
    }

    fn helper() -> (Helper, std::thread::JoinHandle<Fake>) {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let thread = std::thread::spawn(move || {
            let mut fake = Fake::default();
            serve(theirs.as_fd(), &mut fake).unwrap();
            fake
        });
        let child = Command::new("true").spawn().unwrap();
        (Helper { socket: Mutex::new(ours), child: Mutex::new(child), broken: AtomicBool::new(false) }, thread)
    }

    #[test]
    fn descriptors_go_both_ways_and_the_end_is_noticed() {
        let path = std::env::temp_dir().join(format!("ferrule-helper-{}", std::process::id()));
        std::fs::write(&path, "hello").unwrap();
        let (helper, thread) = helper();
        let (value, fds) = helper.call("open", &serde_json::json!({ "path": path }), &[]).unwrap();
        assert_eq!((value.as_str(), fds.len()), (Some("opened"), 1));
        let mut text = String::new();
        File::from(fds.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");

        let mut file = File::options().read(true).write(true).truncate(true).open(&path).unwrap();
        helper.call("write", &Value::Null, &[file.as_fd()]).unwrap();
        file.rewind().unwrap();
        text.clear();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "from the helper");

        let Err(Failure::Runtime(text)) = helper.call("format", &Value::Null, &[]) else { panic!("did it") };
        assert!(text.contains("unknown action format"), "{text}");
        helper.finish(Duration::from_secs(10)).unwrap();
        let fake = thread.join().unwrap();
        assert!(fake.gone);
        assert_eq!(fake.calls.len(), 3);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn messages_are_bounded() {
        let (helper, thread) = helper();
        let Err(Failure::Runtime(text)) = helper.call("open", &"x".repeat(MESSAGE_MAX), &[]) else { panic!("sent") };
        assert!(text.contains("cannot ask"), "{text}");
        helper.finish(Duration::from_secs(10)).unwrap();
        assert!(thread.join().unwrap().calls.is_empty());
    }
}
