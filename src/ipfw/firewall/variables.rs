//! The firewall's variables, live: what the set says, what the engine has of its own, and what it shows only.

#![forbid(unsafe_code)]

use std::sync::MutexGuard;

use super::places::Sameness;
use super::tables::Way;
use super::{Change, Firewall, Phase, State};
use crate::ipfw::call::{Call, Reply};
use crate::ipfw::sysctl::{self, Variables};

struct Live<'a> {
    firewall: &'a Firewall,
    state: MutexGuard<'a, State>,
}

impl Variables for Live<'_> {
    fn get(&self, name: &str) -> Option<i64> {
        let dynamic = name.strip_prefix("net.inet.ip.fw.").and_then(|name| self.firewall.shared.get(name));
        dynamic.map(i64::from).or_else(|| self.state.set.variable(name))
    }

    fn set(&mut self, name: &str, value: i64) -> Result<i64, String> {
        if self.state.phase == Phase::Closed {
            return Err(format!("{name}: the rules of the script are not in force yet: try again when it has ended"));
        }
        let before = self.get(name);
        let mut set = self.state.set.clone();
        let was = set.set_variable(name, value)?;
        if let (Some(own), Ok(value)) = (name.strip_prefix("net.inet.ip.fw.dyn_"), u32::try_from(value)) {
            use ferrule_filters::ipfw::dynamic::settings::SettingError;
            let bounds = match self.firewall.shared.set(&format!("dyn_{own}"), value) {
                Ok(()) | Err(SettingError::Unknown) => None,
                Err(SettingError::ReadOnly) => Some("it is read only".to_owned()),
                Err(SettingError::TooLarge(most)) => Some(format!("at most {most} here")),
                Err(SettingError::TooSmall(least)) => Some(format!("at least {least}")),
            };
            if let Some(bounds) = bounds {
                return Err(format!("{name}={value}: Invalid argument ({bounds})"));
            }
        }
        let change = Change { set, sameness: Sameness::Identity, way: Way::InPlace, swap: None };
        self.firewall.put_in_force(&mut self.state, change)?;
        Ok(before.unwrap_or(was))
    }
}

impl Firewall {
    /// Answers a call of `sysctl`.
    pub fn sysctl(&self, call: &Call) -> Reply {
        let arguments: Vec<&str> = call.arguments.iter().map(String::as_str).collect();
        sysctl::answer(&arguments, &mut Live { firewall: self, state: self.state() })
    }
}
