//! Sending and receiving on one queue, a step at a time: the loops around them are in [`super::engine`], tests drive them in
//! virtual time.

#![forbid(unsafe_code)]

use ferrule_dataplane::arena::{Frame, Pool};
use ferrule_dataplane::batch::{BATCH_MAX, Batch};
use ferrule_dataplane::clock::Nanos;
use ferrule_dataplane::packet::Offload;
use ferrule_dataplane::port::{PortError, QueuePair, RxQueue, TxFrame};

use super::pacer::Pacer;
use super::report::Totals;
use super::template::{self, Template};

/// One queue of the device and the buffers for it.
pub struct Queue {
    /// Receiving and transmitting half.
    pub pair: QueuePair,
    /// Its buffers.
    pub pool: Pool,
}

/// Sends the template's frames.
pub struct Sender {
    queue: Queue,
    template: Template,
    pacer: Option<Pacer>,
    burst: usize,
    /// Frames still to be made; None without end.
    left: Option<u64>,
    /// Random sizes from .0 to below .1.
    sizes: Option<(usize, usize)>,
    /// Made, not yet taken by the device; all of one size.
    pending: Vec<TxFrame>,
    refused: Vec<TxFrame>,
    refused_total: u64,
    totals: Totals,
}

/// What a step of a sender came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// So many frames were taken by the device.
    Frames(u64),
    /// The rate allows no more before this time.
    Early(Nanos),
    /// The device takes nothing now.
    Full,
    /// All that was asked has been sent.
    Done,
}

impl Sender {
    /// Sends `count` frames (None: without end) in bursts.
    pub fn new(queue: Queue, template: Template, pacer: Option<Pacer>, burst: usize, count: Option<u64>) -> Sender {
        let burst = burst.clamp(1, 4096);
        let (pending, refused) = (Vec::with_capacity(burst), Vec::with_capacity(burst));
        let totals = Totals { min_space: u64::MAX, ..Totals::default() };
        Sender { queue, template, pacer, burst, left: count, sizes: None, pending, refused, refused_total: 0, totals }
    }

    /// Sizes at random, one for each burst.
    pub fn with_sizes(mut self, sizes: Option<(usize, usize)>) -> Sender {
        self.sizes = sizes.filter(|(low, high)| low < high);
        self
    }

    /// What was sent so far.
    pub fn totals(&mut self) -> Totals {
        let now = self.totals;
        self.totals.min_space = u64::MAX;
        now
    }

    /// Frames that the device will never take.
    pub fn refused(&self) -> u64 {
        self.refused_total
    }

    /// Makes and sends a burst.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn step(&mut self, now: Nanos) -> Result<Sent, PortError> {
        if self.pending.is_empty() {
            if self.left == Some(0) {
                return Ok(Sent::Done);
            }
            let allowed = match &mut self.pacer {
                Some(pacer) => match pacer.take(now) {
                    0 => {
                        self.queue.pair.tx.flush(&mut self.queue.pool)?;
                        return Ok(Sent::Early(pacer.due_at()));
                    }
                    n => n,
                },
                None => self.burst as u64,
            };
            self.make(allowed.min(self.left.unwrap_or(u64::MAX)));
        }
        self.send()
    }

    fn make(&mut self, count: u64) {
        if let Some((low, high)) = self.sizes {
            let size = low + (self.template.next_random() % (high - low) as u64) as usize;
            self.template.set_size(size);
        }
        let mut made = 0;
        while made < count {
            let Some(frame) = self.queue.pool.frame_from(self.template.bytes()) else { break };
            self.pending.push(TxFrame { frame, offload: Offload::NONE });
            self.template.advance();
            made += 1;
        }
        if let Some(left) = &mut self.left {
            *left -= made;
        }
        self.totals.min_space = self.totals.min_space.min(self.queue.pool.available() as u64);
    }

    fn send(&mut self) -> Result<Sent, PortError> {
        let Some(size) = self.pending.first().map(|t| t.frame.len() as u64) else {
            // No free buffer: those of earlier frames have to come back.
            self.queue.pair.tx.flush(&mut self.queue.pool)?;
            return Ok(Sent::Full);
        };
        let before = self.pending.len();
        self.queue.pair.tx.transmit(&mut self.pending, &mut self.refused, &mut self.queue.pool)?;
        let refused = self.refused.len() as u64;
        self.refused_total += refused;
        self.refused.drain(..).for_each(|t| self.queue.pool.free(t.frame));
        let sent = (before - self.pending.len()) as u64 - refused;
        if sent == 0 {
            return Ok(if refused > 0 { Sent::Frames(0) } else { Sent::Full });
        }
        self.totals.packets += sent;
        self.totals.bytes += sent * size;
        self.totals.events += 1;
        Ok(Sent::Frames(sent))
    }

    /// Frames taken by the device and not yet on the wire; asks it to go on.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn drain(&mut self) -> Result<usize, PortError> {
        self.queue.pair.tx.flush(&mut self.queue.pool)?;
        Ok(self.queue.pair.tx.outstanding())
    }

    /// Gives everything back and ends.
    pub fn close(mut self) {
        self.pending.drain(..).for_each(|t| self.queue.pool.free(t.frame));
        self.queue.pair.tx.close(&mut self.queue.pool);
        self.queue.pair.rx.close(&mut self.queue.pool);
    }

    /// The queue, for tests that hand frames back.
    #[cfg(test)]
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.queue.pool
    }
}

