//! The ring of a memory port: one producer, one consumer, bursts moved by copying whole runs of slots.
//!
//! `rtrb` is the ring between threads everywhere else; here its element-wise iterators cost as much as the look-up of a route
//! (7 + 5 of 48 cycles a packet, against 3 + 2), so the memory port, with which the packet path is measured, has its own.
//!
//! **Ownership.** Slots from `head` to `tail` belong to the consumer, the others to the producer; both count up without bound and are
//! masked. The producer alone stores `tail`, with Release after writing the slots; the consumer alone stores `head`, with Release
//! after reading them out. Each keeps a copy of the other's counter and looks at the real one only when the copy is not enough.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[repr(align(128))]
struct Padded(AtomicUsize);

struct Shared<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// Most values at a time; there may be more slots.
    capacity: usize,
    head: Padded,
    tail: Padded,
}

// SAFETY: a slot is reached by one side at a time, handed over by the Release/Acquire pairs on head and tail (module rule).
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn slot(&self, at: usize) -> *mut T {
        // The length is a power of two, so the mask keeps every counter inside. From the start of the slice, not of one slot: runs of
        // slots are copied through this pointer.
        UnsafeCell::raw_get(self.slots.as_ptr().wrapping_add(at & (self.slots.len() - 1))).cast()
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (head, tail) = (*self.head.0.get_mut(), *self.tail.0.get_mut());
        for at in 0..tail.wrapping_sub(head) {
            // SAFETY: both ends are gone, and slots from head to tail are filled.
            unsafe { ptr::drop_in_place(self.slot(head.wrapping_add(at))) }
        }
    }
}

/// The side that puts in.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: usize,
    head: usize,
}

/// The side that takes out.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    tail: usize,
}

/// A ring that holds up to `capacity` values (at least one).
pub fn ring<T>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let capacity = capacity.max(1);
    let slots = (0..capacity.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let (head, tail) = (Padded(AtomicUsize::new(0)), Padded(AtomicUsize::new(0)));
    let shared = Arc::new(Shared { slots, capacity, head, tail });
    (Producer { shared: shared.clone(), tail: 0, head: 0 }, Consumer { shared, head: 0, tail: 0 })
}

impl<T> Producer<T> {
    /// Free slots, at least `wanted` where there are so many.
    #[inline(always)]
    fn room(&mut self, wanted: usize) -> usize {
        let capacity = self.shared.capacity;
        if capacity - self.tail.wrapping_sub(self.head) < wanted {
            self.head = self.shared.head.0.load(Ordering::Acquire);
        }
        capacity - self.tail.wrapping_sub(self.head)
    }

    /// Puts one in.
    ///
    /// # Errors
    /// The value, when the ring is full.
    pub fn push(&mut self, value: T) -> Result<(), rtrb::PushError<T>> {
        if self.room(1) == 0 {
            return Err(rtrb::PushError::Full(value));
        }
        // SAFETY: the slot at tail is free (room), so it is the producer's.
        unsafe { self.shared.slot(self.tail).write(value) };
        self.tail = self.tail.wrapping_add(1);
        self.shared.tail.0.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Moves as many values as there is room for from the front of `values`; the rest stays there.
    #[inline]
    pub fn push_all(&mut self, values: &mut Vec<T>) {
        let n = self.room(values.len()).min(values.len());
        let to_end = self.shared.slots.len() - (self.tail & (self.shared.slots.len() - 1));
        let first = n.min(to_end);
        let rest = values.len() - n;
        // SAFETY: n slots from tail on are free (room) and are copied to in two runs, before and after the ring's end; the values
        // copied leave the vector: its length is set to what remains, which is moved to the front.
        unsafe {
            ptr::copy_nonoverlapping(values.as_ptr(), self.shared.slot(self.tail), first);
            // Mostly nothing, and a call all the same if it were not asked first.
            if first < n {
                let wrapped = self.shared.slot(self.tail.wrapping_add(first));
                ptr::copy_nonoverlapping(values.as_ptr().add(first), wrapped, n - first);
            }
            values.set_len(0);
            if rest > 0 {
                ptr::copy(values.as_ptr().add(n), values.as_mut_ptr(), rest);
                values.set_len(rest);
            }
        }
        self.tail = self.tail.wrapping_add(n);
        self.shared.tail.0.store(self.tail, Ordering::Release);
    }
}

impl<T> Consumer<T> {
    /// Values there, at least `wanted` where there are so many.
    #[inline(always)]
    fn ready(&mut self, wanted: usize) -> usize {
        if self.tail.wrapping_sub(self.head) < wanted {
            self.tail = self.shared.tail.0.load(Ordering::Acquire);
        }
        self.tail.wrapping_sub(self.head)
    }

    /// Whether there is nothing.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.shared.tail.0.load(Ordering::Acquire) == self.head
    }

    /// Takes one out.
    ///
    /// # Errors
    /// When there is none.
    pub fn pop(&mut self) -> Result<T, rtrb::PopError> {
        let mut value = Err(rtrb::PopError::Empty);
        self.pop_each(1, |v| value = Ok(v));
        value
    }

    /// Gives up to `max` values to `each`, in order; returns how many.
    #[inline(always)]
    pub fn pop_each(&mut self, max: usize, mut each: impl FnMut(T)) -> usize {
        let n = self.ready(max).min(max);
        if n == 0 {
            return 0;
        }
        // Counted before they are given away: a panic in `each` loses values rather than giving one twice.
        let from = self.head;
        self.head = self.head.wrapping_add(n);
        for at in 0..n {
            // SAFETY: slots from head to tail are filled and the consumer's; each is read once, as head moves past it.
            each(unsafe { self.shared.slot(from.wrapping_add(at)).read() });
        }
        self.shared.head.0.store(self.head, Ordering::Release);
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn bursts_keep_their_order_around_the_end() {
        let (mut producer, mut consumer) = ring(8);
        let mut out = vec![];
        let mut next = 0;
        for burst in [5, 8, 3, 11, 1, 7] {
            let mut values: Vec<i32> = (next..next + burst).collect();
            while !values.is_empty() {
                producer.push_all(&mut values);
                consumer.pop_each(3, |v| out.push(v));
            }
            next += burst;
        }
        while let Ok(v) = consumer.pop() {
            out.push(v);
        }
        assert_eq!(out, (0..next).collect::<Vec<_>>());
        assert!(consumer.is_empty());
    }

    #[test]
    fn what_is_left_is_dropped_once() {
        let value = Rc::new(());
        let (mut producer, mut consumer) = ring(4);
        let mut values = vec![value.clone(); 6];
        producer.push_all(&mut values);
        assert_eq!((values.len(), producer.push(value.clone()).is_err()), (2, true));
        drop(consumer.pop().unwrap());
        drop((producer, consumer, values));
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    fn two_threads_lose_nothing() {
        let (mut producer, mut consumer) = ring(64);
        let total = 200_000u64;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut values = vec![];
                let mut next = 0;
                while next < total || !values.is_empty() {
                    while values.len() < 50 && next < total {
                        values.push(Box::new(next));
                        next += 1;
                    }
                    producer.push_all(&mut values);
                    std::thread::yield_now();
                }
            });
            let mut expected = 0;
            while expected < total {
                if consumer.pop_each(33, |v| {
                    assert_eq!(*v, expected);
                    expected += 1;
                }) == 0
                {
                    std::thread::yield_now();
                }
            }
        });
    }
}
