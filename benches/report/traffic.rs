//! The load in the lab: smallest UDP frames from A through B to C, made by A's kernel on one core while B's router has the other.

#![forbid(unsafe_code)]

use std::time::Duration;

use ferrule::compare::flows::write_frame;
use ferrule::lab::probe::generator::Throughput;
use ferrule::lab::probe::live::{self, Offer};
use ferrule::lab::{Background, Lab, LabError, wait_until};
use ferrule_dataplane::arena::HEADER_WINDOW;
use ferrule_dataplane::fib::MacAddress;
use std::net::IpAddr;

use crate::bench::Bench;

/// Packets a second that are offered in turn; a router counts by the best that it makes of them, since too much load costs some of
/// them more than it brings.
const LOADS: [Option<u64>; 5] = [Some(800_000), Some(1_200_000), Some(1_600_000), Some(2_400_000), None];

/// The router's port and the device of the end hosts, on each side.
pub const CLIENT: (&str, &str) = ("a", "ab0");
/// The server's side.
pub const SERVER: (&str, &str) = ("c", "cb0");

/// A frame that A sends to B's port, addressed to `destination`.
pub fn frame(lab: &Lab, destination: IpAddr) -> Vec<u8> {
    let mut bytes = [0; HEADER_WINDOW];
    let (to, from) = (MacAddress(lab.mac("b", "ba0")), MacAddress(lab.mac(CLIENT.0, CLIENT.1)));
    let len = write_frame(&mut bytes, to, from, (lab.v4("a").into(), destination));
    bytes[..len].to_vec()
}

/// What the far device receives of these offers.
///
/// # Errors
/// When the kernel has no live frames.
pub fn offer(bench: &Bench, lab: &Lab, offers: &[Offer<'_>]) -> Result<Throughput, LabError> {
    let time = Duration::from_millis(bench.size(500, 100) as u64);
    let (from, to) = (lab.host(CLIENT.0)?, lab.host(SERVER.0)?);
    live::run((&from, CLIENT.1), (&to, SERVER.1), offers, bench.other, time)
}

/// The best rate at which frames reach C, packets a second.
///
/// # Errors
/// As [`offer`].
pub fn best(bench: &Bench, lab: &Lab) -> Result<f64, LabError> {
    let frame = frame(lab, lab.v4("c").into());
    let mut best = 0.0_f64;
    for rate in LOADS {
        best = best.max(offer(bench, lab, &[Offer { frame: &frame, rate }])?.received_pps());
    }
    Ok(best)
}

/// Waits until frames come through, for routers that do not say when they are ready.
///
/// # Errors
/// [`LabError::NotReached`], or the router's log where it ended.
pub fn wait_through(lab: &Lab, router: &mut Background) -> Result<(), LabError> {
    let frame = frame(lab, lab.v4("c").into());
    let (from, to) = (lab.host(CLIENT.0)?, lab.host(SERVER.0)?);
    wait_until("frames through the router", Duration::from_secs(15), || {
        router.check()?;
        let few = [Offer { frame: &frame, rate: Some(20_000) }];
        let through = live::run((&from, CLIENT.1), (&to, SERVER.1), &few, None, Duration::from_millis(50))?;
        // ARP and the like may reach C by themselves; a stream of frames does not.
        Ok(if through.received > 100 { Ok(()) } else { Err(format!("{through:?}; log: {}", router.log())) })
    })
}