/// Counts what comes in.
pub struct Receiver {
    queue: Queue,
    batch: Batch,
    burst: usize,
    own: bool,
    totals: Totals,
    others: u64,
}

impl Receiver {
    /// Receives up to `burst` frames at a time; with `own`, only pkt-gen's frames count.
    pub fn new(queue: Queue, burst: usize, own: bool) -> Receiver {
        let totals = Totals { min_space: u64::MAX, ..Totals::default() };
        Receiver { queue, batch: Batch::new(), burst: burst.clamp(1, BATCH_MAX), own, totals, others: 0 }
    }

    /// What came in so far.
    pub fn totals(&mut self) -> Totals {
        let now = self.totals;
        self.totals.min_space = u64::MAX;
        now
    }

    /// Frames that were not pkt-gen's, where only those count.
    pub fn others(&self) -> u64 {
        self.others
    }

    /// Losses that the device tells of.
    pub fn lost(&mut self) -> u64 {
        let s = self.queue.pair.rx.statistics();
        s.rx_lost + s.rx_discarded + s.rx_senseless
    }

    /// The receiving half, for waiting on it.
    pub fn rx(&mut self) -> &mut dyn RxQueue {
        &mut *self.queue.pair.rx
    }

    /// Takes what is there, at most `limit`; how many counted.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn step(&mut self, limit: u64) -> Result<u64, PortError> {
        let most = self.burst.min(usize::try_from(limit).unwrap_or(usize::MAX));
        self.queue.pair.rx.receive(&mut self.batch, most, &mut self.queue.pool)?;
        let mut counted = 0;
        for packet in self.batch.drain() {
            let len = packet.frame.len();
            if self.own && !template::is_own(packet.frame.header(), len) {
                self.others += 1;
            } else {
                counted += 1;
                self.totals.bytes += len as u64;
            }
            self.queue.pool.free(packet.frame);
        }
        if counted > 0 {
            self.totals.packets += counted;
            self.totals.events += 1;
        }
        self.totals.min_space = self.totals.min_space.min(self.queue.pool.available() as u64);
        Ok(counted)
    }

    /// Gives everything back and ends.
    pub fn close(mut self) {
        self.queue.pair.tx.close(&mut self.queue.pool);
        self.queue.pair.rx.close(&mut self.queue.pool);
    }
}

/// Sends back every UDP datagram that comes in for us, MAC and IP addresses exchanged: pkt-gen's pong.
pub struct Ponger {
    queue: Queue,
    batch: Batch,
    out: Vec<TxFrame>,
    refused: Vec<TxFrame>,
    mac: Option<[u8; 6]>,
    totals: Totals,
}

impl Ponger {
    /// Answers what is sent to `mac` (None: everything).
    pub fn new(queue: Queue, mac: Option<[u8; 6]>) -> Ponger {
        let out = || Vec::with_capacity(BATCH_MAX);
        Ponger { queue, batch: Batch::new(), out: out(), refused: out(), mac, totals: Totals::default() }
    }

