//! The arena as the kernel sees it: one UMEM that all sockets of all queues and devices of the process share.
//!
//! The first socket registers the arena's memory; later ones bind with XDP_SHARED_UMEM to *any* socket that is still bound
//! (the kernel takes each of them, not only the first), so that the UMEM outlives the device of the first. When none is
//! left, or a device needs another mode than those that are (zero-copy beside copy), the same memory is registered once
//! more: the kernel keeps no record of buffers in a UMEM, so an index means the same buffer on all of them.
//!
//! Owner thread: the control thread opens and closes; workers read the geometry, which never changes.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::program::Fragments;
use super::sys::{self, KERNEL_HEADROOM, RingKind, UNALIGNED_ADDRESS_BITS, XskSocket};
use crate::arena::{Arena, HEADROOM, RawFrame};

/// The kernel takes chunks from here (`XDP_UMEM_MIN_CHUNK_SIZE`) ...
const CHUNK_MIN: usize = 2048;
/// ... to the size of a page.
const CHUNK_MAX: usize = 4096;
/// A queue stays busy for 10-20 ms after its socket was closed; longer, and somebody has it.
const BUSY_PATIENCE: Duration = Duration::from_secs(1);
const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// Precision of the multiplication that stands for the division by the stride.
const RECIPROCAL_SHIFT: u32 = 36;
/// Strides are multiples of this, so addresses are divided by it first.
const UNIT_SHIFT: u32 = 6;

const _: () = assert!(HEADROOM == KERNEL_HEADROOM as usize, "received frames start at the arena's headroom");

/// Sizes of a socket's rings in entries, powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSizes {
    /// Empty buffers given to the kernel.
    pub fill: u32,
    /// Received frames not yet taken.
    pub receive: u32,
    /// Frames to send.
    pub transmit: u32,
    /// Sent buffers not yet taken back.
    pub completion: u32,
}

impl Default for RingSizes {
    fn default() -> Self {
        Self { fill: 2048, receive: 2048, transmit: 2048, completion: 2048 }
    }
}

/// How frames get between buffers and driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyMode {
    /// The driver works in our buffers.
    ZeroCopy,
    /// The kernel copies each frame.
    Copy,
}

/// A socket that shares the UMEM.
#[derive(Debug)]
struct Member {
    socket: Weak<XskSocket>,
    copy: CopyMode,
    fragments: bool,
}

/// An arena registered, or to be registered, with AF_XDP. Shared by all ports of the process.
pub struct Umem {
    arena: Arc<Arena>,
    geometry: Geometry,
    members: Mutex<Members>,
}

#[derive(Debug, Default)]
struct Members {
    sockets: Vec<Member>,
    registrations: u32,
}

/// From buffers to UMEM addresses and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    stride: u64,
    reciprocal: u64,
    chunk: u32,
    unaligned: bool,
}

/// A socket bound to a queue, not yet reachable by frames.
#[derive(Debug)]
pub(super) struct Bound {
    pub socket: Arc<XskSocket>,
    /// The UMEM of an earlier socket is used.
    pub shared: bool,
}

/// A socket on its way to being a member.
struct NewSocket {
    socket: XskSocket,
    registered: bool,
    copy: CopyMode,
    fragments: bool,
}

impl Umem {
    /// Prepares `arena`, and raises RLIMIT_MEMLOCK as far as allowed; registering happens with the first socket.
    ///
    /// # Errors
    /// For a stride that AF_XDP cannot have (below 2048 bytes), or an arena beyond 16 GiB.
    pub fn new(arena: Arc<Arena>) -> io::Result<Arc<Self>> {
        let geometry = Geometry::new(arena.stride(), arena.mapped_len())?;
        // A refusal shows when the memory is registered, where the error can say what is missing.
        let _limit = sys::raise_memlock_limit();
        Ok(Arc::new(Self { arena, geometry, members: Mutex::default() }))
    }

    /// The memory.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Bytes of the longest frame that fits one buffer; longer ones come in several.
    pub fn buffer_capacity(&self) -> u32 {
        self.geometry.chunk - KERNEL_HEADROOM
    }

    /// Whether buffers stand at addresses that are no multiples of a power of two (XDP_UMEM_UNALIGNED_CHUNK_FLAG).
    pub fn is_unaligned(&self) -> bool {
        self.geometry.unaligned
    }

