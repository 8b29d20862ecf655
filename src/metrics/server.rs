//! A small HTTP server for `/metrics`: GET only, loopback only, a thread for each of a few clients, everything bounded. Off unless configured.

#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::render;
use crate::control::Gateway;
use crate::failure::Failure;
use crate::log;

/// Longest request head.
const HEAD_MAX: usize = 8 * 1024;
/// Between two looks whether a place is free.
const FULL: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// Time for a client to send its request and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Clients at once: a silent one costs its own place for [`PATIENCE`], not the others' time. More wait to be accepted.
const CLIENTS_MAX: usize = 8;

/// The bound listener, made before privileges are dropped.
#[derive(Debug)]
pub struct MetricsListener {
    socket: TcpListener,
}

impl MetricsListener {
    /// Binds.
    ///
    /// # Errors
    /// [`Failure::Input`] for an address that is not loopback, or that is taken.
    pub fn bind(address: SocketAddr) -> Result<MetricsListener, Failure> {
        if !address.ip().is_loopback() {
            return Err(Failure::input(format!(
                "metrics: {address} is not a loopback address; use 127.0.0.1:{0} or [::1]:{0} and a proxy that asks who it is",
                address.port()
            )));
        }
        let socket = TcpListener::bind(address)
            .map_err(|e| Failure::input(format!("metrics: cannot listen on {address}: {e}; choose another port")))?;
        socket.set_nonblocking(true).map_err(|e| Failure::runtime(format!("metrics: {e}")))?;
        Ok(MetricsListener { socket })
    }

    /// Where it listens (of use with port 0).
    pub fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    /// Begins to serve.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn serve(self, gateway: Arc<dyn Gateway>) -> Result<MetricsServer, Failure> {
        let (end, ended) = UnixStream::pair().map_err(|e| Failure::runtime(format!("socketpair: {e}")))?;
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || accept_loop(&self.socket, &ended, &gateway))
            .map_err(|e| Failure::runtime(format!("cannot start the metrics thread: {e}")))?;
        Ok(MetricsServer { end: Some(end), thread: Some(thread) })
    }
}

