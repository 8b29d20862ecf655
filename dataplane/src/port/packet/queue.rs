//! A queue of the packet port, as workers see it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::IngressDropped;
use super::merge::{self, Run};
use super::receive::ReceiveRing;
use super::sys::{self, InterfaceFacts};
use super::transmit::{Kick, LINEAR_BYTES, TransmitRing};
use crate::arena::{MAX_FRAME, Pool};
use crate::batch::Batch;
use crate::clock::{self, Nanos};
use crate::packet::{GsoKind, Packet, PortId, sctp};
use crate::port::virtio::{HEADER_BYTES, VirtioHeader};
use crate::port::{PortError, QueueStatistics, RxQueue, TxFrame, TxQueue, copy};

/// Ethernet header.
const ETHERNET_BYTES: usize = 14;
/// A VLAN tag; frames may have two (802.1ad) above the MTU.
const TAG_BYTES: usize = 4;
/// Empty polls between two looks at the device: a few milliseconds of spinning, and a system call each is nothing then.
const IDLE_POLLS: u32 = 1 << 16;
/// Polls in a row that found a frame but no buffer, after which the frame is given up so that it cannot block the queue.
const STARVED_POLLS: u32 = 1 << 12;
/// Refusals for length between two looks at the MTU, which may have changed.
const REFUSALS: u32 = 64;
/// Kicks in a row that found the device busy, after which it is asked whether it has a carrier at all.
const BUSY_KICKS: u32 = 256;
/// Segments of a super-packet: buffers hold at least 256 bytes.
const MAX_PARTS: usize = MAX_FRAME / 256 + 2;

/// Between two looks at whether the device lets us merge frames.
const LOOK_EVERY: Nanos = 1_000_000_000;

/// Longest frame of one packet under an MTU: Ethernet header and two tags on top.
pub(super) fn longest_packet(mtu: u32) -> usize {
    mtu as usize + ETHERNET_BYTES + 2 * TAG_BYTES
}

/// The receiving half.
pub(super) struct PacketReceive {
    port: PortId,
    interface: Box<str>,
    ring: ReceiveRing,
    statistics: QueueStatistics,
    idle: u32,
    starved: u32,
    lost: bool,
    /// Kept until the queue is dropped, after the ring.
    _dropped: IngressDropped,
}

impl PacketReceive {
    pub(super) fn new(port: PortId, interface: &str, ring: ReceiveRing, dropped: IngressDropped) -> Self {
        Self {
            port,
            interface: interface.into(),
            ring,
            statistics: QueueStatistics::default(),
            idle: 0,
            starved: 0,
            lost: false,
            _dropped: dropped,
        }
    }

    /// Copies the next frame out of the ring.
    #[inline]
    fn next(&mut self, pool: &mut Pool) -> Next {
        let Some(received) = self.ring.peek() else { return Next::Nothing };
        let length = received.bytes.len();
        let tag_bytes = if received.tag.is_some() { TAG_BYTES } else { 0 };
        if length < ETHERNET_BYTES || received.wire_length > length || length + tag_bytes > MAX_FRAME {
            return Next::Senseless;
        }
        let Some(mut offload) = received.virtio.shifted(tag_bytes as u16).offload(length + tag_bytes) else {
            return Next::Senseless;
        };
        let Some(mut frame) = copy::copy_in(pool, received.bytes) else { return Next::NoBuffer };
        if let Some(tag) = received.tag
            && !copy::insert_tag(&mut frame, tag)
        {
            pool.free(frame);
            return Next::Senseless;
        }
        if sctp::is_partial(&offload) && !sctp::complete(pool.arena(), &mut frame, &mut offload) {
            pool.free(frame);
            return Next::Senseless;
        }
        Next::Packet(Packet::new(frame, offload, self.port))
    }

    /// Looks whether the device is still there. The kernel sets the socket's interface to -1 when it goes.
    #[cold]
    fn look(&mut self) {
        self.idle = 0;
        // Clears the error that a link going down leaves on the socket, which would keep poll(2) awake.
        let _ = sys::pending_error(self.ring.fd());
        if sys::bound_interface(self.ring.fd()).is_ok_and(|index| index < 0) {
            self.lost = true;
        }
    }
}

