//! Facts of a network device that the XDP port needs: index, link state, MTU, queues, and the XDP program on it.
//!
//! What: one RTM_GETLINK request and one ethtool request, by hand, in the network namespace of the calling thread. Why not
//! /sys: its contents belong to the namespace in which it was mounted. Owner thread: the control thread.

use std::ffi::CString;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_FLAGS: u16 = 3;
const IFLA_XDP_PROG_ID: u16 = 4;
const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const NLA_TYPE_MASK: u16 = 0x3fff;
const NLA_F_NESTED: u16 = 0x8000;
/// An answer to RTM_GETLINK stays below this, in bytes, also with many VF entries.
const ANSWER_BYTES: usize = 64 * 1024;

/// How an XDP program sits on a device (`XDP_ATTACHED_*`, `linux/if_link.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachedMode {
    /// In the driver.
    Native,
    /// In the stack, for drivers without XDP.
    Generic,
    /// In the network card, or several at once.
    Other,
}

/// A program found on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachedProgram {
    /// The kernel's number for it.
    pub id: u32,
    /// Where it runs.
    pub mode: AttachedMode,
}

/// What one look at a device showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Interface index.
    pub ifindex: u32,
    /// Its name now.
    pub name: String,
    /// Ethernet address, zero if it has none.
    pub mac: [u8; 6],
    /// MTU in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Has carrier.
    pub running: bool,
    /// The XDP program on it, if any.
    pub program: Option<AttachedProgram>,
    /// Receive queues now in use.
    pub receive_queues: u32,
    /// Transmit queues now in use.
    pub transmit_queues: u32,
}

impl Device {
    /// Looks at the device called `name`.
    ///
    /// # Errors
    /// `ENODEV` when there is none in this network namespace.
    pub fn by_name(name: &str) -> io::Result<Self> {
        let c_name = CString::new(name).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
        // SAFETY: c_name is a live C string.
        let ifindex = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
        if ifindex == 0 {
            return Err(io::Error::last_os_error());
        }
        Self::by_index(ifindex)
    }

    /// Looks at the device with this index.
    ///
    /// # Errors
    /// `ENODEV` when there is none in this network namespace.
    pub fn by_index(ifindex: u32) -> io::Result<Self> {
        let netlink = Netlink::open()?;
        let answer = netlink.request(libc::RTM_GETLINK, 0, ifindex, &[])?;
        let mut device = parse_link(&answer)?;
        (device.receive_queues, device.transmit_queues) = queue_counts(&device)?;
        Ok(device)
    }
}

/// Takes a program that was attached by netlink (not by a link) off a device.
///
/// # Errors
/// `EBUSY` when a BPF link holds it, `EPERM` without CAP_NET_ADMIN.
pub(super) fn detach_program(ifindex: u32, mode: AttachedMode) -> io::Result<()> {
    set_program(ifindex, mode, -1)
}

/// Attaches a program by netlink, so that it stays; -1 takes one off. We attach by links only, tests make leftovers so.
pub(super) fn set_program(ifindex: u32, mode: AttachedMode, program: i32) -> io::Result<()> {
    let flags: u32 = match mode {
        AttachedMode::Generic => 1 << 1,
        AttachedMode::Native => 1 << 2,
        AttachedMode::Other => 0,
    };
    let mut nest = Vec::new();
    push_attribute(&mut nest, IFLA_XDP_FD, &program.to_ne_bytes());
    push_attribute(&mut nest, IFLA_XDP_FLAGS, &flags.to_ne_bytes());
    let mut attributes = Vec::new();
    push_attribute(&mut attributes, libc::IFLA_XDP | NLA_F_NESTED, &nest);
    Netlink::open()?.request(libc::RTM_SETLINK, libc::NLM_F_ACK as u16, ifindex, &attributes).map(drop)
}

/// Queues in use: what ethtool says, else one each (a driver without channels has one).
fn queue_counts(device: &Device) -> io::Result<(u32, u32)> {
    #[repr(C)]
    #[derive(Default)]
    struct Channels {
        command: u32,
        maximum: [u32; 4],
        receive: u32,
        transmit: u32,
        other: u32,
        combined: u32,
    }
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    // SAFETY: an all-zero ifreq is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(device.name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: socket(2) takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: request is a live ifreq whose data leads to a live ethtool_channels structure.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    if result < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => Ok((1, 1)),
            _ => Err(error),
        };
    }
    let sum = |own: u32| own.saturating_add(channels.combined).max(1);
    Ok((sum(channels.receive), sum(channels.transmit)))
}

/// A NETLINK_ROUTE socket for one request at a time.
struct Netlink {
    fd: OwnedFd,
}