/// A running server; ends when dropped.
#[derive(Debug)]
pub struct MetricsServer {
    /// Closed to end the thread.
    end: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept_loop(socket: &TcpListener, ended: &UnixStream, gateway: &Arc<dyn Gateway>) {
    let mut clients: Vec<JoinHandle<()>> = Vec::new();
    loop {
        clients.retain(|client| !client.is_finished());
        if clients.len() >= CLIENTS_MAX {
            // Some place is free again within their patience; the end is looked for meanwhile.
            let mut fds = [PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN)];
            let _ = rustix::event::poll(&mut fds, Some(&FULL));
            if !fds[0].revents().is_empty() {
                return;
            }
            continue;
        }
        let mut fds = [
            PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(ended.as_fd(), PollFlags::IN),
        ];
        let _ = rustix::event::poll(&mut fds, None);
        if !fds[1].revents().is_empty() {
            return;
        }
        match socket.accept() {
            Ok((stream, _)) => {
                let gateway = gateway.clone();
                // A client that misbehaves is its own loss.
                let client = move || drop(serve(stream, &*gateway));
                match std::thread::Builder::new().name("metrics-client".into()).spawn(client) {
                    Ok(client) => clients.push(client),
                    Err(e) => log::once("metrics thread", format!("metrics: cannot start a thread: {e}")),
                }
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(e) => {
                log::once("metrics accept", format!("metrics: accept: {e}"));
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn serve(mut stream: TcpStream, gateway: &dyn Gateway) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let answer = match read_head(&mut stream)? {
        Some(head) => respond(&head, gateway),
        None => reply("400 Bad Request", "text/plain", "no request\n"),
    };
    stream.write_all(answer.as_bytes())
}

fn read_head(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let (deadline, mut head) = (Instant::now() + PATIENCE, Vec::new());
    while !head.windows(4).any(|w| w == b"\r\n\r\n") && !head.windows(2).any(|w| w == b"\n\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > HEAD_MAX {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left))?;
        let mut piece = [0; 1024];
        match stream.read(&mut piece)? {
            0 => return Ok(None),
            n => head.extend_from_slice(&piece[..n]),
        }
    }
    Ok(String::from_utf8(head).ok())
}

fn respond(head: &str, gateway: &dyn Gateway) -> String {
    let mut words = head.lines().next().unwrap_or("").split_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = target.split('?').next().unwrap_or("");
    match (method, path) {
        ("GET", "/metrics") => {
            reply("200 OK", "text/plain; version=0.0.4; charset=utf-8", &render(&gateway.snapshot()))
        }
        ("GET", "/") => reply("200 OK", "text/plain", "ferrule: see /metrics\n"),
        ("GET", _) => reply("404 Not Found", "text/plain", "only /metrics is here\n"),
        _ => reply("405 Method Not Allowed", "text/plain", "only GET\n"),
    }
}

fn reply(status: &str, kind: &str, body: &str) -> String {
    let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::RouteQuery;
    use crate::snapshot::{Finding, NeighborRow, RouteRow, Snapshot, sample};
    use std::path::Path;

    struct Fake;

    impl Gateway for Fake {
        fn snapshot(&self) -> Snapshot {
            sample::snapshot()
        }
        fn routes(&self, _: &RouteQuery) -> Vec<RouteRow> {
            Vec::new()
        }
        fn neighbors(&self) -> Vec<NeighborRow> {
            Vec::new()
        }
        fn doctor(&self) -> Vec<Finding> {
            Vec::new()
        }
        fn reload(&self, _: Option<&Path>) -> Result<String, Failure> {
            Err(Failure::runtime("fake"))
        }
        fn apply(&self, _: &Path, _: Option<Duration>) -> Result<String, Failure> {
            Err(Failure::runtime("fake"))
        }
        fn confirm(&self) -> Result<String, Failure> {
            Err(Failure::runtime("fake"))
        }
        fn ipfw(
            &self,
            _: &crate::ipfw::call::Call,
            _: bool,
        ) -> Result<(crate::ipfw::call::Reply, Option<serde_json::Value>), Failure> {
            Err(Failure::runtime("fake"))
        }
        fn stop(&self) {}
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn metrics_are_served_and_nothing_else() {
        let listener = MetricsListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address().unwrap();
        let server = listener.serve(Arc::new(Fake)).unwrap();
        let text = ask(address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("version=0.0.4"), "{head}");
        assert_eq!(body, render(&sample::snapshot()));
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        assert!(ask(address, "GET /etc/passwd HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        // Clients that say nothing only cost their time: more of them than served at once would take two patiences in turn.
        let silent: Vec<TcpStream> = (0..CLIENTS_MAX - 1).map(|_| TcpStream::connect(address).unwrap()).collect();
        let start = Instant::now();
        assert!(ask(address, "GET / HTTP/1.0\n\n").starts_with("HTTP/1.1 200"));
        assert!(start.elapsed() < PATIENCE, "the silent ones delayed it for {:?}", start.elapsed());
        drop((silent, server));
        assert!(TcpStream::connect(address).is_err(), "the port is free again");
    }

    #[test]
    fn other_addresses_are_refused() {
        for address in ["0.0.0.0:9100", "192.0.2.1:9100", "[::]:9100", "[2001:db8::1]:9100"] {
            let Err(Failure::Input(text)) = MetricsListener::bind(address.parse().unwrap()) else {
                panic!("{address}")
            };
            assert!(text.contains("loopback"), "{text}");
        }
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let Err(Failure::Input(text)) = MetricsListener::bind(taken.local_addr().unwrap()) else {
            panic!("bound twice")
        };
        assert!(text.contains("cannot listen"), "{text}");
    }
}
