//! The four rings of an AF_XDP socket: single producer, single consumer, shared with the kernel.
//!
//! Each side owns one index and reads the other's. We keep a private copy of both and touch the shared words only when the
//! copy says "full" or "empty", or to publish. Order (kernel `net/xdp/xsk_queue.h`): entries are written before the
//! producer index is stored with Release, and read after it was loaded with Acquire; the consumer index likewise hands
//! slots back. Indices run freely over 2^32; the slot is the index masked by size - 1.
//!
//! Owner thread: the worker that owns the queue. A ring is `Send`, not `Sync`: `&mut self` keeps it to one thread.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::sys::RingMapping;

/// Where a ring's shared words are, and what keeps them there.
#[derive(Debug)]
struct Shared<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
    _mapping: Option<RingMapping>,
}

// SAFETY: the pointers lead into memory that is not tied to a thread (a mapping the value owns, or memory whose owner
// vouched for it in `from_raw`), and only the owner of the ring follows them on this side.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T: Copy> Shared<T> {
    fn from_mapping(mapping: RingMapping, size: u32) -> Self {
        assert!(size.is_power_of_two(), "ring sizes are powers of two");
        let (producer, consumer, flags, entries) = mapping.parts();
        Self {
            producer: producer.cast(),
            consumer: consumer.cast(),
            flags: flags.cast(),
            entries: entries.cast(),
            size,
            _mapping: Some(mapping),
        }
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: points at an aligned u32 in memory that lives as long as self; all access to it is atomic.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as for producer.
        unsafe { self.consumer.as_ref() }
    }

    fn needs_wakeup(&self) -> bool {
        // SAFETY: as for producer.
        let flags = unsafe { self.flags.as_ref() };
        flags.load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    fn entry(&self, index: u32) -> *mut T {
        // SAFETY: the masked index is below size, and the memory holds size entries (the kernel sized the mapping, or the
        // caller of from_raw vouched for it).
        unsafe { self.entries.as_ptr().add((index & (self.size - 1)) as usize) }
    }
}

/// A ring that we fill: fill (`T = u64`) or transmit (`T = xdp_desc`).
#[derive(Debug)]
pub struct ProducerRing<T> {
    shared: Shared<T>,
    /// [W] next index to write; the shared producer follows on publish.
    next: u32,
    /// [W] last value published.
    published: u32,
    /// [W] the consumer index as last seen.
    consumed: u32,
}

/// A ring that we drain: receive (`T = xdp_desc`) or completion (`T = u64`).
#[derive(Debug)]
pub struct ConsumerRing<T> {
    shared: Shared<T>,
    /// [W] next index to read; the shared consumer follows on release.
    next: u32,
    /// [W] last value released.
    released: u32,
    /// [W] the producer index as last seen.
    produced: u32,
}

impl<T: Copy> ProducerRing<T> {
    /// A ring over a mapping of `size` entries.
    pub fn from_mapping(mapping: RingMapping, size: u32) -> Self {
        Self::new(Shared::from_mapping(mapping, size))
    }

    fn new(shared: Shared<T>) -> Self {
        let next = shared.producer().load(Ordering::Relaxed);
        let consumed = shared.consumer().load(Ordering::Acquire);
        Self { shared, next, published: next, consumed }
    }

    /// Entries that the ring holds.
    pub fn size(&self) -> u32 {
        self.shared.size
    }

    /// Free slots, looking at the shared index only when fewer than `wanted` are known.
    #[inline]
    pub fn free(&mut self, wanted: u32) -> u32 {
        let known = self.shared.size - self.next.wrapping_sub(self.consumed);
        if known >= wanted {
            return known;
        }
        self.consumed = self.shared.consumer().load(Ordering::Acquire);
        self.shared.size - self.next.wrapping_sub(self.consumed)
    }

    /// Entries written that the other side has not taken yet (it may be taking them now).
    #[inline]
    pub fn pending(&mut self) -> u32 {
        self.consumed = self.shared.consumer().load(Ordering::Acquire);
        self.next.wrapping_sub(self.consumed)
    }

    /// Looks at the entries that the other side has not taken yet, oldest first.
    pub fn for_each_pending(&mut self, mut each: impl FnMut(T)) {
        for ahead in 0..self.pending() {
            // SAFETY: we wrote this slot and have not written it again: the consumer's index has not passed it.
            each(unsafe { self.shared.entry(self.consumed.wrapping_add(ahead)).read() });
        }
    }

    /// Writes one entry, to be seen after [`ProducerRing::publish`]. False, and nothing written, when the ring is full.
    #[inline]
    pub fn push(&mut self, entry: T) -> bool {
        if self.free(1) == 0 {
            return false;
        }
        // SAFETY: the slot is ours: the consumer's index, loaded with Acquire, has passed it, and it will not look at it
        // before publish.
        unsafe { self.shared.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Makes all entries pushed so far visible to the other side.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.next {
            self.shared.producer().store(self.next, Ordering::Release);
            self.published = self.next;
        }
    }

    /// Whether the kernel sleeps and must be woken by a system call to see new entries.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.shared.needs_wakeup()
    }
}

impl<T: Copy> ConsumerRing<T> {
    /// A ring over a mapping of `size` entries.
    pub fn from_mapping(mapping: RingMapping, size: u32) -> Self {
        Self::new(Shared::from_mapping(mapping, size))
    }

