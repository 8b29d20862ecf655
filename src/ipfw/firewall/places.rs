//! Where the counters of rules are: a rule that stays keeps its place, and a new one gets a place that nobody counts at.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::Arc;

use ferrule_config::ipfw::ast::Rule;
use ferrule_config::ipfw::document::same_rule;
use ferrule_dataplane::quiesce::{Deferred, Domain};
use ferrule_filters::ipfw::dynamic::RuleRef;

/// Place of the last rule (65535).
pub const LAST: u32 = 0;
/// Place of rules that are in force without being in the set: `net.inet.ip.fw.enable=0`.
pub const HIDDEN: u32 = 1;
/// First place of the set's rules.
const FIRST: u32 = 2;

/// When a rule is the one that was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sameness {
    /// It is this very rule: what a command did not touch.
    Identity,
    /// It means the same: a script was run again.
    Meaning,
    /// It stands where the old one stood: sets were moved.
    Position,
}

/// The rules in force with their places.
pub struct Places {
    rules: Vec<(Arc<Rule>, RuleRef)>,
    generations: Vec<u32>,
    free: Vec<u32>,
    /// Places that workers may still count at.
    retired: Deferred<u32>,
}

impl Places {
    /// No rules. `domain` is the workers'.
    pub fn new(domain: Arc<Domain>) -> Places {
        let generations = vec![0; FIRST as usize];
        Places { rules: Vec::new(), generations, free: Vec::new(), retired: Deferred::new(domain) }
    }

    /// The rules, in order, without the last.
    pub fn rules(&self) -> &[(Arc<Rule>, RuleRef)] {
        &self.rules
    }

    /// Takes other rules over; those that were there keep their places. `begin` is told the places that are used anew. What is given up
    /// is given back by [`Places::retire`], once it is out of force.
    pub fn change(&mut self, rules: Vec<Arc<Rule>>, sameness: Sameness, mut begin: impl FnMut(u32)) -> Vec<u32> {
        let (free, generations) = (&mut self.free, &mut self.generations);
        self.retired.reclaim(|place| free.push(place));
        let old = std::mem::take(&mut self.rules);
        let mut kept = Kept::new(&old, sameness);
        let mut places = Vec::with_capacity(rules.len());
        for (at, rule) in rules.into_iter().enumerate() {
            let place = kept.take(at, &rule).unwrap_or_else(|| {
                let index = free.pop().unwrap_or_else(|| {
                    generations.push(0);
                    generations.len() as u32 - 1
                });
                generations[index as usize] = generations[index as usize].wrapping_add(1);
                begin(index);
                RuleRef { index, generation: generations[index as usize] }
            });
            places.push((rule, place));
        }
        self.rules = places;
        kept.left()
    }

    /// Places that no rule in force has any more.
    pub fn retire(&mut self, places: Vec<u32>) {
        if !places.is_empty() {
            self.retired.retire(places);
        }
    }
}

/// Old rules that are looked for among the new ones; each is found once.
struct Kept<'a> {
    old: &'a [(Arc<Rule>, RuleRef)],
    taken: Vec<bool>,
    by_address: HashMap<*const Rule, usize>,
    by_number: HashMap<u16, Vec<usize>>,
    sameness: Sameness,
}

impl<'a> Kept<'a> {
    fn new(old: &'a [(Arc<Rule>, RuleRef)], sameness: Sameness) -> Kept<'a> {
        let by_address = old.iter().enumerate().map(|(at, (rule, _))| (Arc::as_ptr(rule), at)).collect();
        let mut by_number: HashMap<u16, Vec<usize>> = HashMap::new();
        if sameness == Sameness::Meaning {
            for (at, (rule, _)) in old.iter().enumerate() {
                by_number.entry(rule.number).or_default().push(at);
            }
        }
        Kept { old, taken: vec![false; old.len()], by_address, by_number, sameness }
    }

    fn take(&mut self, position: usize, rule: &Arc<Rule>) -> Option<RuleRef> {
        let found = match self.sameness {
            Sameness::Position => Some(position),
            Sameness::Identity => self.by_address.get(&Arc::as_ptr(rule)).copied(),
            Sameness::Meaning => {
                let same = self.by_number.get_mut(&rule.number)?;
                let at = same.iter().position(|at| same_rule(&self.old[*at].0, rule))?;
                Some(same.remove(at))
            }
        };
        let found = found.filter(|at| self.taken.get(*at) == Some(&false))?;
        self.taken[found] = true;
        Some(self.old[found].1)
    }

    fn left(self) -> Vec<u32> {
        self.old.iter().zip(self.taken).filter(|(_, taken)| !taken).map(|((_, place), _)| place.index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrule_config::ipfw::command::{CommandLine, Options};
    use ferrule_config::ipfw::pending::PendingSet;

    fn rules(lines: &[&str]) -> Vec<Arc<Rule>> {
        let mut set = PendingSet::new();
        for line in lines {
            let answer = super::super::with_environment(&Default::default(), |environment| {
                set.run(&CommandLine::from_line(line), &mut Options::default(), environment)
            });
            assert_eq!(answer.exit, 0, "{answer:?}");
        }
        set.rule_set().rules
    }

    #[test]
    fn rules_that_mean_the_same_keep_their_places_and_others_do_not() {
        let mut places = Places::new(Domain::new(1));
        let first = rules(&[
            "add 10 allow ip from any to any",
            "add 10 allow ip from any to any",
            "add 20 count ip from any to any",
        ]);
        let mut begun = Vec::new();
        assert!(places.change(first.clone(), Sameness::Meaning, |place| begun.push(place)).is_empty());
        assert_eq!(begun, [2, 3, 4]);
        let before: Vec<RuleRef> = places.rules().iter().map(|(_, place)| *place).collect();
        // Run again: the same text, other objects.
        let again = rules(&[
            "add 5 deny tcp from any to any",
            "add 10 allow ip from any to any",
            "add 20 count ip from any to any",
        ]);
        let gone = places.change(again.clone(), Sameness::Meaning, |place| begun.push(place));
        assert_eq!((gone, &begun[3..]), (vec![3], &[5][..]));
        assert_eq!(places.rules()[1].1, before[0]);
        assert_eq!(places.rules()[2].1, before[2]);
        // Flushed and added again by hand: nothing is kept.
        let by_hand = rules(&["add 10 allow ip from any to any"]);
        assert_eq!(places.change(by_hand, Sameness::Identity, |_| {}).len(), 3);
        assert!(places.rules().iter().all(|(_, place)| *place != before[0]));
    }

    #[test]
    fn a_place_is_used_again_when_every_worker_has_gone_on() {
        let domain = Domain::new(1);
        let mut worker = domain.register().unwrap();
        worker.online();
        let mut places = Places::new(domain);
        places.change(rules(&["add 10 allow ip from any to any"]), Sameness::Identity, |_| {});
        let gone = places.change(Vec::new(), Sameness::Identity, |_| {});
        places.retire(gone);
        let mut begun = Vec::new();
        places.change(rules(&["add 10 allow ip from any to any"]), Sameness::Identity, |place| begun.push(place));
        worker.quiescent();
        let gone =
            places.change(rules(&["add 20 allow ip from any to any"]), Sameness::Identity, |place| begun.push(place));
        assert_eq!((begun, gone), (vec![3, 2], vec![3]));
        assert_eq!(places.rules()[0].1.generation, 2, "told from the rule that had the place before");
    }
}
