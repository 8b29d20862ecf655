//! Packets per second through the router, offered by the kernel itself: far more than a socket can send, at a chosen rate.
#![forbid(unsafe_code)]

use super::counters;
use super::generator::{Count, Throughput, settle};
use crate::lab::{Host, LabError};
use ferrule_dataplane::port::xdp::device::Device;
use ferrule_dataplane::port::xdp::live::{Kind, LiveFrames};
use std::time::Duration;

/// Frames of the run that tells how many the kernel makes in a second.
const TRIAL: u32 = 1 << 16;

/// One kind of frame to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// Its bytes, from the destination MAC on.
    pub frame: &'a [u8],
    /// How many a second; `None`: as many as the kernel sends.
    pub rate: Option<u64>,
}

/// Sends every offer at its rate for about `time` from `from`'s device, on `core` if one is given, and counts what arrives at `to`'s. All
/// frames are of one length. The router's port facing `from` must run a native XDP program or have GRO on: a veth takes
/// redirected frames only then.
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
    let seconds = sending.map_err(|e| LabError::io(format!("sending live frames on {}", from.1), e))?;
    let received = settle(to, Count::Frames)? - before.1;
    let after = counters::device(from.0, from.1)?;
    let sent = after.tx_packets - before.0.tx_packets;
    Ok(Throughput { sent, dropped_at_sender: after.tx_dropped - before.0.tx_dropped, received, seconds })
}

/// Sends for about `time`; the seconds that the kernel spent at it.
fn send(device: &str, offers: &[Offer<'_>], time: Duration) -> std::io::Result<f64> {
    let interval = |rate: Option<u64>| rate.map_or(0, |rate| (1_000_000_000 / rate.max(1)).clamp(1, 1 << 30) as u32);
    let kinds: Vec<Kind<'_>> =
        offers.iter().map(|offer| Kind { frame: offer.frame, interval: interval(offer.rate) }).collect();
    let frames = LiveFrames::to(&Device::by_name(device)?, &kinds)?;
    let (mut spent, mut count) = (0.0, TRIAL);
    let mut speed = 0.0;
    // A trial, then one long run, and more only where the machine was slower in the trial than it is now.
    while spent < 0.9 * time.as_secs_f64() {
        let took = (frames.run(count)? as f64 / 1e9).max(1e-9);
        spent += took;
        speed = f64::max(speed, f64::from(count) / took);
        count = (speed * (time.as_secs_f64() - spent)).clamp(f64::from(TRIAL), f64::from(u32::MAX / 2)) as u32;
    }
    Ok(spent)
}
