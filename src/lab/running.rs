//! A lab that is up: makes what the plan says, gives its hosts, and removes all of it.
#![forbid(unsafe_code)]

use super::bpf_object;
use super::error::LabError;
use super::host::{Host, IP_LIMIT};
use super::plan::{Plan, Port};
use super::probe::ping::Ping;
use super::process::{Background, wait_until};
use super::removal::{down, ip_batch, sweep};
use super::state::{LabState, VERSION, process_start};
use super::tools;
use super::topology::{Offloads, Topology, Vlan};
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What forwards in B.
pub trait Router {
    /// Gets B forwarding and returns once it does. The children returned live as long as the lab.
    ///
    /// # Errors
    /// Whatever keeps it from forwarding.
    fn start(&self, lab: &Lab) -> Result<Vec<Background>, LabError>;
}

/// Forwarding by the kernel of B: addresses on the veth devices, and the forwarding sysctls.
#[derive(Debug, Clone, Copy)]
pub struct KernelRouter;

impl Router for KernelRouter {
    fn start(&self, lab: &Lab) -> Result<Vec<Background>, LabError> {
        let b = lab.host("b")?;
        b.sysctl("net.ipv4.ip_forward", "1")?;
        // Share the load of several next hops by the five-tuple, as Ferrule does, not by addresses alone.
        b.sysctl("net.ipv4.fib_multipath_hash_policy", "1")?;
        if lab.plan().ipv6 {
            b.sysctl("net.ipv6.conf.all.forwarding", "1")?;
            b.sysctl("net.ipv6.fib_multipath_hash_policy", "1")?;
        }
        b.ip_batch(&lab.plan().router_batch())?;
        Ok(Vec::new())
    }
}

impl<F: Fn(&Lab) -> Result<Vec<Background>, LabError>> Router for F {
    fn start(&self, lab: &Lab) -> Result<Vec<Background>, LabError> {
        self(lab)
    }
}

/// A lab that is up. Dropping it takes it down.
#[derive(Debug)]
pub struct Lab {
    plan: Plan,
    state: LabState,
    path: PathBuf,
    directory: PathBuf,
    router: Vec<Background>,
}

impl Lab {
    /// Makes the lab and starts `router` in B. What killed runs have left behind is removed first.
    ///
    /// # Errors
    /// Not root, a missing tool, a name in use, what `ip` refuses, what the router refuses. Nothing is left then.
    pub fn up(topology: &Topology, router: &dyn Router) -> Result<Lab, LabError> {
        let mut lab = Lab::without_router(topology)?;
        // On an error `lab` is dropped, which takes it down.
        lab.start_router(router)?;
        Ok(lab)
    }