/// What the ring's next place gave.
enum Next {
    Packet(Packet),
    Nothing,
    /// No buffers: the frame waits.
    NoBuffer,
    /// Cut short by the ring, or with an offload that cannot be.
    Senseless,
}

impl RxQueue for PacketReceive {
    fn receive(&mut self, batch: &mut Batch, max: usize, pool: &mut Pool) -> Result<usize, PortError> {
        let max = max.min(batch.room());
        let mut count = 0;
        while count < max {
            match self.next(pool) {
                Next::Packet(packet) => {
                    if let Err(packet) = batch.push(packet) {
                        pool.free(packet.frame);
                        break;
                    }
                    count += 1;
                    self.starved = 0;
                }
                Next::Nothing => break,
                Next::NoBuffer => {
                    self.starved += 1;
                    if self.starved < STARVED_POLLS {
                        break;
                    }
                    self.starved = 0;
                    self.statistics.rx_discarded += 1;
                }
                Next::Senseless => self.statistics.rx_senseless += 1,
            }
            self.ring.advance();
        }
        self.statistics.copied += count as u64;
        if count > 0 {
            self.idle = 0;
            return Ok(count);
        }
        self.idle += 1;
        if self.idle >= IDLE_POLLS {
            self.look();
        }
        if self.lost { Err(PortError::Lost(self.interface.to_string())) } else { Ok(0) }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.fd().as_fd())
    }

    fn arm(&mut self) -> bool {
        if self.ring.is_ready() {
            return true;
        }
        self.look();
        self.lost
    }

    fn statistics(&mut self) -> QueueStatistics {
        // Reading resets the kernel's numbers, so they are added up here. Drops include the ring's empty places.
        if let Ok([_, drops, _]) = sys::take_statistics(self.ring.fd()) {
            self.statistics.rx_lost += u64::from(drops);
        }
        self.statistics
    }

    /// Nothing to give back: the ring's memory is the kernel's.
    fn close(&mut self, _pool: &mut Pool) {}
}

/// The transmitting half.
pub(super) struct PacketTransmit {
    interface: Box<str>,
    ring: TransmitRing,
    /// Sends what is longer than a slot, gathered from its buffers.
    large: OwnedFd,
    offload: bool,
    /// Bytes that one packet may have behind its Ethernet header and tags.
    mtu: usize,
    statistics: QueueStatistics,
    /// Places among the frames of the current call that are refused.
    refused_at: Vec<usize>,
    /// Scratch for [`Self::gather`].
    parts: Vec<libc::iovec>,
    /// Whether runs of TCP frames may go as one ([`merge`]).
    merges: bool,
    /// When the device was last asked about that.
    looked: Option<Nanos>,
    refusals: u32,
    busy: u32,
    /// Kept until the queue is dropped.
    _dropped: IngressDropped,
}

// SAFETY: `parts` is scratch space, empty between calls, so no pointer of it is ever used on another thread than the one
// that wrote it.
unsafe impl Send for PacketTransmit {}

/// What became of one frame.
enum Fate {
    Taken,
    Refused,
    /// No room: it and all behind it stay with the caller.
    Full,
}

impl PacketTransmit {
    pub(super) fn new(
        interface: &str,
        facts: &InterfaceFacts,
        ring: TransmitRing,
        large: OwnedFd,
        offload: bool,
        dropped: IngressDropped,
    ) -> Self {
        Self {
            interface: interface.into(),
            ring,
            large,
            offload,
            mtu: facts.mtu as usize,
            statistics: QueueStatistics::default(),
            refused_at: Vec::with_capacity(crate::batch::BATCH_MAX),
            parts: Vec::with_capacity(MAX_PARTS + 1),
            merges: false,
            looked: None,
            refusals: 0,
            busy: 0,
            _dropped: dropped,
        }
    }

    /// Lets the kernel send what is marked.
    fn kick(&mut self) -> Result<Kick, PortError> {
        match self.ring.kick() {
            Ok(Kick::Done) => {
                self.busy = 0;
                Ok(Kick::Done)
            }
            Ok(Kick::Busy) => {
                self.busy += 1;
                // Past the queueing discipline, a link without carrier looks like a busy one.
                if self.busy.is_multiple_of(BUSY_KICKS) && !self.is_running() {
                    self.discard();
                    return Ok(Kick::Done);
                }
                Ok(Kick::Busy)
            }
            Err(error) => {
                self.judge("send", error)?;
                self.discard();
                Ok(Kick::Done)
            }
        }
    }

