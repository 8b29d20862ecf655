//! Start and end of the gateway.
//!
//! Nothing is touched before the whole file is checked; nothing passes before the last step: the kernel is silenced on the NICs first,
//! the routes are read, and only then do workers get their queues (promise 8).

#![forbid(unsafe_code)]

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrule_config::gateway::{self, Gateway as Config};
use ferrule_dataplane::arena::{Arena, DEFAULT_STRIDE, Pool};
use ferrule_dataplane::counters::WorkerCounters;
use ferrule_dataplane::fib::{RoutingTable, TableLimits};
use ferrule_dataplane::host::{self as rings, PuntLimits};
use ferrule_dataplane::host_io::{HostCommand, HostIo};
use ferrule_dataplane::neighbor::NextHopKey;
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::packet::hash::HashSeed;
use ferrule_dataplane::port::tap::TapQueue;
use ferrule_dataplane::port::xdp::Umem;
use ferrule_dataplane::port::xdp::device::Device;
use ferrule_dataplane::ports::{MacAddress, PortTable};
use ferrule_dataplane::quiesce::Domain;
use ferrule_dataplane::stage::{Shared, Stage};
use ferrule_dataplane::wake::Waker;
use ferrule_dataplane::worker::{Command, Event, Mailbox, Parts, Rings, Worker};

use super::attach;
use super::core::{ControlCounters, Core, InForce, PortStatus, WorkerHandle, lock};
use super::gateway::Running;
use super::helper::Charter;
use super::host::{HostPath, STATE_DIRECTORY, wanted};
use super::plan::{self, PortPlan};
use super::privileges::{self, Assistant, Privileges, Whom};
use super::{ipfw, sink, supervise};
use crate::control::access::{Accounts, Policy};
use crate::control::server::{Listener, Options as SocketOptions};
use crate::failure::Failure;
use crate::ipfw::firewall::Firewall;
use crate::ipfw::logging::{self, Journal};
use crate::kernel::{Follower, MonitorOptions, doctor};
use crate::metrics::server::MetricsListener;
use crate::signals::{self, Notifier, SignalThread, Wish};
use crate::watchdog::{Beat, Watchdog};
use crate::{configuration, control, log};

/// For threads to do what they are told: read a mailbox, end.
const PATIENCE: Duration = Duration::from_secs(5);
/// For what is on its way between threads to arrive, at the end.
const REST: Duration = Duration::from_millis(500);
/// Packets in the rings between threads.
const RING: usize = 4096;

/// What `ferrule run` was asked for.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The configuration.
    pub config: PathBuf,
    /// The control socket, where it is not the file's.
    pub socket: Option<PathBuf>,
    /// Where records are kept.
    pub state_directory: PathBuf,
}

impl RunOptions {
    /// With the usual state directory.
    pub fn new(config: impl Into<PathBuf>) -> RunOptions {
        RunOptions { config: config.into(), socket: None, state_directory: STATE_DIRECTORY.into() }
    }
}

/// Runs the gateway until it is asked to end.
///
/// # Errors
/// Why it could not start; whatever was changed by then is put back.
pub fn run(options: &RunOptions) -> Result<(), Failure> {
    let config = configuration::load(&options.config)?;
    let plans = plan::ports(&config);
    check_devices(&plans, &config)?;
    check_capabilities(&plans)?;
    let policy = policy(&config)?;
    let socket = options.socket.clone().unwrap_or_else(|| config.control.socket.value.clone());
    let listener = Listener::bind(SocketOptions::new(socket, policy))?;
    let metrics = config.control.metrics.as_ref().map(|a| MetricsListener::bind(a.value)).transpose()?;
    let caught = signals::catch()?;
    // Before anything is open that it has no business with.
    let identity = match privileges::whom(&config)? {
        Whom::User(user) => Become::User(user, Arc::new(Assistant::start()?)),
        Whom::Stay(why) => Become::Stay(why),
    };

    let mut host = HostPath { state_directory: options.state_directory.clone(), ..HostPath::default() };
    let taps = if wanted(&config) {
        host.take_over(&plans)?
    } else {
        host.silence(&plans)?;
        Vec::new()
    };
    host.tell_of_leftovers();
    match assemble(config, plans, host, options) {
        Ok(mut assembled) => {
            let result = open_ports(&assembled.core)
                .and_then(|queues| {
                    give_up_privileges(&assembled.core, identity, &listener, options)?;
                    start_threads(&mut assembled, queues, taps)
                })
                .and_then(|()| serve(&mut assembled, listener, metrics, caught));
            // What a reload said last counts; a start that failed leaves the box as it was found.
            let on_exit = match &result {
                Ok(()) => lock(&assembled.core.in_force).config.engine.on_exit.value,
                Err(_) => lock(&assembled.core.host).as_found(),
            };
            end(assembled, on_exit);
            result
        }
        Err((failure, mut host)) => {
            // A start that failed leaves the box as it was found, whatever on_exit says: nothing had passed yet.
            host.release(host.as_found());
            Err(failure)
        }
    }
}

