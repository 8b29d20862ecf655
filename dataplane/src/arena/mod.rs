//! The packet memory: one arena of equal buffers, handed out as owned [`Frame`]s.
//!
//! One arena serves every port of the process, so that a buffer received on one port is sent on another by handing
//! its index over (AF_XDP registers the whole arena as its UMEM). Buffers are `stride` bytes apart; the default stride
//! of 2048 + 64 bytes spreads the packet headers over all L1 sets ("colouring"): with a power of two they would all fall
//! into two of them (see `BENCHMARKS.md`).
//!
//! **Ownership.** A buffer is owned by exactly one of: a [`Frame`] (which is neither `Clone` nor `Copy`), a free list
//! in a [`Pool`], or a port's kernel ring (which took it with [`Frame::into_raw`] and gives it back with
//! [`Arena::frame_from_raw`]). That is the invariant every `unsafe` block below relies on; only ports may use the raw pair.

mod slots;

pub use slots::{Slot, Slots};

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{io, ptr, slice};

/// Bytes left free before a received frame: room for VLAN tags, and what XDP itself reserves (XDP_PACKET_HEADROOM).
pub const HEADROOM: usize = 256;
/// Bytes from the start of a frame that [`Frame::header`] may look at without a length check.
pub const HEADER_WINDOW: usize = 128;
/// Distance between buffers unless asked otherwise: 2 KiB and one cache line, which colours the L1 sets.
pub const DEFAULT_STRIDE: usize = 2048 + 64;
/// Longest frame, all segments together, that a [`Frame`] may hold: a 64 KiB GSO packet and its headers.
pub const MAX_FRAME: usize = 65_535 + 18;

const HUGE_PAGE: usize = 2 << 20;

/// Which pages stand behind an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 2 MiB pages reserved from the hugetlb pool.
    Huge,
    /// Ordinary pages, with transparent huge pages asked for.
    Transparent,
}

/// What the operator asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HugePages {
    /// Reserved huge pages where there are enough, transparent ones otherwise.
    #[default]
    Prefer,
    /// Reserved huge pages or an error.
    Require,
    /// Never reserved huge pages.
    Off,
}

/// Equal buffers in one mapping; see the module's head for who owns one when.
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
    stride: usize,
    count: u32,
    pages: Pages,
    /// Chain links, by buffer: next buffer (u32), its first byte (u16) and length (u16) packed; written by the owner only.
    links: Box<[AtomicU64]>,
}

