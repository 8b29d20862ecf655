//! A routing daemon (BIRD 2) in a host, with OSPF or BGP over the lab's links.
#![forbid(unsafe_code)]

use crate::lab::process::{run, wait_until};
use crate::lab::{Background, Host, LabError};
use ipnetwork::IpNetwork;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How a daemon talks to its neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    /// OSPFv2 and OSPFv3 in area 0, hello 1 s, point to point.
    Ospf,
    /// BGP with the neighbour at this address; private AS numbers.
    Bgp {
        /// The address of the neighbour.
        neighbour: IpAddr,
        /// Own AS number.
        local_as: u32,
        /// The neighbour's AS number.
        remote_as: u32,
    },
}

/// What BIRD is told to do.
#[derive(Debug, Clone)]
pub struct BirdConfig {
    /// Router identifier.
    pub router_id: Ipv4Addr,
    /// The device towards the neighbour.
    pub device: String,
    /// Protocol.
    pub speaks: Speaks,
    /// Networks announced. The host itself must own or route them: the daemon only tells of them.
    pub announce: Vec<IpNetwork>,
}

impl BirdConfig {
    fn text(&self) -> String {
        let mut text = format!("log stderr all;\nrouter id {};\nprotocol device {{ scan time 1; }}\n", self.router_id);
        for (family, v4) in [("ipv4", true), ("ipv6", false)] {
            // What the neighbour told goes to the kernel; what is announced is ours already.
            text.push_str(&format!(
                "protocol kernel {{ {family} {{ import none; export where source != RTS_STATIC; }}; }}\n"
            ));
            text.push_str(&format!("protocol static {{ {family};\n"));
            for network in self.announce.iter().filter(|network| network.is_ipv4() == v4) {
                text.push_str(&format!("  route {network} via \"lo\";\n"));
            }
            text.push_str("}\n");
        }
        match self.speaks {
            Speaks::Ospf => {
                for (version, family) in [("v2", "ipv4"), ("v3", "ipv6")] {
                    text.push_str(&format!(
                        "protocol ospf {version} {{ {family} {{ import all; export where source = RTS_STATIC; }};\n  \
                         area 0 {{ interface \"{}\" {{ type ptp; hello 1; dead count 4; }}; }};\n}}\n",
                        self.device
                    ));
                }
            }
            Speaks::Bgp { neighbour, local_as, remote_as } => {
                let family = if neighbour.is_ipv4() { "ipv4" } else { "ipv6" };
                text.push_str(&format!(
                    "protocol bgp {{ local as {local_as}; neighbor {neighbour} as {remote_as}; connect delay time 1;\n  \
                     connect retry time 1; error wait time 1, 2;\n  \
                     {family} {{ import all; export where source = RTS_STATIC; next hop self; }};\n}}\n"
                ));
            }
        }
        text
    }
}

/// A running BIRD. Dropping it kills it.
#[derive(Debug)]
pub struct Bird {
    daemon: Background,
    socket: PathBuf,
    configuration: PathBuf,
}

impl Bird {
    /// Starts BIRD in `host` and returns when it answers.
    ///
    /// # Errors
    /// [`LabError::MissingTool`], BIRD's log when it ends at once.
    pub fn start(host: &Host, config: &BirdConfig) -> Result<Bird, LabError> {
        let file = |suffix: &str| host.scratch().join(format!("bird-{}.{suffix}", host.name()));
        let (configuration, socket, pid) = (file("conf"), file("ctl"), file("pid"));
        write(&configuration, config)?;
        let words = ["bird", "-f", "-c", &text(&configuration), "-s", &text(&socket), "-P", &text(&pid)];
        let mut bird = Bird { daemon: host.spawn(&words)?, socket, configuration };
        wait_until("BIRD to answer", Duration::from_secs(10), || {
            bird.daemon.check()?;
            Ok(bird.command("show status").map_err(|error| error.to_string()))
        })?;
        Ok(bird)
    }

    /// Replaces its configuration: networks announced anew or withdrawn, without ending the session.
    ///
    /// # Errors
    /// What BIRD objects to.
    pub fn configure(&self, config: &BirdConfig) -> Result<(), LabError> {
        write(&self.configuration, config)?;
        let answer = self.command("configure")?;
        if answer.contains("Reconfigur") {
            return Ok(());
        }
        Err(LabError::output("birdc configure", "refused", &answer))
    }

    /// A birdc command and its answer.
    ///
    /// # Errors
    /// [`LabError::MissingTool`], [`LabError::Command`] when the daemon does not answer.
    pub fn command(&self, line: &str) -> Result<String, LabError> {
        let mut command = Command::new(crate::lab::tools::find("birdc")?);
        command.args(["-s", &text(&self.socket)]).args(line.split(' '));
        Ok(run(&mut command, b"", Duration::from_secs(20))?.success()?.stdout)
    }

    /// Its log.
    pub fn log(&self) -> String {
        self.daemon.log()
    }
}

fn write(path: &Path, config: &BirdConfig) -> Result<(), LabError> {
    fs::write(path, config.text()).map_err(|e| LabError::io(format!("writing {}", path.display()), e))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Waits until the kernel of `host` has a route to exactly `network`, or (with `Presence::Absent`) none.
///
/// # Errors
/// [`LabError::NotReached`] with the routes there are.
pub fn wait_route(host: &Host, network: IpNetwork, presence: Presence, limit: Duration) -> Result<(), LabError> {
    let family = if network.is_ipv4() { "-4" } else { "-6" };
    let destination = network.to_string();
    wait_until(&format!("{presence:?} route {network} in {}", host.name()), limit, || {
        let routes = host.ip_json(&[family, "route", "show", "exact", &destination])?;
        let found = routes.as_array().is_some_and(|routes| !routes.is_empty());
        Ok(if found == (presence == Presence::Present) { Ok(()) } else { Err(routes.to_string()) })
    })
}

/// Whether a thing is to be there or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// There.
    Present,
    /// Not there.
    Absent,
}
