//! The AF_XDP system interface: one thin function for each call that an AF_XDP socket needs.
//!
//! What: `socket(AF_XDP)`, its options (`linux/if_xdp.h`, kernel Documentation/networking/af_xdp.rst), ring mappings and
//! kicks. Why by hand: `xdp` lacks shared UMEM and multi-buffer binding, `xsk-rs` needs C libraries, and this is all there
//! is to it. Owner thread: opening is the control thread's, kicks and statistics the worker's that owns the queue.
//!
//! Errors are plain [`io::Error`]s of the failed call; the layers above say what was being done and what to do about it.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use libc::{c_int, c_void, socklen_t};

/// `SOL_XDP` option 9 (`linux/if_xdp.h`, kernel 6.12): frames that one `sendto` may turn into skbs; 32 by default.
pub const XDP_MAX_TX_SKB_BUDGET: c_int = 9;
/// `SO_PREFER_BUSY_POLL` (`asm-generic/socket.h`, kernel 5.11).
const SO_PREFER_BUSY_POLL: c_int = 69;
/// `SO_BUSY_POLL` (`asm-generic/socket.h`), in microseconds.
const SO_BUSY_POLL: c_int = 46;
/// `SO_BUSY_POLL_BUDGET` (`asm-generic/socket.h`, kernel 5.11), in frames.
const SO_BUSY_POLL_BUDGET: c_int = 70;
/// Bits of a receive address that name the buffer in unaligned mode; the offset is above them (`linux/if_xdp.h`).
pub const UNALIGNED_ADDRESS_BITS: u32 = 48;
/// Bytes that the kernel keeps free before each received frame, besides the UMEM's own headroom (`XDP_PACKET_HEADROOM`,
/// `linux/bpf.h`).
pub const KERNEL_HEADROOM: u32 = 256;
/// The most fragments of one frame: `MAX_SKB_FRAGS` (17) and the linear part.
pub const FRAGMENTS_MAX: usize = 18;

// The kernel reads and writes these structures: a libc that laid them out otherwise must not compile.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<libc::xdp_desc>() == 16);
    assert!(offset_of!(libc::xdp_desc, addr) == 0 && offset_of!(libc::xdp_desc, len) == 8);
    assert!(offset_of!(libc::xdp_desc, options) == 12);
    assert!(size_of::<libc::sockaddr_xdp>() == 16);
    assert!(offset_of!(libc::sockaddr_xdp, sxdp_ifindex) == 4);
    assert!(offset_of!(libc::sockaddr_xdp, sxdp_queue_id) == 8);
    assert!(offset_of!(libc::sockaddr_xdp, sxdp_shared_umem_fd) == 12);
    assert!(size_of::<libc::xdp_ring_offset>() == 32 && size_of::<libc::xdp_mmap_offsets>() == 128);
    assert!(offset_of!(libc::xdp_mmap_offsets, fr) == 64 && offset_of!(libc::xdp_mmap_offsets, cr) == 96);
    assert!(size_of::<libc::xdp_umem_reg>() == 32 && offset_of!(libc::xdp_umem_reg, flags) == 24);
    assert!(size_of::<libc::xdp_statistics>() == 48);
    // Ring indices are mapped as AtomicU32, and addresses travel as u64.
    assert!(size_of::<std::sync::atomic::AtomicU32>() == 4 && size_of::<usize>() == 8);
};

/// One of the four rings of an AF_XDP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingKind {
    /// User space gives the kernel empty buffers.
    Fill,
    /// The kernel gives back buffers that were sent.
    Completion,
    /// The kernel gives user space received frames.
    Receive,
    /// User space gives the kernel frames to send.
    Transmit,
}

impl RingKind {
    fn option(self) -> c_int {
        match self {
            RingKind::Fill => libc::XDP_UMEM_FILL_RING,
            RingKind::Completion => libc::XDP_UMEM_COMPLETION_RING,
            RingKind::Receive => libc::XDP_RX_RING,
            RingKind::Transmit => libc::XDP_TX_RING,
        }
    }

