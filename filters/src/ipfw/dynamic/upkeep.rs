#![forbid(unsafe_code)]
//! The states of one worker: their end, keep-alives, deletion and listing.

use std::sync::atomic::Ordering::Relaxed;

use ferrule_dataplane::arena::prefetch;

use super::key::TCP;
use super::settings::{KEEPALIVE_INTERVAL, KEEPALIVE_PERIOD};
use super::state::{ACK_FORWARD, ACK_REVERSE, LIVE, ORPHANED};
use super::states::{StateIndex, States};
use super::view::{Fate, Keepalive, StateView};
use super::wheel::HORIZON;

/// Slots of the table of parents that one sweep looks at.
const PARENTS_PER_SWEEP: usize = 64;
/// And the first sweep of a second, so that a worker with few turns comes around as well.
const PARENTS_PER_SECOND: usize = 4096;

impl States {
    /// Ends the states whose time has come, and says which keep-alives are due. Looks at about `budget` states; returns how many it
    /// looked at, less than the budget when it is done for now. To be called once per turn.
    pub fn sweep(
        &mut self,
        budget: usize,
        mut on_expire: impl FnMut(&StateView),
        mut on_keepalive: impl FnMut(&Keepalive),
    ) -> usize {
        let slots = if self.swept == self.now { PARENTS_PER_SWEEP } else { PARENTS_PER_SECOND };
        self.swept = self.now;
        self.shared.parents.sweep(self.now, &mut self.parent_cursor, slots);
        let mut seen = 0;
        while seen < budget {
            let Some(chunk) = self.wheel.take(self.now) else { break };
            let second = self.wheel.time();
            let entries = &chunk.states[..chunk.count as usize];
            // Two passes, so that the loads of a whole chunk overlap.
            for index in entries {
                prefetch(&self.states[*index as usize]);
            }
            for index in entries {
                let state = &self.states[*index as usize];
                if state.expire <= self.now {
                    self.buckets.prefetch(state.hash);
                }
            }
            for index in entries {
                let state = &self.states[*index as usize];
                if state.flags & LIVE != 0 && state.timer == second as u8 {
                    self.meet(*index, &mut on_expire, &mut on_keepalive);
                }
            }
            seen += entries.len();
        }
        self.shared.buckets.fetch_max(self.buckets.len() as u32, Relaxed);
        seen
    }

    fn meet(&mut self, index: u32, on_expire: &mut impl FnMut(&StateView), on_keepalive: &mut impl FnMut(&Keepalive)) {
        let now = self.now;
        let state = &self.states[index as usize];
        if state.expire <= now {
            if let Some(view) = self.view(StateIndex(index)) {
                on_expire(&view);
            }
            self.remove(StateIndex(index));
            return;
        }
        let left = state.expire - now;
        let mut next = state.expire.min(now.saturating_add(HORIZON));
        if self.keepalive && state.is_established() {
            if left < KEEPALIVE_INTERVAL {
                self.keepalives(index, on_keepalive);
                next = next.min(now + KEEPALIVE_PERIOD);
            } else {
                next = next.min(state.expire - (KEEPALIVE_INTERVAL - 1));
            }
        }
        let second = self.wheel.clamp(next, now);
        self.states[index as usize].timer = second as u8;
        // A chunk was freed just now, so there is room; if there were none the state would be met never again.
        if self.wheel.add(second, index).is_err() {
            self.remove(StateIndex(index));
        }
    }

    /// As FreeBSD: one segment towards each side that has not acknowledged since the expiry was set, as if from the other.
    fn keepalives(&self, index: u32, on_keepalive: &mut impl FnMut(&Keepalive)) {
        let state = &self.states[index as usize];
        debug_assert_eq!(state.protocol, TCP);
        let Some(key) = self.view(StateIndex(index)).map(|view| view.key) else { return };
        if state.tcp & ACK_FORWARD == 0 && state.ack_forward != 0 {
            let sequence = state.ack_forward - 1;
            on_keepalive(&Keepalive { key: key.reverse(), sequence, acknowledgement: state.ack_reverse });
        }
        if state.tcp & ACK_REVERSE == 0 && state.ack_reverse != 0 {
            let sequence = state.ack_reverse - 1;
            on_keepalive(&Keepalive { key, sequence, acknowledgement: state.ack_forward });
        }
    }

    /// Shows states to `judge`, which says what becomes of each: `ipfw -D`, `delete`, `flush`. Looks at `budget` places from `cursor` on,
    /// which starts at 0 and is moved; true when it has come to the end.
    pub fn purge(&mut self, cursor: &mut u32, budget: u32, mut judge: impl FnMut(&StateView) -> Fate) -> bool {
        let end = (*cursor).saturating_add(budget).min(self.states.len() as u32);
        for index in *cursor..end {
            let Some(view) = self.view(StateIndex(index)) else { continue };
            match judge(&view) {
                Fate::Keep => {}
                Fate::End => self.remove(StateIndex(index)),
                Fate::Orphan => self.states[index as usize].flags |= ORPHANED,
            }
        }
        *cursor = end;
        end as usize == self.states.len()
    }

    /// Shows states to `each`, `budget` places from `cursor` on as [`States::purge`]; true when it has come to the end.
    pub fn list(&self, cursor: &mut u32, budget: u32, mut each: impl FnMut(&StateView)) -> bool {
        let end = (*cursor).saturating_add(budget).min(self.states.len() as u32);
        for index in *cursor..end {
            if let Some(view) = self.view(StateIndex(index)) {
                each(&view);
            }
        }
        *cursor = end;
        end as usize == self.states.len()
    }
}
