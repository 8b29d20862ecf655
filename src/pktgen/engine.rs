//! The threads of pkt-gen, and the main thread that reports.

#![forbid(unsafe_code)]

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ferrule_dataplane::arena::Pool;
use ferrule_dataplane::batch::Batch;
use ferrule_dataplane::clock::monotonic;
use ferrule_dataplane::port::{PortError, QueuePair, QueueStatistics, RxQueue};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;

use super::pacer::Pacer;
use super::report::{FRAMING_BITS, Format, Interval, Summary, Totals, Window, stamp};
use super::template::Template;
use super::traffic::{Pinger, Ponger, Queue, Receiver, Sender, Sent};
use super::{Function, Opened, PktGenArgs, Plan};
use crate::cli::commands::emit;
use crate::failure::Failure;
use crate::snapshot::mac_text;

/// What a thread tells the main thread.
#[derive(Default)]
struct Told {
    packets: AtomicU64,
    bytes: AtomicU64,
    events: AtomicU64,
    min_space: AtomicU64,
    /// Nanoseconds of the first and the last packet; 0: none yet.
    first: AtomicU64,
    last: AtomicU64,
    done: AtomicBool,
}

impl Told {
    fn tell(&self, t: Totals) {
        self.packets.store(t.packets, Relaxed);
        self.bytes.store(t.bytes, Relaxed);
        self.events.store(t.events, Relaxed);
        self.min_space.fetch_min(t.min_space, Relaxed);
    }

    fn moved(&self, now: u64) {
        if self.first.load(Relaxed) == 0 {
            self.first.store(now.max(1), Relaxed);
        }
        self.last.store(now.max(1), Relaxed);
    }
}

/// Sums over threads; the smallest space begins anew.
fn sum(told: &[Told]) -> Totals {
    let mut t = Totals::default();
    for thread in told {
        t.packets += thread.packets.load(Relaxed);
        t.bytes += thread.bytes.load(Relaxed);
        t.events += thread.events.load(Relaxed);
        let space = thread.min_space.swap(u64::MAX, Relaxed);
        t.min_space += if space == u64::MAX { 0 } else { space };
    }
    t
}

/// The receive queues of one thread as one.
struct Merged(Vec<Box<dyn RxQueue>>);

impl RxQueue for Merged {
    fn receive(&mut self, batch: &mut Batch, max: usize, pool: &mut Pool) -> Result<usize, PortError> {
        let mut n = 0;
        for queue in &mut self.0 {
            let room = (max - n).min(batch.room());
            n += queue.receive(batch, room, pool)?;
        }
        // The one that was first is last next time, so that none starves behind another.
        self.0.rotate_left(1);
        Ok(n)
    }

    fn statistics(&mut self) -> QueueStatistics {
        self.0.iter_mut().map(|q| q.statistics()).fold(QueueStatistics::default(), |a, b| QueueStatistics {
            rx_lost: a.rx_lost + b.rx_lost,
            tx_lost: a.tx_lost + b.tx_lost,
            copied: a.copied + b.copied,
            rx_discarded: a.rx_discarded + b.rx_discarded,
            rx_senseless: a.rx_senseless + b.rx_senseless,
        })
    }

    fn close(&mut self, pool: &mut Pool) {
        self.0.iter_mut().for_each(|q| q.close(pool));
    }
}

/// Deals the queues out to as many threads as there are pools.
fn deal(queues: Vec<QueuePair>, pools: Vec<Pool>) -> Vec<Queue> {
    let threads = pools.len();
    let mut hands: Vec<Vec<QueuePair>> = (0..threads).map(|_| Vec::new()).collect();
    for (i, queue) in queues.into_iter().enumerate() {
        hands[i % threads].push(queue);
    }
    let one = |(hand, pool): (Vec<QueuePair>, Pool)| {
        let mut hand = hand.into_iter();
        let mut first = hand.next()?;
        let rest: Vec<_> = hand.map(|q| q.rx).collect();
        if !rest.is_empty() {
            let mut all = vec![first.rx];
            all.extend(rest);
            first.rx = Box::new(Merged(all));
        }
        Some(Queue { pair: first, pool })
    };
    hands.into_iter().zip(pools).filter_map(one).collect()
}

fn say(text: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    eprintln!("{}{text}", stamp(now, "main_thread", line!()));
}

#[derive(Serialize)]
struct JsonInterval<'a> {
    function: &'a str,
    interval: Interval,
}

