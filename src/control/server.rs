//! The daemon's side of the control socket: one thread accepts, one thread serves each client, all of it bounded.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::access::{Access, Policy};
use super::protocol::{CHANGE_MAX, Envelope, ErrorKind, PROTOCOL, REQUEST_MAX, ROWS_PER_LINE, Reply, Request};
use super::{Gateway, client};
use crate::failure::Failure;
use crate::log;

/// Until the helper of a daemon that was killed has put the box right.
const HELPER_PATIENCE: Duration = Duration::from_secs(10);

/// How the socket is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it is.
    pub path: PathBuf,
    /// Who may use it.
    pub policy: Policy,
    /// Clients at once; a quarter of them is kept for those who may change things.
    pub clients_max: usize,
    /// A client that asks nothing for so long is let go.
    pub idle: Duration,
    /// Longest request of a client that may change things, in bytes.
    pub change_max: usize,
    /// From the first byte of a request to its end, and for each answer line to be taken.
    pub patience: Duration,
}

impl Options {
    /// The usual limits.
    pub fn new(path: impl Into<PathBuf>, policy: Policy) -> Options {
        let (idle, patience) = (Duration::from_secs(600), Duration::from_secs(5));
        Options { path: path.into(), policy, clients_max: 32, idle, change_max: CHANGE_MAX, patience }
    }
}

/// The bound socket, before anyone is served: made while the daemon still may, and held for its life.
#[derive(Debug)]
pub struct Listener {
    options: Options,
    socket: UnixListener,
    file: SocketFile,
}

/// Our socket's file, removed when this is dropped: at the end, and after a start that failed.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: u64,
    /// Locked as long as this process lives; the kernel lets go of it after kill -9, too.
    lock: File,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Only our own file: somebody may have put another one there.
        if fs::symlink_metadata(&self.path).is_ok_and(|m| m.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    /// Makes the socket file. A file left by a process that is gone is replaced.
    ///
    /// # Errors
    /// [`Failure::Input`] when another daemon has it, naming its process; or when something else is at the path.
    pub fn bind(options: Options) -> Result<Listener, Failure> {
        let path = &options.path;
        let told =
            |what: &str, e: io::Error| Failure::runtime(format!("control socket {}: {what}: {e}", path.display()));
        if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty() && !d.exists()) {
            fs::create_dir_all(dir).map_err(|e| told("cannot make its directory", e))?;
        }
        let lock = lock(path)?;
        remove_stale(path)?;
        // Made under another name, so that nobody connects before owner and mode are right.
        let fresh = path.with_extension(format!("new.{}", std::process::id()));
        let _ = fs::remove_file(&fresh);
        let socket = UnixListener::bind(&fresh).map_err(|e| told("cannot make it", e))?;
        let publish = || -> io::Result<u64> {
            if let Some(gid) = options.policy.socket_gid() {
                std::os::unix::fs::chown(&fresh, None, Some(gid))?;
            }
            fs::set_permissions(&fresh, fs::Permissions::from_mode(options.policy.socket_mode()))?;
            fs::rename(&fresh, path)?;
            socket.set_nonblocking(true)?;
            Ok(fs::symlink_metadata(path)?.ino())
        };
        let inode = publish().map_err(|e| {
            let _ = fs::remove_file(&fresh);
            told("cannot set its owner and mode", e)
        })?;
        let file = SocketFile { path: path.clone(), inode, lock };
        Ok(Listener { options, socket, file })
    }

    /// The socket file and its inode.
    pub fn file(&self) -> (&Path, u64) {
        (&self.options.path, self.file.inode)
    }

    /// The lock that keeps another daemon from the socket: held by whoever has a descriptor of it.
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.file.lock.as_fd()
    }

    /// Begins to serve.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn serve(self, gateway: Arc<dyn Gateway>) -> Result<Server, Failure> {
        let (wake, woken) = UnixStream::pair().map_err(|e| Failure::runtime(format!("socketpair: {e}")))?;
        let shared = Arc::new(Shared {
            gateway,
            options: self.options.clone(),
            stopping: AtomicBool::new(false),
            clients: AtomicUsize::new(0),
            streams: Mutex::default(),
        });
        let (accepting, socket) = (shared.clone(), self.socket);
        let thread = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept_loop(&accepting, &socket, &woken))
            .map_err(|e| Failure::runtime(format!("cannot start the control thread: {e}")))?;
        Ok(Server { shared, wake, thread: Some(thread), _file: self.file })
    }
}

