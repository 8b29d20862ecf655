//! The user's script and the firewall: run at start, run again at a reload, put in force as a whole or not at all.
//!
//! Where the daemon has given its privileges up, the helper runs the script and hands the calls over that it made; they are carried out here
//! once more. The helper reads which script that is from the configuration itself, so that the daemon has no say in what root runs.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferrule_config::gateway::{Gateway as Config, Ipfw as Settings};
use ferrule_config::ipfw::language::NoHosts;
use ferrule_config::ipfw::names::builtin;
use ferrule_config::ipfw::pending::PendingSet;
use serde::{Deserialize, Serialize};

use super::core::{Core, lock};
use crate::failure::Failure;
use crate::ipfw::call::Call;
use crate::ipfw::firewall::Firewall;
use crate::ipfw::logging::file::{self, Opener};
use crate::ipfw::script::{self, ScriptRequest, ScriptRun};
use crate::ipfw::session::Session;
use crate::log;

/// What the helper made of a script.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gathered {
    /// It ended, and all its commands can be carried out.
    Calls {
        /// The calls of our programs, in their order.
        calls: Vec<Call>,
        /// What it printed on standard error.
        stderr: String,
    },
    /// It failed: why.
    Failed(String),
}

/// Runs the script that the settings name. `directory` takes a private directory for its programs.
///
/// # Errors
/// Everything that is wrong with it.
pub fn run(settings: &Settings, directory: PathBuf) -> Result<ScriptRun, Failure> {
    let Some(script) = &settings.script else { return Err(Failure::input("[ipfw] names no script")) };
    let program = std::env::current_exe().map_err(|e| Failure::runtime(format!("cannot find this program: {e}")))?;
    let request = ScriptRequest {
        script: script.value.clone(),
        arguments: settings.arguments.iter().map(|argument| argument.value.clone()).collect(),
        settings: settings.environment.clone(),
        program,
        directory,
        time_limit: Duration::from_secs(u64::from(settings.time_limit)),
    };
    script::run(&request, builtin(), &NoHosts).map_err(|error| Failure::input(error.to_string().trim_end().to_owned()))
}

/// What the script of a configuration comes to; nothing is in force yet.
///
/// # Errors
/// As [`run`].
pub fn gather(core: &Core, settings: &Settings, config: &Path) -> Result<PendingSet, Failure> {
    let (set, stderr) = match core.assistant() {
        None => {
            let run = run(settings, core.run_directory.clone())?;
            (PendingSet::from_rule_set(&run.rules), run.stderr)
        }
        Some(assistant) => {
            let patience = Duration::from_secs(u64::from(settings.time_limit) + 30);
            match assistant.run_script(config, patience)? {
                Gathered::Failed(text) => return Err(Failure::input(text)),
                Gathered::Calls { calls, stderr } => (replay(&calls), stderr),
            }
        }
    };
    if !stderr.is_empty() {
        log::info(format!("the script of {} said:\n{}", config.display(), stderr.trim_end()));
    }
    Ok(set)
}

/// Carries the calls out again. All of them can be: the helper has tried.
fn replay(calls: &[Call]) -> PendingSet {
    let mut session = Session::new(builtin(), &NoHosts, BTreeMap::new());
    calls.iter().for_each(|call| drop(session.answer(call)));
    session.pending().clone()
}

/// Runs the first script and opens the box: as its rules say, or for the management port alone.
pub fn open(core: &Core, firewall: &Arc<Firewall>) {
    let (settings, path) = {
        let in_force = lock(&core.in_force);
        (in_force.config.ipfw.clone().unwrap_or_default(), in_force.path.clone())
    };
    let script = settings.script.as_ref().map(|script| script.value.display().to_string()).unwrap_or_default();
    log::notice(format!("nothing passes until {script} has ended"));
    let loaded = gather(core, &settings, &path).and_then(|set| {
        let rules = set.len();
        firewall.load(set).map(|()| rules).map_err(Failure::runtime)
    });
    match loaded {
        Ok(rules) => log::notice(format!("{script}: {rules} rules are in force")),
        Err(failure) => {
            log::error(format!("{script} failed:\n{failure}"));
            match firewall.fall_back(&settings) {
                Ok(rules) => log::error(format!(
                    "THE BOX IS CLOSED but for the management port, since {script} failed. In force are:\n{}\
                     mend the script and type: ferrule reload",
                    rules
                )),
                Err(reason) => log::error(format!("THE BOX IS CLOSED, since {script} failed: {reason}")),
            }
        }
    }
}

/// Files that the log may be written to, and how many of each are kept.
pub fn logs(config: &Config) -> Vec<(PathBuf, u32)> {
    let log = config.ipfw.as_ref().filter(|ipfw| ipfw.enabled).and_then(|ipfw| ipfw.log.as_ref());
    let files = log.into_iter().flat_map(|log| [&log.file, &log.pcap].map(|file| (file.clone(), log.keep)));
    files.filter_map(|(file, keep)| Some((file?.value, keep))).collect()
}

/// Who opens the log's files: the helper, once privileges are given up.
pub fn log_opener(core: &Arc<Core>, keep: u32) -> Opener {
    // The core outlives the thread that has this, and must not be kept by it.
    let core = Arc::downgrade(core);
    Box::new(move |path, aside| match core.upgrade().as_ref().and_then(|core| core.assistant()) {
        Some(assistant) => assistant.open_log(path, aside),
        None => file::open(path, aside, keep),
    })
}