// SAFETY: the mapping lives as long as the Arena, and bytes of a buffer are reached only through the one Frame that owns it
// (kept by Frame not being Clone, and by the ports, which follow the module's ownership rule).
unsafe impl Send for Arena {}
// SAFETY: as above; the shared parts (links) are atomics.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `count` buffers `stride` bytes apart.
    ///
    /// # Errors
    /// When the kernel refuses the mapping (with [`HugePages::Require`]: when the hugetlb pool is too small), or when a
    /// number makes no sense (`count` 0, a stride below 512 or not a multiple of 64).
    pub fn new(count: u32, stride: usize, huge: HugePages) -> io::Result<Arc<Arena>> {
        if count == 0 || stride < HEADROOM + 2 * HEADER_WINDOW || !stride.is_multiple_of(64) || stride > 65_536 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no arena of {count} x {stride} bytes")));
        }
        let len = (count as usize * stride).next_multiple_of(HUGE_PAGE);
        let map = |flags| {
            // SAFETY: a fresh anonymous private mapping touches no memory of ours.
            let p = unsafe {
                libc::mmap(
                    ptr::null_mut(),
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                    -1,
                    0,
                )
            };
            if p == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(p.cast::<u8>()) }
        };
        let reserved = if huge == HugePages::Off { None } else { map(libc::MAP_HUGETLB | libc::MAP_POPULATE).ok() };
        let (base, pages) = match (reserved, huge) {
            (Some(p), _) => (p, Pages::Huge),
            (None, HugePages::Require) => {
                return Err(io::Error::new(
                    io::ErrorKind::OutOfMemory,
                    format!(
                        "{} huge pages of 2 MiB are needed; reserve them with: sysctl vm.nr_hugepages={}",
                        len / HUGE_PAGE,
                        len / HUGE_PAGE
                    ),
                ));
            }
            (None, _) => {
                let p = map(0)?;
                // SAFETY: p and len are the mapping made above; advice changes no contents, a refusal is harmless.
                unsafe { libc::madvise(p.cast(), len, libc::MADV_HUGEPAGE) };
                (p, Pages::Transparent)
            }
        };
        let base = NonNull::new(base).ok_or_else(|| io::Error::other("mmap gave a null mapping"))?;
        let links = (0..count).map(|_| AtomicU64::new(0)).collect();
        Ok(Arc::new(Arena { base, len, stride, count, pages, links }))
    }

    /// Start of the mapping; for ports that register it with the kernel.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes mapped, a multiple of 2 MiB, at least `count() * stride()`.
    pub fn mapped_len(&self) -> usize {
        self.len
    }

    /// Bytes from one buffer's start to the next one's.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Number of buffers.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Which pages the mapping got.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// Bytes that one buffer can hold after the headroom.
    pub fn capacity(&self) -> usize {
        self.stride - HEADROOM
    }

    /// Takes back a buffer given away with [`Frame::into_raw`] (or never yet given to anyone).
    ///
    /// # Panics
    /// When `raw` lies outside the arena: a kernel ring gave back what it never got.
    ///
    /// # Safety
    /// The caller (a port or a pool) must be the buffer's only owner, and nobody, the kernel included, may write to it any more.
    pub unsafe fn frame_from_raw(&self, raw: RawFrame) -> Frame {
        let RawFrame { buffer, data, seg_len, len } = raw;
        assert!(buffer < self.count && usize::from(data) + HEADER_WINDOW <= self.stride, "buffer outside the arena");
        assert!(usize::from(data) + usize::from(seg_len) <= self.stride && len >= u32::from(seg_len));
        // SAFETY: buffer < count and data < stride were checked, so the address lies inside the mapping.
        let ptr = unsafe { self.base.add(buffer as usize * self.stride + usize::from(data)) };
        Frame { ptr, buffer, len, data, seg_len, stride: self.stride as u32 }
    }

    fn link(&self, buffer: u32) -> Link {
        Link::unpack(self.links[buffer as usize].load(Relaxed))
    }

    fn set_link(&self, buffer: u32, link: Link) {
        self.links[buffer as usize].store(link.pack(), Relaxed);
    }

    /// The bytes of every segment of `frame`, in order.
    pub fn segments<'a>(&'a self, frame: &'a Frame) -> Segments<'a> {
        Segments { arena: self, first: Some(frame), next: frame.buffer, left: frame.len }
    }

    /// Raw parts of every segment, in order, for ports that write kernel descriptors. `len` is the segment's own length.
    pub fn raw_segments(&self, frame: &Frame, mut each: impl FnMut(RawFrame)) {
        let (mut buffer, mut data, mut len, mut left) = (frame.buffer, frame.data, frame.seg_len, frame.len);
        loop {
            each(RawFrame { buffer, data, seg_len: len, len: u32::from(len) });
            left -= u32::from(len);
            if left == 0 {
                return;
            }
            let link = self.link(buffer);
            (buffer, data, len) = (link.next, link.data, link.len);
        }
    }

    /// Joins `tail` (one segment or a chain of its own) behind `frame`.
    ///
    /// # Panics
    /// When the whole would be longer than [`MAX_FRAME`]: the caller checks first.
    pub fn append(&self, frame: &mut Frame, tail: Frame) {
        assert!((frame.len + tail.len) as usize <= MAX_FRAME, "a chain longer than MAX_FRAME");
        let mut last = frame.buffer;
        let mut left = frame.len - u32::from(frame.seg_len);
        while left > 0 {
            let link = self.link(last);
            last = link.next;
            left -= u32::from(link.len);
        }
        self.set_link(last, Link { next: tail.buffer, data: tail.data, len: tail.seg_len });
        frame.len += tail.len;
    }

    /// Copies up to `out.len()` bytes from `offset` of the frame on; returns how many there were.
    pub fn copy_out(&self, frame: &Frame, mut offset: usize, out: &mut [u8]) -> usize {
        let mut done = 0;
        for segment in self.segments(frame) {
            if offset >= segment.len() {
                offset -= segment.len();
                continue;
            }
            let n = (segment.len() - offset).min(out.len() - done);
            out[done..done + n].copy_from_slice(&segment[offset..offset + n]);
            done += n;
            offset = 0;
            if done == out.len() {
                break;
            }
        }
        done
    }

    /// Calls `each` with the bytes of every segment for writing, in order.
    pub fn for_each_segment_mut(&self, frame: &mut Frame, mut each: impl FnMut(&mut [u8])) {
        let mut left = frame.len - u32::from(frame.seg_len);
        let mut buffer = frame.buffer;
        each(frame.head_mut());
        while left > 0 {
            let link = self.link(buffer);
            left -= u32::from(link.len);
            buffer = link.next;
            // SAFETY: the chain's buffers belong to `frame`, borrowed for writing; links hold what append() checked.
            let bytes = unsafe { slice::from_raw_parts_mut(self.at(buffer, link.data), usize::from(link.len)) };
            each(bytes);
        }
    }

    fn at(&self, buffer: u32, data: u16) -> *mut u8 {
        debug_assert!(buffer < self.count);
        self.base.as_ptr().wrapping_add(buffer as usize * self.stride + usize::from(data))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: base and len are the mapping made in new(); Frames hold no reference past their Pool's Arc<Arena>,
        // which every owner of Frames (worker, port, ring) keeps beside them.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[derive(Clone, Copy)]
struct Link {
    next: u32,
    data: u16,
    len: u16,
}

impl Link {
    fn pack(self) -> u64 {
        u64::from(self.next) << 32 | u64::from(self.data) << 16 | u64::from(self.len)
    }

    fn unpack(v: u64) -> Link {
        Link { next: (v >> 32) as u32, data: (v >> 16) as u16, len: v as u16 }
    }
}

/// A buffer's plain numbers while a kernel ring or a memory ring owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawFrame {
    /// Buffer index.
    pub buffer: u32,
    /// Offset of the first byte within the buffer.
    pub data: u16,
    /// Bytes in this buffer.
    pub seg_len: u16,
    /// Bytes in the whole chain.
    pub len: u32,
}

