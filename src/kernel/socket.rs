//! A blocking netlink socket: requests with acknowledgement, dumps, and notifications read in bulk.
#![forbid(unsafe_code)]

use super::wire::{Frame, Frames, Message, u32_at};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::io;
use std::time::Duration;

/// Longest datagram read at once. The kernel fills dumps up to the reader's buffer, at most 32 KiB; a notification is
/// one message, whose attributes are at most 64 KiB.
const BUFFER_LENGTH: usize = 256 * 1024;
/// How long a request may go unanswered before the kernel counts as broken.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a dump that changed under our feet is started again before its result is taken as it is.
const DUMP_ATTEMPTS: usize = 5;

/// Which netlink family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// NETLINK_ROUTE.
    Route,
    /// NETLINK_NETFILTER.
    Netfilter,
    /// NETLINK_GENERIC.
    Generic,
}

/// What a read of the notification socket gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    /// One datagram, this many bytes of the buffer.
    Data(usize),
    /// Nothing is waiting.
    Empty,
    /// The kernel dropped notifications (ENOBUFS): what is mirrored can no longer be trusted.
    Overrun,
}

/// A netlink socket with its own buffer and sequence numbers.
#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    /// Opens a socket that hears the multicast groups in `groups` (bit n-1 for group n). `receive_buffer` in bytes is
    /// forced past `rmem_max` where we may, else taken as far as allowed; 0 leaves the default.
    pub(crate) fn open(family: Family, groups: u32, receive_buffer: usize) -> io::Result<Self> {
        let protocol = match family {
            Family::Route => None, // NETLINK_ROUTE is protocol 0.
            Family::Netfilter => Some(netlink::NETFILTER),
            Family::Generic => Some(netlink::GENERIC),
        };
        let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        if receive_buffer > 0 && sockopt::set_socket_recv_buffer_size_force(&fd, receive_buffer).is_err() {
            sockopt::set_socket_recv_buffer_size(&fd, receive_buffer)?;
        }
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(NetlinkSocket { fd, sequence: 0, buffer: vec![0; BUFFER_LENGTH] })
    }

    /// Waits up to `timeout` for something to read here or in `other`.
    pub(crate) fn wait(&self, other: Option<BorrowedFd<'_>>, timeout: Duration) -> io::Result<()> {
        let limit = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos() as i64 };
        let mut fds = [
            PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(other.unwrap_or(self.fd.as_fd()), PollFlags::IN),
        ];
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads one waiting datagram without blocking.
    pub(crate) fn receive(&mut self) -> io::Result<Received> {
        match rustix::net::recv(&self.fd, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            Ok((_, length)) => Ok(Received::Data(length.min(self.buffer.len()))),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Received::Empty),
            Err(Errno::NOBUFS) => Ok(Received::Overrun),
            Err(error) => Err(error.into()),
        }
    }

    /// The messages of the datagram that [`Self::receive`] read.
    pub(crate) fn frames(&self, length: usize) -> Frames<'_> {
        Frames(&self.buffer[..length])
    }

    /// Sends a request and waits for its acknowledgement. Kernel errors come back as their errno.
    pub(crate) fn request(&mut self, message: Message) -> io::Result<()> {
        self.exchange(message, |_| {})
    }

    /// Sends a request with acknowledgement and hands the answers before it to `each`.
    pub(crate) fn exchange(&mut self, mut message: Message, each: impl FnMut(&Frame<'_>)) -> io::Result<()> {
        message.add_flags(libc::NLM_F_ACK as u16);
        let sequence = self.next_sequence();
        self.send(&message.finish(sequence))?;
        self.answers(sequence, each).map(|_| ())
    }

    /// Sends several messages as one datagram and waits for the acknowledgement of each that asked for one. The first
    /// error of any is returned, after all were read: that is how an nf_tables transaction reports.
    pub(crate) fn transaction(&mut self, messages: Vec<Message>) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut waiting = Vec::new();
        for message in messages {
            let sequence = self.next_sequence();
            if message.flags() & libc::NLM_F_ACK as u16 != 0 {
                waiting.push(sequence);
            }
            bytes.extend_from_slice(&message.finish(sequence));
        }
        self.send(&bytes)?;
        let mut result = Ok(());
        while !waiting.is_empty() {
            let length = self.receive_blocking()?;
            for frame in Frames(&self.buffer[..length]) {
                let Some(code) = error_code(&frame) else { continue };
                waiting.retain(|sequence| *sequence != frame.sequence);
                if code != 0 && result.is_ok() {
                    result = Err(io::Error::from_raw_os_error(-code));
                    // The batch as a whole is refused with one error when its begin or end is at fault: nothing else
                    // will come then. Otherwise each failing message reports, the good ones stay silent.
                    waiting.clear();
                }
            }
        }
        if result.is_err() {
            while let Received::Data(_) = self.receive()? {}
        }
        result
    }

    /// Dumps: sends `message` with NLM_F_DUMP and hands each answer to `each`; `restart` is called before a repetition,
    /// when the kernel says that the dump was interrupted by a change. Returns false when the last attempt was, too.
    pub(crate) fn dump<S>(
        &mut self,
        message: &Message,
        state: &mut S,
        mut restart: impl FnMut(&mut S),
        mut each: impl FnMut(&mut S, &Frame<'_>),
    ) -> io::Result<bool> {
        for _ in 0..DUMP_ATTEMPTS {
            restart(state);
            let mut attempt = message.clone();
            attempt.add_flags(libc::NLM_F_DUMP as u16);
            let sequence = self.next_sequence();
            self.send(&attempt.finish(sequence))?;
            if self.answers(sequence, |frame| each(state, frame))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        self.sequence
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.fd, bytes, SendFlags::empty())?;
        Ok(())
    }

    fn receive_blocking(&mut self) -> io::Result<usize> {
        loop {
            match rustix::net::recv(&self.fd, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((_, length)) => return Ok(length.min(self.buffer.len())),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel did not answer within 10 s"));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads answers to `sequence` until the acknowledgement or the end of the dump. False: interrupted dump.
    fn answers(&mut self, sequence: u32, mut each: impl FnMut(&Frame<'_>)) -> io::Result<bool> {
        let mut consistent = true;
        loop {
            let length = self.receive_blocking()?;
            for frame in Frames(&self.buffer[..length]) {
                if frame.sequence != sequence {
                    continue; // The late rest of an exchange given up earlier.
                }
                consistent &= frame.flags & libc::NLM_F_DUMP_INTR as u16 == 0;
                match error_code(&frame) {
                    Some(0) => return Ok(consistent),
                    Some(code) => return Err(io::Error::from_raw_os_error(-code)),
                    None => each(&frame),
                }
            }
        }
    }
}

/// The code in an NLMSG_ERROR or NLMSG_DONE: 0 for an acknowledgement, a negative errno for an error; `None` for data.
fn error_code(frame: &Frame<'_>) -> Option<i32> {
    match i32::from(frame.kind) {
        libc::NLMSG_ERROR => Some(u32_at(frame.body, 0).unwrap_or(0) as i32),
        // A dump may end with an error, too; what is positive there is a count.
        libc::NLMSG_DONE => Some((u32_at(frame.body, 0).unwrap_or(0) as i32).min(0)),
        _ => None,
    }
}
