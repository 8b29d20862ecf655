#![forbid(unsafe_code)]
//! `add`, `delete`, `flush`, `zero`, `list` and `set`.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::{Answer, Environment, PendingSet};
use crate::ipfw::ast::{DEFAULT_RULE, DEFAULT_SET, Rule};
use crate::ipfw::command::{Delete, Dynamic, List, Options, SetCommand, Word};
use crate::ipfw::document::tables_of;
use crate::ipfw::failure::{Failure, errno, exit};
use crate::ipfw::language::{ParsedRule, RuleStyle};
use crate::ipfw::show;
use crate::ipfw::show::rules::{ListContext, RuleRow};
use crate::span::Span;

/// How options have rules printed.
pub(super) fn style(options: &Options) -> RuleStyle {
    RuleStyle { compact: options.compact, comment_only: options.comment_only, names: options.names }
}

impl PendingSet {
    pub(super) fn add(&mut self, words: &[Word], end: Span, options: &Options, environment: Environment<'_>) -> Answer {
        let ParsedRule { mut rule, warnings } = match environment.language.parse(words, end) {
            Ok(parsed) => parsed,
            Err(failures) => {
                let mut answer = Answer { incomplete: true, ..Answer::default() };
                failures.into_iter().for_each(|failure| answer.fail(failure));
                return answer;
            }
        };
        let mut answer = Answer { stderr: warnings, ..Answer::default() };
        if !options.check_only {
            if let Err(failure) = self.admit(&rule, end) {
                answer.fail(failure);
                answer.incomplete = true;
                return answer;
            }
            if rule.number == 0 {
                rule.number = self.next_number();
            }
        }
        if !options.quiet {
            let set = if options.sets { format!("set {} ", rule.set) } else { String::new() };
            let text = environment.language.print(&rule, style(options));
            answer.stdout = format!("{:05} {set}{text}\n", rule.number);
        }
        if !options.check_only {
            self.insert(Arc::new(rule));
        }
        answer
    }

    /// What the kernel would refuse.
    fn admit(&self, rule: &Rule, end: Span) -> Result<(), Failure> {
        let refused = |hint: String| {
            let message = format!("getsockopt(IP_FW_XADD): {}", errno::INVALID);
            Failure::new(exit::UNAVAILABLE, end, message).hint(hint)
        };
        if rule.number == DEFAULT_RULE {
            return Err(refused("rule 65535 is the last one and cannot be added or changed".to_owned()));
        }
        for (name, kind) in tables_of(rule) {
            if let Some(table) = self.objects.tables.get(name)
                && std::mem::discriminant(&table.options.kind) != std::mem::discriminant(&kind)
            {
                let (is, wants) = (show::tables::kind(table.options.kind), show::tables::kind(kind));
                let wants = wants.split(':').next().unwrap_or_default();
                return Err(refused(format!("table {name} is of type {is}, and the rule needs {wants}")));
            }
        }
        Ok(())
    }

    /// The number after the last, `net.inet.ip.fw.autoinc_step` higher; the last again where there is no room.
    fn next_number(&self) -> u16 {
        let step = self.objects.variable("net.inet.ip.fw.autoinc_step").clamp(1, 1000) as u16;
        let last = self.rules.last_key_value().map_or(0, |(&number, _)| number);
        if last < DEFAULT_RULE - step { last + step } else { last }
    }

    /// Takes out the rules of these numbers that `wanted` wants; how many.
    fn remove(&mut self, numbers: RangeInclusive<u16>, wanted: impl Fn(&Rule) -> bool) -> usize {
        let mut removed = 0;
        let mut empty = Vec::new();
        for (&number, rules) in self.rules.range_mut(numbers) {
            let references = &mut self.references;
            rules.retain(|rule| {
                let goes = wanted(rule);
                if goes {
                    removed += 1;
                    for (name, _) in tables_of(rule) {
                        if let Some(count) = references.get_mut(name) {
                            *count = count.saturating_sub(1);
                        }
                    }
                }
                !goes
            });
            if rules.is_empty() {
                empty.push(number);
            }
        }
        empty.iter().for_each(|number| drop(self.rules.remove(number)));
        removed
    }