/// One Ethernet frame: the only owner of its buffer, or of its chain of buffers.
///
/// Dropping a `Frame` would lose its buffers until the arena ends; frames are given back with [`Pool::free`] or sent.
#[must_use = "a frame must be sent, held, or given back to its pool"]
pub struct Frame {
    ptr: NonNull<u8>,
    buffer: u32,
    len: u32,
    data: u16,
    seg_len: u16,
    stride: u32,
}

// SAFETY: a Frame is the only way to its bytes (module rule), so it may move to another thread.
unsafe impl Send for Frame {}

#[allow(clippy::len_without_is_empty)]
impl Frame {
    /// Bytes of the whole frame, all segments.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Bytes in the first buffer.
    #[inline(always)]
    pub fn seg_len(&self) -> usize {
        usize::from(self.seg_len)
    }

    /// Whether the frame has more than one buffer.
    #[inline(always)]
    pub fn is_chain(&self) -> bool {
        self.len != u32::from(self.seg_len)
    }

    /// Index of the first buffer.
    pub fn buffer(&self) -> u32 {
        self.buffer
    }

    /// Free bytes before the frame in its first buffer.
    pub fn headroom(&self) -> usize {
        usize::from(self.data)
    }

    /// Free bytes behind the first segment in its buffer.
    pub fn tailroom(&self) -> usize {
        self.stride as usize - usize::from(self.data) - usize::from(self.seg_len)
    }

    /// The first 128 bytes of the buffer from the frame's start on, whatever its length: bytes past [`Frame::seg_len`] are
    /// stale but initialised, so constant offsets need no check. Callers compare lengths once, then read.
    #[inline(always)]
    pub fn header(&self) -> &[u8; HEADER_WINDOW] {
        // SAFETY: frame_from_raw and the length changers keep data + HEADER_WINDOW <= stride; the mapping is initialised (zeroed
        // by the kernel) and owned by self.
        unsafe { &*self.ptr.as_ptr().cast::<[u8; HEADER_WINDOW]>() }
    }

    /// As [`Frame::header`], for writing.
    #[inline(always)]
    pub fn header_mut(&mut self) -> &mut [u8; HEADER_WINDOW] {
        // SAFETY: as in header(), and self is borrowed mutably.
        unsafe { &mut *self.ptr.as_ptr().cast::<[u8; HEADER_WINDOW]>() }
    }