    /// Times that the memory was registered with the kernel: 1 while all sockets share one UMEM.
    pub fn registrations(&self) -> u32 {
        self.lock().registrations
    }

    /// Sockets that are open.
    pub fn sockets(&self) -> usize {
        self.lock().sockets.iter().filter(|member| member.socket.strong_count() > 0).count()
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn lock(&self) -> MutexGuard<'_, Members> {
        // A panic elsewhere leaves the list whole: it is changed by single pushes and removals.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a new socket on a queue, in exactly this mode. Retries for a second while the queue is busy.
    pub(super) fn bind(
        &self,
        socket: XskSocket,
        ifindex: u32,
        queue: u32,
        rings: RingSizes,
        copy: CopyMode,
        fragments: Fragments,
    ) -> io::Result<Bound> {
        socket.set_ring_size(RingKind::Fill, rings.fill)?;
        socket.set_ring_size(RingKind::Completion, rings.completion)?;
        socket.set_ring_size(RingKind::Receive, rings.receive)?;
        socket.set_ring_size(RingKind::Transmit, rings.transmit)?;
        let mut new = NewSocket { socket, registered: false, copy, fragments: fragments == Fragments::Yes };
        let started = Instant::now();
        loop {
            match self.bind_once(&mut new, ifindex, queue) {
                Ok(()) => break,
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) && started.elapsed() < BUSY_PATIENCE => {
                    // Not under the lock: a worker may want to close a queue meanwhile.
                    std::thread::sleep(BUSY_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
        let NewSocket { socket, registered, copy, fragments } = new;
        let socket = Arc::new(socket);
        let mut members = self.lock();
        members.sockets.push(Member { socket: Arc::downgrade(&socket), copy, fragments });
        members.registrations += u32::from(registered);
        Ok(Bound { socket, shared: !registered })
    }

    /// One attempt: with the UMEM of any socket of the same mode that is still bound, else with one of its own.
    fn bind_once(&self, new: &mut NewSocket, ifindex: u32, queue: u32) -> io::Result<()> {
        let mut members = self.lock();
        members.sockets.retain(|member| member.socket.strong_count() > 0);
        let mut at = 0;
        while let Some(member) = members.sockets.get(at).filter(|_| !new.registered) {
            let alike = member.copy == new.copy && member.fragments == new.fragments;
            let Some(first) = member.socket.upgrade().filter(|_| alike) else {
                at += 1;
                continue;
            };
            match new.socket.bind(ifindex, queue, 0, Some(first.as_fd())) {
                // Its device is gone, so it is bound no more.
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => drop(members.sockets.remove(at)),
                result => return result,
            }
        }
        if !new.registered {
            self.register(&new.socket)?;
            new.registered = true;
        }
        let mut flags = libc::XDP_USE_NEED_WAKEUP;
        flags |= if new.copy == CopyMode::ZeroCopy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
        flags |= if new.fragments { libc::XDP_USE_SG } else { 0 };
        new.socket.bind(ifindex, queue, flags, None)
    }

    fn register(&self, socket: &XskSocket) -> io::Result<()> {
        let reg = libc::xdp_umem_reg {
            addr: self.arena.base().as_ptr() as u64,
            len: self.arena.mapped_len() as u64,
            chunk_size: self.geometry.chunk,
            headroom: 0,
            flags: if self.geometry.unaligned { libc::XDP_UMEM_UNALIGNED_CHUNK_FLAG } else { 0 },
            tx_metadata_len: 0,
        };
        // SAFETY: the arena outlives every socket, because whoever holds a socket holds this Umem too (`queue::Shared`), and
        // a buffer that is in a ring of a socket has no Frame, so nobody looks at it (the arena's ownership rule).
        unsafe { socket.register_umem(&reg) }.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOBUFS) => io::Error::new(
                error.kind(),
                format!(
                    "{error}: {} MiB must be locked in memory and RLIMIT_MEMLOCK does not allow it; \
                     run with CAP_IPC_LOCK, or raise it (systemd: LimitMEMLOCK=infinity)",
                    reg.len >> 20
                ),
            ),
            _ => error,
        })
    }

    /// Closes a socket. The caller must hold the last reference but those that [`Umem::bind`] has for moments.
    pub(super) fn close(&self, socket: Arc<XskSocket>) {
        let mut members = self.lock();
        members.sockets.retain(|member| !std::ptr::eq(member.socket.as_ptr(), Arc::as_ptr(&socket)));
        // Under the lock, so that no bind() has it borrowed: when this returns, the kernel writes to none of its buffers.
        drop(socket);
    }
}

impl Geometry {
    fn new(stride: usize, mapped: usize) -> io::Result<Self> {
        let invalid = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if stride < CHUNK_MIN || !stride.is_multiple_of(1 << UNIT_SHIFT) {
            return invalid(format!("buffers of {stride} bytes: AF_XDP needs 2048 at least, in steps of 64"));
        }
        let units = (stride >> UNIT_SHIFT) as u64;
        let last = (mapped >> UNIT_SHIFT) as u64;
        // Bounds within which `index` is exact: see there.
        if last >= 1 << 28 || last * units >= 1 << RECIPROCAL_SHIFT {
            return invalid(format!("an arena of {} MiB is too large for AF_XDP here", mapped >> 20));
        }
        Ok(Self {
            stride: stride as u64,
            reciprocal: (1 << RECIPROCAL_SHIFT) / units + 1,
            chunk: stride.min(CHUNK_MAX) as u32,
            unaligned: stride != CHUNK_MIN && stride != CHUNK_MAX,
        })
    }

