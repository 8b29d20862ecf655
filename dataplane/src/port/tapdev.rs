//! Opening TAP interfaces (linux/if_tun.h): the ioctls, and nothing about frames.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::packet::sys;
use super::virtio;

/// Attaches a queue of the TAP interface `name`, which is made if there is none (and goes with its last descriptor). A name
/// with `%d` lets the kernel number it. Returns the non-blocking descriptor and the name.
///
/// With `vnet_hdr`, each frame read or written has the ten bytes of a legacy virtio-net header before it.
///
/// # Errors
/// `ENOENT` without /dev/net/tun, `EPERM` without CAP_NET_ADMIN in the network namespace, `EBUSY` when the interface is in use
/// (or has no queue left), `EINVAL` when it is no TAP or its queue mode differs.
pub fn open(name: &str, multi_queue: bool, vnet_hdr: bool) -> io::Result<(OwnedFd, String)> {
    let mut request = sys::request(name)?;
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let fd = OwnedFd::from(file);
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI;
    if multi_queue {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    if vnet_hdr {
        flags |= libc::IFF_VNET_HDR;
    }
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which `request` is.
    if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if vnet_hdr {
        let bytes = virtio::HEADER_BYTES as libc::c_int;
        // SAFETY: TUNSETVNETHDRSZ reads one int.
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
