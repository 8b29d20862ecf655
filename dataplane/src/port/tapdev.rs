//! Making TAP devices (Documentation/networking/tuntap.rst, linux/if_tun.h).
//!
//! The device lives as long as one of its queue descriptors is open; when the process ends, it is gone. Reading and
//! writing frames is the `tap` port's business.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::packet::sys;
use super::virtio;

/// Longest interface name in bytes (IFNAMSIZ less the NUL).
pub const NAME_LENGTH: usize = 15;

/// How frames look on the descriptor of a TAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TapFraming {
    /// Ethernet frames, whole, with checksums.
    #[default]
    Plain,
    /// A virtio-net header ([`super::virtio`]) before each frame, so that the kernel takes partial checksums and super-packets
    /// from us; its own frames come whole.
    VirtioNet,
    /// As `VirtioNet`, and the kernel leaves segmentation and checksums of the host's frames to us too.
    VirtioNetOffload,
}

/// Makes the TAP `name` with `queues` queues and returns a descriptor for each, non-blocking. The device is made in the
/// network namespace of the calling thread, down, with a random MAC.
///
/// # Errors
/// `AlreadyExists` when a link has the name; `PermissionDenied` without CAP_NET_ADMIN; `InvalidInput` for an empty or too
/// long name or no queue; `NotFound` when /dev/net/tun is missing (`modprobe tun`).
pub fn create(name: &str, queues: usize, framing: TapFraming) -> io::Result<Vec<OwnedFd>> {
    if name.is_empty() || name.len() > NAME_LENGTH || queues == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a TAP needs a name of 1 to 15 bytes and a queue"));
    }
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE;
    if framing != TapFraming::Plain {
        flags |= libc::IFF_VNET_HDR;
    }
    let mut descriptors = Vec::with_capacity(queues);
    for queue in 0..queues {
        // Only the first may make the device: attaching to a stranger's would be silent theft.
        let exclusive = if queue == 0 { libc::IFF_TUN_EXCL } else { 0 };
        descriptors.push(open_queue(name, flags | exclusive, framing)?);
    }
    Ok(descriptors)
}

fn open_queue(name: &str, flags: libc::c_int, framing: TapFraming) -> io::Result<OwnedFd> {
    let (fd, _) = attach(name, flags).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => io::Error::new(io::ErrorKind::AlreadyExists, "a link of this name exists"),
        _ => error,
    })?;
    set_offload(&fd, framing == TapFraming::VirtioNetOffload)?;
    Ok(fd)
}

/// Attaches a queue of the TAP interface `name`, which is made if there is none (and goes with its last descriptor). A name
/// with `%d` lets the kernel number it. Returns the non-blocking descriptor and the name.
///
/// With `vnet_hdr`, each frame read or written has the ten bytes of a legacy virtio-net header before it.
///
/// # Errors
/// `ENOENT` without /dev/net/tun, `EPERM` without CAP_NET_ADMIN in the network namespace, `EBUSY` when the interface is in use
/// (or has no queue left), `EINVAL` when it is no TAP or its queue mode differs.
pub fn open(name: &str, multi_queue: bool, vnet_hdr: bool) -> io::Result<(OwnedFd, String)> {
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI;
    if multi_queue {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    if vnet_hdr {
        flags |= libc::IFF_VNET_HDR;
    }
    attach(name, flags)
}

fn attach(name: &str, flags: libc::c_int) -> io::Result<(OwnedFd, String)> {
    let mut request = sys::request(name)?;
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let fd = OwnedFd::from(file);
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which `request` is; the descriptor is open because `fd` owns it.
    if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if flags & libc::IFF_VNET_HDR != 0 {
        let bytes = virtio::HEADER_BYTES as libc::c_int;
        // SAFETY: TUNSETVNETHDRSZ reads one int, a live local.
        if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ as _, &raw const bytes) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let name: Vec<u8> = request.ifr_name.iter().take_while(|&&byte| byte != 0).map(|&byte| byte as u8).collect();
    Ok((fd, String::from_utf8_lossy(&name).into_owned()))
}

/// Tells the kernel's side of the interface which work it may leave to the reader: partial checksums and super-packets of TCP and
/// UDP (`true`), or none (`false`). Concerns all queues. Writing either is allowed in any case.
///
/// # Errors
/// Those of the ioctl. A kernel without UDP super-packets (before 6.2) gets TCP's only.
pub fn set_offload(fd: &OwnedFd, on: bool) -> io::Result<()> {
    let set = |features: libc::c_uint| {
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD as _, libc::c_ulong::from(features)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    if !on {
        return set(0);
    }
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    set(tcp | libc::TUN_F_USO4 | libc::TUN_F_USO6).or_else(|_| set(tcp))
}

/// The state of a TAP's carrier as its users see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// As if a cable were plugged in.
    On,
    /// As if it were not: routing daemons see the link down.
    Off,
}

/// Sets the carrier of the TAP behind `queue`, so that the host sees the state of the NIC it stands for.
///
/// # Errors
/// What the kernel says; `InvalidInput` before Linux 5.0.
pub fn set_carrier(queue: BorrowedFd<'_>, carrier: Carrier) -> io::Result<()> {
    let value = libc::c_int::from(carrier == Carrier::On);
    // SAFETY: TUNSETCARRIER reads one int behind the pointer, a live local; the borrow keeps the descriptor open.
    if unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETCARRIER, &raw const value) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_sixteen_bytes_and_no_queue_are_refused_before_the_kernel_is_asked() {
        for (name, queues) in [("", 1), ("abcdefghijklmnop", 1), ("tap", 0)] {
            let error = create(name, queues, TapFraming::Plain).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
