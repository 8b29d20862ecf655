#![forbid(unsafe_code)]
//! RR: deficit round robin (Shreedhar and Varghese, 1995). Each backlogged queue may send `weight` times its step of bytes a round.

use super::list::List;
use crate::dummynet::queue::Queues;

/// Step of the quantum in bytes: what `longest` says within 64 to 2,048; 1,500 when it is less or not said.
fn quantum(id: u32, queues: &Queues) -> i64 {
    let share = &queues[id].share;
    let step = if share.longest < 64 { 1500 } else { share.longest.min(2048) };
    i64::from(share.weight.clamp(1, 65_536)) * i64::from(step)
}

/// The backlogged queues, the one whose turn it is in front.
#[derive(Debug)]
pub(crate) struct RoundRobin {
    turns: List,
}

impl RoundRobin {
    pub(crate) fn new() -> RoundRobin {
        RoundRobin { turns: List::EMPTY }
    }

    pub(crate) fn activated(&mut self, id: u32, queues: &mut Queues) {
        queues[id].share.credit = quantum(id, queues);
        queues[id].share.known = true;
        self.turns.push(id, queues);
    }

    pub(crate) fn select(&mut self, queues: &mut Queues) -> Option<u32> {
        let mut passed = 0;
        loop {
            let id = self.turns.first()?;
            if queues[id].share.credit >= i64::from(queues[id].head) {
                return Some(id);
            }
            queues[id].share.credit += quantum(id, queues);
            self.turns.pop(queues);
            self.turns.push(id, queues);
            passed += 1;
            if passed == self.turns.length() {
                passed = 0;
                self.skip_rounds(queues);
            }
        }
    }

    /// Nobody could send in a whole round: all rounds in which nobody can are given at once, so that small quanta cost no more turns.
    fn skip_rounds(&self, queues: &mut Queues) {
        let missing = |id: u32| (i64::from(queues[id].head) - queues[id].share.credit).max(0) as u64;
        let rounds = self.turns.iter(queues).map(|id| missing(id).div_ceil(quantum(id, queues) as u64)).min();
        let rounds = rounds.unwrap_or(0) as i64;
        self.turns.give(|id, queues| rounds * quantum(id, queues), queues);
    }

    pub(crate) fn served(&mut self, id: u32, length: Option<u32>, queues: &mut Queues) {
        queues[id].share.credit -= i64::from(length.unwrap_or(0));
        if queues[id].length == 0 {
            self.turns.pop(queues);
            queues[id].share.known = false;
        }
    }

    pub(crate) fn forget(&mut self, id: u32, queues: &mut Queues) {
        if std::mem::take(&mut queues[id].share.known) {
            self.turns.remove(id, queues);
        }
    }
}