#[derive(Serialize)]
struct JsonSummary<'a> {
    function: &'a str,
    driver: &'a str,
    summary: Summary,
    /// rx: frames that the device lost; tx: frames that it refused; ping: those that did not come back.
    lost: u64,
    /// rx --own: frames of others.
    others: u64,
    /// ping: smallest and mean round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_min_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_mean_ns: Option<u64>,
}

fn emit_line(out: &mut dyn Write, value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|e| Failure::runtime(format!("JSON: {e}")))?;
    emit(out, &format!("{text}\n"))
}

/// What a thread ends with.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    lost: u64,
    others: u64,
    rtt: Option<(u64, u64)>,
}

/// Runs the threads until they end or a signal comes.
///
/// # Errors
/// When a device is lost on the way, or the output cannot be written.
pub fn run(plan: &Plan, args: &PktGenArgs, opened: Opened, json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let Opened { driver, why, device_queues, mac, queues, pools, guard, .. } = opened;
    let name = match plan.function {
        Function::Tx => "tx",
        Function::Rx => "rx",
        Function::Ping => "ping",
        Function::Pong => "pong",
    };
    if !json {
        let verb = match plan.function {
            Function::Tx => "Sending on",
            Function::Rx => "Receiving from",
            _ => "Working on",
        };
        let cores = args.cores.max(1);
        let head =
            format!("{verb} {}: {device_queues} queues, {} threads and {cores} cpus.\n", args.interface, plan.threads);
        emit(out, &head)?;
        if plan.function == Function::Tx {
            emit(out, &format!("{}\n", route_text(plan, args)))?;
        }
        say(&format!("driver {driver}: {why}"));
        say(&format!("Wait {} secs for phy reset", plan.wait.as_secs()));
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())
            .map_err(|e| Failure::runtime(format!("cannot catch signals: {e}")))?;
    }
    let begin = Instant::now();
    while begin.elapsed() < plan.wait && !stop.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let told: Vec<Told> =
        (0..plan.threads).map(|_| Told { min_space: AtomicU64::new(u64::MAX), ..Told::default() }).collect();
    let format = Format { units: !args.no_units, framing_bits: if args.framing { FRAMING_BITS } else { 0 } };
    let received = AtomicU64::new(0);
    let ends = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (i, queue) in deal(queues, pools).into_iter().enumerate() {
            let (told, stop, received) = (&told[i], &*stop, &received);
            let core = args.core.map(|first| place(first, i, args.cores));
            threads.push(scope.spawn(move || {
                if let Some(core) = core {
                    core_affinity::set_for_current(core_affinity::CoreId { id: core });
                }
                let task =
                    Task { plan, index: i, told, stop, received, idle_ends: args.end_when_idle, own: args.own, mac };
                let end = task.run(queue);
                told.done.store(true, Relaxed);
                end
            }));
        }
        let reported = report(plan, args, &format, &told, &stop, json.then_some(name), out);
        if reported.is_err() {
            stop.store(true, Relaxed);
        }
        let ends: Vec<Result<End, Failure>> = threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err(Failure::runtime("a pkt-gen thread panicked"))))
            .collect();
        reported.and_then(|()| ends.into_iter().collect::<Result<Vec<End>, Failure>>())
    });
    drop(guard);
    let ends = ends?;
    let totals = sum(&told);
    let first = told.iter().map(|t| t.first.load(Relaxed)).filter(|t| *t > 0).min().unwrap_or(0);
    let last = told.iter().map(|t| t.last.load(Relaxed)).max().unwrap_or(0);
    let took = Duration::from_nanos(last.saturating_sub(first));
    let (lost, others) = ends.iter().fold((0, 0), |(l, o), e| (l + e.lost, o + e.others));
    let rtt = ends.iter().find_map(|e| e.rtt);
    if json {
        let summary = Summary::new(totals, took, format.framing_bits);
        let (rtt_min_ns, rtt_mean_ns) = (rtt.map(|r| r.0), rtt.map(|r| r.1));
        return emit_line(
            out,
            &JsonSummary { function: name, driver: &driver, summary, lost, others, rtt_min_ns, rtt_mean_ns },
        );
    }
    match plan.function {
        Function::Tx => {
            emit(out, &format.summary("Sent", totals, took))?;
            if lost > 0 {
                say(&format!("the device refused {lost} packets"));
            }
        }
        Function::Rx => {
            emit(out, &format.summary("Received", totals, took))?;
            if lost > 0 {
                say(&format!("the device lost {lost} packets before they were received"));
            }
        }
        Function::Ping => match rtt {
            Some((min, mean)) => {
                say(&format!("RTT over {} packets: min {min} av {mean} ns", totals.packets));
                if lost > 0 {
                    say(&format!("{lost} packets did not come back"));
                }
            }
            None => say(&format!("{} packets sent, none came back", totals.packets)),
        },
        Function::Pong => say(&format!("answered {} packets", totals.packets)),
    }
    Ok(())
}