    pub(super) fn delete(&mut self, delete: &Delete, end: Span, options: &Options) -> Answer {
        let mut answer = Answer::default();
        // `-D`: dynamic rules only, and there are none before the set is in force.
        if options.dynamic == Dynamic::Only {
            return answer;
        }
        match delete {
            Delete::Sets(sets) => {
                for &set in sets {
                    self.remove(0..=u16::MAX, |rule| rule.set == set);
                }
            }
            Delete::Rules { set, ranges } => {
                for &(first, last) in ranges {
                    let in_set = |rule: &Rule| set.is_none_or(|set| rule.set == set);
                    let gone = match (first, last) {
                        (0, 0) => self.remove(0..=u16::MAX, |rule| rule.set != DEFAULT_SET && in_set(rule)),
                        _ if first > last => {
                            let message = format!("rule {first}: setsockopt(IP_FW_XDEL): {}", errno::INVALID);
                            answer.fail(Failure::new(exit::UNAVAILABLE, end, message));
                            continue;
                        }
                        _ => self.remove(first..=last, in_set),
                    };
                    if gone == 0 {
                        let message = if first == last {
                            format!("rule {first} not found")
                        } else {
                            format!("no rules rules in {first}-{last} range")
                        };
                        answer.fail(Failure::new(exit::UNAVAILABLE, end, message));
                    }
                }
            }
        }
        if options.quiet {
            answer.stderr.clear();
        }
        if options.force {
            answer.exit = exit::OK;
        }
        answer
    }

    pub(super) fn flush(&mut self, set: Option<u8>, options: &Options) -> Answer {
        match set {
            Some(set) => self.remove(0..=u16::MAX, |rule| rule.set == set),
            None => self.remove(0..=u16::MAX, |rule| rule.set != DEFAULT_SET),
        };
        Answer::said(if options.quiet { "" } else { "Flushed all rules.\n" })
    }

    /// There are no counters yet: only whether the rules exist is answered.
    pub(super) fn zero(&self, set: Option<u8>, numbers: &[u16], log_only: bool, options: &Options) -> Answer {
        let mut answer = Answer::default();
        if numbers.is_empty() && !options.quiet {
            answer.stdout = if log_only { "Logging counts reset.\n" } else { "Accounting cleared.\n" }.to_owned();
        }
        for &number in numbers {
            let rules = self.rules.get(&number).map(Vec::as_slice).unwrap_or_default();
            let found = rules.iter().any(|rule| set.is_none_or(|set| rule.set == set));
            if !found {
                answer.stdout.push_str(&format!("Entry {number} not found\n"));
                answer.exit = exit::UNAVAILABLE;
            } else if !options.quiet {
                let done = if log_only { "logging count reset" } else { "cleared" };
                answer.stdout.push_str(&format!("Entry {number} {done}.\n"));
            }
        }
        answer
    }

    /// The rules as rows, the last one included; counters are zero.
    pub(super) fn rows(&self, options: &Options, environment: Environment<'_>) -> Vec<RuleRow> {
        let last = self.objects.default_rule();
        let row = |rule: &Rule| RuleRow {
            number: rule.number,
            set: rule.set,
            text: environment.language.print(rule, style(options)),
            packets: 0,
            bytes: 0,
            last_hit_s: 0,
            disabled: !self.objects.is_enabled(rule.set),
        };
        self.rules().map(|rule| row(rule)).chain([row(&last)]).collect()
    }

    pub(super) fn list(&self, list: &List, options: &Options, environment: Environment<'_>) -> Answer {
        let rows = self.rows(options, environment);
        let context = ListContext { options, names: environment.names, utc_offset_s: 0 };
        let listed = show::rules::list(list, &rows, &[], context);
        Answer { stdout: listed.stdout, stderr: listed.stderr, exit: listed.exit, ..Answer::default() }
    }

    pub(super) fn set(&mut self, command: &SetCommand) -> Answer {
        let mut moved = |numbers: RangeInclusive<u16>, target: &dyn Fn(u8) -> u8| {
            for (_, rules) in self.rules.range_mut(numbers) {
                for rule in rules {
                    let set = target(rule.set);
                    if set != rule.set {
                        Arc::make_mut(rule).set = set;
                    }
                }
            }
        };
        match *command {
            SetCommand::Show => return Answer::said(show::sets(self.objects.disabled_sets)),
            SetCommand::Swap(a, b) => moved(0..=u16::MAX, &|set| match set {
                _ if set == a => b,
                _ if set == b => a,
                other => other,
            }),
            SetCommand::Move(from, to) => moved(0..=u16::MAX, &|set| if set == from { to } else { set }),
            SetCommand::MoveRule(number, to) => moved(number..=number, &|_| to),
            SetCommand::Enable { disable, enable } => {
                let sets = (self.objects.disabled_sets | disable) & !enable;
                self.objects.disabled_sets = sets & !(1 << DEFAULT_SET);
            }
        }
        Answer::default()
    }
}