    fn new(shared: Shared<T>) -> Self {
        let next = shared.consumer().load(Ordering::Relaxed);
        let produced = shared.producer().load(Ordering::Acquire);
        Self { shared, next, released: next, produced }
    }

    /// Entries to read, looking at the shared index only when fewer than `wanted` are known.
    #[inline]
    pub fn available(&mut self, wanted: u32) -> u32 {
        let known = self.produced.wrapping_sub(self.next);
        if known >= wanted {
            return known;
        }
        self.produced = self.shared.producer().load(Ordering::Acquire);
        self.produced.wrapping_sub(self.next)
    }

    /// Reads the next entry, or `None` when the ring is empty. Its slot goes back on [`ConsumerRing::release`].
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.available(1) == 0 {
            return None;
        }
        // SAFETY: the producer's index, loaded with Acquire, has passed this slot, so it is written and stays so until
        // release.
        let entry = unsafe { self.shared.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Looks at the entry `ahead` places after the next one without taking it.
    #[inline]
    pub fn peek(&mut self, ahead: u32) -> Option<T> {
        if self.available(ahead + 1) <= ahead {
            return None;
        }
        // SAFETY: as for pop: available() is above ahead, so the slot is written and not yet released.
        Some(unsafe { self.shared.entry(self.next.wrapping_add(ahead)).read() })
    }

    /// Gives the slots of all entries read so far back to the other side.
    #[inline]
    pub fn release(&mut self) {
        if self.released != self.next {
            self.shared.consumer().store(self.next, Ordering::Release);
            self.released = self.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;

    /// Ring memory of our own, so that both ends can be played here (and by Miri).
    struct Memory {
        indices: [AtomicU32; 3],
        entries: Vec<UnsafeCell<u64>>,
    }

    impl Memory {
        fn new(size: u32, start: u32) -> Box<Self> {
            Box::new(Self {
                indices: [AtomicU32::new(start), AtomicU32::new(start), AtomicU32::new(0)],
                entries: (0..size).map(|_| UnsafeCell::new(0)).collect(),
            })
        }

        /// The memory must outlive what is made from it, and one producer and one consumer at most are made.
        fn shared(&self) -> Shared<u64> {
            Shared {
                producer: NonNull::from(&self.indices[0]),
                consumer: NonNull::from(&self.indices[1]),
                flags: NonNull::from(&self.indices[2]),
                entries: NonNull::from(self.entries.as_slice()).cast(),
                size: self.entries.len() as u32,
                _mapping: None,
            }
        }
    }

    #[test]
    fn entries_arrive_in_order_across_the_index_wrap() {
        let memory = Memory::new(8, u32::MAX - 5);
        let (mut producer, mut consumer) = (ProducerRing::new(memory.shared()), ConsumerRing::new(memory.shared()));
        let (mut sent, mut received) = (0_u64, 0_u64);
        for round in 0..100 {
            for _ in 0..(round % 9) + 1 {
                if producer.push(sent) {
                    sent += 1;
                }
            }
            producer.publish();
            for _ in 0..(round % 5) + 1 {
                if let Some(entry) = consumer.pop() {
                    assert_eq!(entry, received);
                    received += 1;
                }
            }
            consumer.release();
        }
        assert!(received > 100, "most rounds must have moved something");
        assert_eq!(u64::from(producer.pending()), sent - received);
    }

    #[test]
    fn a_full_ring_takes_no_more_and_an_empty_one_gives_none() {
        let memory = Memory::new(4, 0);
        let (mut producer, mut consumer) = (ProducerRing::new(memory.shared()), ConsumerRing::new(memory.shared()));
        for value in 0..4 {
            assert!(producer.push(value));
        }
        assert!(!producer.push(4));
        assert_eq!(consumer.pop(), None, "nothing is seen before publish");
        producer.publish();
        assert_eq!(consumer.peek(3), Some(3));
        assert_eq!(consumer.peek(4), None);
        assert_eq!(consumer.pop(), Some(0));
        assert!(!producer.push(4), "a slot is free only after release");
        consumer.release();
        assert!(producer.push(4));
        assert_eq!(producer.free(1), 0);
    }

    #[test]
    fn the_wakeup_flag_is_read_from_shared_memory() {
        let memory = Memory::new(4, 0);
        let producer = ProducerRing::new(memory.shared());
        assert!(!producer.needs_wakeup());
        memory.indices[2].store(libc::XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
        assert!(producer.needs_wakeup());
    }

    #[test]
    fn two_threads_lose_and_invent_nothing() {
        let count: u64 = if cfg!(miri) { 500 } else { 200_000 };
        let memory = Memory::new(16, 0);
        let (mut producer, mut consumer) = (ProducerRing::new(memory.shared()), ConsumerRing::new(memory.shared()));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut next = 0;
                while next < count {
                    if producer.push(next) {
                        next += 1;
                        if next % 3 == 0 {
                            producer.publish();
                        }
                    } else {
                        producer.publish();
                        std::thread::yield_now();
                    }
                }
                producer.publish();
            });
            let mut expected = 0;
            while expected < count {
                match consumer.pop() {
                    Some(entry) => {
                        assert_eq!(entry, expected);
                        expected += 1;
                    }
                    None => {
                        consumer.release();
                        std::thread::yield_now();
                    }
                }
            }
        });
    }
}