impl Netlink {
    fn open() -> io::Result<Self> {
        // SAFETY: socket(2) takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nothing else owns.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Sends a link request and returns the answer's payload: ifinfomsg and attributes, or nothing for an acknowledgement.
    fn request(&self, kind: u16, flags: u16, ifindex: u32, attributes: &[u8]) -> io::Result<Vec<u8>> {
        let length = 16 + 16 + attributes.len();
        let mut message = Vec::with_capacity(length);
        message.extend_from_slice(&(length as u32).to_ne_bytes());
        message.extend_from_slice(&kind.to_ne_bytes());
        message.extend_from_slice(&(flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
        message.extend_from_slice(&[0; 8]); // sequence and port: the socket carries one request
        message.extend_from_slice(&[libc::AF_UNSPEC as u8, 0, 0, 0]);
        message.extend_from_slice(&ifindex.to_ne_bytes());
        message.extend_from_slice(&[0; 8]); // flags and change mask
        message.extend_from_slice(attributes);
        // SAFETY: message is live and of the length given.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut answer = vec![0_u8; ANSWER_BYTES];
        // SAFETY: answer is live, writable and of the length given.
        let got = unsafe { libc::recv(self.fd.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
        let Ok(got) = usize::try_from(got) else { return Err(io::Error::last_os_error()) };
        answer.truncate(got);
        let (Some(length), Some(kind)) = (read_u32(&answer, 0), read_u16(&answer, 4)) else {
            return Err(io::Error::other("a netlink answer was shorter than its header"));
        };
        let end = (length as usize).min(answer.len());
        if i32::from(kind) == libc::NLMSG_ERROR {
            return match read_u32(&answer, 16).map(|code| code as i32) {
                Some(0) => Ok(Vec::new()),
                Some(code) => Err(io::Error::from_raw_os_error(-code)),
                None => Err(io::Error::other("a netlink error was shorter than its code")),
            };
        }
        Ok(answer.get(16..end).unwrap_or_default().to_vec())
    }
}

fn parse_link(payload: &[u8]) -> io::Result<Device> {
    let (Some(ifindex), Some(flags)) = (read_u32(payload, 4), read_u32(payload, 8)) else {
        return Err(io::Error::other("the kernel's answer about the link was too short"));
    };
    let mut device = Device {
        ifindex,
        name: String::new(),
        mac: [0; 6],
        mtu: 0,
        up: flags & libc::IFF_UP as u32 != 0,
        running: flags & libc::IFF_RUNNING as u32 != 0,
        program: None,
        receive_queues: 1,
        transmit_queues: 1,
    };
    for (kind, value) in attributes(&payload[16.min(payload.len())..]) {
        match kind {
            libc::IFLA_IFNAME => {
                device.name = String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned();
            }
            libc::IFLA_ADDRESS => {
                if let Ok(mac) = value.try_into() {
                    device.mac = mac;
                }
            }
            libc::IFLA_MTU => device.mtu = read_u32(value, 0).unwrap_or(0),
            libc::IFLA_XDP => device.program = parse_program(value),
            _ => {}
        }
    }
    Ok(device)
}

fn parse_program(nest: &[u8]) -> Option<AttachedProgram> {
    let (mut attached, mut id) = (0, None);
    for (kind, value) in attributes(nest) {
        match kind {
            IFLA_XDP_ATTACHED => attached = value.first().copied().unwrap_or(0),
            IFLA_XDP_PROG_ID => id = read_u32(value, 0),
            IFLA_XDP_DRV_PROG_ID | IFLA_XDP_SKB_PROG_ID => id = id.or(read_u32(value, 0)),
            _ => {}
        }
    }
    let mode = match attached {
        0 => return None,
        1 => AttachedMode::Native,
        2 => AttachedMode::Generic,
        _ => AttachedMode::Other,
    };
    Some(AttachedProgram { id: id?, mode })
}

/// The attributes in `bytes`; stops at the first that does not fit.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(read_u16(bytes, 0)?), read_u16(bytes, 2)? & NLA_TYPE_MASK);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn push_attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
    to.extend_from_slice(&kind.to_ne_bytes());
    to.extend_from_slice(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + size_of::<u16>())?.try_into().ok().map(u16::from_ne_bytes)
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + size_of::<u32>())?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_is_described() {
        let device = Device::by_name("lo").unwrap();
        assert_eq!((device.name.as_str(), device.program), ("lo", None));
        assert!(device.mtu > 0 && device.receive_queues >= 1);
        assert_eq!(Device::by_index(device.ifindex).unwrap(), device);
    }

    #[test]
    fn a_missing_device_is_enodev() {
        assert_eq!(Device::by_name("no-such-dev0").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(Device::by_index(0x7fff_fff0).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn attributes_stop_at_a_bad_length() {
        let mut bytes = Vec::new();
        push_attribute(&mut bytes, 7, b"abc");
        push_attribute(&mut bytes, 8 | NLA_F_NESTED, b"defg");
        bytes.extend_from_slice(&[200, 0, 1, 0]);
        assert_eq!(attributes(&bytes).collect::<Vec<_>>(), [(7, &b"abc"[..]), (8, &b"defg"[..])]);
        assert_eq!(attributes(&[2, 0, 1, 0]).count(), 0, "a length below the header ends it");
    }
}
