//! Pipes, queues, schedulers and instances of NAT as the workers have them: what `show` shows beside the configuration.

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ferrule_config::ipfw::command::{Command, DummynetCommand, DummynetKind, NatCommand};
use ferrule_config::ipfw::document::RuleSet;
use ferrule_config::ipfw::names::builtin;
use ferrule_config::ipfw::show::shaper::{self, FlowRow, PipeRow, QueueRow, SchedulerRow};
use ferrule_filters::dummynet::FlowStatus;
use ferrule_filters::dummynet::mask::Addresses;
use ferrule_filters::ipfw::services::control::{ServiceError, ServiceStatus};
use serde::Serialize;
use serde_json::{Value, json};

use super::State;

/// How long workers may take to tell.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a command shows: text, and the same as data.
pub(super) struct Shown {
    pub text: String,
    pub rows: Value,
}

/// Whether a command shows what only workers know.
pub(super) fn is_live(command: &Command) -> bool {
    matches!(command, Command::Dummynet(_, DummynetCommand::Show(_)) | Command::Nat(NatCommand::ShowLog(_)))
}

impl State {
    /// What the command shows; None where it is none of those of [`is_live`].
    ///
    /// # Errors
    /// A worker does not tell.
    pub(super) fn show_services(&mut self, command: &Command) -> Result<Option<Shown>, ServiceError> {
        if !is_live(command) {
            return Ok(None);
        }
        let set = self.set.rule_set();
        let has_some = !(set.pipes.is_empty() && set.queues.is_empty() && set.schedulers.is_empty());
        let told = if has_some || !set.nats.is_empty() {
            self.services.ask(false)?;
            self.services.answers(PATIENCE)?
        } else {
            ServiceStatus::default()
        };
        Ok(match command {
            Command::Dummynet(kind, DummynetCommand::Show(ranges)) => Some(shapers(&set, &told, *kind, ranges)),
            Command::Nat(NatCommand::ShowLog(one)) => Some(nats(&told, one.as_deref())),
            _ => None,
        })
    }
}

fn shapers(set: &RuleSet, told: &ServiceStatus, kind: DummynetKind, ranges: &[(u32, u32)]) -> Shown {
    let wanted =
        |number: &&u32| ranges.is_empty() || ranges.iter().any(|(first, last)| (first..=last).contains(number));
    match kind {
        DummynetKind::Pipe => {
            let row = |number: &u32| {
                let status = told.pipes.iter().find(|pipe| pipe.number == *number);
                let flows: Vec<FlowRow> = rows(status.map_or(&[], |status| &status.flows));
                PipeRow { config: set.pipes[number].clone(), active: flows.len() as u32, flows }
            };
            let rows: Vec<PipeRow> = set.pipes.keys().filter(wanted).map(row).collect();
            Shown {
                text: shaper::pipes(&rows, builtin()),
                rows: json!({ "pipes": numbered(&rows, |row| row.config.number) }),
            }
        }
        DummynetKind::Queue => {
            let row = |number: &u32| {
                let status = told.queues.iter().find(|queue| queue.number == *number);
                let flows = rows(status.map_or(&[], |status| &status.flows));
                QueueRow { config: set.queues[number].clone(), flows }
            };
            let rows: Vec<QueueRow> = set.queues.keys().filter(wanted).map(row).collect();
            Shown {
                text: shaper::queues(&rows, builtin()),
                rows: json!({ "queues": numbered(&rows, |row| row.config.number) }),
            }
        }
        DummynetKind::Scheduler => {
            let row = |number: &u32| {
                let config = set.schedulers[number].clone();
                let status = told.schedulers.iter().find(|scheduler| scheduler.number == *number);
                let instances = status.map_or(&[][..], |status| &status.instances);
                let inner = status.map_or(&[][..], |status| &status.flows);
                SchedulerRow {
                    pipe: set.pipes.get(&config.pipe.unwrap_or(*number)).cloned(),
                    children: set.queues.values().filter(|q| q.scheduler == *number).map(|q| q.number).collect(),
                    config,
                    active: instances.len() as u32,
                    flows: rows(if inner.is_empty() { instances } else { inner }),
                }
            };
            let rows: Vec<SchedulerRow> = set.schedulers.keys().filter(wanted).map(row).collect();
            Shown {
                text: shaper::schedulers(&rows, builtin()),
                rows: json!({ "schedulers": numbered(&rows, |row| row.config.number) }),
            }
        }
    }
}

fn numbered<T: Serialize>(rows: &[T], number: impl Fn(&T) -> u32) -> Vec<Value> {
    let one = |row: &T| {
        let mut value = json!(row);
        value["number"] = json!(number(row));
        value
    };
    rows.iter().map(one).collect()
}

/// Ours is no table of a fixed number of buckets: each queue is shown in bucket 0.
fn rows(flows: &[FlowStatus]) -> Vec<FlowRow> {
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let row = |status: &FlowStatus| {
        let flow = &status.flow;
        let (source, destination): (IpAddr, IpAddr) = match flow.addresses {
            Addresses::V4 { source, destination } => {
                (Ipv4Addr::from_bits(source).into(), Ipv4Addr::from_bits(destination).into())
            }
            Addresses::V6 { source, destination } => {
                (Ipv6Addr::from_bits(source).into(), Ipv6Addr::from_bits(destination).into())
            }
        };
        FlowRow {
            bucket: 0,
            protocol: flow.protocol,
            source,
            source_port: flow.source_port,
            destination,
            destination_port: flow.destination_port,
            flow_id: flow.flow_label,
            by_queue: flow.extra != 0,
            total_packets: status.counters.packets,
            total_bytes: status.counters.bytes,
            packets: status.length,
            bytes: small(status.bytes),
            drops: small(status.counters.drops),
        }
    };
    flows.iter().map(row).collect()
}

/// `nat show log`: how many states there are of each kind; beside it, as data, what was translated and dropped.
fn nats(told: &ServiceStatus, one: Option<&str>) -> Shown {
    let wanted = told.nats.iter().filter(|nat| one.is_none_or(|one| one.parse() == Ok(nat.number)));
    let mut text = String::new();
    let mut rows = Vec::new();
    for nat in wanted {
        text.push_str(&format!("nat {}: {}\n", nat.number, nat.links));
        let counters = &nat.counters;
        rows.push(json!({
            "number": nat.number,
            "address": nat.address,
            "states": nat.links.total(),
            "translated_in": counters.translated_in,
            "translated_out": counters.translated_out,
            "unchanged": counters.unchanged,
            "dropped": counters.dropped.iter().sum::<u64>(),
            "created": counters.created,
            "expired": counters.expired,
        }));
    }
    Shown { text, rows: json!({ "nats": rows }) }
}
