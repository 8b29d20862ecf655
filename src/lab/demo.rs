//! The demonstration: a ping, a TCP transfer and an HTTP download through B, and which counters they moved.
//!
//! The transfers are plain sockets of ours in A and C, so that the demo needs no program but `ip` and `ping`.
#![forbid(unsafe_code)]

use super::error::LabError;
use super::host::Host;
use super::probe::counters;
use super::probe::ping::Ping;
use super::running::Lab;
use super::tools;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Counters to be shown moving, supplied by whoever supplies the router.
pub trait Counters {
    /// Name and value of each, in the order in which they are to be shown.
    fn snapshot(&self) -> Vec<(String, u64)>;
}

/// What the kernel of a host forwarded and its devices carried: for the kernel as the router.
#[derive(Debug, Clone)]
pub struct KernelCounters {
    host: Host,
    devices: Vec<String>,
}

impl KernelCounters {
    /// The counters of B.
    ///
    /// # Errors
    /// None in a lab that is up.
    pub fn new(lab: &Lab) -> Result<KernelCounters, LabError> {
        let devices = lab.ports().iter().map(|port| port.device.clone()).collect();
        Ok(KernelCounters { host: lab.host("b")?, devices })
    }
}

impl Counters for KernelCounters {
    fn snapshot(&self) -> Vec<(String, u64)> {
        let protocols = counters::protocols(&self.host).unwrap_or_default();
        let forwarded = ["IpForwDatagrams", "Ip6OutForwDatagrams"].into_iter();
        let mut all: Vec<(String, u64)> =
            forwarded.filter_map(|name| Some((name.to_string(), *protocols.get(name)?))).collect();
        for device in &self.devices {
            if let Ok(count) = counters::device(&self.host, device) {
                all.push((format!("{device} received"), count.rx_packets));
                all.push((format!("{device} transmitted"), count.tx_packets));
            }
        }
        all
    }
}

/// How much the download carries, bytes.
const DOWNLOAD: u64 = 64 << 20;
/// How long the TCP transfer sends.
const SENDING: Duration = Duration::from_secs(2);
/// The longest any one read, write or wait for a connection takes.
const STALL: Duration = Duration::from_secs(10);

/// Says what hosts and links the lab has.
pub(super) fn describe(lab: &Lab, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "lab {}:", lab.name())?;
    for address in &lab.plan().addresses {
        writeln!(out, "  {:<4} {:<5} {}", address.host, address.device, address.network)?;
    }
    for port in lab.ports() {
        let networks: Vec<String> = port.networks.iter().map(ToString::to_string).collect();
        writeln!(
            out,
            "  b    {:<5} {} (mtu {}, towards {})",
            port.device,
            networks.join(" "),
            port.mtu,
            port.neighbour
        )?;
    }
    Ok(())
}

/// Runs the three steps for each family.
pub(super) fn show(lab: &Lab, counters: &dyn Counters, out: &mut dyn Write) -> Result<(), LabError> {
    let written = |e| LabError::io("writing the demo", e);
    describe(lab, out).map_err(written)?;
    let mut targets: Vec<IpAddr> = vec![lab.v4("c").into()];
    if lab.plan().ipv6 {
        targets.push(lab.v6("c").into());
    }
    let (a, c) = (lab.host("a")?, lab.host("c")?);
    for to in targets {
        let steps: [(&str, &Step); 3] = [("ping", &ping), ("TCP", &transfer), ("HTTP", &download)];
        for (name, step) in steps {
            let before = counters.snapshot();
            let said = step(&a, &c, to)?;
            writeln!(out, "{name:<4} a -> {to}: {said}").map_err(written)?;
            for (counter, difference) in moved(&before, &counters.snapshot()) {
                writeln!(out, "       {counter:<24} +{difference}").map_err(written)?;
            }
        }
    }
    Ok(())
}

/// One step of the demo: from a host, to a host, at its address; says how it went.
type Step = dyn Fn(&Host, &Host, IpAddr) -> Result<String, LabError>;

/// The counters that grew, by how much, in the order of the later snapshot.
fn moved(before: &[(String, u64)], after: &[(String, u64)]) -> Vec<(String, u64)> {
    let old = |name: &str| before.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value);
    let grown = after.iter().map(|(name, value)| (name.clone(), value.saturating_sub(old(name))));
    grown.filter(|(_, difference)| *difference > 0).collect()
}

fn ping(a: &Host, _c: &Host, to: IpAddr) -> Result<String, LabError> {
    if let Err(missing) = tools::find("ping") {
        return Ok(format!("skipped: {missing}"));
    }
    let report = Ping::new(to).run(a)?;
    if report.received == 0 {
        return Err(LabError::Request(format!("no reply to ping from {to}: {report:?}")));
    }
    let average = report.round_trip_ms.map_or(0.0, |times| times[1]);
    Ok(format!("{} of {} replies, {average:.3} ms on average", report.received, report.transmitted))
}

