#![forbid(unsafe_code)]
//! `nat ...` and `pipe|queue|sched ...`.

use super::{Answer, Environment, PendingSet};
use crate::ipfw::command::{DummynetCommand, DummynetKind, NatCommand, Options};
use crate::ipfw::dummynet::DummynetConfig;
use crate::ipfw::failure::{Failure, errno, exit};
use crate::ipfw::show::shaper::{self, PipeRow, QueueRow, SchedulerRow};
use crate::ipfw::{nat_config, shaper_config};
use crate::span::Span;

impl PendingSet {
    pub(super) fn nat(
        &mut self,
        command: &NatCommand,
        end: Span,
        options: &Options,
        environment: Environment<'_>,
    ) -> Answer {
        let lookup = environment.lookup();
        match command {
            NatCommand::Config { number, words } => match nat_config::parse(*number, words, end, lookup) {
                Err(failure) => Answer { incomplete: true, ..Answer::failed(failure) },
                Ok(config) => {
                    let quiet = options.quiet || options.check_only;
                    let shown = if quiet { String::new() } else { nat_config::print(&config, lookup) };
                    if !options.check_only {
                        self.objects.nats.insert(*number, config);
                    }
                    Answer::said(shown)
                }
            },
            _ if options.check_only => Answer::default(),
            NatCommand::ShowConfig(None) => Answer::said(
                self.objects.nats.values().map(|config| nat_config::print(config, lookup)).collect::<String>(),
            ),
            NatCommand::ShowConfig(Some(name)) => {
                let found = name.parse().ok().and_then(|number: u32| self.objects.nats.get(&number));
                match found {
                    Some(config) => Answer::said(nat_config::print(config, lookup)),
                    None => {
                        let what = format!("Error getting nat {} instance info", name.escape_debug());
                        Answer::failed(Failure::os(end, what, errno::NOT_FOUND))
                    }
                }
            }
            // Nothing was translated yet.
            NatCommand::ShowLog(_) => Answer::default(),
            NatCommand::Delete(numbers) => {
                let mut answer = Answer::default();
                for number in numbers {
                    if self.objects.nats.remove(number).is_none() {
                        let message = format!("nat {number} not available: {}", errno::NOT_FOUND);
                        answer.fail(Failure::new(exit::UNAVAILABLE, end, message));
                    }
                }
                forgiven(answer, options)
            }
        }
    }

    pub(super) fn dummynet(
        &mut self,
        kind: DummynetKind,
        command: &DummynetCommand,
        end: Span,
        options: &Options,
        environment: Environment<'_>,
    ) -> Answer {
        match command {
            DummynetCommand::Config { number, words } => {
                let bound = |name: &str| u32::try_from(self.objects.variable(name)).unwrap_or(u32::MAX);
                let context = shaper_config::ShaperContext {
                    slot_limit: bound("net.inet.ip.dummynet.pipe_slot_limit"),
                    byte_limit: bound("net.inet.ip.dummynet.pipe_byte_limit"),
                    read_file: environment.read_file,
                };
                let parsed = shaper_config::parse(kind, *number, words, end, &context);
                let result = parsed.and_then(|parsed| {
                    if !options.check_only {
                        self.configure(parsed.config, end)?;
                    }
                    Ok(Answer { stderr: parsed.warnings, ..Answer::default() })
                });
                result.unwrap_or_else(|failure| Answer { incomplete: true, ..Answer::failed(failure) })
            }
            _ if options.check_only => Answer::default(),
            DummynetCommand::Show(ranges) => Answer::said(self.shaper_rows(kind, ranges, environment)),
            DummynetCommand::Delete(numbers) => {
                let mut answer = Answer::default();
                for number in numbers {
                    let objects = &mut self.objects;
                    let found = match kind {
                        DummynetKind::Pipe => objects.pipes.remove(number).is_some(),
                        DummynetKind::Queue => objects.queues.remove(number).is_some(),
                        DummynetKind::Scheduler => objects.schedulers.remove(number).is_some(),
                    };
                    if !found {
                        let message = format!("rule {number}: setsockopt(IP_DUMMYNET_DEL): {}", errno::INVALID);
                        answer.fail(Failure::new(exit::FAILED, end, message));
                    }
                }
                forgiven(answer, options)
            }
            DummynetCommand::Flush => {
                self.objects.pipes.clear();
                self.objects.queues.clear();
                self.objects.schedulers.clear();
                Answer::default()
            }
        }
    }

    fn configure(&mut self, config: DummynetConfig, end: Span) -> Result<(), Failure> {
        let objects = &mut self.objects;
        match config {
            DummynetConfig::Pipe(pipe) => drop(objects.pipes.insert(pipe.number, pipe)),
            DummynetConfig::Scheduler(scheduler) => drop(objects.schedulers.insert(scheduler.number, scheduler)),
            DummynetConfig::Queue(mut queue) => {
                if queue.scheduler == 0 {
                    let before = objects.queues.get(&queue.number).map(|queue| queue.scheduler);
                    queue.scheduler = before.ok_or_else(|| {
                        let message = format!("setsockopt(IP_DUMMYNET_CONFIGURE): {}", errno::INVALID);
                        Failure::new(exit::FAILED, end, message).hint("a new queue needs `pipe N` or `sched N`")
                    })?;
                }
                objects.queues.insert(queue.number, queue);
            }
        }
        Ok(())
    }

    fn shaper_rows(&self, kind: DummynetKind, ranges: &[(u32, u32)], environment: Environment<'_>) -> String {
        let objects = &self.objects;
        let wanted =
            |number: u32| ranges.is_empty() || ranges.iter().any(|&(first, last)| (first..=last).contains(&number));
        match kind {
            DummynetKind::Pipe => {
                let rows = objects.pipes.values().filter(|pipe| wanted(pipe.number));
                let rows: Vec<_> =
                    rows.map(|pipe| PipeRow { config: pipe.clone(), active: 0, flows: Vec::new() }).collect();
                shaper::pipes(&rows, environment.names)
            }
            DummynetKind::Queue => {
                let rows = objects.queues.values().filter(|queue| wanted(queue.number));
                let rows: Vec<_> = rows.map(|queue| QueueRow { config: queue.clone(), flows: Vec::new() }).collect();
                shaper::queues(&rows, environment.names)
            }
            DummynetKind::Scheduler => {
                let row = |number: u32| {
                    let config = objects.schedulers[&number].clone();
                    let children = objects.queues.values().filter(|queue| queue.scheduler == number);
                    SchedulerRow {
                        pipe: objects.pipes.get(&config.pipe.unwrap_or(number)).cloned(),
                        children: children.map(|queue| queue.number).collect(),
                        config,
                        active: 0,
                        flows: Vec::new(),
                    }
                };
                let rows: Vec<_> =
                    objects.schedulers.keys().copied().filter(|&number| wanted(number)).map(row).collect();
                shaper::schedulers(&rows, environment.names)
            }
        }
    }
}

/// A failed deletion: silent with `-q`, and no failure with `-f`.
fn forgiven(mut answer: Answer, options: &Options) -> Answer {
    if options.quiet {
        answer.stderr.clear();
    }
    if options.force {
        answer.exit = exit::OK;
    }
    answer
}