    /// Whether the link is up, as far as the kernel tells.
    #[cold]
    fn is_running(&self) -> bool {
        sys::interface_facts(self.ring.fd(), &self.interface).is_ok_and(|facts| facts.is_running())
    }

    /// Gives up what is marked for a link that is down: it would be stale when the link is back.
    #[cold]
    fn discard(&mut self) {
        self.statistics.tx_lost += self.ring.discard_marked() as u64;
    }

    /// Tells a link that is down (Ok) from a device that is gone and other errors.
    fn judge(&self, call: &'static str, source: io::Error) -> Result<(), PortError> {
        match source.raw_os_error() {
            Some(libc::ENETDOWN) => Ok(()),
            Some(libc::ENXIO | libc::ENODEV) => Err(PortError::Lost(self.interface.to_string())),
            _ => Err(PortError::System { call, source }),
        }
    }

    #[inline]
    fn send(&mut self, tx: &TxFrame, pool: &Pool) -> Result<Fate, PortError> {
        let length = tx.frame.len();
        let header = tx.frame.header();
        let super_packet = tx.offload.gso_kind != GsoKind::None;
        if super_packet && !self.offload || !super_packet && length > self.mtu + ETHERNET_BYTES && !self.fits(tx) {
            return Ok(Fate::Refused);
        }
        let mut virtio = VirtioHeader::new(&tx.offload, header);
        if length > self.ring.longest() {
            return self.send_large(tx, &virtio, pool);
        }
        let linear = if length <= LINEAR_BYTES { length } else { tx.frame.seg_len().min(LINEAR_BYTES) };
        virtio.header_length = virtio.header_length.max(linear as u16);
        let arena = pool.arena();
        let put = |ring: &mut TransmitRing| {
            ring.put(length, &virtio, |mut room| {
                for segment in arena.segments(&tx.frame) {
                    let (part, rest) = room.split_at_mut(segment.len());
                    part.copy_from_slice(segment);
                    room = rest;
                }
            })
        };
        if !put(&mut self.ring) && (self.kick()? == Kick::Busy || !put(&mut self.ring)) {
            return Ok(Fate::Full);
        }
        self.statistics.copied += 1;
        Ok(Fate::Taken)
    }

    /// Whether a packet fits the link although it is longer than an untagged frame of the MTU.
    fn fits(&mut self, tx: &TxFrame) -> bool {
        let header = tx.frame.header();
        let is_tag = |at: usize| matches!(u16::from_be_bytes([header[at], header[at + 1]]), 0x8100 | 0x88a8 | 0x9100);
        let tags = if !is_tag(12) {
            0
        } else if is_tag(16) {
            2
        } else {
            1
        };
        let network = tx.frame.len() - ETHERNET_BYTES - tags * TAG_BYTES;
        if network > self.mtu {
            if self.refusals.is_multiple_of(REFUSALS)
                && let Ok(facts) = sys::interface_facts(self.ring.fd(), &self.interface)
            {
                self.mtu = facts.mtu as usize;
            }
            self.refusals = self.refusals.wrapping_add(1);
        }
        network <= self.mtu
    }

    /// Sends one frame past the ring, after all that is in it.
    fn send_large(&mut self, tx: &TxFrame, virtio: &VirtioHeader, pool: &Pool) -> Result<Fate, PortError> {
        if self.kick()? == Kick::Busy {
            return Ok(Fate::Full);
        }
        self.gather(virtio, pool.arena().segments(&tx.frame), false)
    }

    /// Sends a run of frames as one super-packet, after all that is in the ring. Refused: the kernel does not take it as one.
    fn send_run(&mut self, run: &Run, frames: &[TxFrame]) -> Result<Fate, PortError> {
        if self.kick()? == Kick::Busy {
            return Ok(Fate::Full);
        }
        let (virtio, headers) = run.headers(frames);
        self.gather(&virtio, std::iter::once(&headers[..run.header_bytes]).chain(run.payloads(frames)), true)
    }