    fn page_offset(self) -> libc::off_t {
        match self {
            RingKind::Fill => libc::XDP_UMEM_PGOFF_FILL_RING as libc::off_t,
            RingKind::Completion => libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t,
            RingKind::Receive => libc::XDP_PGOFF_RX_RING,
            RingKind::Transmit => libc::XDP_PGOFF_TX_RING,
        }
    }

    fn offsets(self, all: &libc::xdp_mmap_offsets) -> libc::xdp_ring_offset {
        match self {
            RingKind::Fill => all.fr,
            RingKind::Completion => all.cr,
            RingKind::Receive => all.rx,
            RingKind::Transmit => all.tx,
        }
    }

    /// Bytes of one entry: an address, or a descriptor.
    fn entry_bytes(self) -> usize {
        match self {
            RingKind::Fill | RingKind::Completion => size_of::<u64>(),
            RingKind::Receive | RingKind::Transmit => size_of::<libc::xdp_desc>(),
        }
    }
}

/// Counters that the kernel keeps for each socket (`XDP_STATISTICS`, second version), in frames since the socket was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelStatistics {
    /// Received and dropped for want of a buffer, or because the frame did not fit.
    pub rx_dropped: u64,
    /// Fill-ring entries that named no buffer of the UMEM.
    pub rx_invalid_descs: u64,
    /// Transmit descriptors that named no buffer of the UMEM, or had too many fragments.
    pub tx_invalid_descs: u64,
    /// Received and dropped because the receive ring was full.
    pub rx_ring_full: u64,
    /// Times the kernel looked for an empty buffer and the fill ring had none.
    pub rx_fill_ring_empty_descs: u64,
    /// Times the kernel looked for a frame to send and the transmit ring had none.
    pub tx_ring_empty_descs: u64,
}

/// Busy polling from user space (kernel Documentation/networking/napi.rst).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyPoll {
    /// How long a blocking call may poll the driver, in microseconds.
    pub timeout_us: u32,
    /// Frames that the driver handles for each call.
    pub budget: u32,
}

/// An AF_XDP socket, not yet or already bound. Closing it takes it out of every XSKMAP and waits until the kernel's
/// receive side has left the UMEM (`synchronize_net` in `xsk_release`).
#[derive(Debug)]
pub struct XskSocket {
    fd: OwnedFd,
}

