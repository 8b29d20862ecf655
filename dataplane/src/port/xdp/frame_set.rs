//! Which buffers the kernel has: one bit each, so that a closed socket's buffers are found again, whatever it was doing.

#![forbid(unsafe_code)]

/// A set of buffer indices below a bound. One owner, no sharing.
#[derive(Debug)]
pub(super) struct FrameSet {
    words: Box<[u64]>,
    count: usize,
}

impl FrameSet {
    /// An empty set for indices below `bound`.
    pub fn new(bound: u32) -> Self {
        Self { words: vec![0; (bound as usize).div_ceil(64)].into(), count: 0 }
    }

    /// How many are in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Adds an index below the bound that is not in it.
    #[inline]
    pub fn insert(&mut self, index: u32) {
        let (word, bit) = (&mut self.words[index as usize / 64], 1 << (index % 64));
        debug_assert!(*word & bit == 0, "a buffer was given away twice");
        *word |= bit;
        self.count += 1;
    }

    /// Takes an index out; false when it was not in, or not below the bound: then the kernel gave back what it never had.
    #[inline]
    #[must_use]
    pub fn remove(&mut self, index: u32) -> bool {
        let Some(word) = self.words.get_mut(index as usize / 64) else { return false };
        let bit = 1 << (index % 64);
        if *word & bit == 0 {
            return false;
        }
        *word &= !bit;
        self.count -= 1;
        true
    }

    /// Takes all out.
    pub fn drain(&mut self, mut each: impl FnMut(u32)) {
        for (at, word) in self.words.iter_mut().enumerate() {
            let mut bits = std::mem::take(word);
            while bits != 0 {
                each((at * 64) as u32 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_in_comes_out_once() {
        let mut set = FrameSet::new(200);
        for index in [0, 63, 64, 199] {
            set.insert(index);
        }
        assert!(set.remove(64) && !set.remove(64));
        assert!(!set.remove(1) && !set.remove(10_000));
        let mut out = Vec::new();
        set.drain(|index| out.push(index));
        assert_eq!((out, set.len()), (vec![0, 63, 199], 0));
    }
}