fn lock(path: &Path) -> Result<File, Failure> {
    let name = path.with_extension("lock");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o644).open(&name);
    let mut file = file.map_err(|e| Failure::runtime(format!("cannot open {}: {e}", name.display())))?;
    let deadline = Instant::now() + HELPER_PATIENCE;
    while rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut pid = String::new();
        let _ = file.rewind().and_then(|()| file.read_to_string(&mut pid));
        // A daemon that was killed has a helper, which holds the lock until it has put the box right.
        if is_alive(pid.trim()) || Instant::now() >= deadline {
            return Err(already_running(path, pid.trim()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let written = file.rewind().and_then(|()| file.set_len(0));
    let written = written.and_then(|()| file.write_all(format!("{}\n", std::process::id()).as_bytes()));
    written.map_err(|e| Failure::runtime(format!("cannot write {}: {e}", name.display())))?;
    Ok(file)
}

/// Whether there is such a process, and it has not ended (proc_pid_stat(5): Z, X). An unwritten number counts as one.
fn is_alive(pid: &str) -> bool {
    if pid.is_empty() {
        return true;
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !matches!(rest.trim_start().chars().next(), Some('Z' | 'X') | None))
}

fn already_running(path: &Path, pid: &str) -> Failure {
    let pid = if pid.is_empty() { "unknown" } else { pid };
    Failure::input(format!(
        "ferrule is already running: process {pid} has the control socket {}\n\
         end it with `ferrule stop`, or give this one another socket (--socket, [control] socket)",
        path.display()
    ))
}

fn remove_stale(path: &Path) -> Result<(), Failure> {
    let Ok(meta) = fs::symlink_metadata(path) else { return Ok(()) };
    if !meta.file_type().is_socket() {
        let text = format!("{} is in the way and is no socket: move it, or choose another path", path.display());
        return Err(Failure::input(text));
    }
    if let Ok(peer) = UnixStream::connect(path) {
        let pid = rustix::net::sockopt::socket_peercred(&peer).map(|c| c.pid.as_raw_nonzero().to_string());
        return Err(already_running(path, &pid.unwrap_or_default()));
    }
    fs::remove_file(path).map_err(|e| Failure::runtime(format!("cannot remove the stale {}: {e}", path.display())))
}

struct Shared {
    gateway: Arc<dyn Gateway>,
    options: Options,
    stopping: AtomicBool,
    clients: AtomicUsize,
    /// Streams of clients being served, so that shutdown can end them.
    streams: Mutex<HashMap<u64, UnixStream>>,
}

/// A running control server; dropped, it ends and removes its socket file.
pub struct Server {
    shared: Arc<Shared>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
    _file: SocketFile,
}

impl Server {
    /// Clients connected now.
    pub fn clients(&self) -> usize {
        self.shared.clients.load(Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Relaxed);
        let _ = (&self.wake).write_all(&[1]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for stream in self.shared.streams.lock().unwrap_or_else(|e| e.into_inner()).values() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn accept_loop(shared: &Arc<Shared>, socket: &UnixListener, woken: &UnixStream) {
    let mut serial = 0u64;
    while !shared.stopping.load(Relaxed) {
        let mut fds = [
            PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(woken.as_fd(), PollFlags::IN),
        ];
        let _ = rustix::event::poll(&mut fds, None);
        match socket.accept() {
            Ok((stream, _)) => {
                serial += 1;
                admit(shared, stream, serial);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock || e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => {
                // Out of descriptors: wait for clients to go, do not spin.
                log::once("control accept", format!("control socket: accept: {e}"));
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Lowers the count and forgets the stream when a client's thread ends, however it ends.
struct Seat {
    shared: Arc<Shared>,
    serial: u64,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.streams.lock().unwrap_or_else(|e| e.into_inner()).remove(&self.serial);
        self.shared.clients.fetch_sub(1, Relaxed);
    }
}

fn admit(shared: &Arc<Shared>, stream: UnixStream, serial: u64) {
    let options = &shared.options;
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_write_timeout(Some(options.patience));
    let refuse = |kind, text: String| {
        let _ = send(&stream, &Reply::Error { kind, text });
    };
    let Ok(peer) = rustix::net::sockopt::socket_peercred(&stream) else {
        return refuse(ErrorKind::Denied, "the kernel does not say who you are".into());
    };
    let access = options.policy.access(peer.uid.as_raw(), peer.gid.as_raw());
    if access == Access::None {
        let text = format!("uid {} is neither root nor in a group that may use this socket", peer.uid.as_raw());
        return refuse(ErrorKind::Denied, text);
    }
    let room = if access == Access::Write { options.clients_max } else { options.clients_max * 3 / 4 };
    if shared.clients.load(Relaxed) >= room {
        return refuse(ErrorKind::Busy, "too many clients on the control socket; try again".into());
    }
    shared.clients.fetch_add(1, Relaxed);
    let seat = Seat { shared: shared.clone(), serial };
    if let Ok(copy) = stream.try_clone() {
        shared.streams.lock().unwrap_or_else(|e| e.into_inner()).insert(serial, copy);
    }
    let spawned = std::thread::Builder::new().name("control-client".into()).spawn(move || {
        let seat = seat;
        client_loop(&seat.shared, &stream, access);
    });
    if let Err(e) = spawned {
        log::once("control thread", format!("control socket: cannot start a thread: {e}"));
    }
}

fn client_loop(shared: &Shared, stream: &UnixStream, access: Access) {
    let mut buffer = Vec::new();
    while !shared.stopping.load(Relaxed) {
        let longest = if access == Access::Write { shared.options.change_max } else { REQUEST_MAX };
        let line = match read_line(stream, &mut buffer, &shared.options, longest) {
            Ok(Some(line)) => line,
            Ok(None) => return,
            Err(text) => {
                let _ = send(stream, &Reply::Error { kind: ErrorKind::Protocol, text });
                return;
            }
        };
        if answer(shared, stream, access, &line).is_err() {
            return;
        }
    }
}

/// One line without its end; None when the client is gone or asked nothing for too long.
fn read_line(
    stream: &UnixStream,
    buffer: &mut Vec<u8>,
    options: &Options,
    longest: usize,
) -> Result<Option<Vec<u8>>, String> {
    let mut deadline = Instant::now() + if buffer.is_empty() { options.idle } else { options.patience };
    let mut looked_at = 0;
    loop {
        if let Some(end) = buffer[looked_at..].iter().position(|b| *b == b'\n').map(|at| looked_at + at) {
            let mut line: Vec<u8> = buffer.drain(..=end).collect();
            line.pop();
            return Ok(Some(line));
        }
        looked_at = buffer.len();
        if buffer.len() > longest {
            return Err(format!("a request is at most {longest} bytes"));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return if buffer.is_empty() { Ok(None) } else { Err("the request did not end in time".into()) };
        }
        let _ = stream.set_read_timeout(Some(left));
        let mut piece = [0; 16_384];
        match (&*stream).read(&mut piece) {
            Ok(0) => return Ok(None),
            Ok(n) => {
                if buffer.is_empty() {
                    deadline = Instant::now() + options.patience;
                }
                buffer.extend_from_slice(&piece[..n]);
            }
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                ) => {}
            Err(_) => return Ok(None),
        }
    }
}

fn send(mut stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn answer(shared: &Shared, stream: &UnixStream, access: Access, line: &[u8]) -> io::Result<()> {
    let request = match understand(line) {
        Ok(request) => request,
        Err(text) => return send(stream, &Reply::Error { kind: ErrorKind::Protocol, text }),
    };
    if request.writes() && access != Access::Write {
        let text = "the read-only group may ask, not change; become root or join the write group".to_owned();
        return send(stream, &Reply::Error { kind: ErrorKind::Denied, text });
    }
    let gateway = &*shared.gateway;
    let done = |result: Result<String, Failure>| match result {
        Ok(text) => Reply::Done { text },
        Err(Failure::Input(text)) => Reply::Error { kind: ErrorKind::Input, text },
        Err(failure) => Reply::Error { kind: ErrorKind::Failed, text: failure.to_string() },
    };
    let reply = match request {
        Request::Snapshot => Reply::Snapshot { snapshot: Box::new(gateway.snapshot()) },
        Request::Routes(query) => {
            let mut rows = gateway.routes(&query);
            rows.truncate(query.limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX)));
            return send_rows(stream, rows, |rows, more| Reply::Routes { rows, more });
        }
        Request::Neighbors => {
            return send_rows(stream, gateway.neighbors(), |rows, more| Reply::Neighbors { rows, more });
        }
        Request::Doctor => Reply::Doctor { findings: gateway.doctor() },
        Request::Ipfw { call, json } => match gateway.ipfw(&call, json) {
            Ok((reply, rows)) => Reply::Ipfw { reply, rows },
            Err(failure) => done(Err(failure)),
        },
        Request::Reload { path } => done(gateway.reload(path.as_deref())),
        Request::Apply { path, confirm_s } => done(gateway.apply(&path, confirm_s.map(Duration::from_secs))),
        Request::Confirm => done(gateway.confirm()),
        Request::Stop => {
            gateway.stop();
            Reply::Done { text: "stopping".into() }
        }
    };
    send(stream, &reply)
}

fn understand(line: &[u8]) -> Result<Request, String> {
    let value: serde_json::Value = serde_json::from_slice(line).map_err(|e| format!("not JSON: {e}"))?;
    // The version is looked at first: a newer client's words need not be known here.
    match value.get("version").and_then(serde_json::Value::as_u64) {
        Some(v) if v == u64::from(PROTOCOL) => {}
        Some(v) => {
            return Err(format!("this daemon speaks version {PROTOCOL} of the protocol, not {v}: {}", client::UPDATE));
        }
        None => return Err(format!("a request is {{\"version\":{PROTOCOL},\"request\":{{\"ask\":...}}}}")),
    }
    serde_json::from_value::<Envelope>(value).map(|e| e.request).map_err(|e| format!("no such request: {e}"))
}

fn send_rows<T>(stream: &UnixStream, rows: Vec<T>, reply: impl Fn(Vec<T>, bool) -> Reply) -> io::Result<()> {
    let mut rows = rows.into_iter().peekable();
    loop {
        let part: Vec<T> = rows.by_ref().take(ROWS_PER_LINE).collect();
        let more = rows.peek().is_some();
        send(stream, &reply(part, more))?;
        if !more {
            return Ok(());
        }
    }
}
