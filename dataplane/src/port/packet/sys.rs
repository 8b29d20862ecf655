//! The system calls of AF_PACKET (packet(7), linux/if_packet.h): sockets, options, rings in shared memory, interface facts.
//!
//! Nothing here knows what a packet is; [`super::receive`] and [`super::transmit`] walk the rings.

use std::ffi::CStr;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

// The rings are read and written by offset, so the kernel's layouts are asserted here once.
const _: () = {
    assert!(size_of::<libc::tpacket3_hdr>() == 48);
    assert!(offset_of!(libc::tpacket3_hdr, tp_next_offset) == 0);
    assert!(offset_of!(libc::tpacket3_hdr, tp_snaplen) == 12);
    assert!(offset_of!(libc::tpacket3_hdr, tp_len) == 16);
    assert!(offset_of!(libc::tpacket3_hdr, tp_status) == 20);
    assert!(offset_of!(libc::tpacket3_hdr, tp_mac) == 24);
    assert!(offset_of!(libc::tpacket3_hdr, tp_net) == 26);
    assert!(offset_of!(libc::tpacket3_hdr, hv1) == 28);
    assert!(offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tci) == 4);
    assert!(offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tpid) == 8);
    assert!(offset_of!(libc::tpacket_block_desc, hdr) == 8);
    assert!(offset_of!(libc::tpacket_hdr_v1, block_status) == 0);
    assert!(offset_of!(libc::tpacket_hdr_v1, num_pkts) == 4);
    assert!(offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt) == 8);
    assert!(offset_of!(libc::tpacket_hdr_v1, blk_len) == 12);
    assert!(size_of::<libc::tpacket_block_desc>() == 48);
    assert!(size_of::<libc::tpacket2_hdr>() == 32);
    assert!(offset_of!(libc::tpacket2_hdr, tp_status) == 0);
    assert!(offset_of!(libc::tpacket2_hdr, tp_len) == 4);
    assert!(size_of::<libc::sockaddr_ll>() == 20);
    assert!(offset_of!(libc::sockaddr_ll, sll_protocol) == 2);
    assert!(offset_of!(libc::sockaddr_ll, sll_ifindex) == 4);
    assert!(offset_of!(libc::sockaddr_ll, sll_hatype) == 8);
    assert!(size_of::<libc::tpacket_req>() == 16);
    assert!(size_of::<libc::tpacket_req3>() == 28);
};