/// pkt-gen's second line: what was asked, as it was asked.
fn route_text(plan: &Plan, args: &PktGenArgs) -> String {
    let (s, d) = if plan.spec.source.v6 { ("fd00::1", "fd00:1::1") } else { ("10.0.0.1", "10.1.0.1") };
    format!(
        "{} -> {} ({} -> {})",
        args.source.as_deref().unwrap_or(s),
        args.destination.as_deref().unwrap_or(d),
        mac_text(plan.spec.source_mac),
        mac_text(plan.spec.destination_mac)
    )
}

/// The core of a thread: -a and those after it, within -c.
fn place(first: usize, thread: usize, cores: usize) -> usize {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    (first + thread) % if cores == 0 || cores == 1 { all } else { cores }
}

fn report(
    plan: &Plan,
    args: &PktGenArgs,
    format: &Format,
    told: &[Told],
    stop: &AtomicBool,
    json: Option<&str>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (mut before, mut then, mut window) = (Totals::default(), Instant::now(), Window::default());
    loop {
        let done = || told.iter().all(|t| t.done.load(Relaxed));
        while then.elapsed() < plan.interval && !done() && !stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(5).min(plan.interval - then.elapsed().min(plan.interval)));
        }
        let over = done() || stop.load(Relaxed);
        let usec = then.elapsed().as_micros() as u64;
        // As in pkt-gen: less than 10 ms mean nothing.
        if usec >= 10_000 {
            then = Instant::now();
            let after = sum(told);
            let interval = Interval::between(before, after, usec, format.framing_bits);
            match json {
                Some(function) => emit_line(out, &JsonInterval { function, interval })?,
                None => say(&format.interval(&interval, args.averages.then(|| window.add(interval.pps)))),
            }
            before = after;
        }
        if over {
            return Ok(());
        }
    }
}

/// One thread's work.
struct Task<'a> {
    plan: &'a Plan,
    index: usize,
    told: &'a Told,
    stop: &'a AtomicBool,
    /// Received by all threads together.
    received: &'a AtomicU64,
    idle_ends: bool,
    own: bool,
    mac: Option<[u8; 6]>,
}

/// Idle looks before a receiver begins to sleep.
const SPINS: u32 = 2000;
/// How long sent frames may take to leave the device.
const DRAIN: Duration = Duration::from_secs(1);

