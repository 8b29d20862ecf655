#![forbid(unsafe_code)]
//! What must hold between keys and blocks: both places are shown.

mod addresses;
mod ports;
mod routes;

use super::parse::Doubts;
use super::{Gateway, OnExit};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::span::Span;
use std::collections::HashMap;

/// Checks the whole; what leans on something that was not understood is left out.
pub(super) fn check(gateway: &Gateway, doubts: Doubts, diagnostics: &mut Diagnostics) {
    engine(gateway, doubts, diagnostics);
    ports::check(gateway, doubts, diagnostics);
    addresses::check(gateway, doubts, diagnostics);
    routes::check(gateway, doubts, diagnostics);
}

fn engine(gateway: &Gateway, doubts: Doubts, diagnostics: &mut Diagnostics) {
    let engine = &gateway.engine;
    let mut seen: HashMap<u16, Span> = HashMap::new();
    for core in &engine.cores {
        if let Some(first) = seen.insert(core.value, core.span) {
            let error = Diagnostic::error(core.span, format!("core {core} has a worker already"))
                .label(first, "first given here")
                .hint("each worker polls on a core of its own");
            diagnostics.push(error);
        }
    }
    if let (Some(workers), [first, .., last] | [first @ last]) = (engine.workers, engine.cores.as_slice())
        && usize::from(workers.value) != engine.cores.len()
    {
        let cores = match engine.cores.len() {
            1 => "1 core".to_owned(),
            count => format!("{count} cores"),
        };
        let workers_text = if workers.value == 1 { "1 worker".to_owned() } else { format!("{workers} workers") };
        let error = Diagnostic::error(first.span.to(last.span), format!("{cores} for {workers_text}"))
            .label(workers.span, "the number of workers is set here")
            .hint("give each worker one core, or leave `workers` out");
        diagnostics.push(error);
    }
    if engine.on_exit.value == OnExit::Kernel && gateway.is_standalone() && !doubts.mode {
        let error = Diagnostic::error(
            engine.on_exit.span,
            "on_exit = \"kernel\" gives the traffic to a host that is switched off",
        );
        diagnostics.push(with_host(error, gateway).hint("use on_exit = \"closed\", or enable the host"));
    }
}

/// Shows where the mode was chosen, if it was.
fn with_host(diagnostic: Diagnostic, gateway: &Gateway) -> Diagnostic {
    let span = gateway.host.enabled.span;
    match gateway.is_standalone() {
        _ if span == Span::default() => diagnostic,
        true => diagnostic.label(span, "the host is switched off here"),
        false => diagnostic.label(span, "the host is in use"),
    }
}