/// A raw packet socket in the network namespace of the calling thread. It takes no packets until it is bound to a protocol.
///
/// # Errors
/// `EPERM` without CAP_NET_RAW over the network namespace.
pub fn open_socket() -> io::Result<OwnedFd> {
    // SAFETY: socket(2) takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is fresh from the kernel and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a socket option to the bytes of `value`, which must be the plain C type that the option takes.
fn set_option<T: Copy>(fd: RawFd, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: `value` is a live reference, and the length passed is its own size.
    let result =
        unsafe { libc::setsockopt(fd, level, name, (value as *const T).cast(), size_of::<T>() as libc::socklen_t) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets an option of level `SOL_PACKET`.
pub fn set_packet_option<T: Copy>(fd: &OwnedFd, name: libc::c_int, value: &T) -> io::Result<()> {
    set_option(fd.as_raw_fd(), libc::SOL_PACKET, name, value)
}

/// Sets an option of level `SOL_SOCKET`.
pub fn set_socket_option<T: Copy>(fd: &OwnedFd, name: libc::c_int, value: &T) -> io::Result<()> {
    set_option(fd.as_raw_fd(), libc::SOL_SOCKET, name, value)
}

/// Reads an option into a plain C type whose every bit pattern is valid (integers and structs of integers).
fn get_option<T: Copy + Default>(fd: &OwnedFd, level: libc::c_int, name: libc::c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `value`, whose size that is; callers use integer types only.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// The value that the kernel chose for `PACKET_FANOUT`: group id in the low half, type and flags above.
pub fn fanout_value(fd: &OwnedFd) -> io::Result<u32> {
    get_option(fd, libc::SOL_PACKET, libc::PACKET_FANOUT)
}

/// The pending asynchronous error of a socket (`SO_ERROR`), which reading clears. 0 is none.
pub fn pending_error(fd: &OwnedFd) -> io::Result<libc::c_int> {
    get_option(fd, libc::SOL_SOCKET, libc::SO_ERROR)
}

/// What `PACKET_STATISTICS` has counted since it was last read: packets (drops included), drops, times the queue froze.
pub fn take_statistics(fd: &OwnedFd) -> io::Result<[u32; 3]> {
    get_option(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS)
}

/// Ties a socket to one interface. `protocol` is an EtherType in host order; 0 receives nothing.
pub fn bind(fd: &OwnedFd, interface: i32, protocol: u16) -> io::Result<()> {
    // SAFETY: all zeros is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface;
    // SAFETY: the pointer and the length describe `address`, which lives through the call.
    let result = unsafe {
        libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The interface index that a socket is bound to; -1 once that interface is gone.
pub fn bound_interface(fd: &OwnedFd) -> io::Result<i32> {
    // SAFETY: all zeros is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `address`.
    let result = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &mut length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(address.sll_ifindex) }
}

/// One classic BPF instruction.
pub const fn instruction(code: u32, jump_true: u8, jump_false: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: jump_true, jf: jump_false, k }
}

/// Attaches a classic BPF filter, in place of an earlier one; the switch is atomic for the packets that arrive.
pub fn attach_filter(fd: &OwnedFd, program: &[libc::sock_filter]) -> io::Result<()> {
    // The kernel copies the program and does not write to it; the field is *mut for history's sake.
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set_socket_option(fd, libc::SO_ATTACH_FILTER, &program)
}

/// Takes the filter off again.
pub fn detach_filter(fd: &OwnedFd) -> io::Result<()> {
    set_socket_option(fd, libc::SO_DETACH_FILTER, &0i32)
}

/// Hands a membership (`PACKET_MR_PROMISC`, `PACKET_MR_ALLMULTI`) of the interface to the socket; it ends with the socket.
pub fn add_membership(fd: &OwnedFd, interface: i32, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: all zeros is a valid packet_mreq.
    let mut request: libc::packet_mreq = unsafe { std::mem::zeroed() };
    request.mr_ifindex = interface;
    request.mr_type = kind as u16;
    set_packet_option(fd, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// The kernel's ring memory, shared with it until this is dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is plain memory of the process; whoever holds the `Mapping` may move it to another thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the ring of `fd`, `length` bytes.
    pub fn new(fd: &OwnedFd, length: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice; it overlaps nothing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned a null address"))?;
        Ok(Self { base, length })
    }

    /// First byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes mapped.
    pub fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and length are those of our own mmap, and no slice of it outlives `self` (rings lend by lifetime).
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// Asks the kernel to send every frame of the transmit ring that is marked. Returns bytes taken. Never blocks.
pub fn kick(fd: &OwnedFd) -> io::Result<usize> {
    // SAFETY: a null buffer of length 0 is what the transmit ring asks for; the frames lie in the mapping.
    let sent = unsafe { libc::send(fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// Sends one message gathered from `parts` without blocking.
///
/// # Safety
/// Every part must describe memory that stays readable and unchanged during the call.
pub unsafe fn send_parts(fd: &OwnedFd, parts: &mut [libc::iovec]) -> io::Result<usize> {
    // SAFETY: all zeros is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: `message` and `parts` live through the call; the caller vouches for what the parts point at.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// What the kernel says of a network interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceFacts {
    /// Interface index.
    pub index: i32,
    /// Largest network-layer packet, in bytes.
    pub mtu: u32,
    /// Link-layer address.
    pub mac: [u8; 6],
    /// Hardware type; 1 (`ARPHRD_ETHER`) is the only one that a port can use.
    pub hardware: u16,
    /// `IFF_` flags.
    pub flags: u32,
}

impl InterfaceFacts {
    /// Whether the interface is up and has a carrier.
    pub fn is_running(&self) -> bool {
        let wanted = (libc::IFF_UP | libc::IFF_RUNNING) as u32;
        self.flags & wanted == wanted
    }
}

/// An `ifreq` with the name filled in.
pub(in crate::port) fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.bytes().any(|byte| byte == 0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} cannot be an interface name")));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// linux/sockios.h.
const SIOCETHTOOL: libc::c_ulong = 0x8946;

fn interface_ioctl(fd: &OwnedFd, code: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: every SIOCGIF call reads the name from and writes its answer into one ifreq, which `request` is; SIOCETHTOOL
    // writes into the structure that its caller's ifru_data points at, which lives through the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), code as _, request as *mut libc::ifreq) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Looks an interface up by name in the namespace of `fd`.
///
/// # Errors
/// `ENODEV` if there is none.
pub fn interface_facts(fd: &OwnedFd, name: &str) -> io::Result<InterfaceFacts> {
    let mut ask = request(name)?;
    interface_ioctl(fd, libc::SIOCGIFINDEX as _, &mut ask)?;
    // SAFETY: SIOCGIFINDEX filled this member of the union.
    let index = unsafe { ask.ifr_ifru.ifru_ifindex };
    interface_ioctl(fd, libc::SIOCGIFMTU as _, &mut ask)?;
    // SAFETY: SIOCGIFMTU filled this member of the union.
    let mtu = unsafe { ask.ifr_ifru.ifru_mtu };
    interface_ioctl(fd, libc::SIOCGIFFLAGS as _, &mut ask)?;
    // SAFETY: SIOCGIFFLAGS filled this member of the union.
    let flags = u32::from(unsafe { ask.ifr_ifru.ifru_flags } as u16);
    interface_ioctl(fd, libc::SIOCGIFHWADDR as _, &mut ask)?;
    // SAFETY: SIOCGIFHWADDR filled this member of the union.
    let address = unsafe { ask.ifr_ifru.ifru_hwaddr };
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    Ok(InterfaceFacts { index, mtu: mtu.max(0) as u32, mac, hardware: address.sa_family, flags })
}

/// `ETHTOOL_GTXCSUM`, `ETHTOOL_GTSO` (linux/ethtool.h): whether any transport checksum, any TCP segmentation is left to a device.
const LEFT_TO_DEVICE: [u32; 2] = [0x16, 0x1e];

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Whether the device takes TCP super-packets or unfinished checksums from the kernel as they are. A virtual one hands
/// them on like that.
///
/// # Errors
/// `ENODEV` if there is no such interface.
pub fn finishes_frames(fd: &OwnedFd, name: &str) -> io::Result<bool> {
    let mut ask = request(name)?;
    for command in LEFT_TO_DEVICE {
        let mut value = EthtoolValue { command, data: 0 };
        ask.ifr_ifru.ifru_data = (&raw mut value).cast();
        interface_ioctl(fd, SIOCETHTOOL, &mut ask)?;
        if value.data != 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The name that an interface index has now, or an error once it is gone.
pub fn interface_name(index: i32) -> io::Result<String> {
    let mut name = [0 as libc::c_char; libc::IFNAMSIZ];
    // SAFETY: if_indextoname writes at most IF_NAMESIZE (= IFNAMSIZ) bytes with a final zero.
    let result = unsafe { libc::if_indextoname(index as u32, name.as_mut_ptr()) };
    if result.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above succeeded, so the buffer holds a string that ends in a zero.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}
