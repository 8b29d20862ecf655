//! Making TAP devices (Documentation/networking/tuntap.rst, linux/if_tun.h).
//!
//! The device lives as long as one of its queue descriptors is open; when the process ends, it is gone. Reading and
//! writing frames is the `tap` port's business.

use std::ffi::c_ulong;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Longest interface name in bytes (IFNAMSIZ less the NUL).
pub const NAME_LENGTH: usize = 15;

// Features for TUNSETOFFLOAD (linux/if_tun.h): what the owner of the descriptors can take over from the kernel.
const TUN_F_CSUM: c_ulong = 0x01;
const TUN_F_TSO4: c_ulong = 0x02;
const TUN_F_TSO6: c_ulong = 0x04;

/// How frames look on the descriptor of a TAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TapFraming {
    /// Ethernet frames, whole, with checksums.
    #[default]
    Plain,
    /// A 12-byte virtio-net header before each frame (linux/virtio_net.h); the kernel may leave TCP segmentation and
    /// checksums of the host's frames to us.
    VirtioNet,
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
    if framing == TapFraming::VirtioNet {
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
    let file: File = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    // SAFETY: `ifreq` is plain old data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq` behind the pointer, which is a live local for the whole call; the
    // descriptor is open because `file` owns it. The name ends in a NUL as `create` limits it to 15 of 16 bytes.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
        let error = io::Error::last_os_error();
        return Err(match error.raw_os_error() {
            Some(libc::EBUSY) => io::Error::new(io::ErrorKind::AlreadyExists, "a link of this name exists"),
            _ => error,
        });
    }
    let offloads = match framing {
        TapFraming::Plain => 0,
        TapFraming::VirtioNet => TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6,
    };
    // SAFETY: TUNSETOFFLOAD takes a number, no pointer; the descriptor is open because `file` owns it.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if framing == TapFraming::VirtioNet {
        let length: libc::c_int = 12;
        // SAFETY: TUNSETVNETHDRSZ reads one int behind the pointer, a live local; `file` owns the descriptor.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const length) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(file.into())
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