impl XskSocket {
    /// Opens a socket in the thread's network namespace.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW, `EAFNOSUPPORT` where the kernel has no AF_XDP.
    pub fn open() -> io::Result<Self> {
        // SAFETY: socket(2) takes no pointers; the result is checked before use.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        // SAFETY: a non-negative result is a descriptor that nothing else owns.
        check(fd).map(|fd| Self { fd: unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) } })
    }

    /// Takes over a socket that a privileged helper opened and passed on; it must be an unbound AF_XDP socket.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Registers memory as this socket's UMEM.
    ///
    /// # Safety
    /// `reg.addr .. reg.addr + reg.len` must be memory of this process that stays mapped, and that nobody reads through a
    /// reference, for as long as any socket that shares the UMEM is open: the kernel writes there.
    ///
    /// # Errors
    /// `ENOBUFS` over RLIMIT_MEMLOCK, `EINVAL` for a chunk size below 2048, above the page size, or (aligned) no power of 2.
    pub unsafe fn register_umem(&self, reg: &libc::xdp_umem_reg) -> io::Result<()> {
        self.set_option(libc::SOL_XDP, libc::XDP_UMEM_REG, reg)
    }

    /// Sizes a ring; `entries` is a power of two. Before `bind` only.
    ///
    /// # Errors
    /// `EINVAL` for a size that is none, `EBUSY` when the socket is bound.
    pub fn set_ring_size(&self, kind: RingKind, entries: u32) -> io::Result<()> {
        self.set_option(libc::SOL_XDP, kind.option(), &entries)
    }

    /// Maps a ring that `set_ring_size` has made with the same number of entries.
    ///
    /// # Errors
    /// Those of `getsockopt` and `mmap`.
    pub fn map_ring(&self, kind: RingKind, entries: u32) -> io::Result<RingMapping> {
        let all: libc::xdp_mmap_offsets = self.get_option(libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)?;
        let offsets = kind.offsets(&all);
        let length = offsets.desc as usize + entries as usize * kind.entry_bytes();
        // SAFETY: a new mapping at an address of the kernel's choice; the kernel checks that the length fits the ring.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                self.fd.as_raw_fd(),
                kind.page_offset(),
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned address zero"))?;
        Ok(RingMapping { base, length, offsets })
    }

    /// Binds the socket to a device queue: with `shared` to the UMEM of that bound socket (`flags` must then be 0), else
    /// to its own with `XDP_COPY`, `XDP_ZEROCOPY`, `XDP_USE_NEED_WAKEUP` and `XDP_USE_SG` in `flags`.
    ///
    /// # Errors
    /// `EINVAL` for a queue past the end or a flag the kernel lacks, `EBUSY` when the queue has a socket (or had one until
    /// some 20 ms ago), `EOPNOTSUPP` for zero-copy that the driver lacks, `EBADF` when `shared` is no longer bound.
    pub fn bind(&self, ifindex: u32, queue: u32, flags: u16, shared: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: if shared.is_some() { flags | libc::XDP_SHARED_UMEM } else { flags },
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: shared.map_or(0, |fd| fd.as_raw_fd() as u32),
        };
        // SAFETY: the address is a live sockaddr_xdp of the length given.
        check(unsafe {
            libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_xdp>() as socklen_t)
        })
        .map(drop)
    }

    /// The socket's counters; zero in fields that an old kernel does not have.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn statistics(&self) -> io::Result<KernelStatistics> {
        let raw: libc::xdp_statistics = self.get_option(libc::SOL_XDP, libc::XDP_STATISTICS)?;
        Ok(KernelStatistics {
            rx_dropped: raw.rx_dropped,
            rx_invalid_descs: raw.rx_invalid_descs,
            tx_invalid_descs: raw.tx_invalid_descs,
            rx_ring_full: raw.rx_ring_full,
            rx_fill_ring_empty_descs: raw.rx_fill_ring_empty_descs,
            tx_ring_empty_descs: raw.tx_ring_empty_descs,
        })
    }

    /// Whether the bound socket got zero-copy.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn is_zero_copy(&self) -> io::Result<bool> {
        let options: libc::xdp_options = self.get_option(libc::SOL_XDP, libc::XDP_OPTIONS)?;
        Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// Frames that one transmit kick may hand to the driver in copy mode. 32 unless set.
    ///
    /// # Errors
    /// `ENOPROTOOPT` before kernel 6.12, `EACCES` outside 32 ..= the transmit ring's size.
    pub fn set_transmit_budget(&self, frames: u32) -> io::Result<()> {
        self.set_option(libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, &frames)
    }

    /// Lets kicks run the driver's poll function. Without effect on drivers that have no NAPI context of their own.
    ///
    /// # Errors
    /// `ENOPROTOOPT` before kernel 5.11, `EPERM` without CAP_NET_ADMIN.
    pub fn set_busy_poll(&self, busy: BusyPoll) -> io::Result<()> {
        let as_int = |value: u32| c_int::try_from(value).unwrap_or(c_int::MAX);
        self.set_option(libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1_i32)?;
        self.set_option(libc::SOL_SOCKET, SO_BUSY_POLL, &as_int(busy.timeout_us))?;
        self.set_option(libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &as_int(busy.budget))
    }

    /// Room for copies of frames between the transmit ring and the driver, in bytes, above the system's limit when
    /// CAP_NET_ADMIN allows.
    ///
    /// # Errors
    /// Those of `setsockopt`.
    pub fn set_send_buffer(&self, bytes: u32) -> io::Result<()> {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
            .or_else(|_| self.set_option(libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes))
    }

    /// Asks the kernel to send what is in the transmit ring. One system call, never blocks.
    ///
    /// # Errors
    /// `EAGAIN`, `EBUSY` and `ENOBUFS` are everyday: descriptors stay in the ring, kick again after reaping completions.
    /// `ENETDOWN` while the link is down, `ENXIO` once the device is gone.
    pub fn kick_transmit(&self) -> io::Result<()> {
        // SAFETY: sendto(2) with neither data nor address reads no memory of ours.
        let sent =
            unsafe { libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Wakes the driver's receive side, which had run out of buffers (or busy-polls it). One system call, never blocks.
    ///
    /// # Errors
    /// As for [`XskSocket::kick_transmit`].
    pub fn kick_receive(&self) -> io::Result<()> {
        // SAFETY: recvfrom(2) of zero bytes writes no memory of ours.
        let got = unsafe {
            libc::recvfrom(
                self.fd.as_raw_fd(),
                std::ptr::null_mut(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The error that the socket has pending, which this clears: `ENETDOWN` when its device was removed.
    ///
    /// # Errors
    /// Those of `getsockopt`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        let code: c_int = self.get_option(libc::SOL_SOCKET, libc::SO_ERROR)?;
        Ok((code != 0).then(|| io::Error::from_raw_os_error(code)))
    }

    fn set_option<T>(&self, level: c_int, name: c_int, value: &T) -> io::Result<()> {
        // SAFETY: value is a live T and its exact size goes with it.
        check(unsafe {
            libc::setsockopt(self.fd.as_raw_fd(), level, name, (&raw const *value).cast(), size_of::<T>() as socklen_t)
        })
        .map(drop)
    }

    /// Only for `T` in which all-zero is a value: plain integers and the C structures above.
    fn get_option<T: Copy>(&self, level: c_int, name: c_int) -> io::Result<T> {
        let mut value = MaybeUninit::<T>::zeroed();
        let mut length = size_of::<T>() as socklen_t;
        // SAFETY: value is size_of::<T>() writable bytes, and the kernel writes no more than length says.
        check(unsafe {
            libc::getsockopt(self.fd.as_raw_fd(), level, name, value.as_mut_ptr().cast::<c_void>(), &raw mut length)
        })?;
        // SAFETY: zeroed before, so initialised even where the kernel wrote less; each T used here is a plain C struct.
        Ok(unsafe { value.assume_init() })
    }
}

impl AsRawFd for XskSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl std::os::fd::AsFd for XskSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A mapped ring; unmapped when dropped.
#[derive(Debug)]
pub struct RingMapping {
    base: NonNull<u8>,
    length: usize,
    offsets: libc::xdp_ring_offset,
}

// SAFETY: the mapping belongs to no thread; whoever owns the value is its only user on this side.
unsafe impl Send for RingMapping {}

impl RingMapping {
    /// The ring's parts: producer index, consumer index, flags, first entry. All lie inside the mapping.
    pub(super) fn parts(&self) -> (NonNull<u8>, NonNull<u8>, NonNull<u8>, NonNull<u8>) {
        let at = |offset: u64| {
            assert!((offset as usize) < self.length, "the kernel placed a ring part outside its mapping");
            // SAFETY: inside the mapping, as just checked.
            unsafe { self.base.add(offset as usize) }
        };
        (at(self.offsets.producer), at(self.offsets.consumer), at(self.offsets.flags), at(self.offsets.desc))
    }
}

impl Drop for RingMapping {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the mapping that map_ring made, and the rings over it are gone: they own it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Raises RLIMIT_MEMLOCK as far as this process may, and returns the limit now in force in bytes (`u64::MAX`: none).
/// A UMEM's pages are locked, and the default of 8 MiB holds 4096 buffers.
///
/// # Errors
/// Those of `getrlimit`.
pub fn raise_memlock_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: limit is a live rlimit.
    check(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) })?;
    let wanted = [libc::RLIM_INFINITY, limit.rlim_max];
    for maximum in wanted {
        let raised = libc::rlimit { rlim_cur: maximum, rlim_max: maximum };
        // SAFETY: raised is a live rlimit.
        if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const raised) } == 0 {
            return Ok(maximum);
        }
    }
    Ok(limit.rlim_cur)
}

/// Waits until every XDP program run that was under way has ended, so that what was taken out of a map before is used no
/// more. Some 10 ms; for the control path.
pub(super) fn wait_for_kernel_readers() {
    /// `MEMBARRIER_CMD_GLOBAL` (`linux/membarrier.h`): an RCU grace period, which XDP runs are readers of.
    const GLOBAL: c_int = 1;
    // SAFETY: membarrier(2) takes no pointers.
    if unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) } != 0 {
        // Kernels with nohz_full refuse it. A run lasts microseconds; this is many times more.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
