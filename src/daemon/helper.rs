//! What the privileged helper does for a daemon that has given its privileges up, and for the box when the daemon was killed.
//!
//! The helper does not trust the daemon: what it may touch is told once, before the daemon gives up root ([`Charter`]), and no
//! argument leads beyond. It opens AF_XDP on the charter's devices, makes AF_PACKET sockets (which their holder may bind to any
//! device: the kernel has no narrower kind), keeps the restore records of the charter's ports, and reads configurations.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ferrule_config::gateway;
use ferrule_dataplane::packet::PortId;
use ferrule_dataplane::port::packet::sys::open_socket;
use ferrule_dataplane::port::tap;
use ferrule_dataplane::port::tapdev::TapFraming;
use ferrule_dataplane::port::xdp::program::{Fragments, ModeChoice, claim_in};
use ferrule_dataplane::port::xdp::{Acquired, XdpConfig};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ipfw::{self, Gathered};
use super::privileges::in_memory;
use crate::ipfw::logging::file;
use crate::kernel::{ChosenRecords, HostInterface, KernelError, RecordKeeper, remove_vlan_record, restore_left};
use crate::log;
use crate::privilege::helper::Actions;

/// Names of the actions.
pub const BEGIN: &str = "begin";
/// An AF_XDP port's program and sockets: [`XdpRequest`].
pub const OPEN_XDP: &str = "open-xdp";
/// A socket into the program's map: `{"queue": n}` with both descriptors.
pub const CLAIM: &str = "claim";
/// An AF_PACKET socket.
pub const PACKET_SOCKET: &str = "packet-socket";
/// A TAP's queues: [`TapRequest`].
pub const OPEN_TAP: &str = "open-tap";
/// A host interface that was deleted, bare: [`HostTapRequest`].
pub const OPEN_HOST_TAP: &str = "open-host-tap";
/// A configuration: `{"path": file}`.
pub const READ_CONFIG: &str = "read-config";
/// The script of a configuration is run: `{"path": configuration}`; gives a [`Gathered`] as a file.
pub const RUN_SCRIPT: &str = "run-script";
/// A file of the firewall's log: `{"path": file, "aside": whether the one that is there is put aside}`.
pub const OPEN_LOG: &str = "open-log";
/// A restore record: `{"path": file}` with its text as a file.
pub const STORE_RECORD: &str = "store-record";
/// A record away: `{"path": file}`.
pub const REMOVE_RECORD: &str = "remove-record";
/// `on_exit` anew: `{"kernel": true}`.
pub const ON_EXIT: &str = "on-exit";
/// The daemon has put the box right.
pub const ENDED: &str = "ended";

/// Longest configuration or record in bytes.
const FILE_MAX: u64 = 64 << 20;
/// Until a killed daemon's TAPs and nf_tables are gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the helper may touch.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Charter {
    /// Devices that may be opened, by every name that they may have.
    pub devices: Vec<String>,
    /// Host interfaces, or in standalone mode NICs, with a record each.
    pub interfaces: Vec<String>,
    /// Where records are.
    pub state_directory: PathBuf,
    /// `on_exit = "kernel"`.
    pub kernel_on_exit: bool,
    /// The configuration that the daemon was started with.
    pub config: PathBuf,
    /// Files that the firewall's log may be written to, and how many of each are kept.
    pub logs: Vec<(PathBuf, u32)>,
    /// The control socket, and its inode.
    pub socket: (PathBuf, u64),
}

/// How to open an AF_XDP port.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XdpRequest {
    /// The device.
    pub device: String,
    /// Where the program is to run: `auto`, `native` or `generic`.
    pub mode: String,
    /// Whether frames longer than a buffer are wanted.
    pub fragments: bool,
}

impl XdpRequest {
    /// The part of `config` that the privileged half looks at.
    pub fn new(config: &XdpConfig) -> XdpRequest {
        let mode = match config.mode {
            ModeChoice::Auto => "auto",
            ModeChoice::Native => "native",
            ModeChoice::Generic => "generic",
        };
        let fragments = config.fragments == Fragments::Yes;
        XdpRequest { device: config.device.clone(), mode: mode.to_owned(), fragments }
    }