impl Task<'_> {
    fn run(&self, queue: Queue) -> Result<End, Failure> {
        match self.plan.function {
            Function::Tx => self.transmit(queue),
            Function::Rx => self.receive(queue),
            Function::Ping => self.ping(queue),
            Function::Pong => self.pong(queue),
        }
        .map_err(|e| Failure::runtime(format!("pkt-gen: {e}")))
    }

    fn over(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// This thread's share of the count, and how many come before it.
    fn share(&self) -> (Option<u64>, u64) {
        let Some(count) = self.plan.count else { return (None, 0) };
        let (threads, i) = (self.plan.threads as u64, self.index as u64);
        let (each, extra) = (count / threads, count % threads);
        (Some(each + u64::from(i < extra)), each * i + i.min(extra))
    }

    fn transmit(&self, queue: Queue) -> Result<End, PortError> {
        let (count, before) = self.share();
        let seed = monotonic() ^ (self.index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut template = Template::new(&self.plan.spec, seed);
        template.seek(u128::from(before));
        let rate = self.plan.rate.map(|r| (r / self.plan.threads as u64).max(1));
        let pacer = rate.map(|r| Pacer::new(r, self.plan.burst, monotonic()));
        let mut sender = Sender::new(queue, template, pacer, self.plan.burst, count).with_sizes(self.plan.sizes);
        while !self.over() {
            let now = monotonic();
            match sender.step(now)? {
                Sent::Done => break,
                Sent::Frames(_) => {
                    self.told.moved(now);
                    self.told.tell(sender.totals());
                }
                Sent::Full => std::thread::yield_now(),
                // The clock is coarse for a sleeper: the last part is spun away.
                Sent::Early(at) => match at.saturating_sub(now) {
                    wait if wait > 200_000 => std::thread::sleep(Duration::from_nanos((wait - 100_000).min(5_000_000))),
                    _ => std::hint::spin_loop(),
                },
            }
        }
        let deadline = Instant::now() + DRAIN;
        while sender.drain()? > 0 && Instant::now() < deadline {
            std::thread::yield_now();
        }
        self.told.moved(monotonic());
        self.told.tell(sender.totals());
        let end = End { lost: sender.refused(), ..End::default() };
        sender.close();
        Ok(end)
    }

    fn receive(&self, queue: Queue) -> Result<End, PortError> {
        let mut receiver = Receiver::new(queue, self.plan.burst, self.own);
        let (mut idle, mut last) = (0u32, Instant::now());
        while !self.over() && self.plan.count.is_none_or(|n| self.received.load(Relaxed) < n) {
            let left = self.plan.count.map_or(u64::MAX, |n| n - self.received.load(Relaxed).min(n));
            let n = receiver.step(left)?;
            if n > 0 {
                self.received.fetch_add(n, Relaxed);
                self.told.moved(monotonic());
                self.told.tell(receiver.totals());
                (idle, last) = (0, Instant::now());
                continue;
            }
            idle = idle.saturating_add(1);
            if idle > SPINS {
                receiver.wait(Duration::from_millis(10));
                // As in pkt-gen: the first packet is waited for without end.
                if self.idle_ends && self.received.load(Relaxed) > 0 && last.elapsed() >= Duration::from_secs(1) {
                    break;
                }
            } else {
                std::hint::spin_loop();
            }
        }
        self.told.tell(receiver.totals());
        let end = End { lost: receiver.lost(), others: receiver.others(), rtt: None };
        receiver.close();
        Ok(end)
    }

    fn pong(&self, queue: Queue) -> Result<End, PortError> {
        let mut ponger = Ponger::new(queue, self.mac);
        let mut idle = 0u32;
        while !self.over() && self.plan.count.is_none_or(|n| ponger.totals().packets < n) {
            idle = if ponger.step()? > 0 { 0 } else { idle.saturating_add(1) };
            if idle > SPINS {
                std::thread::sleep(Duration::from_micros(50));
            }
            if idle == 0 {
                self.told.moved(monotonic());
                self.told.tell(ponger.totals());
            }
        }
        ponger.close();
        Ok(End::default())
    }

    fn ping(&self, queue: Queue) -> Result<End, PortError> {
        let mut pinger = Pinger::new(queue, Template::new(&self.plan.spec, 1));
        let mut pacer = self.plan.rate.map(|r| Pacer::new(r, 1, monotonic()));
        // The first look gives the device buffers to receive into.
        pinger.receive(monotonic())?;
        let (mut answered_or_given_up, mut sent_at, mut reported) = (true, Instant::now(), Instant::now());
        while !self.over() && self.plan.count.is_none_or(|n| pinger.sent < n) {
            let now = monotonic();
            // With a rate, at the rate; else when the last one came back, or is given up after a second.
            let due = pacer.as_mut().map_or(answered_or_given_up, |p| p.take(now) > 0);
            if due && pinger.send(now)? {
                self.told.moved(now);
                (answered_or_given_up, sent_at) = (false, Instant::now());
            }
            if pinger.receive(monotonic())? > 0 || sent_at.elapsed() > Duration::from_secs(1) {
                answered_or_given_up = true;
            }
            self.told.tell(pinger.totals());
            if reported.elapsed() >= Duration::from_secs(1) {
                reported = Instant::now();
                if let Some(text) = pinger.round_trips.interval() {
                    say(&text);
                }
            }
        }
        // The last answers.
        let deadline = Instant::now() + Duration::from_secs(1);
        while pinger.round_trips.all_count < pinger.sent && Instant::now() < deadline && !self.over() {
            pinger.receive(monotonic())?;
        }
        let lost = pinger.sent - pinger.round_trips.all_count.min(pinger.sent);
        let end = End { lost, rtt: pinger.round_trips.overall(), ..End::default() };
        pinger.close();
        Ok(end)
    }
}

impl Receiver {
    /// Sleeps until there is something, at most so long.
    fn wait(&mut self, most: Duration) {
        let rx = self.rx();
        if rx.arm() {
            return;
        }
        match rx.wait_fd() {
            Some(fd) => {
                let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
                let timeout = Timespec { tv_sec: 0, tv_nsec: most.as_nanos().min(999_999_999) as i64 };
                let _ = rustix::event::poll(&mut fds, Some(&timeout));
            }
            None => std::thread::sleep(most.min(Duration::from_micros(100))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_wrap_around() {
        assert_eq!((place(1, 0, 4), place(3, 1, 4), place(0, 5, 2)), (1, 0, 1));
    }
}
