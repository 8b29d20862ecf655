//! Rules that no script made: those of a start that failed, and those of a firewall that is switched off.

#![forbid(unsafe_code)]

use ferrule_config::gateway::Management;
use ferrule_config::ipfw::ast::{Action, Rule};
use ferrule_config::ipfw::command::{CommandLine, Options};
use ferrule_config::ipfw::pending::PendingSet;

use super::with_environment;

/// Lets the management port in and nothing else; the set and its text.
///
/// # Errors
/// A rule that cannot be read: a fault of this program, told instead of being passed over.
pub fn management(settings: &Management) -> Result<(PendingSet, String), String> {
    let port = settings.port;
    let anywhere = [String::from("any")];
    let from: Vec<String> = settings.from.iter().map(ToString::to_string).collect();
    let from = if from.is_empty() { &anywhere[..] } else { &from };
    let mut commands = vec!["add 10 allow ipv6-icmp from any to any icmp6types 133,134,135,136".to_owned()];
    for peer in from {
        commands.push(format!("add 20 allow tcp from {peer} to me {port} in"));
        commands.push(format!("add 30 allow tcp from me {port} to {peer} out"));
    }
    commands.push("add 65000 deny ip from any to any".to_owned());
    let mut set = PendingSet::new();
    let mut text = String::new();
    for command in &commands {
        let line = CommandLine::from_line(command);
        let answer =
            with_environment(&Default::default(), |environment| set.run(&line, &mut Options::default(), environment));
        if answer.exit != 0 {
            return Err(format!("built-in rule `{command}`: {}", answer.stderr.join("; ")));
        }
        text.push_str(&answer.stdout);
    }
    Ok((set, text))
}

/// Rules before all others where IPv4 or IPv6 is not to be judged (`net.inet.ip.fw.enable`, `net.inet6.ip6.fw.enable`).
pub fn switched_off(enabled: [bool; 2]) -> Vec<Rule> {
    let words = match enabled {
        [true, true] => return Vec::new(),
        [false, false] => "ip",
        [false, true] => "ip4",
        [true, false] => "ip6",
    };
    let mut set = PendingSet::new();
    let line = CommandLine::from_line(&format!("add 1 allow {words} from any to any"));
    with_environment(&Default::default(), |environment| set.run(&line, &mut Options::default(), environment));
    let rules: Vec<Rule> = set.rules().map(|rule| Rule::clone(rule)).collect();
    debug_assert!(rules.iter().all(|rule| rule.action == Action::Allow) && rules.len() == 1);
    rules
}