/// Who may use the control socket.
fn policy(config: &Config) -> Result<Policy, Failure> {
    let accounts = Accounts::default();
    let gid = |group: &Option<ferrule_config::Located<String>>| match group {
        None => Ok(None),
        Some(name) => match accounts.gid(&name.value) {
            Some(gid) => Ok(Some(gid)),
            None => Err(Failure::input(format!("[control]: there is no group {}", name.value))),
        },
    };
    let own_uid = rustix::process::geteuid().as_raw();
    Ok(Policy {
        own_uid,
        write_gid: gid(&config.control.write_group)?,
        read_gid: gid(&config.control.read_group)?,
        accounts,
    })
}

/// Says at once which devices there are when one is missing, and which one has other queues than the file says.
fn check_devices(plans: &[PortPlan], config: &Config) -> Result<(), Failure> {
    let there = supervise::interfaces();
    for plan in plans.iter().filter(|p| p.tag.is_none()) {
        let Some(device) = &plan.device else { continue };
        let taken_over = wanted(config) && there.contains(&format!("{device}.phy"));
        if !there.contains(device) && !taken_over && !matches!(plan.driver, gateway::Driver::Tap { .. }) {
            return Err(Failure::input(format!(
                "port {}: there is no device {device} here; there are: {}",
                plan.name,
                there.join(", ")
            )));
        }
        let nic = if taken_over { format!("{device}.phy") } else { device.clone() };
        if let (gateway::Driver::Xdp { .. }, Some(asked), Ok(found)) =
            (&plan.driver, plan.queues, Device::by_name(&nic))
            && u32::from(asked) != found.receive_queues
        {
            return Err(Failure::input(format!(
                "port {}: queues = {asked}, but {nic} has {} receive queues, and with xdp each needs a reader: \
                 ethtool -L {nic} combined {asked} (or rx {asked} tx {asked}), or leave queues out",
                plan.name, found.receive_queues
            )));
        }
    }
    Ok(())
}

