#![forbid(unsafe_code)]
//! The one place where the tables' memory comes from.
//!
//! The big tables are reserved at their full size and never move, so that readers need neither a lock nor a second
//! pointer. They are asked from the allocator already zeroed: a page that was never written costs nothing.

use crate::arena::advise_huge_pages;
use std::sync::atomic::{AtomicU32, AtomicU64};
use zerocopy::FromZeros;

/// Bytes that one page of memory holds; only used to estimate what the tables occupy.
const PAGE_BYTES: usize = 4096;

/// `N` zero words of 32 bits, on the heap.
///
/// # Panics
/// If the address space cannot hold them, as any allocation does.
pub(crate) fn zeroed_u32<const N: usize>() -> Box<[AtomicU32; N]> {
    let table = <[AtomicU32; N]>::new_box_zeroed().unwrap_or_else(|_| out_of_memory(N * 4));
    advise_huge_pages(&*table);
    table
}

/// `N` zero words of 64 bits, on the heap.
///
/// # Panics
/// If the address space cannot hold them, as any allocation does.
pub(crate) fn zeroed_u64<const N: usize>() -> Box<[AtomicU64; N]> {
    let table = <[AtomicU64; N]>::new_box_zeroed().unwrap_or_else(|_| out_of_memory(N * 8));
    advise_huge_pages(&*table);
    table
}

/// `count` zero words of 32 bits, on the heap.
///
/// # Panics
/// If the address space cannot hold them, as any allocation does.
pub(crate) fn zeroed_u32_slice(count: usize) -> Box<[AtomicU32]> {
    <[AtomicU32]>::new_box_zeroed_with_elems(count).unwrap_or_else(|_| out_of_memory(count * 4))
}

fn out_of_memory(bytes: usize) -> ! {
    panic!("no memory for a forwarding table of {bytes} bytes: raise the limit on address space (ulimit -v)")
}

/// Which pages of a lazily zeroed table were written, so that its real size can be told.
pub(crate) struct TouchedPages {
    pages: Box<[u64]>,
    touched: usize,
    /// Entries of the table that share a page.
    entries_per_page: usize,
}

impl TouchedPages {
    /// For a table of `entries` entries of `entry_bytes` bytes.
    pub(crate) fn new(entries: usize, entry_bytes: usize) -> TouchedPages {
        let entries_per_page = PAGE_BYTES / entry_bytes;
        TouchedPages {
            pages: vec![0; (entries / entries_per_page).div_ceil(64) + 1].into(),
            touched: 0,
            entries_per_page,
        }
    }

    /// Notes that `entry` was written.
    #[inline]
    pub(crate) fn touch(&mut self, entry: usize) {
        let page = entry / self.entries_per_page;
        let bit = 1 << (page % 64);
        if let Some(word) = self.pages.get_mut(page / 64)
            && *word & bit == 0
        {
            *word |= bit;
            self.touched += 1;
        }
    }

    /// Bytes of the table that are backed by memory, and of this record.
    pub(crate) fn bytes(&self) -> usize {
        self.touched * PAGE_BYTES + self.pages.len() * 8
    }
}