    /// The bytes of the first segment.
    #[inline(always)]
    pub fn head(&self) -> &[u8] {
        // SAFETY: data + seg_len <= stride is kept by frame_from_raw and the length changers; self owns the buffer.
        unsafe { slice::from_raw_parts(self.ptr.as_ptr(), usize::from(self.seg_len)) }
    }

    /// The bytes of the first segment, for writing.
    #[inline(always)]
    pub fn head_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in head(), and self is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.ptr.as_ptr(), usize::from(self.seg_len)) }
    }

    /// Asks the processor for the first cache line of the frame.
    #[inline(always)]
    pub fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no effect on memory, and the address is inside the mapping.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(self.ptr.as_ptr().cast())
        }
    }

    /// Removes `n` bytes from the front. Returns false, with nothing changed, where the first segment is not longer than
    /// `n` or the header window would leave the buffer.
    #[must_use]
    pub fn trim_front(&mut self, n: usize) -> bool {
        if n >= usize::from(self.seg_len) || usize::from(self.data) + n + HEADER_WINDOW > self.stride as usize {
            return false;
        }
        // SAFETY: data + n stays inside the buffer, as just checked.
        self.ptr = unsafe { self.ptr.add(n) };
        (self.data, self.seg_len, self.len) = (self.data + n as u16, self.seg_len - n as u16, self.len - n as u32);
        true
    }

    /// Makes room for `n` bytes at the front (their contents are stale). Returns false where the headroom is too small.
    #[must_use]
    pub fn extend_front(&mut self, n: usize) -> bool {
        if n > usize::from(self.data) || self.len as usize + n > MAX_FRAME {
            return false;
        }
        // SAFETY: n <= data, so the address stays inside the buffer.
        self.ptr = unsafe { self.ptr.sub(n) };
        (self.data, self.seg_len, self.len) = (self.data - n as u16, self.seg_len + n as u16, self.len + n as u32);
        true
    }

    /// Sets the length of a frame of one segment; false where it is a chain or `len` does not fit in the buffer.
    #[must_use]
    pub fn set_len(&mut self, len: usize) -> bool {
        if self.is_chain() || len == 0 || usize::from(self.data) + len > self.stride as usize {
            return false;
        }
        (self.seg_len, self.len) = (len as u16, len as u32);
        true
    }

    /// Gives the buffer away as plain numbers: to a kernel ring, which must give it back through [`Arena::frame_from_raw`].
    pub fn into_raw(self) -> RawFrame {
        RawFrame { buffer: self.buffer, data: self.data, seg_len: self.seg_len, len: self.len }
    }
}

/// Iterator of [`Arena::segments`].
pub struct Segments<'a> {
    arena: &'a Arena,
    first: Option<&'a Frame>,
    next: u32,
    left: u32,
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if let Some(frame) = self.first.take() {
            self.left -= u32::from(frame.seg_len);
            return Some(frame.head());
        }
        if self.left == 0 {
            return None;
        }
        let link = self.arena.link(self.next);
        self.left -= u32::from(link.len);
        self.next = link.next;
        // SAFETY: the chain belongs to the Frame borrowed for 'a; append() put a checked segment behind the link.
        Some(unsafe { slice::from_raw_parts(self.arena.at(link.next, link.data), usize::from(link.len)) })
    }
}

/// Asks the processor for the cache line of a value; changes nothing.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect on memory, and a reference is a valid address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(ptr::from_ref(value).cast())
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Asks for transparent huge pages behind a large table, so that a random look-up does not miss the TLB too. A kernel without them,
/// or one that has none left, serves small pages: slower, nothing else.
pub fn advise_huge_pages<T>(table: &[T]) {
    let start = (table.as_ptr().addr()).next_multiple_of(HUGE_PAGE);
    let end = (table.as_ptr().addr() + size_of_val(table)) / HUGE_PAGE * HUGE_PAGE;
    if start < end {
        // SAFETY: the range lies within the table's own memory; the advice changes no contents.
        unsafe { libc::madvise(ptr::without_provenance_mut(start), end - start, libc::MADV_HUGEPAGE) };
    }
}

/// Buffers that travel together between pools.
const CHUNK: usize = 64;

