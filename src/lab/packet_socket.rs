//! The lab's own port: a raw packet socket (packet(7)) that sends and receives whole frames, tags included.
//!
//! All of the lab's `unsafe` is here: four system calls that no safe wrapper covers (binding to a device, two socket
//! options, and messages with auxiliary data). The kernel takes a VLAN tag out of a received frame and tells it beside
//! the data, so plain reading would lose it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, recv, send, socket_with};
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longest frame taken: what a veth can carry at most, with its header and two tags.
const LONGEST: usize = 65535 + 14 + 8;

/// Frames given to the kernel in one call of [`PacketSocket::send_many`].
pub const BATCH: usize = 64;

/// A raw socket on one device.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl PacketSocket {
    /// Opens a socket on `device` in the namespace of the calling thread. It sees all frames that come in, and none of
    /// those that go out.
    ///
    /// # Errors
    /// No such device, or no CAP_NET_RAW.
    pub fn open(device: &str) -> io::Result<PacketSocket> {
        // Protocol 0: nothing is received until the socket is bound to its device.
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let index = netdevice::name_to_index(&socket, device)?;
        set_option(&socket, libc::PACKET_AUXDATA, 1)?;
        set_option(&socket, libc::PACKET_IGNORE_OUTGOING, 1)?;
        bind(&socket, index)?;
        Ok(PacketSocket { socket, buffer: vec![0; LONGEST] })
    }

    /// Sends past the queueing discipline: faster, and a full device ring shows as an error instead of waiting.
    ///
    /// # Errors
    /// The kernel's.
    pub fn bypass_queueing(&self) -> io::Result<()> {
        set_option(&self.socket, libc::PACKET_QDISC_BYPASS, 1)
    }

    /// Sends one frame, from its destination MAC on.
    ///
    /// # Errors
    /// EMSGSIZE for a frame longer than the MTU allows, ENOBUFS for a full device.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        let sent = send(&self.socket, frame, SendFlags::empty())?;
        if sent == frame.len() {
            Ok(())
        } else {
            Err(io::Error::other(format!("{sent} of {} bytes sent", frame.len())))
        }
    }

    /// Sends up to 64 frames in one system call; how many of them the kernel took.
    ///
    /// # Errors
    /// That of the first frame, if not even that was taken.
    pub fn send_many(&self, frames: &[&[u8]]) -> io::Result<usize> {
        let count = frames.len().min(BATCH);
        // SAFETY: all-zero is a valid value of these plain C structs (null pointers and zero lengths).
        let (mut vectors, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) = unsafe { zeroed() };
        for (index, frame) in frames[..count].iter().enumerate() {
            vectors[index] = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
            messages[index].msg_hdr.msg_iov = &mut vectors[index];
            messages[index].msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: the first `count` messages each point to one vector, and that to one borrowed frame; all three outlive
        // the call, and the kernel only reads the frames (the cast to mutable is for the struct's sake).
        let sent = unsafe { libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), count as u32, 0) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// The next frame, its VLAN tag put back in place; `None` when none came within `limit`.
    ///
    /// # Errors
    /// The kernel's, ENETDOWN for example when the device went down.
    pub fn receive(&mut self, limit: Duration) -> io::Result<Option<Vec<u8>>> {
        let deadline = Instant::now() + limit;
        loop {
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()))
                .unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Ok(None),
                Ok(_) => return receive_message(&self.socket, &mut self.buffer).map(Some),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The first frame within `limit` that `wanted` accepts; others are thrown away.
    ///
    /// # Errors
    /// As [`PacketSocket::receive`].
    pub fn receive_where(&mut self, limit: Duration, wanted: impl Fn(&[u8]) -> bool) -> io::Result<Option<Vec<u8>>> {
        let deadline = Instant::now() + limit;
        loop {
            match self.receive(deadline.saturating_duration_since(Instant::now()))? {
                Some(frame) if wanted(&frame) => return Ok(Some(frame)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Throws away what has been received until now.
    ///
    /// # Errors
    /// As [`PacketSocket::receive`].
    pub fn drain(&mut self) -> io::Result<()> {
        loop {
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn set_option(socket: &OwnedFd, option: i32, value: i32) -> io::Result<()> {
    let length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: pointer and length describe `value`, which lives for the call.
    let done =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, (&raw const value).cast(), length) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn bind(socket: &OwnedFd, index: u32) -> io::Result<()> {
    // SAFETY: all-zero is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as i32;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: pointer and length describe `address`, which lives for the call.
    let done = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Room for the auxiliary data; aligned as a control message must be (cmsg(3)).
#[repr(align(8))]
struct Control([u8; 64]);

fn receive_message(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<Vec<u8>> {
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = Control([0; 64]);
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    // SAFETY: the message points to the exclusively borrowed buffer and to `control`, with their lengths; both live for
    // the call.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(io::Error::other("a frame longer than a device can carry"));
    }
    let mut frame = buffer[..length].to_vec();
    // SAFETY: `message` is as recvmsg left it: null, or a control message inside of `control`.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: not null, hence a control message that the kernel wrote inside of `control`, which is aligned for it.
    while let Some(header) = unsafe { next.as_ref() } {
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
            // SAFETY: packet(7): the data of a PACKET_AUXDATA message is one tpacket_auxdata; read unaligned because
            // only the header's alignment is promised.
            let data = unsafe { libc::CMSG_DATA(next).cast::<libc::tpacket_auxdata>().read_unaligned() };
            if data.tp_status & libc::TP_STATUS_VLAN_VALID != 0 && frame.len() >= 12 {
                let known = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
                let protocol = if known { data.tp_vlan_tpid } else { 0x8100 };
                let tag = [protocol.to_be_bytes(), data.tp_vlan_tci.to_be_bytes()].concat();
                frame.splice(12..12, tag);
            }
        }
        // SAFETY: `message` and `next` are those of this walk.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    Ok(frame)
}