    /// The buffer that an address lies in. A multiplication instead of a division: with n = address / 64, d = stride / 64 and
    /// r = 2^36 / d + 1, floor(n * r / 2^36) = floor(n / d) as long as n * d < 2^36.
    #[inline]
    pub fn index(self, address: u64) -> u32 {
        ((address >> UNIT_SHIFT).wrapping_mul(self.reciprocal) >> RECIPROCAL_SHIFT) as u32
    }

    /// The address for the fill ring.
    #[inline]
    pub fn buffer_address(self, buffer: u32) -> u64 {
        u64::from(buffer) * self.stride
    }

    /// The address of a frame's bytes, for a transmit descriptor.
    #[inline]
    pub fn segment_address(self, raw: RawFrame) -> u64 {
        self.buffer_address(raw.buffer) + u64::from(raw.data)
    }

    /// Buffer and offset within it of a received descriptor's address. The offset is beyond the buffer when the address is
    /// nonsense.
    #[inline]
    pub fn locate(self, address: u64) -> (u32, u64) {
        // In unaligned mode the buffer and the offset come apart; the sum is the place in either mode.
        let mask = (1 << UNALIGNED_ADDRESS_BITS) - 1;
        let place = (address & mask) + (address >> UNALIGNED_ADDRESS_BITS);
        let buffer = self.index(place);
        (buffer, place.wrapping_sub(self.buffer_address(buffer)))
    }

    /// Bytes that the kernel may use of a buffer.
    #[inline]
    pub fn chunk(self) -> u32 {
        self.chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn addresses_lead_back_to_their_buffer(units in 32_u64..=1024, buffer in 0_u32..60_000, offset in 0_u64..65_536) {
            let stride = units << UNIT_SHIFT;
            let geometry = Geometry::new(stride as usize, 61_000 * stride as usize);
            prop_assume!(geometry.is_ok());
            let geometry = geometry.unwrap();
            let offset = offset % stride;
            let address = geometry.buffer_address(buffer) + offset;
            prop_assert_eq!(geometry.index(address), buffer);
            prop_assert_eq!(geometry.locate(address), (buffer, offset));
            let split = geometry.buffer_address(buffer) | offset << UNALIGNED_ADDRESS_BITS;
            prop_assert_eq!(geometry.locate(split), (buffer, offset));
        }
    }

    #[test]
    fn chunks_are_aligned_only_where_the_stride_is_a_power_of_two_that_the_kernel_has() {
        let of = |stride| Geometry::new(stride, 2 << 20).map(|g| (g.chunk, g.unaligned)).ok();
        assert_eq!(of(2048), Some((2048, false)));
        assert_eq!(of(2112), Some((2112, true)));
        assert_eq!(of(4096), Some((4096, false)));
        assert_eq!(of(8192), Some((4096, true)));
        assert_eq!(of(1024), None);
        assert!(Geometry::new(2048, 64 << 30).is_err());
    }
}