    /// Makes the lab with B doing nothing: its ports are up and have no addresses.
    ///
    /// # Errors
    /// As [`Lab::up`].
    pub fn without_router(topology: &Topology) -> Result<Lab, LabError> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let plan = topology.plan()?;
        if let Some(obstacle) = tools::obstacle(if plan.vlans.is_empty() { &[] } else { &["tc"] }) {
            return Err(obstacle);
        }
        sweep(&topology.directory)?;
        let owner = std::process::id();
        let owner_start = process_start(owner).unwrap_or_default();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = topology.name.clone().unwrap_or_else(|| format!("{owner}-{number}"));
        let unique = format!("ferrule-{name}-{owner}-{owner_start}-{number}");
        let namespaces: BTreeMap<String, String> =
            plan.hosts.iter().map(|host| (host.clone(), format!("{unique}-{host}"))).collect();
        let scratch = std::env::temp_dir().join(&unique);
        let state = LabState { version: VERSION, name, owner, owner_start, kept: false, namespaces, scratch };
        let path = state.create(&topology.directory)?;
        let lab = Lab { plan, state, path, directory: topology.directory.clone(), router: Vec::new() };
        lab.make(topology.offloads)?;
        Ok(lab)
    }

    /// Starts (or, after [`Lab::stop_router`], starts anew) what forwards in B.
    ///
    /// # Errors
    /// Those of the router.
    pub fn start_router(&mut self, router: &dyn Router) -> Result<(), LabError> {
        let children = router.start(self)?;
        self.router.extend(children);
        Ok(())
    }

    /// Takes the router's children, for a test that ends or kills them itself.
    pub fn take_router(&mut self) -> Vec<Background> {
        std::mem::take(&mut self.router)
    }

    /// Asks the router's children to end, and waits for them; their logs.
    ///
    /// # Errors
    /// [`LabError::Timeout`] when one does not end in 10 s (it is killed).
    pub fn stop_router(&mut self) -> Result<Vec<String>, LabError> {
        let stop = |child: Background| child.stop(Duration::from_secs(10)).map(|(_, log)| log);
        self.take_router().into_iter().map(stop).collect()
    }

    /// The router's children as long as they are here.
    pub fn router(&mut self) -> &mut [Background] {
        &mut self.router
    }

    fn make(&self, offloads: Offloads) -> Result<(), LabError> {
        let scratch = &self.state.scratch;
        fs::create_dir(scratch).map_err(|e| LabError::io(format!("creating {}", scratch.display()), e))?;
        let batch: String = self.state.namespaces.values().map(|name| format!("netns add {name}\n")).collect();
        ip_batch(&batch)?.success()?;
        for host in &self.plan.hosts {
            self.prepare(&self.host(host)?)?;
        }
        for host in &self.plan.hosts {
            let batch = self.plan.link_batch(host, |far| self.state.namespaces[far].clone());
            self.host(host)?.ip_batch(&batch)?;
        }
        for host in &self.plan.hosts {
            self.host(host)?.ip_batch(&self.plan.host_batch(host))?;
        }
        if offloads == Offloads::Off {
            for host in &self.plan.end_hosts {
                for end in self.plan.ends(host) {
                    self.host(host)?.offloads(&end.device, Offloads::Off)?;
                }
            }
        }
        for (host, vlan) in &self.plan.vlans {
            self.tag(&self.host(host)?, *vlan)?;
        }
        self.wait_carrier()
    }

    /// Settings that must be there before the first device is.
    fn prepare(&self, host: &Host) -> Result<(), LabError> {
        if !self.plan.ipv6 || self.plan.bridges.iter().any(|bridge| bridge == host.name()) {
            host.sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
            host.sysctl("net.ipv6.conf.default.disable_ipv6", "1")?;
        }
        // Addresses are usable at once: no duplicate address detection, no wait for router advertisements.
        host.sysctl("net.ipv6.conf.default.accept_dad", "0")?;
        host.sysctl("net.ipv6.conf.default.router_solicitations", "0")?;
        host.sysctl("net.ipv4.ping_group_range", "0 2147483647")?;
        // One transfer must not learn from another one's round trip times: each test stands for itself.
        host.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
        if self.plan.forwarders.iter().any(|forwarder| forwarder == host.name()) {
            host.sysctl("net.ipv4.ip_forward", "1")?;
            host.sysctl("net.ipv6.conf.all.forwarding", "1")?;
        }
        Ok(())
    }

    /// Tags what the host sends and untags what it receives.
    fn tag(&self, host: &Host, vlan: Vlan) -> Result<(), LabError> {
        let device = &self.plan.ends(host.name()).next().expect("an end host has a link").device;
        let run = |words: &[&str]| host.run(words, IP_LIMIT)?.success();
        run(&["tc", "qdisc", "add", "dev", device, "clsact"])?;
        for (direction, object) in [("egress", bpf_object::vlan_push(vlan)), ("ingress", bpf_object::vlan_pop(vlan))] {
            let file = self.state.scratch.join(format!("{}-{direction}.o", host.name()));
            fs::write(&file, object).map_err(|e| LabError::io(format!("writing {}", file.display()), e))?;
            let file = file.to_string_lossy();
            run(&[
                "tc",
                "filter",
                "add",
                "dev",
                device,
                direction,
                "bpf",
                "da",
                "object-file",
                &file,
                "section",
                "tc",
            ])?;
        }
        Ok(())
    }

    /// A link is usable when both ends have their carrier, which the kernel reports a moment after `up`.
    fn wait_carrier(&self) -> Result<(), LabError> {
        for name in &self.plan.hosts {
            let host = self.host(name)?;
            let devices: Vec<&str> = self.plan.ends(name).map(|end| end.device.as_str()).collect();
            wait_until(&format!("the links of {name}"), Duration::from_secs(10), || {
                let links = host.ip_json(&["link", "show", "up"])?;
                let up = |device: &str| {
                    let state = links.as_array().and_then(|all| all.iter().find(|link| link["ifname"] == device));
                    state.is_some_and(|link| link["operstate"] == "UP")
                };
                Ok(if devices.iter().all(|device| up(device)) { Ok(()) } else { Err(links.to_string()) })
            })?;
        }
        Ok(())
    }

    /// The lab's name.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// The plan it was made from: links, MAC addresses, router ports.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The state on file.
    pub fn state(&self) -> &LabState {
        &self.state
    }

    /// The ports of B, for a router's configuration.
    pub fn ports(&self) -> &[Port] {
        &self.plan.router_ports
    }

    /// A directory for the lab's files, removed with it.
    pub fn scratch(&self) -> &Path {
        &self.state.scratch
    }

    /// A host by its name.
    ///
    /// # Errors
    /// [`LabError::NoHost`].
    pub fn host(&self, name: &str) -> Result<Host, LabError> {
        host_of(&self.state, name)
    }

    /// The first IPv4 address of an end host.
    ///
    /// # Panics
    /// When the lab has no such end host: a mistake in the calling test.
    pub fn v4(&self, host: &str) -> Ipv4Addr {
        let mut all = self.plan.addresses.iter().filter(|address| address.host == host && address.device != "lo");
        let v4 = all.find_map(|address| if let IpAddr::V4(v4) = address.network.ip() { Some(v4) } else { None });
        v4.unwrap_or_else(|| panic!("no end host {host} with an IPv4 address in this lab"))
    }

    /// The first IPv6 address of an end host.
    ///
    /// # Panics
    /// When the lab has no such end host, or no IPv6: a mistake in the calling test.
    pub fn v6(&self, host: &str) -> Ipv6Addr {
        let mut all = self.plan.addresses.iter().filter(|address| address.host == host && address.device != "lo");
        let v6 = all.find_map(|address| if let IpAddr::V6(v6) = address.network.ip() { Some(v6) } else { None });
        v6.unwrap_or_else(|| panic!("no end host {host} with an IPv6 address in this lab"))
    }

    /// The MAC address of a device.
    ///
    /// # Panics
    /// When there is no such device: a mistake in the calling test.
    pub fn mac(&self, host: &str, device: &str) -> [u8; 6] {
        let end = self.plan.ends(host).find(|end| end.device == device);
        end.unwrap_or_else(|| panic!("no device {device} in {host}")).mac
    }

    /// Waits until pings from A to C are answered, in each family: for a [`Router`] to tell that it forwards. `child` must
    /// go on running.
    ///
    /// # Errors
    /// [`LabError::NotReached`] with the last report, or the child's log if it ended.
    pub fn wait_forwarding(&self, child: &mut Background, limit: Duration) -> Result<(), LabError> {
        let a = self.host("a")?;
        let v6 = self.plan.ipv6.then(|| IpAddr::from(self.v6("c")));
        for to in [Some(self.v4("c").into()), v6].into_iter().flatten() {
            wait_until(&format!("a ping from a to {to}"), limit, || {
                child.check()?;
                let report = Ping::new(to).count(1).run(&a)?;
                Ok(if report.received == 1 { Ok(()) } else { Err(format!("{report:?}; log: {}", child.log())) })
            })?;
        }
        Ok(())
    }

    /// Leaves the lab up when the program ends, router included; `down` removes it.
    ///
    /// # Errors
    /// [`LabError::Io`] when the state cannot be written; the lab is taken down then.
    pub fn keep(mut self) -> Result<LabState, LabError> {
        let kept = LabState { kept: true, ..self.state.clone() };
        kept.replace(&self.path)?;
        self.state.kept = true;
        for child in self.take_router() {
            child.detach();
        }
        Ok(self.state.clone())
    }

    /// Takes the lab down and says what went wrong in doing so, which dropping it cannot.
    ///
    /// # Errors
    /// As [`down`].
    pub fn down(mut self) -> Result<(), LabError> {
        self.state.kept = true;
        self.router.clear();
        down(&self.directory, &self.state.name).map(|_| ())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.state.kept {
            return;
        }
        self.router.clear();
        if let Err(error) = down(&self.directory, &self.state.name) {
            eprintln!("ferrule lab: taking {} down: {error}", self.state.name);
        }
    }
}

/// A host of the lab that a state file tells of.
///
/// # Errors
/// [`LabError::NoHost`].
pub fn host_of(state: &LabState, name: &str) -> Result<Host, LabError> {
    let namespace = state.namespaces.get(name).ok_or_else(|| LabError::NoHost {
        host: name.to_string(),
        hosts: state.namespaces.keys().cloned().collect::<Vec<_>>().join(", "),
    })?;
    Ok(Host::new(name, namespace, &state.scratch))
}
