//! The kernel monitor on a thread of its own.
#![forbid(unsafe_code)]

use super::error::KernelError;
use super::event::{ControlSink, PortId};
use super::monitor::{Counters, Monitor, MonitorOptions};
use super::neighbor::ResolutionMode;
use super::rules::Unsupported;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest sleep of the thread. It wakes for notifications and commands at once; this only bounds its own clock.
const SLEEP: Duration = Duration::from_secs(1);

enum Command {
    SetPorts(Vec<(u32, PortId)>),
    Resolve(u32, IpAddr),
    Release(u32, IpAddr),
    ConfigureResolution(ResolutionMode, Duration),
    Resync,
    Stop,
}

/// What others may look at while the thread runs.
#[derive(Debug, Default)]
struct Shared {
    counters: Counters,
    unsupported: Vec<Unsupported>,
    failure: Option<String>,
}

/// A handle to the control thread; may be cloned and used from any thread that may wait (never from a worker: calls make
/// a system call).
#[derive(Debug, Clone)]
pub struct FollowerHandle {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
    shared: Arc<Mutex<Shared>>,
}

/// The control thread. Ends when dropped.
#[derive(Debug)]
pub struct Follower {
    handle: FollowerHandle,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Opens the monitor, in the network namespace of the calling thread, and starts the thread. `sink` gets the whole
    /// state of the kernel first, closed by [`super::Event::Synchronized`], then changes as they come.
    ///
    /// # Errors
    /// When the sockets, the first dump or the thread fail.
    pub fn start(
        options: MonitorOptions,
        ports: impl IntoIterator<Item = (u32, PortId)>,
        sink: Box<dyn ControlSink>,
    ) -> Result<Follower, KernelError> {
        let mut monitor = Monitor::open(options)?;
        monitor.set_ports(ports);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| KernelError::netlink("making an eventfd", error.into()))?;
        let (commands, receiver) = channel();
        let handle = FollowerHandle { commands, wake: Arc::new(wake), shared: Arc::default() };
        let own = handle.clone();
        let thread = std::thread::Builder::new()
            .name("kernel".to_owned())
            .spawn(move || run(monitor, &receiver, &own, sink))
            .map_err(|error| KernelError::netlink("starting the kernel control thread", error))?;
        Ok(Follower { handle, thread: Some(thread) })
    }

    /// A handle for other threads.
    pub fn handle(&self) -> FollowerHandle {
        self.handle.clone()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.handle.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl FollowerHandle {
    /// See [`Monitor::set_ports`].
    ///
    /// # Errors
    /// [`KernelError::Ended`] when the thread is gone, as with all of these.
    pub fn set_ports(&self, ports: impl IntoIterator<Item = (u32, PortId)>) -> Result<(), KernelError> {
        self.send(Command::SetPorts(ports.into_iter().collect()))
    }

    /// See [`Monitor::request_resolution`].
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn request_resolution(&self, ifindex: u32, address: IpAddr) -> Result<(), KernelError> {
        self.send(Command::Resolve(ifindex, address))
    }

    /// See [`Monitor::release_resolution`].
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn release_resolution(&self, ifindex: u32, address: IpAddr) -> Result<(), KernelError> {
        self.send(Command::Release(ifindex, address))
    }

    /// Who keeps neighbours fresh, and how often; see [`super::Resolver::configure`].
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn configure_resolution(&self, mode: ResolutionMode, interval: Duration) -> Result<(), KernelError> {
        self.send(Command::ConfigureResolution(mode, interval))
    }

    /// Asks for a full resync.
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn resync(&self) -> Result<(), KernelError> {
        self.send(Command::Resync)
    }

    /// The counters as of the last batch.
    pub fn counters(&self) -> Counters {
        self.shared().counters
    }

    /// What of the kernel's routing is not honoured, as of the last second.
    pub fn unsupported(&self) -> Vec<Unsupported> {
        self.shared().unsupported.clone()
    }

    /// Why the thread ended, if it did: its routes are then no longer those of the kernel.
    pub fn failure(&self) -> Option<String> {
        self.shared().failure.clone()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // A poisoned lock holds plain data that was whole at each step.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, command: Command) -> Result<(), KernelError> {
        self.commands.send(command).map_err(|_| KernelError::Ended)?;
        // A full eventfd counter is readable all the same.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        Ok(())
    }
}

fn run(mut monitor: Monitor, commands: &Receiver<Command>, handle: &FollowerHandle, mut sink: Box<dyn ControlSink>) {
    let mut events = Vec::new();
    let mut named = None;
    loop {
        let step = step(&mut monitor, commands, handle, &mut events);
        if !events.is_empty() {
            sink.apply(&mut events);
            events.clear();
        }
        let mut shared = handle.shared();
        shared.counters = monitor.counters();
        if named.is_none_or(|then: std::time::Instant| then.elapsed() >= SLEEP) {
            named = Some(std::time::Instant::now());
            shared.unsupported = monitor.unsupported();
        }
        match step {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                shared.failure = Some(error.to_string());
                return;
            }
        }
    }
}

/// One round: commands, then the kernel. False: asked to stop.
fn step(
    monitor: &mut Monitor,
    commands: &Receiver<Command>,
    handle: &FollowerHandle,
    events: &mut Vec<super::Event>,
) -> Result<bool, KernelError> {
    let mut count = [0; 8];
    let _ = rustix::io::read(&*handle.wake, &mut count);
    for command in commands.try_iter() {
        match command {
            Command::SetPorts(ports) => monitor.set_ports(ports),
            Command::Resolve(ifindex, address) => monitor.request_resolution(ifindex, address),
            Command::Release(ifindex, address) => monitor.release_resolution(ifindex, address),
            Command::ConfigureResolution(mode, interval) => monitor.resolver().configure(mode, interval),
            Command::Resync => monitor.resync()?,
            Command::Stop => return Ok(false),
        }
    }
    monitor.poll(SLEEP, Some(handle.wake.as_fd()), events)?;
    Ok(true)
}
