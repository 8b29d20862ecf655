#![forbid(unsafe_code)]
//! Dynamic rules of all workers as `ipfw -d list` shows them: the control side asks by number, each worker hands its states over a few at a
//! time between two batches, and nobody waits for anybody on the packets' way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::dynamic::{StateView, States};

/// States handed over in one turn.
const PORTION: u32 = 64;
/// States on their way.
const RING: usize = 1024;

#[derive(Default)]
struct Wish {
    asked: AtomicU64,
    answered: AtomicU64,
}

/// The worker's end.
pub struct StateLister {
    wish: Arc<Wish>,
    ring: rtrb::Producer<StateView>,
    /// The question that is being answered.
    serving: u64,
    answered: u64,
    cursor: u32,
}

/// The control side's end.
pub struct StateReader {
    wish: Arc<Wish>,
    ring: rtrb::Consumer<StateView>,
    asked: u64,
}

/// Both ends for one worker.
pub fn pair() -> (StateLister, StateReader) {
    let (producer, consumer) = rtrb::RingBuffer::new(RING);
    let wish = Arc::new(Wish::default());
    let lister = StateLister { wish: wish.clone(), ring: producer, serving: 0, answered: 0, cursor: 0 };
    (lister, StateReader { wish, ring: consumer, asked: 0 })
}

impl StateLister {
    /// Hands a portion over where that is wanted; to be called once a turn.
    #[inline(always)]
    pub fn turn(&mut self, states: &States) {
        if self.wish.asked.load(Ordering::Acquire) != self.answered {
            self.answer(states);
        }
    }

    #[inline(never)]
    fn answer(&mut self, states: &States) {
        let asked = self.wish.asked.load(Ordering::Acquire);
        if self.serving != asked {
            (self.serving, self.cursor) = (asked, 0);
        }
        if self.ring.slots() < PORTION as usize {
            return;
        }
        let ring = &mut self.ring;
        let show = |view: &StateView| {
            // There is room: it was looked for above, and nobody else writes.
            let _ = ring.push(*view);
        };
        if states.list(&mut self.cursor, PORTION, show) {
            self.answered = asked;
            self.wish.answered.store(asked, Ordering::Release);
        }
    }
}

impl StateReader {
    /// Every state of the worker, as `each` takes them. False where the worker did not come to the end within `patience`.
    pub fn read(&mut self, patience: Duration, mut each: impl FnMut(&StateView)) -> bool {
        let until = Instant::now() + patience;
        // What an earlier question left is of no use.
        while self.ring.pop().is_ok() {}
        self.asked += 1;
        self.wish.asked.store(self.asked, Ordering::Release);
        loop {
            let ended = self.wish.answered.load(Ordering::Acquire) == self.asked;
            let mut idle = true;
            while let Ok(view) = self.ring.pop() {
                idle = false;
                each(&view);
            }
            if ended {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            if idle {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::dynamic::{FlowKey, NameId, NewState, PacketFacts, RuleRef, Shared};
    use super::*;

    #[test]
    fn every_state_comes_once_however_many_there_are() {
        let shared = Arc::new(Shared::default());
        let mut states = States::new(shared, 16_384);
        let facts = PacketFacts { length: 40, tcp_flags: 0, acknowledgement: None };
        for port in 0..3000 {
            let key = FlowKey::v4(1, 2, 17, port, 53);
            let rule = RuleRef { index: 2, generation: 1 };
            let hash = u32::from(port).wrapping_mul(0x9e37_79b9);
            let new = NewState { key, hash, name: NameId::DEFAULT, rule, limit: None };
            assert!(states.install(&new, &facts).is_ok());
        }
        let (mut lister, mut reader) = pair();
        let worker = std::thread::spawn(move || {
            let until = Instant::now() + Duration::from_secs(20);
            while lister.answered < 2 && Instant::now() < until {
                lister.turn(&states);
                std::thread::yield_now();
            }
        });
        for _ in 0..2 {
            let mut ports = Vec::new();
            assert!(reader.read(Duration::from_secs(10), |view| ports.push(view.key.ports().0)));
            ports.sort_unstable();
            assert_eq!(ports, (0..3000).collect::<Vec<u16>>());
        }
        worker.join().unwrap();
        assert!(!reader.read(Duration::from_millis(5), |_| {}), "nobody is there any more");
    }
}