fn transfer(a: &Host, c: &Host, to: IpAddr) -> Result<String, LabError> {
    let address = SocketAddr::new(to, 5001);
    let receive = |mut stream: TcpStream| {
        let mut buffer = vec![0; 1 << 18];
        let mut bytes = 0_u64;
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(bytes),
                length => bytes += length as u64,
            }
        }
    };
    let send = |mut stream: TcpStream| {
        let start = Instant::now();
        let block = vec![0x5a; 1 << 18];
        let mut bytes = 0_u64;
        while start.elapsed() < SENDING {
            bytes += stream.write(&block)? as u64;
        }
        stream.shutdown(std::net::Shutdown::Write)?;
        Ok(bytes)
    };
    let start = Instant::now();
    let (received, sent) = converse(a, c, address, receive, send)?;
    if received != sent {
        return Err(LabError::Request(format!("{sent} bytes were sent to {to} and {received} arrived")));
    }
    let seconds = start.elapsed().as_secs_f64();
    let rate = received as f64 * 8.0 / seconds / 1e9;
    Ok(format!("{:.0} MB in {seconds:.1} s, {rate:.2} Gbit/s", received as f64 / 1e6))
}

fn download(a: &Host, c: &Host, from: IpAddr) -> Result<String, LabError> {
    let serve = |stream: TcpStream| {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            line.clear();
        }
        let mut stream = stream;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {DOWNLOAD}\r\nConnection: close\r\n\r\n")?;
        let mut content = Content::new();
        let mut sent = 0;
        while sent < DOWNLOAD {
            let block = content.block();
            stream.write_all(&block)?;
            sent += block.len() as u64;
        }
        Ok(sent)
    };
    let fetch = |mut stream: TcpStream| {
        write!(stream, "GET /file HTTP/1.1\r\nHost: c\r\nConnection: close\r\n\r\n")?;
        let mut reader = BufReader::with_capacity(1 << 18, stream);
        let mut status = String::new();
        reader.read_line(&mut status)?;
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            line.clear();
        }
        if !status.starts_with("HTTP/1.1 200 ") {
            return Err(io::Error::other(format!("the server answered {status:?}")));
        }
        let mut content = Content::new();
        let mut received = 0;
        let mut block = vec![0; Content::BLOCK];
        while received < DOWNLOAD {
            reader.read_exact(&mut block)?;
            if block != content.block() {
                return Err(io::Error::other(format!("the content differs after {received} bytes")));
            }
            received += block.len() as u64;
        }
        Ok(received)
    };
    let start = Instant::now();
    let (_, received) = converse(a, c, SocketAddr::new(from, 80), serve, fetch)?;
    let seconds = start.elapsed().as_secs_f64();
    let (megabytes, rate) = (received as f64 / 1e6, received as f64 / 1e6 / seconds);
    Ok(format!("{megabytes:.0} MB downloaded in {seconds:.1} s, {rate:.0} MB/s, content as it was sent"))
}

/// Listens in `c`, connects from `a`, and runs both sides at once; the results of the two.
fn converse<S: Send, T: Send>(
    a: &Host,
    c: &Host,
    address: SocketAddr,
    server: impl FnOnce(TcpStream) -> io::Result<S> + Send,
    client: impl FnOnce(TcpStream) -> io::Result<T> + Send,
) -> Result<(S, T), LabError> {
    let failed = |what: &str| {
        let what = format!("{what} {address}");
        move |error: io::Error| LabError::io(what, error)
    };
    let listener = c.enter(|| TcpListener::bind(address))?.map_err(failed("listening on"))?;
    let stream = a.connect(address, STALL)?;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| server(with_limits(accept(&listener)?)?));
        let done = with_limits(stream).and_then(client).map_err(failed("talking to"));
        let served = serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // The client's error first: it tells more than the server's, which follows from it.
        done.and_then(|done| Ok((served.map_err(failed("serving on"))?, done)))
    })
}

fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let limit = Timespec { tv_sec: STALL.as_secs() as i64, tv_nsec: 0 };
    match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&limit))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => listener.accept().map(|(stream, _)| stream),
    }
}

fn with_limits(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    Ok(stream)
}

/// The content of the download: each block differs from the others, so none can be lost, doubled or swapped unseen.
struct Content {
    number: u64,
}

impl Content {
    const BLOCK: usize = 1 << 16;

    fn new() -> Content {
        Content { number: 0 }
    }

    fn block(&mut self) -> Vec<u8> {
        self.number += 1;
        let number = self.number;
        // Each word is its block and place, spread over all bits by an odd factor (2^64 / golden ratio).
        let word = |at: u64| (number << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        (0..Self::BLOCK as u64 / 8).flat_map(word).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counters_that_grew_are_shown() {
        let snapshot = |values: &[(&str, u64)]| values.iter().map(|(n, v)| (n.to_string(), *v)).collect::<Vec<_>>();
        let before = snapshot(&[("received", 5), ("dropped", 1), ("restarted", 9)]);
        let after = snapshot(&[("received", 8), ("dropped", 1), ("restarted", 2), ("new", 4)]);
        assert_eq!(moved(&before, &after), snapshot(&[("received", 3), ("new", 4)]));
    }

    #[test]
    fn no_two_blocks_of_the_content_are_alike() {
        let mut content = Content::new();
        let (one, two) = (content.block(), content.block());
        assert!(one != two && one.len() == Content::BLOCK && DOWNLOAD.is_multiple_of(Content::BLOCK as u64));
    }
}