    /// What was answered.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Answers what is there; how many were received.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn step(&mut self) -> Result<u64, PortError> {
        let n = self.queue.pair.rx.receive(&mut self.batch, BATCH_MAX - self.out.len(), &mut self.queue.pool)?;
        for packet in self.batch.drain() {
            let mut frame = packet.frame;
            // A broadcast ping (pkt-gen's default destination) is answered, too, from our own address if we know it.
            let for_us = self.mac.is_none_or(|m| frame.header()[..6] == m || frame.header()[0] & 1 != 0);
            if for_us && turn(&mut frame, self.mac) {
                self.out.push(TxFrame { frame, offload: Offload::NONE });
            } else {
                self.queue.pool.free(frame);
            }
        }
        if self.out.is_empty() {
            self.queue.pair.tx.flush(&mut self.queue.pool)?;
            return Ok(n as u64);
        }
        let (before, bytes): (_, u64) = (self.out.len(), self.out.iter().map(|t| t.frame.len() as u64).sum());
        self.queue.pair.tx.transmit(&mut self.out, &mut self.refused, &mut self.queue.pool)?;
        let left: u64 = self.out.iter().chain(&self.refused).map(|t| t.frame.len() as u64).sum();
        self.totals.packets += (before - self.out.len() - self.refused.len()) as u64;
        self.totals.bytes += bytes - left;
        self.totals.events += 1;
        self.refused.drain(..).for_each(|t| self.queue.pool.free(t.frame));
        Ok(n as u64)
    }

    /// Gives everything back and ends.
    pub fn close(mut self) {
        self.out.drain(..).for_each(|t| self.queue.pool.free(t.frame));
        self.queue.pair.tx.close(&mut self.queue.pool);
        self.queue.pair.rx.close(&mut self.queue.pool);
    }
}

/// Turns a UDP datagram round in place; false where it is none. The sums stay right: the same words are summed.
fn turn(frame: &mut Frame, mac: Option<[u8; 6]>) -> bool {
    let len = frame.len();
    let h = frame.header_mut();
    let (at, size, need) = match (h[12], h[13]) {
        (0x08, 0x00) if h[23] == 17 => (26, 4, 42),
        (0x86, 0xdd) if h[20] == 17 => (22, 16, 62),
        _ => return false,
    };
    if len < need {
        return false;
    }
    let (us, them) = (mac.unwrap_or([h[0], h[1], h[2], h[3], h[4], h[5]]), [h[6], h[7], h[8], h[9], h[10], h[11]]);
    h[..6].copy_from_slice(&them);
    h[6..12].copy_from_slice(&us);
    let (source, destination) = h[at..at + 2 * size].split_at_mut(size);
    source.swap_with_slice(destination);
    true
}

/// Sends datagrams with a number and a time in them and measures when they come back: pkt-gen's ping.
pub struct Pinger {
    queue: Queue,
    batch: Batch,
    template: Template,
    out: Vec<TxFrame>,
    refused: Vec<TxFrame>,
    /// Datagrams sent.
    pub sent: u64,
    /// Those that came back.
    pub round_trips: RoundTrips,
    bytes: u64,
}

impl Pinger {
    /// Sends frames of this template (at least 12 payload bytes).
    pub fn new(queue: Queue, template: Template) -> Pinger {
        let out = || Vec::with_capacity(BATCH_MAX);
        let round_trips = RoundTrips::default();
        Pinger { queue, batch: Batch::new(), template, out: out(), refused: out(), sent: 0, round_trips, bytes: 0 }
    }

