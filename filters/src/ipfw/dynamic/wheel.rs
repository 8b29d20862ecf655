#![forbid(unsafe_code)]
//! A timing wheel of one-second slots, each a list of chunks of state numbers.
//!
//! An entry is only a note "look at this state at that second". The state itself says at which second its one valid entry comes; entries
//! left behind by a state that ended early or was put forward are skipped when their second comes. No entry lies further ahead
//! than [`HORIZON`] seconds, which bounds how many such there can be. A chunk is a cache line, so a whole one can be prefetched for,
//! which a list threaded through the states would not allow.

/// Entries of a chunk.
pub(super) const CHUNK: usize = 14;
/// Seconds that an entry may lie ahead.
pub(super) const HORIZON: u32 = 16;
/// Slots; more than twice the horizon, so that a wheel that is late still has its slots apart.
const SLOTS: usize = 64;

/// Entries of one second.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Chunk {
    pub(super) states: [u32; CHUNK],
    pub(super) count: u32,
    /// Number of the next chunk plus one; 0 for none.
    next: u32,
}

const _: () = assert!(size_of::<Chunk>() == 64);

/// There is no room for another entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WheelFull;

/// The wheel.
pub(super) struct Wheel {
    /// First chunk of each slot plus one.
    slots: [u32; SLOTS],
    chunks: Vec<Chunk>,
    free: u32,
    /// The second whose slot is being emptied; all before it are empty.
    time: u32,
    entries: usize,
}

impl Wheel {
    /// An empty wheel with room for `entries` entries and some that are left behind.
    pub(super) fn new(entries: usize) -> Wheel {
        let chunks = Vec::with_capacity(2 * entries / CHUNK + 2 * SLOTS);
        Wheel { slots: [0; SLOTS], chunks, free: 0, time: 0, entries: 0 }
    }

    /// The second that the wheel has come to.
    pub(super) fn time(&self) -> u32 {
        self.time
    }

    /// Bytes in use.
    pub(super) fn memory(&self) -> usize {
        self.chunks.len() * size_of::<Chunk>()
    }

    /// The second for an entry that should come at `second`: after the present one and within the horizon.
    pub(super) fn clamp(&self, second: u32, now: u32) -> u32 {
        let earliest = self.time + 1;
        let latest = (now + HORIZON).min(self.time + SLOTS as u32 - 1).max(earliest);
        second.clamp(earliest, latest)
    }

    /// Adds an entry at a second that [`Wheel::clamp`] gave.
    ///
    /// # Errors
    /// [`WheelFull`], with nothing changed.
    pub(super) fn add(&mut self, second: u32, state: u32) -> Result<(), WheelFull> {
        debug_assert!(second > self.time && second < self.time + SLOTS as u32);
        let slot = second as usize % SLOTS;
        let head = self.slots[slot];
        if head != 0 {
            let chunk = &mut self.chunks[head as usize - 1];
            if let Some(entry) = chunk.states.get_mut(chunk.count as usize) {
                *entry = state;
                chunk.count += 1;
                self.entries += 1;
                return Ok(());
            }
        }
        let mut fresh = Chunk { states: [0; CHUNK], count: 1, next: head };
        fresh.states[0] = state;
        if self.free != 0 {
            let number = self.free;
            self.free = std::mem::replace(&mut self.chunks[number as usize - 1], fresh).next;
            self.slots[slot] = number;
        } else if self.chunks.len() < self.chunks.capacity() {
            self.chunks.push(fresh);
            self.slots[slot] = self.chunks.len() as u32;
        } else {
            return Err(WheelFull);
        }
        self.entries += 1;
        Ok(())
    }

    /// Takes out a chunk of entries whose second has come by `now`; that second is [`Wheel::time`]. None when there are no more.
    pub(super) fn take(&mut self, now: u32) -> Option<Chunk> {
        if self.entries == 0 {
            self.time = self.time.max(now);
            return None;
        }
        // Ends: at most once around, since there is an entry.
        while self.time <= now {
            let slot = self.time as usize % SLOTS;
            let number = self.slots[slot];
            if number != 0 {
                let chunk = &mut self.chunks[number as usize - 1];
                let taken = *chunk;
                self.slots[slot] = taken.next;
                chunk.next = self.free;
                self.free = number;
                self.entries -= taken.count as usize;
                return Some(taken);
            }
            if self.time == now {
                break;
            }
            self.time += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_in_their_second() {
        let mut wheel = Wheel::new(1000);
        assert!(wheel.take(100).is_none());
        for state in 0..100 {
            wheel.add(wheel.clamp(101 + state % 5, 100), state).unwrap();
        }
        let mut seen = Vec::new();
        for now in 101..=105 {
            while let Some(chunk) = wheel.take(now) {
                for state in &chunk.states[..chunk.count as usize] {
                    assert_eq!(101 + state % 5, wheel.time());
                    seen.push(*state);
                }
            }
            assert_eq!(seen.len(), 20 * (now as usize - 100));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert!(wheel.chunks.len() <= 15);
    }

    #[test]
    fn a_wheel_that_is_late_catches_up() {
        let mut wheel = Wheel::new(10);
        wheel.take(10);
        wheel.add(wheel.clamp(12, 10), 1).unwrap();
        wheel.add(wheel.clamp(500, 10), 2).unwrap();
        assert_eq!(wheel.take(400).map(|chunk| chunk.states[0]), Some(1));
        assert_eq!(wheel.time(), 12);
        let late = wheel.clamp(401, 400);
        assert!(late > 12 && late < 12 + SLOTS as u32);
        wheel.add(late, 3).unwrap();
        assert_eq!(wheel.take(400).map(|chunk| chunk.states[0]), Some(2));
        assert_eq!(wheel.take(400).map(|chunk| chunk.states[0]), Some(3));
        assert!(wheel.take(400).is_none());
        assert_eq!(wheel.time(), 400);
    }

    #[test]
    fn a_full_wheel_says_so() {
        let mut wheel = Wheel::new(1);
        let fits = (0..u32::MAX).take_while(|&state| wheel.add(1, state).is_ok()).count();
        assert_eq!(fits, wheel.chunks.capacity() * CHUNK);
    }
}
