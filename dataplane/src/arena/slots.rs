//! A fixed row of slots for packet descriptors: values are written and taken in place.
//!
//! A `Vec` would do the same work, but moving a 64-byte descriptor through its iterators goes over the stack in pieces that do not
//! match the stores before them, and each such move stalls for a dozen cycles (measured: 45 of 77 cycles a packet).

use std::mem::MaybeUninit;

/// A row of `N` slots, the first `len` of them filled.
pub struct Slots<T, const N: usize> {
    slots: Box<[MaybeUninit<T>]>,
    len: usize,
}

/// A value that is still in its slot, owned by whoever holds this: read and change it through [`Slot::get`], then take it out.
#[must_use = "a value that is not taken is lost"]
pub struct Slot<'a, T>(&'a mut MaybeUninit<T>);

impl<T> Slot<'_, T> {
    /// The value.
    #[inline(always)]
    pub fn get(&mut self) -> &mut T {
        // SAFETY: a Slot is made only for a filled slot, and is the only one for it (Slots::consume); it is emptied only by take(),
        // which uses it up.
        unsafe { self.0.assume_init_mut() }
    }

    /// The value by move.
    #[inline(always)]
    pub fn take(self) -> T {
        // SAFETY: as in get(); the slot is never read again, since consume() had set len to 0 before.
        unsafe { self.0.assume_init_read() }
    }
}

impl<T, const N: usize> Default for Slots<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> Slots<T, N> {
    /// An empty row with its memory.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Slots<T, N> {
        Slots { slots: Box::new_uninit_slice(N), len: 0 }
    }

    /// Without memory: holds nothing and takes nothing.
    pub fn vacant() -> Slots<T, N> {
        Slots { slots: Box::new([]), len: 0 }
    }

    /// Filled slots.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Slots still free.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.slots.len() - self.len
    }

    /// Whether no slot is filled.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills the next slot with what `make` gives, or gives None where there is none free (`make` is not called).
    #[inline(always)]
    pub fn push_with(&mut self, make: impl FnOnce() -> T) -> Option<()> {
        let slot = self.slots.get_mut(self.len)?;
        slot.write(make());
        self.len += 1;
        Some(())
    }

    /// The values.
    #[inline(always)]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: the first len slots are filled (push_with fills before it counts), len <= slots.len().
        unsafe { self.slots.get_unchecked(..self.len).assume_init_ref() }
    }

    /// The values, for change.
    #[inline(always)]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as in as_slice(), and self is borrowed mutably.
        unsafe { self.slots.get_unchecked_mut(..self.len).assume_init_mut() }
    }

    /// Empties the row in order: `each` gets every value in its slot and takes it, or leaves it to be forgotten.
    #[inline(always)]
    pub fn consume(&mut self, mut each: impl FnMut(Slot<'_, T>)) {
        // Emptied first, so that a panic in `each` leaks values rather than giving one of them to two owners.
        let len = std::mem::take(&mut self.len);
        for slot in self.slots.iter_mut().take(len) {
            each(Slot(slot));
        }
    }

    /// As [`Slots::consume`]; before each value, `near` and `far` are shown those that come 4 and 8 places later, for prefetches.
    #[inline(always)]
    pub fn consume_ahead(&mut self, far: impl Fn(&T), near: impl Fn(&T), mut each: impl FnMut(Slot<'_, T>)) {
        const FAR: usize = 8;
        const NEAR: usize = 4;
        self.as_slice().iter().take(FAR).for_each(&far);
        self.as_slice().iter().take(NEAR).for_each(&near);
        let len = std::mem::take(&mut self.len);
        for at in 0..len {
            let later = |ahead: usize| {
                let slot = self.slots.get(at + ahead).filter(|_| at + ahead < len)?;
                // SAFETY: slots below the old len are filled until `each` takes them, which it does in order.
                Some(unsafe { slot.assume_init_ref() })
            };
            if let Some(value) = later(FAR) {
                far(value);
            }
            if let Some(value) = later(NEAR) {
                near(value);
            }
            if let Some(slot) = self.slots.get_mut(at) {
                each(Slot(slot));
            }
        }
    }
}

impl<T, const N: usize> Drop for Slots<T, N> {
    fn drop(&mut self) {
        // SAFETY: the first len slots are filled, and nobody uses them afterwards.
        unsafe { self.slots.get_unchecked_mut(..self.len).assume_init_drop() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn values_have_one_owner() {
        let value = Rc::new(());
        let mut slots: Slots<Rc<()>, 4> = Slots::new();
        while slots.push_with(|| value.clone()).is_some() {}
        assert_eq!((slots.len(), slots.room(), Rc::strong_count(&value)), (4, 0, 5));
        let mut kept = vec![];
        slots.consume(|mut slot| {
            assert_eq!(Rc::strong_count(slot.get()), 5);
            kept.push(slot.take());
        });
        assert!(slots.is_empty());
        kept.truncate(1);
        slots.push_with(|| value.clone());
        assert_eq!(Rc::strong_count(&slots.as_slice()[0]), 3);
        drop(slots);
        assert_eq!(Rc::strong_count(&value), 2);
        assert!(Slots::<u8, 4>::vacant().push_with(|| 1).is_none());
    }
}
