#![forbid(unsafe_code)]
//! What is allowed and perhaps not meant. Worked out from the places kept in a [`Gateway`].

use super::port::{Driver, Port, XDP_JUMBO};
use super::{Gateway, Poll};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::span::Span;

/// Warnings and notes in the order of the file.
pub(super) fn notes(gateway: &Gateway) -> Vec<Diagnostic> {
    let mut notes = Diagnostics::new();
    if let [only] = gateway.ports.as_slice()
        && only.vlans.is_empty()
    {
        let warning =
            Diagnostic::warning(only.place.0, "a gateway with one port and no VLANs has nowhere to forward to");
        notes.push(warning.hint("add a second [[port]]"));
    }
    for port in &gateway.ports {
        queues(gateway, port, &mut notes);
        let jumbo = port.mtu.filter(|mtu| mtu.value > XDP_JUMBO);
        if let (Driver::Xdp { .. }, Some(mtu)) = (&port.driver.value, jumbo) {
            let warning =
                Diagnostic::warning(mtu.span, format!("driver \"xdp\" is made for an MTU of at most {XDP_JUMBO}"));
            notes.push(
                warning.label(port.driver.span, "the driver is set here").hint("driver = \"packet\" goes to 16114"),
            );
        }
        let clash = gateway.ports.iter().find(|other| {
            !std::ptr::eq(*other, port) && other.driver.device().is_some_and(|device| *device == port.name)
        });
        if let Some(other) = clash {
            let warning = Diagnostic::warning(
                port.name.span,
                format!("\"{}\" is the name of this port and the device of another", port.name),
            );
            let place = other.driver.device().map_or(other.place.0, |device| device.span);
            notes.push(
                warning.label(place, format!("the device of port \"{}\"", other.name)).hint("rules mean the name"),
            );
        }
    }
    if let (Poll::Busy, Some(workers), true) =
        (gateway.engine.poll.value, gateway.workers(), gateway.engine.cores.is_empty())
    {
        let plural = if workers == 1 { "worker" } else { "workers" };
        let note = Diagnostic::note(
            gateway.engine.poll.span,
            format!("poll = \"busy\" keeps the cores of {workers} {plural} fully used"),
        );
        notes.push(note.hint("choose them with cores = [..], away from the cores that serve the NICs' interrupts"));
    }
    notes.into_vec()
}

/// Queues are read by worker `queue mod workers`.
fn queues(gateway: &Gateway, port: &Port, notes: &mut Diagnostics) {
    let (Some(queues), Some(workers)) = (port.queues, gateway.workers()) else { return };
    let message = match queues.value.cmp(&workers) {
        std::cmp::Ordering::Equal => return,
        std::cmp::Ordering::Less => {
            format!("port \"{}\" has {queues} of {workers} workers busy: one for each queue", port.name)
        }
        std::cmp::Ordering::Greater => {
            format!("the {queues} queues of port \"{}\" are shared out among {workers} workers", port.name)
        }
    };
    let place = gateway.engine.workers.map(|workers| workers.span).or_else(|| Some(gateway.engine.cores.first()?.span));
    let note = Diagnostic::note(queues.span, message);
    notes.push(match place {
        Some(span) if span != Span::default() => note.label(span, "the workers are set here"),
        _ => note,
    });
}
