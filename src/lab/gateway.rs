//! Ferrule itself as the router of a lab.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::LabError;
use super::process::{Background, wait_until};
use super::running::{Lab, Router};

/// Runs `ferrule run` in B, in host mode: addresses and routes are the kernel's, on the host interfaces.
#[derive(Debug, Clone)]
pub struct GatewayRouter {
    /// The program.
    pub program: PathBuf,
    /// `auto`, `xdp` or `packet`.
    pub driver: String,
    /// `offload = true` (driver packet).
    pub offload: bool,
    /// Lines for the section `[gateway]`.
    pub engine: String,
    /// Lines for each `[[port]]`.
    pub port: String,
    /// Lines for the `[[port]]` of one device, and sections that belong to it (`[[port.vlan]]`).
    pub ports: BTreeMap<String, String>,
    /// Addresses of a device that another interface gets, which is there once the gateway runs: a VLAN of it.
    pub addresses_on: BTreeMap<String, String>,
    /// More sections, at the end of the file.
    pub more: String,
    /// How long it may take until it forwards.
    pub patience: Duration,
}

impl GatewayRouter {
    /// This program with a driver.
    ///
    /// # Errors
    /// When the program cannot tell its own path.
    pub fn new(program: impl Into<PathBuf>, driver: &str) -> GatewayRouter {
        GatewayRouter {
            program: program.into(),
            driver: driver.to_owned(),
            offload: false,
            engine: String::new(),
            port: String::new(),
            ports: BTreeMap::new(),
            addresses_on: BTreeMap::new(),
            more: String::new(),
            patience: Duration::from_secs(20),
        }
    }

    /// The control socket of the lab's gateway.
    pub fn socket(lab: &Lab) -> PathBuf {
        lab.scratch().join("control.sock")
    }

    /// The configuration for this lab.
    pub fn config(&self, lab: &Lab) -> String {
        let mut text = format!("[gateway]\n{}\n[control]\nsocket = {:?}\n", self.engine, Self::socket(lab));
        for port in lab.ports() {
            let _ = write!(text, "\n[[port]]\ndevice = {:?}\ndriver = {:?}\n{}\n", port.device, self.driver, self.port);
            if self.offload {
                text.push_str("offload = true\n");
            }
            if let Some(lines) = self.ports.get(&port.device) {
                let _ = writeln!(text, "{lines}");
            }
        }
        text.push_str(&self.more);
        text
    }

    /// Starts the gateway with a configuration that is already written.
    ///
    /// # Errors
    /// When it does not begin to forward in time; its log is in the error.
    pub fn launch(&self, lab: &Lab, config: &Path) -> Result<Background, LabError> {
        let mut child = self.spawn(lab, config)?;
        self.wait_running(&mut child)?;
        lab.wait_forwarding(&mut child, self.patience)?;
        Ok(child)
    }

    fn spawn(&self, lab: &Lab, config: &Path) -> Result<Background, LabError> {
        let (program, config) = (self.program.display().to_string(), config.display().to_string());
        let records = lab.scratch().join("records").display().to_string();
        lab.host("b")?.spawn(&[&program, "run", &config, "--state-directory", &records, "--log", "info"])
    }

    /// Waits until it says that it runs: its interfaces are there, keep what they get, and its control socket answers.
    fn wait_running(&self, child: &mut Background) -> Result<(), LabError> {
        wait_until("the gateway to run", self.patience, || {
            child.check()?;
            let log = child.log();
            Ok(if log.contains("notice: forwarding") { Ok(()) } else { Err(log) })
        })
    }

    /// Gives the interfaces that the gateway itself makes their addresses once they are there.
    fn address(&self, lab: &Lab, child: &mut Background) -> Result<(), LabError> {
        let b = lab.host("b")?;
        self.wait_running(child)?;
        let mut plan = lab.plan().clone();
        for port in &mut plan.router_ports {
            if let Some(interface) = self.addresses_on.get(&port.device) {
                port.device.clone_from(interface);
            }
        }
        b.ip_batch(&plan.router_batch())
    }
}

impl Router for GatewayRouter {
    fn start(&self, lab: &Lab) -> Result<Vec<Background>, LabError> {
        let path = lab.scratch().join("gateway.toml");
        fs::write(&path, self.config(lab)).map_err(|e| LabError::io(format!("writing {}", path.display()), e))?;
        if self.addresses_on.is_empty() {
            lab.host("b")?.ip_batch(&lab.plan().router_batch())?;
            return Ok(vec![self.launch(lab, &path)?]);
        }
        let mut child = self.spawn(lab, &path)?;
        self.address(lab, &mut child)?;
        lab.wait_forwarding(&mut child, self.patience)?;
        Ok(vec![child])
    }
}