    fn config(&self) -> Result<XdpConfig, String> {
        let mut config = XdpConfig::new(&self.device, PortId(0));
        config.mode = match self.mode.as_str() {
            "auto" => ModeChoice::Auto,
            "native" => ModeChoice::Native,
            "generic" => ModeChoice::Generic,
            other => return Err(format!("no mode `{other}`")),
        };
        config.fragments = if self.fragments { Fragments::Yes } else { Fragments::No };
        Ok(config)
    }
}

/// How to open a TAP as a port.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapRequest {
    /// The device.
    pub device: String,
    /// Its queues.
    pub queues: usize,
    /// Whether the stack may leave checksums and segmentation to us.
    pub offload: bool,
}

/// How to make a port's host interface again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostTapRequest {
    /// Its name.
    pub interface: String,
    /// Its queues.
    pub queues: usize,
    /// Whether the stack may leave checksums and segmentation to us.
    pub offload: bool,
}

impl HostTapRequest {
    /// Makes the device, down, and returns a descriptor for each queue.
    ///
    /// # Errors
    /// [`KernelError::Taken`] when something else has the name, and what the kernel says.
    pub fn make(&self) -> Result<Vec<OwnedFd>, KernelError> {
        let framing = if self.offload { TapFraming::VirtioNetOffload } else { TapFraming::VirtioNet };
        HostInterface::make_device(&self.interface, self.queues, framing)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfPath {
    path: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfLog {
    path: PathBuf,
    aside: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfQueue {
    queue: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfExit {
    kernel: bool,
}

/// The helper of one daemon.
#[derive(Default)]
pub struct Duties {
    charter: Option<(Charter, ChosenRecords)>,
    /// Held as long as there may be something to put right: a new daemon waits for it.
    _lock: Option<OwnedFd>,
    ended: bool,
}

type Outcome = Result<(Value, Vec<OwnedFd>), String>;

impl Actions for Duties {
    fn call(&mut self, action: &str, arguments: &Value, descriptors: Vec<OwnedFd>) -> Outcome {
        if action == BEGIN {
            return self.begin(read(arguments)?, descriptors);
        }
        let Some((charter, records)) = &mut self.charter else { return Err("not begun".to_owned()) };
        let done = Ok((Value::Null, Vec::new()));
        let mut descriptors = descriptors.into_iter();
        match action {
            OPEN_XDP => open_xdp(charter, &read(arguments)?),
            CLAIM => {
                let OfQueue { queue } = read(arguments)?;
                let (Some(map), Some(socket)) = (descriptors.next(), descriptors.next()) else {
                    return Err("a map and a socket are needed".to_owned());
                };
                claim_in(map.as_fd(), queue, socket.as_fd()).map_err(|e| e.to_string())?;
                done
            }
            PACKET_SOCKET => Ok((Value::Null, vec![open_socket().map_err(|e| format!("AF_PACKET socket: {e}"))?])),
            OPEN_TAP => open_tap(charter, &read(arguments)?),
            OPEN_HOST_TAP => open_host_tap(charter, &read(arguments)?),
            READ_CONFIG => {
                let OfPath { path } = read(arguments)?;
                let bytes = configuration(charter, &path)?;
                Ok((Value::Null, vec![in_memory(&bytes).map_err(|e| e.to_string())?]))
            }
            RUN_SCRIPT => {
                let OfPath { path } = read(arguments)?;
                let gathered = serde_json::to_vec(&run_script(charter, &path)?).map_err(|e| e.to_string())?;
                Ok((Value::Null, vec![in_memory(&gathered).map_err(|e| e.to_string())?]))
            }
            OPEN_LOG => {
                let OfLog { path, aside } = read(arguments)?;
                let Some((_, keep)) = charter.logs.iter().find(|(log, _)| *log == path) else {
                    return Err(format!("{} is no log of the configuration", path.display()));
                };
                let file = file::open(&path, aside, *keep).map_err(|e| e.to_string())?;
                Ok((Value::Null, vec![file.into()]))
            }
            STORE_RECORD => {
                let OfPath { path } = read(arguments)?;
                let text = text(descriptors.next().ok_or("no record came with it")?)?;
                records.store(&path, &text).map_err(|e| e.to_string())?;
                done
            }
            REMOVE_RECORD => {
                let OfPath { path } = read(arguments)?;
                records.remove(&path).map_err(|e| e.to_string())?;
                done
            }
            ON_EXIT => {
                let OfExit { kernel } = read(arguments)?;
                charter.kernel_on_exit = kernel;
                done
            }
            ENDED => {
                self.ended = true;
                remove_socket(charter);
                done
            }
            other => Err(format!("unknown action `{other}`")),
        }
    }

    fn daemon_gone(&mut self) {
        let Some((charter, _)) = self.charter.take().filter(|_| !self.ended) else { return };
        remove_socket(&charter);
        if !charter.kernel_on_exit {
            return;
        }
        for name in &charter.interfaces {
            if !charter.devices.contains(name) {
                // The TAPs of VLANs went with the daemon, and their records are of no use to the kernel.
                if let Err(error) = remove_vlan_record(name, &charter.state_directory) {
                    log::warning(error.to_string());
                }
                continue;
            }
            match restore(name, &charter.state_directory) {
                Ok(refused) => {
                    refused.iter().for_each(|text| log::warning(format!("{name}: {text}")));
                    log::notice(format!("{name}: the daemon is gone; the kernel has its device back"));
                }
                Err(error) => log::error(format!("{name}: the daemon is gone, and its device stays closed: {error}")),
            }
        }
    }
}

impl Duties {
    fn begin(&mut self, charter: Charter, descriptors: Vec<OwnedFd>) -> Outcome {
        if self.charter.is_some() {
            return Err("begun already".to_owned());
        }
        self._lock = descriptors.into_iter().next();
        let records = ChosenRecords::new(&charter.state_directory, &charter.interfaces);
        self.charter = Some((charter, records));
        Ok((Value::Null, Vec::new()))
    }
}

fn read<T: DeserializeOwned>(arguments: &Value) -> Result<T, String> {
    T::deserialize(arguments).map_err(|e| format!("arguments: {e}"))
}

fn open_xdp(charter: &Charter, request: &XdpRequest) -> Outcome {
    if !charter.devices.contains(&request.device) {
        return Err(format!("{} is no device of a port", request.device));
    }
    let acquired = Acquired::acquire(&request.config()?).map_err(|e| e.to_string())?;
    let (text, descriptors) = acquired.into_message().map_err(|e| e.to_string())?;
    Ok((Value::from(text), descriptors))
}

fn open_tap(charter: &Charter, request: &TapRequest) -> Outcome {
    if !charter.devices.contains(&request.device) {
        return Err(format!("{} is no device of a port", request.device));
    }
    let opened = tap::open_queues(&request.device, request.queues, request.offload).map_err(|e| e.to_string())?;
    Ok((Value::from(opened.0), opened.1))
}

fn open_host_tap(charter: &Charter, request: &HostTapRequest) -> Outcome {
    if !charter.interfaces.contains(&request.interface) {
        return Err(format!("{} is no host interface of a port", request.interface));
    }
    Ok((Value::Null, request.make().map_err(|e| e.to_string())?))
}

/// A file's bytes: any `.toml` beside the configuration in force, and elsewhere what is a configuration, so that no other file of
/// root's can be read through us.
fn configuration(charter: &Charter, path: &Path) -> Result<Vec<u8>, String> {
    let told = |e: std::io::Error| format!("{}: {e}", path.display());
    let full = path.canonicalize().map_err(told)?;
    let directory = charter.config.canonicalize().ok().and_then(|c| c.parent().map(Path::to_owned));
    let beside = directory.as_deref() == full.parent() && full.extension().is_some_and(|e| e == "toml");
    // Without waiting for a writer, should it be a pipe.
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(&full).map_err(told)?;
    let facts = file.metadata().map_err(told)?;
    if !facts.is_file() || facts.len() > FILE_MAX {
        return Err(format!("{} is no file, or too long for a configuration", path.display()));
    }
    let mut bytes = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut bytes).map_err(told)?;
    if path == charter.config || beside || gateway::parse_bytes(&bytes).is_ok() {
        return Ok(bytes);
    }
    Err(format!(
        "{path} is no configuration that can be used; see `ferrule check {path}`, or put it beside {} to be told here",
        charter.config.display(),
        path = path.display()
    ))
}

/// Runs the script that a configuration names: one beside that which the daemon was started with, where others than root write as little.
fn run_script(charter: &Charter, path: &Path) -> Result<Gathered, String> {
    let full = path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))?;
    let own = charter.config.canonicalize().map_err(|e| format!("{}: {e}", charter.config.display()))?;
    if full.parent() != own.parent() {
        return Err(format!(
            "{} may not name a script that root runs: put it beside {}",
            path.display(),
            charter.config.display()
        ));
    }
    let bytes = configuration(charter, path)?;
    let config = match gateway::parse_bytes(&bytes) {
        Ok(config) => config,
        Err(_) => return Ok(Gathered::Failed(format!("{} cannot be used", path.display()))),
    };
    let settings = config.ipfw.ok_or("the configuration has no [ipfw]")?;
    let directory = charter.socket.0.parent().unwrap_or(Path::new("/run")).to_owned();
    Ok(match ipfw::run(&settings, directory) {
        Ok(run) => Gathered::Calls { calls: run.recorded, stderr: run.stderr },
        Err(failure) => Gathered::Failed(failure.to_string()),
    })
}

/// The text in a file without a name.
fn text(file: OwnedFd) -> Result<String, String> {
    let file = File::from(file);
    let facts = file.metadata().map_err(|e| e.to_string())?;
    if !facts.is_file() || facts.len() > FILE_MAX {
        return Err("no file, or too long for a record".to_owned());
    }
    let mut bytes = vec![0; facts.len() as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|e| e.to_string())?;
    String::from_utf8(bytes).map_err(|e| e.to_string())
}

/// The daemon cannot remove its socket file from root's directory.
fn remove_socket(charter: &Charter) {
    let (path, inode) = &charter.socket;
    if std::fs::symlink_metadata(path).is_ok_and(|facts| facts.ino() == *inode)
        && let Err(error) = std::fs::remove_file(path)
    {
        log::warning(format!("{}: {error}", path.display()));
    }
}

/// [`restore_left`], once the kernel has cleared away what was the daemon's.
fn restore(name: &str, state_directory: &Path) -> Result<Vec<String>, KernelError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match restore_left(name, state_directory) {
            Err(KernelError::Taken { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A directory, removed with it.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let path = std::env::temp_dir().join(format!("ferrule-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Place(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn begun(place: &Place) -> Duties {
        let charter = Charter {
            devices: vec!["em0".into(), "em0.phy".into()],
            interfaces: vec!["em0".into()],
            state_directory: place.0.join("state"),
            kernel_on_exit: false,
            config: place.0.join("gateway.toml"),
            logs: vec![(place.0.join("ipfw.log"), 1)],
            socket: (place.0.join("socket"), 0),
        };
        let mut duties = Duties::default();
        duties.call(BEGIN, &serde_json::to_value(&charter).unwrap(), Vec::new()).unwrap();
        duties
    }

    fn refused(duties: &mut Duties, action: &str, arguments: Value) -> String {
        duties.call(action, &arguments, Vec::new()).unwrap_err()
    }

    #[test]
    fn nothing_is_done_before_the_charter_and_it_comes_once() {
        let place = Place::new("charter");
        let text = refused(&mut Duties::default(), PACKET_SOCKET, json!({}));
        assert_eq!(text, "not begun");
        let mut duties = begun(&place);
        let charter = serde_json::to_value(&duties.charter.as_ref().unwrap().0).unwrap();
        assert_eq!(refused(&mut duties, BEGIN, charter), "begun already");
    }

    #[test]
    fn other_devices_and_actions_are_refused() {
        let place = Place::new("refusals");
        let mut duties = begun(&place);
        let request = json!({ "device": "lo", "mode": "generic", "fragments": false });
        assert_eq!(refused(&mut duties, OPEN_XDP, request), "lo is no device of a port");
        let request = json!({ "device": "tap9", "queues": 1, "offload": false });
        assert_eq!(refused(&mut duties, OPEN_TAP, request), "tap9 is no device of a port");
        let request = json!({ "interface": "em0.phy", "queues": 1, "offload": false });
        assert_eq!(refused(&mut duties, OPEN_HOST_TAP, request), "em0.phy is no host interface of a port");
        assert!(refused(&mut duties, "exec", json!({})).contains("unknown action"));
        assert!(refused(&mut duties, OPEN_XDP, json!({ "device": "em0" })).contains("missing field"));
        assert!(refused(&mut duties, STORE_RECORD, json!({ "path": "/etc/passwd" })).contains("no record came"));
        let record = vec![in_memory(b"{}").unwrap()];
        let text = duties.call(STORE_RECORD, &json!({ "path": "/etc/passwd" }), record).unwrap_err();
        assert!(text.contains("no record of a port"), "{text}");
        assert!(refused(&mut duties, REMOVE_RECORD, json!({ "path": "/etc/passwd" })).contains("no record of a port"));
    }

    #[test]
    fn only_logs_and_scripts_of_the_configuration_are_touched() {
        let (place, elsewhere) = (Place::new("logs"), Place::new("logs-elsewhere"));
        let mut duties = begun(&place);
        let own = place.0.join("ipfw.log");
        let mut open =
            |path: &Path, aside: bool| duties.call(OPEN_LOG, &json!({ "path": path, "aside": aside }), Vec::new());
        assert_eq!(open(&own, false).unwrap().1.len(), 1);
        assert_eq!(open(&own, true).unwrap().1.len(), 1);
        assert!(place.0.join("ipfw.log.0").exists());
        assert!(open(Path::new("/etc/passwd"), true).unwrap_err().contains("is no log"));
        let far = elsewhere.0.join("gateway.toml");
        std::fs::write(&far, "[ipfw]\nscript = \"/bin/true\"\n[[port]]\ndevice = \"em0\"\n").unwrap();
        std::fs::write(place.0.join("gateway.toml"), "[[port]]\ndevice = \"em0\"\n").unwrap();
        assert!(refused(&mut duties, RUN_SCRIPT, json!({ "path": far })).contains("may not name a script"));
        let own = place.0.join("gateway.toml");
        assert!(refused(&mut duties, RUN_SCRIPT, json!({ "path": own })).contains("has no [ipfw]"));
    }

    #[test]
    fn only_configurations_are_read_for_the_daemon() {
        let (place, elsewhere) = (Place::new("config"), Place::new("elsewhere"));
        let mut duties = begun(&place);
        let write = |path: PathBuf, text: &str| {
            std::fs::write(&path, text).unwrap();
            path
        };
        let good = "[[port]]\ndevice = \"em0\"\n";
        let own = write(place.0.join("gateway.toml"), "not = a configuration");
        let beside = write(place.0.join("next.toml"), "nor = this");
        let secret = write(place.0.join("key"), "secret");
        let far = write(elsewhere.0.join("gateway.conf"), good);
        let far_secret = write(elsewhere.0.join("secret.toml"), "secret");
        let link = place.0.join("link.toml");
        std::os::unix::fs::symlink(&far_secret, &link).unwrap();
        let mut ask = |path: &Path| {
            let (_, fds) = duties.call(READ_CONFIG, &json!({ "path": path }), Vec::new())?;
            text(fds.into_iter().next().ok_or("no file")?)
        };
        assert_eq!(ask(&own).unwrap(), "not = a configuration");
        assert_eq!(ask(&beside).unwrap(), "nor = this");
        assert_eq!(ask(&far).unwrap(), good);
        for path in [&secret, &far_secret, &link] {
            let text = ask(path).unwrap_err();
            assert!(text.contains("no configuration that can be used"), "{text}");
        }
        assert!(ask(&place.0.join("missing.toml")).unwrap_err().contains("No such file"));
        assert!(ask(&place.0).unwrap_err().contains("is no file"));
    }
}