/// Says which capabilities are missing, while nothing is touched yet.
fn check_capabilities(plans: &[PortPlan]) -> Result<(), Failure> {
    let xdp = plans.iter().any(|p| matches!(p.driver, gateway::Driver::Xdp { .. }));
    let needed = |name: &str| matches!(name, "cap_net_admin" | "cap_net_raw") || (xdp && name == "cap_bpf");
    let missing = doctor::missing_capabilities().into_iter().filter(|(name, _)| needed(name)).collect::<Vec<_>>();
    if missing.is_empty() || plans.iter().all(|p| p.device.is_none()) {
        return Ok(());
    }
    let mut text = String::from("this process may not do what the ports need:\n");
    for (name, purpose) in &missing {
        text.push_str(&format!("{name}: {purpose}\n"));
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    text.push_str(&format!("run it as root, or: setcap {}+ep $(command -v ferrule)", names.join(",")));
    Err(Failure::input(text))
}

/// Whom to become, and who keeps the privileges meanwhile.
enum Become {
    User(String, Arc<Assistant>),
    Stay(String),
}

/// The gateway with its threads.
struct Assembled {
    core: Arc<Core>,
    /// Workers that do not run yet, with their cores.
    ready: Vec<(Parts, Option<usize>)>,
    /// The host thread's, likewise.
    ready_host: Option<HostIo>,
    threads: Vec<JoinHandle<()>>,
    host_thread: Option<JoinHandle<()>>,
    requests: Vec<rtrb::Consumer<NextHopKey>>,
    follower: Option<Follower>,
    /// Writes what `log` rules met.
    journal: Option<Journal>,
}

/// How many workers: what the file says, else as many as the port with the most queues has, within the processors.
fn worker_count(config: &Config, plans: &[PortPlan], host: &HostPath) -> usize {
    if let Some(n) = config.workers() {
        return usize::from(n);
    }
    let queues = plans.iter().filter(|p| p.tag.is_none()).map(|p| {
        let asked = p.queues.map(u32::from);
        let device = nic_name(p, host).and_then(|nic| Device::by_name(&nic).ok()).map(|d| d.receive_queues);
        asked.or(device).unwrap_or(1)
    });
    (queues.max().unwrap_or(1) as usize).clamp(1, plan::processors())
}

/// The device to open for a port, under its present name.
pub fn nic_name(plan: &PortPlan, host: &HostPath) -> Option<String> {
    let device = plan.device.clone()?;
    Some(host.interface(plan.id).and_then(|i| i.nic()).map_or(device, |(name, _)| name.to_owned()))
}

#[allow(clippy::result_large_err)]
fn assemble(
    config: Config,
    plans: Vec<PortPlan>,
    host: HostPath,
    options: &RunOptions,
) -> Result<Assembled, (Failure, HostPath)> {
    let standalone = config.is_standalone();
    let workers = worker_count(&config, &plans, &host);
    let made = (|| {
        let arena = Arena::new(config.engine.buffers.value, DEFAULT_STRIDE, plan::huge_pages(&config))
            .map_err(|e| Failure::runtime(format!("packet memory: {e}")))?;
        let pools = Pool::split(&arena, workers + 1);
        let umem = Umem::new(arena).map_err(|e| Failure::runtime(format!("packet memory: {e}")))?;
        let waker = || Waker::new().map(Arc::new).map_err(|e| Failure::runtime(format!("eventfd: {e}")));
        let bells = (0..workers).map(|_| waker()).collect::<Result<Vec<_>, _>>()?;
        Ok((pools, umem, bells, waker()?, waker()?))
    })();
    let (mut pools, umem, bells, host_bell, control_bell) = match made {
        Ok(made) => made,
        Err(failure) => return Err((failure, host)),
    };
    let domain = Domain::new(workers);
    let mut limits = TableLimits::default();
    if let Some(n) = config.limits.adjacencies {
        limits.adjacencies = n.value as usize;
    }
    let mut routing = RoutingTable::new(&domain, limits);
    let most = |limit: Option<u32>| limit.map_or(usize::MAX, |n| n as usize);
    routing.limit_routes(
        most(config.limits.ipv4_routes.map(|n| n.value)),
        most(config.limits.ipv6_routes.map(|n| n.value)),
    );
    let ports = PortTable::new(plan::table(&plans, !standalone));
    for plan in &plans {
        let physical = plans.get(usize::from(plan.physical.0)).unwrap_or(plan);
        if let (Some(nic), Some(port)) = (nic_name(physical, &host), ports.get(plan.id))
            && let Ok(device) = Device::by_name(&nic)
        {
            if plan.mac.is_none() {
                port.set_mac(MacAddress(supervise::mac_of(&nic).unwrap_or_default()));
            }
            port.set_mtu(plan.mtu.map_or(device.mtu, u32::from));
        }
    }
    let shared = Arc::new(Shared { fib: routing.fib(), ports, seed: HashSeed::random() });
    let rate = config.host.punt_rate;
    let punt = Arc::new(PuntLimits::new([rate.neighbor, rate.routing, rate.dhcp, rate.other]));
    let host_counters = Arc::new(WorkerCounters::new(plans.len(), 0));
    let firewall = config.ipfw.as_ref().filter(|ipfw| ipfw.enabled).map(|ipfw| {
        let names = plans.iter().map(|plan| plan.name.clone()).collect();
        Arc::new(Firewall::new(ipfw, &domain, workers, names))
    });
    let log = config.ipfw.as_ref().and_then(|ipfw| ipfw.log.clone()).filter(|_| firewall.is_some());
    let (sinks, journal_rings) = logging::Rings::new(if log.is_some() { workers } else { 0 });
    let mut sinks = sinks.into_iter();
    let mut mesh = Rings::mesh(workers, RING, &bells);
    let cores = plan::cores(&config, workers);
    let (mut handles, mut ends, mut requests, mut ready) = (vec![], vec![], vec![], vec![]);
    let host_pool = pools.pop();
    for (id, (pool, bell)) in pools.into_iter().zip(&bells).enumerate() {
        let Some(place) = domain.register() else { continue };
        let mailbox = Arc::new(Mailbox::new(bell.clone()));
        let stages: Vec<Box<dyn Stage>> = firewall.iter().map(|firewall| firewall.stage(id, sinks.next())).collect();
        let counters = Arc::new(WorkerCounters::new(plans.len(), stages.len()));
        let link = (!standalone).then(|| {
            let (link, end) = rings::link(RING, host_bell.clone(), bell.clone(), punt.clone());
            ends.push(end);
            link
        });
        let (asks, asked) = rtrb::RingBuffer::new(256);
        requests.push(asked);
        let parts = Parts {
            options: plan::worker(&config, id, workers),
            shared: shared.clone(),
            counters: counters.clone(),
            pool,
            quiesce: place,
            stages,
            host: link,
            rings: std::mem::take(&mut mesh[id]),
            requests: asks,
            control: control_bell.clone(),
            mailbox: mailbox.clone(),
        };
        let core = cores.get(id).copied().flatten();
        ready.push((parts, core));
        handles.push(WorkerHandle { core, counters, mailbox });
    }
    let mut ready_host = None;
    let mut host_io = None;
    if let (false, Some(pool)) = (standalone, host_pool) {
        let (io, control) = HostIo::new(ends, pool, shared.clone(), host_counters.clone(), host_bell);
        ready_host = Some(io);
        host_io = Some(control);
    }
    let statuses = plans.iter().map(|_| PortStatus { admin_up: true, ..PortStatus::default() }).collect();
    let run_directory = run_directory(&config, options);
    let in_force = InForce { path: options.config.clone(), config, last_error: None, unconfirmed: None };
    let core = Core {
        in_force: Mutex::new(in_force),
        shared,
        routing: Mutex::new(routing),
        workers: handles,
        host_counters,
        host_io,
        host: Mutex::new(host),
        follower: Mutex::new(None),
        firewall,
        log_counters: Arc::default(),
        changing: Mutex::new(()),
        run_directory,
        plans,
        ports: Mutex::new(statuses),
        umem,
        bell: control_bell,
        stop: AtomicBool::new(false),
        counters: ControlCounters::default(),
        alarms: OnceLock::new(),
        kept: Mutex::default(),
        privileges: OnceLock::new(),
        started: Instant::now(),
    };
    let core = Arc::new(core);
    let journal = log.zip(core.firewall.clone()).map(|(settings, firewall)| {
        let (opener, counters) = (ipfw::log_opener(&core, settings.keep), core.log_counters.clone());
        Journal::new(&settings, journal_rings, firewall, opener, counters)
    });
    Ok(Assembled { core, journal, ready, ready_host, threads: Vec::new(), host_thread: None, requests, follower: None })
}

/// The directory of the control socket.
fn run_directory(config: &Config, options: &RunOptions) -> PathBuf {
    let socket = options.socket.as_ref().unwrap_or(&config.control.socket.value);
    socket.parent().map_or_else(|| PathBuf::from("/run"), Path::to_owned)
}

/// Opens every port. Nobody reads the queues yet.
fn open_ports(core: &Core) -> Result<Vec<Delivery>, Failure> {
    let mut queues = Vec::new();
    for plan in core.plans.iter().filter(|p| p.tag.is_none()) {
        queues.extend(open_port(core, plan)?);
    }
    Ok(queues)
}

/// From here on this process has no more than it needs to go on; it has no other threads yet, which would keep what they have.
fn give_up_privileges(core: &Core, identity: Become, listener: &Listener, options: &RunOptions) -> Result<(), Failure> {
    let privileges = match identity {
        Become::Stay(why) => {
            log::info(format!("privileges are kept: {why}"));
            Privileges::Kept(why)
        }
        Become::User(user, assistant) => {
            assistant.begin(&charter(core, listener, options), listener.lock())?;
            lock(&core.host).keep_records_through(&assistant);
            let report = privileges::drop(&user)?;
            log::info(format!(
                "runs as {user} (uid {}) with {}; landlock: {}, seccomp: on ({})",
                report.uid,
                report.capabilities.join(", "),
                report.landlock,
                report.seccomp
            ));
            Privileges::Dropped(report, assistant)
        }
    };
    let _ = core.privileges.set(privileges);
    Ok(())
}

/// What the helper may touch.
fn charter(core: &Core, listener: &Listener, options: &RunOptions) -> Charter {
    let host = lock(&core.host);
    let mut devices = Vec::new();
    for plan in core.plans.iter().filter(|p| p.tag.is_none()) {
        devices.extend(plan.device.clone());
        devices.extend(nic_name(plan, &host).filter(|name| Some(name) != plan.device.as_ref()));
    }
    let (socket, inode) = listener.file();
    let config = &lock(&core.in_force).config;
    Charter {
        devices,
        interfaces: host.recorded(),
        state_directory: options.state_directory.clone(),
        kernel_on_exit: config.engine.on_exit.value == gateway::OnExit::Kernel,
        config: options.config.clone(),
        logs: ipfw::logs(config),
        socket: (socket.to_owned(), inode),
    }
}

/// Starts workers and host I/O, and hands out what was opened.
fn start_threads(
    assembled: &mut Assembled,
    queues: Vec<Delivery>,
    taps: Vec<(PortId, OwnedFd)>,
) -> Result<(), Failure> {
    let core = assembled.core.clone();
    let threads = assembled.ready.drain(..).enumerate().filter_map(|(id, (parts, core))| {
        spawn(&format!("worker-{id}"), move || {
            if let Some(core) = core
                && !core_affinity::set_for_current(core_affinity::CoreId { id: core })
            {
                log::warning(format!("worker {id} cannot be pinned to core {core}; it runs where the scheduler likes"));
            }
            Worker::new(parts).run();
        })
    });
    assembled.threads = threads.collect();
    if assembled.threads.len() != core.workers.len() {
        return Err(Failure::runtime("not every worker could be started".to_owned()));
    }
    deliver(&core, queues)?;
    // The host's own packets come last: they find the ports open.
    assembled.host_thread = assembled.ready_host.take().and_then(|io| spawn("host", move || io.run()));
    if let Some(io) = &core.host_io {
        for (port, fd) in taps {
            let mut command = HostCommand::Attach(port, TapQueue::new(fd));
            let until = Instant::now() + PATIENCE;
            while let Err(back) = io.send(command) {
                if Instant::now() > until {
                    return Err(Failure::runtime("the host thread does not read its mailbox"));
                }
                command = back;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    Ok(())
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    match std::thread::Builder::new().name(name.to_owned()).spawn(body) {
        Ok(thread) => Some(thread),
        Err(error) => {
            log::error(format!("starting thread {name}: {error}"));
            None
        }
    }
}

/// Follows the kernel, and serves until the end is asked for.
fn serve(
    assembled: &mut Assembled,
    listener: Listener,
    metrics: Option<MetricsListener>,
    caught: signals::Signals,
) -> Result<(), Failure> {
    let core = assembled.core.clone();
    if core.is_standalone() {
        supervise::install_static(&core)?;
    } else {
        let indices = lock(&core.host).indices();
        let sink = Box::new(sink::sink(core.clone()));
        let follower =
            Follower::start(MonitorOptions::default(), indices, sink).map_err(|e| super::host::failure(&e))?;
        *lock(&core.follower) = Some(follower.handle());
        assembled.follower = Some(follower);
    }
    let running: Arc<dyn control::Gateway> = Arc::new(Running(core.clone()));
    let _server = listener.serve(running.clone())?;
    let _metrics = metrics.map(|m| m.serve(running.clone())).transpose()?;
    let signal_gateway = running.clone();
    let _signals = SignalThread::start(caught, move |wish| obey(&*signal_gateway, wish))?;
    let watched = core.clone();
    let limit = lock(&core.in_force).config.engine.watchdog;
    let _watchdog = limit.map(|limit| Watchdog::start(limit, move || beats(&watched), |_| ())).transpose()?;
    if let Some(watchdog) = &_watchdog {
        let _ = core.alarms.set(watchdog.alarms().clone());
    }
    let journal_ends = Arc::new(AtomicBool::new(false));
    let journal = assembled.journal.take().and_then(|journal| {
        let ends = journal_ends.clone();
        spawn("ipfw-log", move || journal.run(&ends))
    });
    let opening = core.clone();
    let begin = move || {
        if let Some(firewall) = &opening.firewall {
            ipfw::open(&opening, firewall);
        }
        Notifier.ready("forwarding");
        log::notice(format!("forwarding with {} worker(s)", opening.workers.len()));
    };
    // The supervisor has work to do while a script runs.
    let _opening = match core.firewall {
        Some(_) => spawn("ipfw-script", begin),
        None => {
            begin();
            None
        }
    };
    supervise::run(&core, &mut assembled.requests);
    journal_ends.store(true, Ordering::Relaxed);
    if let Some(journal) = journal {
        let _ = journal.join();
    }
    Notifier.stopping();
    Ok(())
}

fn beats(core: &Core) -> Vec<Beat> {
    let beat = |w: &WorkerHandle| Beat { count: w.counters.heartbeat.get(), asleep: w.mailbox.bell.is_sleeping() };
    core.workers.iter().map(beat).collect()
}

fn obey(gateway: &dyn control::Gateway, wish: Wish) {
    match wish {
        Wish::Stop => gateway.stop(),
        // What becomes of it is in the log in any case.
        Wish::Reload => drop(gateway.reload(None)),
        Wish::Dump => {
            let style = crate::show::Style { human: false, colour: false };
            log::notice(crate::show::stats(&gateway.snapshot(), style));
        }
        Wish::StopNow => std::process::exit(1),
    }
}

/// A command for a worker.
pub type Delivery = (usize, Command);

/// Opens a port's queues and shares them out among the workers: what to [`deliver`] to them.
///
/// # Errors
/// What the driver says.
pub fn open_port(core: &Core, plan: &PortPlan) -> Result<Vec<Delivery>, Failure> {
    let (nic, silenced) = {
        let host = lock(&core.host);
        (nic_name(plan, &host).unwrap_or_default(), host.filter.is_some())
    };
    let Some(port) = core.shared.ports.get(plan.id) else { return Ok(Vec::new()) };
    let workers = core.workers.len();
    let request = attach::Request {
        port: plan.id,
        nic: &nic,
        driver: &plan.driver,
        workers,
        queues: plan.queues,
        mtu: port.mtu(),
        promiscuous: core.plans.iter().any(|p| p.physical == plan.id && p.tag.is_some()),
        silenced,
        assistant: core.assistant().map(|a| &**a),
    };
    let opened = attach::open(&request, &core.umem)?;
    let queues = opened.pairs.len();
    log::notice(format!(
        "{}: {nic} with {}, {}, {queues} queue(s): {}",
        plan.name, opened.driver, opened.mode, opened.why
    ));
    // Each port starts at another worker: where the two directions of a flow come in by queues of the same number, as with a
    // symmetric hash, they are two workers' work.
    let owner = |queue: usize| (queue + usize::from(plan.id.0)) % workers;
    let pairs = opened.pairs.into_iter().enumerate();
    let mut deliveries: Vec<Delivery> = pairs.map(|(i, pair)| (owner(i), Command::Attach(pair))).collect();
    for i in queues..workers {
        let (without, via) = (owner(i), owner(i % queues.max(1)));
        log::info(format!("{}: worker {without} sends through worker {via}, which has a queue", plan.name));
        deliveries.push((without, Command::Relay(plan.id, via)));
    }
    {
        let mut ports = lock(&core.ports);
        if let Some(status) = ports.get_mut(usize::from(plan.id.0)) {
            status.nic = nic.clone();
            (status.driver, status.mode, status.why) = (opened.driver.to_owned(), opened.mode, opened.why);
            (status.queues, status.attached) = (queues, true);
            status.carrier = supervise::carrier_of(&nic);
            status.trouble = None;
        }
    }
    lock(&core.kept).insert(plan.id, opened.keep);
    let mut routing = lock(&core.routing);
    core.refresh_port(&mut routing, plan.id).map_err(|e| Failure::runtime(format!("routing table: {e}")))?;
    Ok(deliveries)
}

/// Puts commands into the workers' mailboxes; waits where one is full.
///
/// # Errors
/// When a worker does not read its mailbox.
pub fn deliver(core: &Core, deliveries: Vec<Delivery>) -> Result<(), Failure> {
    let until = Instant::now() + PATIENCE;
    for (id, mut command) in deliveries {
        let Some(worker) = core.workers.get(id) else { continue };
        while let Err(back) = worker.mailbox.send(command) {
            if Instant::now() > until {
                return Err(Failure::runtime(format!("worker {id} does not read its mailbox")));
            }
            command = back;
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// Nothing comes in any more, and what is in the rings between threads is carried on: a thread that ended first would leave what the
/// others have for it.
fn come_to_rest(core: &Core) {
    if let Some(io) = &core.host_io {
        let _ = io.send(HostCommand::Quiet);
    }
    for worker in &core.workers {
        let _ = worker.mailbox.send(Command::Quiet);
    }
    let mut quiet = vec![false; core.workers.len()];
    let until = Instant::now() + REST;
    while Instant::now() < until {
        for (worker, quiet) in core.workers.iter().zip(&mut quiet) {
            while let Some(event) = worker.mailbox.event() {
                *quiet |= matches!(event, Event::Quiet);
            }
        }
        let host_quiet = core.host_io.as_ref().is_none_or(|io| io.is_quiet());
        let all = || core.workers.iter().map(|w| &*w.counters).chain([&*core.host_counters]);
        let out: u64 = all().map(|c| c.ring_out.get()).sum();
        let r#in: u64 = all().map(|c| c.ring_in.get()).sum();
        if host_quiet && quiet.iter().all(|q| *q) && r#in == out {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    log::info("packets are still on their way between threads; they are dropped");
}

/// Takes the gateway apart: workers drain, threads end, the box is left as `on_exit` says.
fn end(assembled: Assembled, on_exit: gateway::OnExit) {
    let Assembled { core, threads, host_thread, follower, .. } = assembled;
    drop(follower);
    if !threads.is_empty() {
        come_to_rest(&core);
    }
    for worker in &core.workers {
        let _ = worker.mailbox.send(Command::Stop);
    }
    let until = Instant::now() + PATIENCE;
    for (id, thread) in threads.into_iter().enumerate() {
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !thread.is_finished() {
            log::error(format!("worker {id} does not end; leaving it"));
        } else if thread.join().is_err() {
            log::error(format!("worker {id} had panicked"));
        }
    }
    if let (Some(io), Some(thread)) = (&core.host_io, host_thread) {
        let _ = io.send(HostCommand::Stop);
        let _ = thread.join();
    }
    lock(&core.kept).clear();
    lock(&core.host).release(on_exit);
    if let Some(Err(failure)) = core.assistant().map(|assistant| assistant.ended()) {
        log::warning(failure.to_string());
    }
    log::notice(match on_exit {
        gateway::OnExit::Closed => "ended: nothing passes until ferrule runs again",
        gateway::OnExit::Kernel => "ended: the kernel has its devices back",
    });
}