    /// Sends a datagram; false when the device took none.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn send(&mut self, now: Nanos) -> Result<bool, PortError> {
        // As pkt-gen: a number of four bytes, then seconds and nanoseconds in four each, all as the machine writes them.
        let mut mark = [0; 12];
        mark[..4].copy_from_slice(&(self.sent as u32).to_ne_bytes());
        mark[4..8].copy_from_slice(&((now / 1_000_000_000) as u32).to_ne_bytes());
        mark[8..].copy_from_slice(&((now % 1_000_000_000) as u32).to_ne_bytes());
        self.template.patch_payload(0, &mark);
        let Some(frame) = self.queue.pool.frame_from(self.template.bytes()) else {
            self.queue.pair.tx.flush(&mut self.queue.pool)?;
            return Ok(false);
        };
        self.out.push(TxFrame { frame, offload: Offload::NONE });
        self.queue.pair.tx.transmit(&mut self.out, &mut self.refused, &mut self.queue.pool)?;
        let taken = self.out.is_empty() && self.refused.is_empty();
        self.out.drain(..).chain(self.refused.drain(..)).for_each(|t| self.queue.pool.free(t.frame));
        if taken {
            self.sent += 1;
            self.bytes += self.template.bytes().len() as u64;
        }
        Ok(taken)
    }

    /// Takes what came back; how many were ours.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn receive(&mut self, now: Nanos) -> Result<u64, PortError> {
        self.queue.pair.tx.flush(&mut self.queue.pool)?;
        self.queue.pair.rx.receive(&mut self.batch, BATCH_MAX, &mut self.queue.pool)?;
        let (payload, size, mut ours) = (self.template.payload(), self.template.bytes().len(), 0);
        for packet in self.batch.drain() {
            let h = packet.frame.header();
            let word = |at: usize| u32::from_ne_bytes([h[at], h[at + 1], h[at + 2], h[at + 3]]);
            let is_udp = h[12..14] == self.template.bytes()[12..14]
                && h[payload - 8..payload - 4] == self.template.bytes()[payload - 8..payload - 4];
            if is_udp && packet.frame.len() == size {
                let then = u64::from(word(payload + 4)) * 1_000_000_000 + u64::from(word(payload + 8));
                if u64::from(word(payload)) < self.sent && then <= now {
                    self.round_trips.add(now - then);
                    ours += 1;
                }
            }
            self.queue.pool.free(packet.frame);
        }
        Ok(ours)
    }

    /// What was sent.
    pub fn totals(&self) -> Totals {
        Totals {
            packets: self.sent,
            bytes: self.bytes,
            events: self.sent,
            min_space: self.queue.pool.available() as u64,
        }
    }

    /// Gives everything back and ends.
    pub fn close(mut self) {
        self.queue.pair.tx.close(&mut self.queue.pool);
        self.queue.pair.rx.close(&mut self.queue.pool);
    }
}

/// Round-trip times: of the interval since the last report, and of all.
#[derive(Clone, Debug)]
pub struct RoundTrips {
    count: u64,
    sum: u128,
    min: u64,
    /// By the highest set bit of the nanoseconds.
    buckets: [u64; 64],
    /// All of them.
    pub all_count: u64,
    all_sum: u128,
    all_min: u64,
}

impl Default for RoundTrips {
    fn default() -> Self {
        RoundTrips { count: 0, sum: 0, min: u64::MAX, buckets: [0; 64], all_count: 0, all_sum: 0, all_min: u64::MAX }
    }
}

impl RoundTrips {
    /// Takes one in.
    pub fn add(&mut self, nanos: Nanos) {
        (self.count, self.all_count) = (self.count + 1, self.all_count + 1);
        (self.sum, self.all_sum) = (self.sum + u128::from(nanos), self.all_sum + u128::from(nanos));
        (self.min, self.all_min) = (self.min.min(nanos), self.all_min.min(nanos));
        self.buckets[nanos.max(1).ilog2() as usize] += 1;
    }

    /// The two lines of an interval, as pkt-gen prints them; the interval's figures begin anew. None when nothing came back.
    pub fn interval(&mut self) -> Option<String> {
        if self.count == 0 {
            return None;
        }
        let low = self.buckets.iter().position(|n| *n > 0)?;
        let high = self.buckets.iter().rposition(|n| *n > 0)?;
        let row: String = self.buckets[low..=high].iter().map(|n| format!(" {n:5}")).collect();
        let text = format!(
            "count {} RTT: min {} av {} ns\nk: {} .. {}\n\t{row}",
            self.count,
            self.min,
            self.sum / u128::from(self.count),
            1u64 << low,
            1u64 << high
        );
        (self.count, self.sum, self.min, self.buckets) = (0, 0, u64::MAX, [0; 64]);
        Some(text)
    }

    /// Smallest and mean of all, in nanoseconds.
    pub fn overall(&self) -> Option<(u64, u64)> {
        (self.all_count > 0).then(|| (self.all_min, (self.all_sum / u128::from(self.all_count)) as u64))
    }
}

#[cfg(test)]
mod tests;
