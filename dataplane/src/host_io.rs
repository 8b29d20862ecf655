//! The host I/O thread: carries packets between the workers' rings and the host interfaces (TAPs), so that no worker makes a
//! system call for the host and a flood to the box costs this thread, not forwarding.

#![forbid(unsafe_code)]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

use crate::arena::Pool;
use crate::counters::WorkerCounters;
use crate::host::HostEnd;
use crate::packet::{Flags, Packet, PortId, hash, parse, partial};
use crate::port::tap::{Read, TapQueue, Written};
use crate::stage::Shared;
use crate::verdict::DropReason;
use crate::wake::Waker;

/// Packets taken from one ring or one TAP before the next is looked at.
const BURST: usize = 64;
/// Longest sleep.
const SLEEP_NANOS: i64 = 100_000_000;

/// What the thread is asked to do.
pub enum HostCommand {
    /// Use this TAP as the port's host interface from now on.
    Attach(PortId, TapQueue),
    /// Give the port's host interface up.
    Detach(PortId),
    /// Take nothing more from the host, and go on with what is for it.
    Quiet,
    /// End.
    Stop,
}

/// What the thread tells.
#[derive(Debug)]
pub enum HostEvent {
    /// The port's host interface is gone, with the error that told; the port has none until another is attached.
    Lost(PortId, io::Error),
}

/// The thread's other end, for the control thread.
pub struct HostControl {
    commands: ArrayQueue<HostCommand>,
    events: ArrayQueue<HostEvent>,
    quiet: AtomicBool,
    bell: Arc<Waker>,
}

impl HostControl {
    /// Sends a command.
    ///
    /// # Errors
    /// The command itself, when 64 wait already.
    pub fn send(&self, command: HostCommand) -> Result<(), HostCommand> {
        self.commands.push(command)?;
        self.bell.wake();
        Ok(())
    }

    /// Whether it takes nothing more from the host, as asked.
    pub fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Acquire)
    }

    /// The next thing that the thread has to tell. Nothing is rung for it: look now and then.
    pub fn event(&self) -> Option<HostEvent> {
        self.events.pop()
    }
}

/// What the thread owns.
pub struct HostIo {
    taps: Vec<Option<TapQueue>>,
    ends: Vec<HostEnd>,
    pool: Pool,
    shared: Arc<Shared>,
    counters: Arc<WorkerCounters>,
    control: Arc<HostControl>,
}

impl HostIo {
    /// Puts it together: one end for each worker, its own buffers and counters, and the bell that the workers' links ring.
    pub fn new(
        ends: Vec<HostEnd>,
        pool: Pool,
        shared: Arc<Shared>,
        counters: Arc<WorkerCounters>,
        bell: Arc<Waker>,
    ) -> (HostIo, Arc<HostControl>) {
        // Each port is lost at most once before it is attached again: none of its events finds the queue full.
        let events = ArrayQueue::new(2 * shared.ports.len().max(1));
        let control =
            Arc::new(HostControl { commands: ArrayQueue::new(64), events, quiet: AtomicBool::new(false), bell });
        let taps = (0..shared.ports.len()).map(|_| None).collect();
        (HostIo { taps, ends, pool, shared, counters, control: control.clone() }, control)
    }

    /// Runs until [`HostCommand::Stop`].
    pub fn run(mut self) {
        loop {
            let mut found = 0;
            for i in 0..self.ends.len() {
                found += self.up(i);
            }
            if !self.control.is_quiet() {
                found += (0..self.taps.len()).map(|i| self.down(PortId(i as u16))).sum::<usize>();
            }
            self.pool.balance();
            while let Some(command) = self.control.commands.pop() {
                if !self.obey(command) {
                    return;
                }
            }
            self.counters.heartbeat.add(1);
            if found == 0 {
                self.sleep();
            }
        }
    }

    fn obey(&mut self, command: HostCommand) -> bool {
        match command {
            HostCommand::Attach(port, tap) => {
                self.detach(port);
                if let Some(place) = self.taps.get_mut(usize::from(port.0)) {
                    *place = Some(tap);
                }
            }
            HostCommand::Detach(port) => self.detach(port),
            HostCommand::Quiet => self.control.quiet.store(true, Ordering::Release),
            HostCommand::Stop => {
                while (0..self.ends.len()).map(|i| self.up(i)).sum::<usize>() > 0 {}
                for i in 0..self.taps.len() {
                    self.detach(PortId(i as u16));
                }
                return false;
            }
        }
        true
    }