/// Where pools with too many buffers leave them in chunks for pools with too few: traffic that is handed over, or that goes up to the
/// host, ends in another pool than the one that it came from.
struct Depot {
    chunks: crossbeam_queue::ArrayQueue<[u32; CHUNK]>,
}

/// A worker's free buffers, last in first out, so that the buffer used next is the one still in the cache.
pub struct Pool {
    arena: Arc<Arena>,
    free: Vec<u32>,
    home: usize,
    depot: Arc<Depot>,
}

impl Pool {
    /// Splits a whole new arena into `n` pools of equal size (the last takes the rest).
    ///
    /// # Panics
    /// As [`Pool::split_by`].
    pub fn split(arena: &Arc<Arena>, n: usize) -> Vec<Pool> {
        assert!(n > 0, "at least one pool");
        let mut shares = vec![arena.count as usize / n; n];
        shares[n - 1] += arena.count as usize % n;
        Pool::split_by(arena, &shares)
    }

    /// Splits a whole new arena into pools of these sizes, which together are all of it.
    ///
    /// # Panics
    /// When the arena already gave its buffers to pools (its `Arc` is shared): each buffer must have one owner. When the shares are not
    /// the whole.
    pub fn split_by(arena: &Arc<Arena>, shares: &[usize]) -> Vec<Pool> {
        assert!(Arc::strong_count(arena) == 1, "an arena is split once, before anyone else holds it");
        assert_eq!(shares.iter().sum::<usize>(), arena.count as usize, "the shares are the whole arena");
        let chunks = crossbeam_queue::ArrayQueue::new(arena.count as usize / CHUNK + 1);
        let depot = Arc::new(Depot { chunks });
        let mut next = 0;
        shares
            .iter()
            .map(|&home| {
                let mut free = Vec::with_capacity(arena.count as usize);
                free.extend((next..next + home as u32).rev());
                next += home as u32;
                Pool { arena: arena.clone(), home, free, depot: depot.clone() }
            })
            .collect()
    }

    /// Evens out with the other pools, a chunk at a time; called once per turn. Lock-free, and no work at all while the
    /// pool holds between a quarter of its share and its share.
    #[inline]
    pub fn balance(&mut self) {
        if self.free.len() > self.home {
            self.give();
        } else if self.free.len() < self.home / 4 {
            self.fetch();
        }
    }

    #[inline(never)]
    fn give(&mut self) {
        while self.free.len() >= self.home + CHUNK {
            let mut chunk = [0; CHUNK];
            let at = self.free.len() - CHUNK;
            chunk.copy_from_slice(&self.free[at..]);
            if self.depot.chunks.push(chunk).is_err() {
                return;
            }
            self.free.truncate(at);
        }
    }

    #[inline(never)]
    fn fetch(&mut self) {
        while self.free.len() + CHUNK <= self.home / 2 {
            let Some(chunk) = self.depot.chunks.pop() else { return };
            self.free.extend_from_slice(&chunk);
        }
    }

    /// The arena the buffers come from.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Buffers free here.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Buffers that are free but in no pool: on their way from one that had too many.
    pub fn between_pools(&self) -> usize {
        self.depot.chunks.len() * CHUNK
    }

    /// Takes a buffer; the frame is empty-looking (length 1) until the caller sets its length.
    #[inline]
    pub fn alloc(&mut self) -> Option<Frame> {
        let buffer = self.free.pop()?;
        let raw = RawFrame { buffer, data: HEADROOM as u16, seg_len: 1, len: 1 };
        // SAFETY: the index was in this free list, so nobody else owns the buffer (module rule).
        Some(unsafe { self.arena.frame_from_raw(raw) })
    }