    /// Sends one message of these parts past the ring; `cut` where the kernel cuts it into several frames.
    fn gather<'a>(
        &mut self,
        virtio: &VirtioHeader,
        parts: impl Iterator<Item = &'a [u8]>,
        cut: bool,
    ) -> Result<Fate, PortError> {
        let header: [u8; HEADER_BYTES] = virtio.encode();
        self.parts.clear();
        self.parts.push(libc::iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: HEADER_BYTES });
        for part in parts {
            if self.parts.len() == self.parts.capacity() {
                self.parts.clear();
                return Ok(Fate::Refused);
            }
            self.parts.push(libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
        }
        // SAFETY: the parts are `header` and slices borrowed for longer than this call; the kernel only reads.
        let sent = unsafe { sys::send_parts(&self.large, &mut self.parts) };
        self.parts.clear();
        match sent {
            Ok(_) => Ok(Fate::Taken),
            Err(error) => match error.raw_os_error() {
                // The peer or the qdisc dropped one of the frames; the others went, and sending the run again would double them.
                Some(libc::ENOBUFS) if cut => {
                    self.statistics.tx_lost += 1;
                    Ok(Fate::Taken)
                }
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Ok(Fate::Full),
                // A length or header that the kernel does not take: this will never go.
                Some(libc::EINVAL | libc::EMSGSIZE) => Ok(Fate::Refused),
                _ => self.judge("sendmsg", error).map(|()| Fate::Full),
            },
        }
    }

    /// Asks the device from time to time whether frames may be merged, and sets the sockets up for the answer: merged runs must go
    /// through the queueing discipline, since only that way cuts them, and then the ring's frames must, too, in order
    /// not to overtake them.
    fn look_whether_to_merge(&mut self) {
        let now = clock::monotonic();
        if self.looked.is_some_and(|last| now - last < LOOK_EVERY) {
            return;
        }
        self.looked = Some(now);
        let may = sys::interface_facts(&self.large, &self.interface)
            .and_then(|facts| {
                self.mtu = facts.mtu as usize;
                // Without carrier the queueing discipline would lose frames that nobody counts.
                Ok(facts.is_running() && !sys::finishes_frames(&self.large, &self.interface)?)
            })
            .unwrap_or(false);
        if may == self.merges {
            return;
        }
        let bypass = i32::from(!may);
        let set = [self.ring.fd(), &self.large]
            .into_iter()
            .try_for_each(|fd| sys::set_packet_option(fd, libc::PACKET_QDISC_BYPASS, &bypass));
        self.merges = may && set.is_ok();
    }
}

impl TxQueue for PacketTransmit {
    fn transmit(
        &mut self,
        frames: &mut Vec<TxFrame>,
        refused: &mut Vec<TxFrame>,
        pool: &mut Pool,
    ) -> Result<(), PortError> {
        let mut done = 0;
        let mut outcome = Ok(());
        self.refused_at.clear();
        if !self.offload && (frames.len() > 1 || self.merges) {
            self.look_whether_to_merge();
        }
        while done < frames.len() {
            let rest = &frames[done..];
            let run = if self.merges { merge::find(rest, self.mtu + ETHERNET_BYTES) } else { None };
            let (fate, count) = match &run {
                Some(run) => (self.send_run(run, &rest[..run.count]), run.count),
                None => (self.send(&rest[0], pool), 1),
            };
            match fate {
                Ok(Fate::Taken) => done += count,
                // They go one by one, until the device is looked at again.
                Ok(Fate::Refused) if run.is_some() => self.merges = false,
                Ok(Fate::Refused) => {
                    self.refused_at.push(done);
                    done += 1;
                }
                Ok(Fate::Full) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        copy::give_back(frames, done, &self.refused_at, refused, pool);
        outcome?;
        self.kick().map(|_| ())
    }

    fn flush(&mut self, _pool: &mut Pool) -> Result<(), PortError> {
        if self.ring.marked() > 0 {
            self.kick()?;
        }
        Ok(())
    }

    fn offloads(&self) -> bool {
        self.offload
    }

    fn outstanding(&self) -> usize {
        self.ring.marked()
    }

    fn statistics(&mut self) -> QueueStatistics {
        QueueStatistics { tx_lost: self.statistics.tx_lost + self.ring.refused(), ..self.statistics }
    }

    /// Tries once more to send what is marked; the memory is the kernel's.
    fn close(&mut self, _pool: &mut Pool) {
        let _ = self.kick();
        self.discard();
    }
}