    fn detach(&mut self, port: PortId) {
        if let Some(mut tap) = self.taps.get_mut(usize::from(port.0)).and_then(Option::take) {
            tap.close(&mut self.pool);
        }
    }

    /// From one worker to the kernel.
    fn up(&mut self, end: usize) -> usize {
        for n in 0..BURST {
            let Some(Ok(packet)) = self.ends.get_mut(end).map(|e| e.to_host.pop()) else { return n };
            self.counters.ring_out.add(1);
            self.write(packet);
        }
        BURST
    }

    fn write(&mut self, mut packet: Packet) {
        let port = usize::from(packet.ingress.0);
        let finished = packet.offload.is_partial() || partial::finish(self.pool.arena(), &mut packet);
        let tap = self.taps.get_mut(port).and_then(Option::as_mut);
        let written = match tap {
            Some(tap) if finished => tap.write(&packet.frame, &packet.offload, &self.pool),
            Some(_) => Ok(Written::Refused),
            None => Ok(Written::Down),
        };
        match written {
            Ok(Written::Done) => self.counters.ports[port].to_host.add(1, packet.frame.len() as u64),
            Ok(Written::Busy | Written::Down | Written::Refused) => self.counters.count_drop(DropReason::HostRefused),
            Err(error) => {
                self.counters.count_drop(DropReason::HostRefused);
                self.lost(port, error);
            }
        }
        self.pool.free(packet.frame);
    }

    /// From the kernel to the worker that owns the flow.
    fn down(&mut self, port: PortId) -> usize {
        let at = usize::from(port.0);
        let mut rung: SmallVec<[bool; 64]> = SmallVec::from_elem(false, self.ends.len());
        let mut n = 0;
        while n < BURST {
            let Some(tap) = self.taps.get_mut(at).and_then(Option::as_mut) else { break };
            match tap.read(&mut self.pool) {
                Ok(Read::Frame(frame, offload)) => {
                    self.counters.ports[at].from_host.add(1, frame.len() as u64);
                    let mut packet = Packet::new(frame, offload, port);
                    packet.egress = port;
                    packet.flags.set(Flags::FROM_HOST);
                    parse::parse_from_host(&mut packet, &self.shared.ports);
                    self.give(packet, &mut rung);
                    n += 1;
                }
                Ok(Read::Senseless) => {
                    // Counted as come and gone, so that the identity holds.
                    self.counters.ports[at].from_host.add(1, 0);
                    self.counters.count_drop(DropReason::HostFrameBad);
                }
                Ok(Read::Empty | Read::NoBuffer) => break,
                Err(error) => {
                    self.lost(at, error);
                    break;
                }
            }
        }
        for (end, _) in self.ends.iter().zip(&rung).filter(|(_, rung)| **rung) {
            end.bell.wake();
        }
        n
    }

    fn give(&mut self, mut packet: Packet, rung: &mut [bool]) {
        let workers = self.ends.len();
        let owner = hash::owner(hash::of(self.shared.seed, &mut packet), workers);
        let Some(end) = self.ends.get_mut(owner) else {
            self.counters.count_drop(DropReason::HostRingFull);
            self.pool.free(packet.frame);
            return;
        };
        match end.from_host.push(packet) {
            Ok(()) => {
                self.counters.ring_in.add(1);
                if let Some(rung) = rung.get_mut(owner) {
                    *rung = true;
                }
            }
            Err(rtrb::PushError::Full(packet)) => {
                self.counters.count_drop(DropReason::HostRingFull);
                self.pool.free(packet.frame);
            }
        }
    }

    /// The interface is gone: the port goes on without a host interface until it is attached again.
    fn lost(&mut self, port: usize, error: io::Error) {
        let port = PortId(port as u16);
        self.detach(port);
        let _ = self.control.events.push(HostEvent::Lost(port, error));
    }

    fn sleep(&mut self) {
        let bell = self.control.bell.clone();
        bell.prepare();
        let ready = self.ends.iter().any(|e| !e.to_host.is_empty()) || !self.control.commands.is_empty();
        if !ready {
            let mut fds: SmallVec<[PollFd<'_>; 16]> = SmallVec::new();
            fds.push(PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN));
            // Without buffers a readable TAP would only make this a spin.
            if self.pool.available() > BURST && !self.control.is_quiet() {
                let taps = self.taps.iter().flatten();
                fds.extend(taps.map(|tap| PollFd::from_borrowed_fd(tap.fd(), PollFlags::IN)));
            }
            self.counters.sleeps.add(1);
            let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: SLEEP_NANOS }));
        }
        bell.awake();
    }
}