    /// Takes `n` buffers away as bare indices (for a kernel fill ring), fewer where there are not so many.
    pub fn take_raw(&mut self, n: usize) -> impl Iterator<Item = u32> + '_ {
        let keep = self.free.len().saturating_sub(n);
        self.free.drain(keep..)
    }

    /// Gives bare indices back (from a kernel completion ring).
    ///
    /// # Safety
    /// The caller must own the buffer: taken with [`Pool::take_raw`] or [`Frame::into_raw`], and no longer used by the kernel.
    #[inline]
    pub unsafe fn put_raw(&mut self, buffer: u32) {
        debug_assert!(buffer < self.arena.count);
        self.free.push(buffer);
    }

    /// Makes a frame holding a copy of `bytes` (tests, generators, edges that must copy). None without a buffer or when
    /// the bytes are more than [`MAX_FRAME`] or none.
    pub fn frame_from(&mut self, bytes: &[u8]) -> Option<Frame> {
        if bytes.is_empty() || bytes.len() > MAX_FRAME {
            return None;
        }
        let capacity = self.arena.capacity();
        let mut chunks = bytes.chunks(capacity);
        let first = chunks.next()?;
        let mut frame = self.alloc()?;
        let fits = frame.set_len(first.len());
        debug_assert!(fits);
        frame.head_mut().copy_from_slice(first);
        for chunk in chunks {
            let Some(mut tail) = self.alloc() else {
                self.free(frame);
                return None;
            };
            let fits = tail.set_len(chunk.len());
            debug_assert!(fits);
            tail.head_mut().copy_from_slice(chunk);
            self.arena.append(&mut frame, tail);
        }
        Some(frame)
    }

    /// Takes back every buffer of the frame.
    #[inline]
    pub fn free(&mut self, frame: Frame) {
        if frame.is_chain() {
            let arena = self.arena.clone();
            arena.raw_segments(&frame, |raw| self.free.push(raw.buffer));
        } else {
            self.free.push(frame.buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Pool {
        Pool::split(&Arena::new(64, DEFAULT_STRIDE, HugePages::Off).unwrap(), 1).remove(0)
    }

    #[test]
    fn a_frame_comes_back_to_its_pool() {
        let mut pool = pool();
        let frame = pool.frame_from(b"hello").unwrap();
        assert_eq!((frame.head(), frame.len(), pool.available()), (&b"hello"[..], 5, 63));
        pool.free(frame);
        assert_eq!(pool.available(), 64);
    }

    #[test]
    fn long_frames_are_chains_and_read_back_whole() {
        let mut pool = pool();
        let bytes: Vec<u8> = (0..9000u32).map(|i| (i * 7) as u8).collect();
        let frame = pool.frame_from(&bytes).unwrap();
        assert!(frame.is_chain());
        let arena = pool.arena().clone();
        assert_eq!(arena.segments(&frame).collect::<Vec<_>>().concat(), bytes);
        let mut part = vec![0; 4000];
        assert_eq!(arena.copy_out(&frame, 1500, &mut part), 4000);
        assert_eq!(part, bytes[1500..5500]);
        pool.free(frame);
        assert_eq!(pool.available(), 64);
    }

    #[test]
    fn front_moves_keep_to_the_buffer() {
        let mut pool = pool();
        let mut frame = pool.frame_from(&[9; 100]).unwrap();
        assert!(!frame.trim_front(100));
        assert!(frame.trim_front(4) && frame.extend_front(4 + HEADROOM));
        assert!(!frame.extend_front(1));
        assert_eq!(frame.len(), 100 + HEADROOM);
        assert!(!frame.set_len(DEFAULT_STRIDE + 1));
        pool.free(frame);
    }

    #[test]
    fn pools_even_out() {
        let mut pools = Pool::split(&Arena::new(2048, DEFAULT_STRIDE, HugePages::Off).unwrap(), 2);
        let mut second = pools.pop().unwrap();
        let mut first = pools.pop().unwrap();
        for _ in 0..900 {
            second.free(first.alloc().unwrap());
        }
        for _ in 0..4 {
            second.balance();
            first.balance();
        }
        assert!(
            second.available() < 1024 + CHUNK && first.available() >= 256,
            "{} {}",
            first.available(),
            second.available()
        );
        second.balance();
        let rest = 2048 - first.available() - second.available();
        assert_eq!(rest % CHUNK, 0);
        assert_eq!(rest / CHUNK, first.depot.chunks.len());
    }

    #[test]
    fn an_empty_pool_gives_nothing_and_loses_nothing() {
        let mut pool = pool();
        let frames: Vec<_> = (0..60).map(|_| pool.alloc().unwrap()).collect();
        assert!(pool.frame_from(&[1; 20_000]).is_none());
        assert_eq!(pool.available(), 4);
        frames.into_iter().for_each(|f| pool.free(f));
        assert_eq!(pool.available(), 64);
    }
}
