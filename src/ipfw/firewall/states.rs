//! Dynamic rules of all workers as rows.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ferrule_config::ipfw::ast::Rule;
use ferrule_config::ipfw::show::states::{StateKind, StateRow};
use ferrule_dataplane::clock;
use ferrule_filters::ipfw::dynamic::parent::ParentView;
use ferrule_filters::ipfw::dynamic::{FlowKey, NameId, RuleRef, StateView, States};

use super::{Firewall, State};
use crate::log;

/// How long a worker may take to show its states.
const PATIENCE: Duration = Duration::from_secs(5);

impl Firewall {
    /// Dynamic rules whose rule is in force, those of parents first, as FreeBSD's kernel gives them.
    pub(super) fn states(&self, state: &State) -> Vec<StateRow> {
        let rules: HashMap<RuleRef, &Arc<Rule>> =
            state.places.rules().iter().map(|(rule, place)| (*place, rule)).collect();
        let name = |id: NameId| state.names.name(id).unwrap_or_default().to_owned();
        let mut rows = Vec::new();
        let now = States::seconds(clock::monotonic());
        self.shared.parents.list(now, |parent: &ParentView| {
            if let Some(rule) = rules.get(&parent.rule) {
                let kind = StateKind::Parent(parent.count);
                let row = row(rule, kind, &parent.key, name(parent.name));
                rows.push(StateRow { expires_s: parent.expires_in, ..row });
            }
        });
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        for (worker, reader) in readers.iter_mut().enumerate() {
            let complete = reader.read(PATIENCE, |view: &StateView| {
                if let Some(rule) = rules.get(&view.rule) {
                    let kind = if view.limit { StateKind::Limit } else { StateKind::State };
                    rows.push(StateRow {
                        packets: view.packets,
                        bytes: view.bytes,
                        expires_s: view.expires_in,
                        flags: view.tcp,
                        acknowledged_forward: view.acknowledgements.0,
                        acknowledged_reverse: view.acknowledgements.1,
                        ..row(rule, kind, &view.key, name(view.name))
                    });
                }
            });
            if !complete {
                log::warning(format!("worker {worker} did not show its dynamic rules in time"));
            }
        }
        rows
    }
}

fn row(rule: &Rule, kind: StateKind, key: &FlowKey, name: String) -> StateRow {
    let ((source, destination), (source_port, destination_port)) = (key.addresses(), key.ports());
    StateRow {
        rule: rule.number,
        set: rule.set,
        packets: 0,
        bytes: 0,
        expires_s: 0,
        kind,
        protocol: key.protocol(),
        source,
        source_port,
        destination,
        destination_port,
        name,
        flags: 0,
        acknowledged_forward: 0,
        acknowledged_reverse: 0,
    }
}
