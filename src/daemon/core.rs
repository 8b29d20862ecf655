//! What the control threads share while the gateway runs.

#![forbid(unsafe_code)]

use std::any::Any;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use ferrule_config::gateway::Gateway as Config;
use ferrule_config::ipfw::pending::PendingSet;
use ferrule_dataplane::counters::WorkerCounters;
use ferrule_dataplane::fib::{PortSettings, RouteError, RoutingTable};
use ferrule_dataplane::host_io::HostControl;
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::port::xdp::Umem;
use ferrule_dataplane::stage::Shared;
use ferrule_dataplane::wake::Waker;
use ferrule_dataplane::worker::Mailbox;

use super::host::HostPath;
use super::plan::PortPlan;
use super::privileges::{Assistant, Privileges};
use crate::ipfw::firewall::Firewall;
use crate::ipfw::logging::LogCounters;
use crate::kernel::FollowerHandle;
use crate::watchdog::Alarms;

/// A worker as the control side sees it.
pub struct WorkerHandle {
    /// Its core.
    pub core: Option<usize>,
    /// Its counters.
    pub counters: Arc<WorkerCounters>,
    /// Its mailbox.
    pub mailbox: Arc<Mailbox>,
}

/// What is known of a port beside the data plane's table.
#[derive(Clone, Debug, Default)]
pub struct PortStatus {
    /// The device that is open: the NIC under its present name.
    pub nic: String,
    /// Driver in use.
    pub driver: String,
    /// Its mode.
    pub mode: String,
    /// Why it was chosen.
    pub why: String,
    /// Queue pairs.
    pub queues: usize,
    /// Whether its queues are open.
    pub attached: bool,
    /// Whether the device has a carrier, as far as is known.
    pub carrier: bool,
    /// Whether the host interface is set up by the administrator (standalone: always).
    pub admin_up: bool,
    /// Times that it was opened again.
    pub reattached: u64,
    /// The last trouble with it.
    pub trouble: Option<String>,
    /// Its host interface was deleted and is not made again yet, with the error that told.
    pub host_lost: Option<String>,
}

/// Counts of the control side.
#[derive(Debug, Default)]
pub struct ControlCounters {
    /// Reloads that were put in force.
    pub reloads: AtomicU64,
    /// Reloads that were refused.
    pub reloads_refused: AtomicU64,
    /// Routes that the packet path has no room for or does not honour.
    pub routes_refused: AtomicU64,
    /// Ports lost.
    pub ports_lost: AtomicU64,
    /// Ports opened again.
    pub ports_reattached: AtomicU64,
    /// Host interfaces that somebody deleted.
    pub host_interfaces_lost: AtomicU64,
    /// Of those, made again.
    pub host_interfaces_remade: AtomicU64,
    /// Requests for neighbours.
    pub neighbor_requests: AtomicU64,
}

/// The configuration in force.
pub struct InForce {
    /// Its file.
    pub path: PathBuf,
    /// What it says.
    pub config: Config,
    /// The last refusal of a reload.
    pub last_error: Option<String>,
    /// An applied configuration that waits for its confirmation: the one before it, and until when.
    pub unconfirmed: Option<Unconfirmed>,
}

/// What comes back unless an applied configuration is confirmed.
pub struct Unconfirmed {
    /// The configuration before.
    pub config: Box<Config>,
    /// Its file.
    pub path: PathBuf,
    /// The firewall's rules before.
    pub rules: Option<PendingSet>,
    /// Until when.
    pub until: Instant,
}

/// Everything the control threads share.
pub struct Core {
    /// The configuration.
    pub in_force: Mutex<InForce>,
    /// What the data plane shares.
    pub shared: Arc<Shared>,
    /// Routes; the one writer of the tables in `shared`.
    pub routing: Mutex<RoutingTable>,
    /// Workers.
    pub workers: Vec<WorkerHandle>,
    /// Counters of the host I/O thread.
    pub host_counters: Arc<WorkerCounters>,
    /// The host I/O thread; None in standalone mode.
    pub host_io: Option<Arc<HostControl>>,
    /// Host interfaces and the kernel's silence.
    pub host: Mutex<HostPath>,
    /// The thread that follows the kernel; set once it runs.
    pub follower: Mutex<Option<FollowerHandle>>,
    /// The firewall, where there is one.
    pub firewall: Option<Arc<Firewall>>,
    /// Counts of the firewall's log.
    pub log_counters: Arc<LogCounters>,
    /// Held while a configuration is being put in force: one at a time.
    pub changing: Mutex<()>,
    /// Where the control socket is: private directories of scripts are made there.
    pub run_directory: PathBuf,
    /// Plans of the ports.
    pub plans: Vec<PortPlan>,
    /// Status of the ports.
    pub ports: Mutex<Vec<PortStatus>>,
    /// The packet memory as AF_XDP knows it.
    pub umem: Arc<Umem>,
    /// Rouses the supervisor.
    pub bell: Arc<Waker>,
    /// Set when the end has been asked for.
    pub stop: AtomicBool,
    /// Counts of the control side.
    pub counters: ControlCounters,
    /// Stuck workers, once the watchdog runs.
    pub alarms: OnceLock<Arc<Alarms>>,
    /// What must live as long as a port is open.
    pub kept: Mutex<HashMap<PortId, Option<Box<dyn Any + Send + Sync>>>>,
    /// What became of the privileges, once that is settled.
    pub privileges: OnceLock<Privileges>,
    /// When the gateway was started.
    pub started: Instant,
}

/// Locks plain data; a thread that panicked leaves it whole at each step.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    /// Whether there is no kernel beside the gateway.
    pub fn is_standalone(&self) -> bool {
        self.host_io.is_none()
    }

    /// Whom to ask for what needs privileges; None as long as, or because, they are our own.
    pub fn assistant(&self) -> Option<&Arc<Assistant>> {
        self.privileges.get().and_then(Privileges::assistant)
    }

    /// Asks for the end.
    pub fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.bell.wake();
    }

    /// Brings a port's state into the table of ports and the routes: up means open, with carrier, and set up by the administrator.
    /// VLANs of a port follow it.
    ///
    /// # Errors
    /// When the routing table has no room for the change.
    pub fn refresh_port(&self, routing: &mut RoutingTable, port: PortId) -> Result<(), RouteError> {
        let statuses = lock(&self.ports).clone();
        let of = |id: PortId| statuses.get(usize::from(id.0));
        let mut result = Ok(());
        for (id, p) in self.shared.ports.iter().filter(|(_, p)| p.physical == port) {
            let carried = of(port).is_some_and(|s| s.attached && s.carrier);
            let admin_up = |id: PortId| of(id).is_some_and(|s| s.admin_up);
            // A VLAN goes down with the port that carries it.
            let enabled = admin_up(id) && admin_up(port);
            let up = carried && enabled;
            p.set_enabled(enabled);
            p.set_up(up);
            let mtu = u16::try_from(p.mtu()).unwrap_or(u16::MAX);
            result = result.and(routing.port_set(id, PortSettings { mac: p.mac(), mtu, vlan: p.tag, up }));
        }
        result
    }
}
