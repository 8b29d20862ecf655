//! Packets per second through the router, offered by the kernel itself: far more than a socket can send, at a chosen rate.
#![forbid(unsafe_code)]

use super::counters;
use super::generator::{Count, Throughput, settle};
use crate::lab::{Host, LabError};
use ferrule_dataplane::port::xdp::device::Device;
use ferrule_dataplane::port::xdp::live::LiveFrames;
use std::time::{Duration, Instant};

/// Frames given to the kernel at once. Fewer cost more for the call, more come in bursts that fill the router's ring.
const BURST: u64 = 64;

/// One kind of frame to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// Its bytes, from the destination MAC on.
    pub frame: &'a [u8],
    /// How many a second; `None`: as many as the kernel sends.
    pub rate: Option<u64>,
}

/// Sends every offer at its rate for `time` from `from`'s device, on `core` if one is given, and counts what arrives at `to`'s. The
/// router's port facing `from` must run a native XDP program or have GRO on: a veth takes redirected frames only then.
///
/// # Errors
/// [`LabError::Io`] when the kernel has no live frames (before 5.18) or refuses one.
pub fn run(
    from: (&Host, &str),
    to: (&Host, &str),
    offers: &[Offer<'_>],
    core: Option<usize>,
    time: Duration,
) -> Result<Throughput, LabError> {
    let before = (counters::device(from.0, from.1)?, Count::Frames.read(to.0, to.1)?);
    let sending = from.0.enter(|| {
        if let Some(id) = core
            && !core_affinity::set_for_current(core_affinity::CoreId { id })
        {
            return Err(std::io::Error::other(format!("cannot run on core {id}")));
        }
        send(from.1, offers, time)
    })?;
    let (sent, seconds) = sending.map_err(|e| LabError::io(format!("sending live frames on {}", from.1), e))?;
    let after = settle(to, Count::Frames)?;
    let dropped = counters::device(from.0, from.1)?.tx_dropped - before.0.tx_dropped;
    Ok(Throughput { sent, dropped_at_sender: dropped, received: after - before.1, seconds })
}

fn send(device: &str, offers: &[Offer<'_>], time: Duration) -> std::io::Result<(u64, f64)> {
    let frames = LiveFrames::to(&Device::by_name(device)?)?;
    let mut sent = vec![0_u64; offers.len()];
    let start = Instant::now();
    loop {
        let elapsed = start.elapsed();
        if elapsed >= time {
            return Ok((sent.iter().sum(), elapsed.as_secs_f64()));
        }
        for (offer, sent) in offers.iter().zip(&mut sent) {
            let should = |rate: u64| (elapsed.as_secs_f64() * rate as f64) as u64;
            let due = offer.rate.map_or(BURST, |rate| should(rate).saturating_sub(*sent));
            if due > 0 {
                let count = due.min(BURST);
                frames.send(offer.frame, count as u32)?;
                *sent += count;
            }
        }
        std::hint::spin_loop();
    }
}
