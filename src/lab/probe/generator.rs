//! Packets per second through the router: a raw socket sends as fast as it may, and the far device counts what arrives.
#![forbid(unsafe_code)]

use super::counters;
use crate::lab::packet_socket::BATCH;
use crate::lab::{Host, LabError, bpf_object};
use std::time::{Duration, Instant};

/// What counts as received at the far end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// All frames that the device received; ARP and ND of the run's time are among them. For use with [`sink`].
    Frames,
    /// UDP datagrams that reached the host's stack, to an open port or a closed one: exact. Those to a closed port bring
    /// ICMP errors back through the router.
    Datagrams,
}

impl Count {
    pub(super) fn read(self, host: &Host, device: &str) -> Result<u64, LabError> {
        if self == Count::Frames {
            return Ok(counters::device(host, device)?.rx_packets);
        }
        let all = counters::protocols(host)?;
        let names = ["UdpNoPorts", "UdpInDatagrams", "Udp6NoPorts", "Udp6InDatagrams"];
        Ok(names.iter().filter_map(|name| all.get(*name)).sum())
    }
}

/// What was offered and what came through.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Throughput {
    /// Frames that the sender's kernel took.
    pub sent: u64,
    /// Frames that the sender's device dropped since the router's ring was full.
    pub dropped_at_sender: u64,
    /// What came through, see [`Count`].
    pub received: u64,
    /// How long the sender sent, seconds.
    pub seconds: f64,
}

impl Throughput {
    /// Frames that came through per second of sending.
    pub fn received_pps(&self) -> f64 {
        self.received as f64 / self.seconds
    }
}

/// Makes a device drop the UDP that it receives, in its driver and counted, so that the host is not the limit.
///
/// # Errors
/// [`LabError::Command`] when the kernel refuses the XDP program.
pub fn sink(host: &Host, device: &str) -> Result<(), LabError> {
    let file = host.scratch().join("sink.o");
    std::fs::write(&file, bpf_object::sink()).map_err(|e| LabError::io(format!("writing {}", file.display()), e))?;
    host.ip_batch(&format!("link set dev {device} xdpdrv object {} section xdp\n", file.display()))
}

/// Sends `frames` over and over for `time`, at most `rate` a second, from `from`'s device, and counts at `to`'s.
///
/// # Errors
/// [`LabError::Io`] when the kernel refuses a frame for another reason than a full device.
pub fn run(
    from: (&Host, &str),
    to: (&Host, &str),
    count: Count,
    frames: &[Vec<u8>],
    rate: Option<u64>,
    time: Duration,
) -> Result<Throughput, LabError> {
    if frames.is_empty() {
        return Err(LabError::Request("no frames to send".to_string()));
    }
    let socket = from.0.packet_socket(from.1)?;
    socket.bypass_queueing().map_err(|e| LabError::io("PACKET_QDISC_BYPASS", e))?;
    let before = (counters::device(from.0, from.1)?, count.read(to.0, to.1)?);
    // Whole batches, whatever the number of frames: the list is repeated until the last batch is full.
    let slots = frames.len().next_multiple_of(BATCH);
    let list: Vec<&[u8]> = frames.iter().cycle().take(slots.max(BATCH)).map(Vec::as_slice).collect();
    let start = Instant::now();
    let mut sent = 0;
    let mut batches = list.chunks(BATCH).cycle();
    while start.elapsed() < time {
        if rate.is_some_and(|rate| sent as f64 > start.elapsed().as_secs_f64() * rate as f64) {
            std::thread::yield_now();
            continue;
        }
        let batch = batches.next().expect("a cycle does not end");
        match socket.send_many(batch) {
            Ok(count) => sent += count as u64,
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EAGAIN)) => {}
            Err(error) => return Err(LabError::io(format!("sending on {}", from.1), error)),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let after = settle(to, count)?;
    let sender = counters::device(from.0, from.1)?;
    Ok(Throughput {
        sent,
        dropped_at_sender: sender.tx_dropped - before.0.tx_dropped,
        received: after - before.1,
        seconds,
    })
}

/// The far count once it stands still: what is in the router's rings still belongs to the run.
pub(super) fn settle((host, device): (&Host, &str), count: Count) -> Result<u64, LabError> {
    let mut last = count.read(host, device)?;
    let mut quiet_since = Instant::now();
    let deadline = Instant::now() + Duration::from_secs(5);
    while quiet_since.elapsed() < Duration::from_millis(100) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
        let now = count.read(host, device)?;
        if now != last {
            quiet_since = Instant::now();
        }
        last = now;
    }
    Ok(last)
}
