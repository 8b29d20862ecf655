//! A firewall made out of commands of ipfw(8), for a gateway in memory: the daemon's, without the daemon.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Arc;

use ferrule_config::gateway::Ipfw as Settings;
use ferrule_config::ipfw::command::{CommandLine, Options};
use ferrule_config::ipfw::pending::PendingSet;
use ferrule_config::ipfw::table::{TableKey, TableValue};
use ferrule_dataplane::quiesce::Domain;
use ferrule_dataplane::stage::Stage;

use crate::compare::rig::PORTS;
use crate::failure::Failure;
use crate::ipfw::call::Call;
use crate::ipfw::firewall::{Firewall, with_environment};

/// Rules, tables and states in force.
pub struct Loaded(Firewall);

/// Carries out commands, one a line as after `ipfw`; lines `sysctl NAME=VALUE` set variables.
///
/// # Errors
/// The first command that fails.
pub fn gather<S: AsRef<str>>(commands: impl IntoIterator<Item = S>) -> Result<PendingSet, Failure> {
    let mut pending = PendingSet::new();
    for command in commands {
        carry_out(&mut pending, command.as_ref())?;
    }
    Ok(pending)
}

impl Loaded {
    /// Puts in force what [`gather`] makes of the commands.
    ///
    /// # Errors
    /// The first command that fails.
    pub fn new<S: AsRef<str>>(commands: impl IntoIterator<Item = S>) -> Result<Loaded, Failure> {
        Loaded::of(gather(commands)?)
    }

    /// As [`Loaded::new`], with entries for a table that the commands create.
    ///
    /// # Errors
    /// The first command that fails, or that there is no such table.
    pub fn with_entries<S: AsRef<str>>(
        commands: impl IntoIterator<Item = S>,
        table: &str,
        entries: impl IntoIterator<Item = (TableKey, TableValue)>,
    ) -> Result<Loaded, Failure> {
        let mut set = gather(commands)?.rule_set();
        let place = set.tables.get_mut(table).ok_or_else(|| Failure::runtime(format!("no table {table}")))?;
        Arc::make_mut(place).entries.extend(entries);
        Loaded::of(PendingSet::from_rule_set(&set))
    }

    fn of(set: PendingSet) -> Result<Loaded, Failure> {
        let ports = PORTS.map(str::to_owned).to_vec();
        let loaded = Loaded(Firewall::new(&Settings::default(), &Domain::new(1), 1, ports));
        loaded.load(set)?;
        Ok(loaded)
    }

    /// Puts another set in force, as at the end of a script.
    ///
    /// # Errors
    /// What the engine has no room for.
    pub fn load(&self, set: PendingSet) -> Result<(), Failure> {
        self.0.load(set).map_err(Failure::runtime)
    }

    /// The stage of the one worker.
    pub fn stage(&self) -> Box<dyn Stage> {
        self.0.stage(0, None)
    }

    /// What `ipfw` says to a command, which is in force then.
    ///
    /// # Errors
    /// When it fails.
    pub fn ipfw(&self, command: &str) -> Result<String, Failure> {
        let arguments = command.split(' ').map(str::to_owned).collect();
        let reply = self.0.ipfw(&Call { program: "ipfw".to_owned(), arguments, ..Call::default() }).0;
        match reply.exit {
            0 => Ok(reply.stdout),
            _ => Err(Failure::runtime(format!("{command}: {}", reply.stderr.trim_end()))),
        }
    }

    /// Packets that each rule counted, in the order of the rules, the last one included.
    ///
    /// # Errors
    /// When `ipfw -a list` fails.
    pub fn packets(&self) -> Result<Vec<u64>, Failure> {
        let packets = |line: &str| line.split_whitespace().nth(1)?.parse().ok();
        let text = self.ipfw("-a list")?;
        text.lines().map(|line| packets(line).ok_or_else(|| Failure::runtime(format!("no counter: {line}")))).collect()
    }

    /// Dynamic rules there are.
    ///
    /// # Errors
    /// When `sysctl` fails.
    pub fn states(&self) -> Result<u32, Failure> {
        let arguments = ["-n", "net.inet.ip.fw.dyn_count"].map(str::to_owned).to_vec();
        let reply = self.0.sysctl(&Call { program: "sysctl".to_owned(), arguments, ..Call::default() });
        reply
            .stdout
            .trim()
            .parse()
            .map_err(|_| Failure::runtime(format!("no count of states: {}", reply.stderr.trim())))
    }
}

fn carry_out(pending: &mut PendingSet, command: &str) -> Result<(), Failure> {
    let failed = |why: String| Failure::runtime(format!("{command}: {why}"));
    if let Some((name, value)) = command.strip_prefix("sysctl ").and_then(|text| text.split_once('=')) {
        let value = value.parse::<i64>().map_err(|e| failed(e.to_string()))?;
        return pending.set_variable(name, value).map(drop).map_err(failed);
    }
    let mut options = Options { force: true, quiet: true, ..Options::default() };
    let line = CommandLine::from_line(command);
    let answer = with_environment(&BTreeMap::new(), |environment| pending.run(&line, &mut options, environment));
    match answer.exit {
        0 => Ok(()),
        _ => Err(failed(answer.stderr.first().cloned().unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::flows::{Family, write_frame};
    use crate::compare::rig::{Rig, RigPlan};

    #[test]
    fn commands_are_in_force_and_counted_and_more_can_be_added() {
        let commands = ["table t create", "table t add 198.18.10.0/28 1", "add 10 count ip from table(t) to any"];
        let firewall = Loaded::new(commands.iter().copied().chain(["add 20 allow ip from any to any"])).unwrap();
        let stage = firewall.stage();
        let mut stages = Some(vec![stage]);
        let plan = RigPlan { frames: 140, ..RigPlan::default() };
        let mut rig = Rig::with_stages(&plan, move |_| stages.take().unwrap_or_default()).unwrap();
        rig.classic_route(Family::Inet).unwrap();
        let (to, from) = rig.macs();
        let mut number = 0;
        let mut send = |rig: &mut Rig| {
            rig.fill(|frame| {
                number += 1;
                write_frame(frame, to, from, Family::Inet.classic_flow(number % 140))
            })
            .unwrap();
            assert_eq!(rig.round().unwrap().packets, 140);
        };
        send(&mut rig);
        assert_eq!(firewall.packets().unwrap(), [280, 280, 0]);
        firewall.ipfw("add 15 allow ip from 198.18.10.1 to any").unwrap();
        send(&mut rig);
        assert_eq!(firewall.packets().unwrap(), [560, 140, 420, 0]);
        assert!(rig.close());
    }

    #[test]
    fn a_command_that_fails_is_named() {
        let error = Loaded::new(["add 10 allow ip from nowhere"]).err().unwrap().to_string();
        assert!(error.contains("add 10 allow ip from nowhere: "), "{error}");
        let error = Loaded::new(["sysctl net.inet.ip.fw.dyn_maxi=7"]).err().unwrap().to_string();
        assert!(error.contains("dyn_max"), "{error}");
    }
}
