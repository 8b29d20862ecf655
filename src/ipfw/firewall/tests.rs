//! Commands against the set in force, without workers: what is answered, and what the engine is given.

use super::*;
use crate::ipfw::call::{Call, CommandFile, Reply};

fn firewall() -> Firewall {
    let firewall = Firewall::new(&Settings::default(), &Domain::new(1), 1, vec!["em0".into(), "em1".into()]);
    firewall.load(PendingSet::new()).unwrap();
    firewall
}

fn ask(firewall: &Firewall, words: &str) -> Reply {
    let arguments = words.split(' ').map(str::to_owned).collect();
    firewall.ipfw(&Call { program: "ipfw".into(), arguments, ..Call::default() }).0
}

fn said(firewall: &Firewall, words: &str) -> String {
    let reply = ask(firewall, words);
    assert_eq!((reply.exit, reply.stderr.as_str()), (0, ""), "{words}");
    reply.stdout
}

/// Numbers of the rules that workers have, the last included.
fn engine(firewall: &Firewall) -> Vec<u16> {
    firewall.live.loaded().program.rules.iter().map(|rule| rule.number).collect()
}

/// Counts as a worker would.
fn hit(firewall: &Firewall, number: u16, packets: u64) {
    let loaded = firewall.live.loaded();
    let rule = loaded.program.rules.iter().find(|rule| rule.number == number).unwrap();
    loaded.counters[0].add(rule.slot, packets, packets * 100, 0);
}

#[test]
fn one_command_is_one_change() {
    let f = firewall();
    let before = f.live.generation();
    assert_eq!(said(&f, "add 100 allow ip from any to any"), "00100 allow ip from any to any\n");
    assert_eq!(f.live.generation(), before + 1);
    assert_eq!(engine(&f), [100, 65535]);
    let refused = ask(&f, "add 200 alow ip from any to any");
    assert_eq!((refused.exit, refused.stderr.starts_with("ipfw: ")), (65, true), "{refused:?}");
    said(&f, "list");
    assert_eq!(f.live.generation(), before + 1, "what changes nothing is not compiled");
    let missing = |terminal: bool| {
        let arguments = vec!["delete".to_owned(), "5".to_owned()];
        f.ipfw(&Call { program: "ipfw".into(), arguments, terminal, ..Call::default() }).0
    };
    assert_eq!((missing(true).exit, missing(true).stderr.as_str()), (69, "ipfw: rule 5 not found\n"));
    assert_eq!(missing(false).exit, 0, "without a terminal -f is meant (main.c)");
    said(&f, "delete 100");
    assert_eq!(said(&f, "list"), "65535 deny ip from any to any\n");
    assert_eq!(engine(&f), [65535]);
}

#[test]
fn counters_stay_with_their_rule_and_flush_forgets_them() {
    let f = firewall();
    said(&f, "add 100 count ip from any to any");
    said(&f, "add 200 allow ip from any to any");
    hit(&f, 100, 7);
    hit(&f, 65535, 2);
    said(&f, "add 50 deny tcp from any to any 25");
    assert_eq!(
        said(&f, "-a list"),
        "00050 0   0 deny tcp from any to any 25\n00100 7 700 count ip from any to any\n\
         00200 0   0 allow ip from any to any\n65535 2 200 deny ip from any to any\n"
    );
    said(&f, "set move rule 100 to 5");
    assert!(said(&f, "-aS list 100").starts_with("00100 7 700 set 5 count"));
    assert_eq!(said(&f, "zero 100"), "Entry 100 cleared.\n");
    assert_eq!(said(&f, "-a list 100"), "00100 0   0 count ip from any to any\n");
    hit(&f, 200, 3);
    assert_eq!(said(&f, "flush"), "Flushed all rules.\n");
    said(&f, "add 200 allow ip from any to any");
    assert_eq!(said(&f, "-a list 200"), "00200 0   0 allow ip from any to any\n");
    said(&f, "zero");
    assert_eq!(said(&f, "-a list 65535"), "65535 0 0 deny ip from any to any\n");
}

#[test]
fn a_script_that_is_run_again_keeps_the_counters_of_what_it_did_not_change() {
    let f = firewall();
    let set = |lines: &[&str]| {
        let mut set = PendingSet::new();
        for line in lines {
            use ferrule_config::ipfw::command::{CommandLine, Options};
            let line = CommandLine::from_line(line);
            let answer = with_environment(&Default::default(), |e| set.run(&line, &mut Options::default(), e));
            assert_eq!(answer.exit, 0);
        }
        set
    };
    let script = ["add 10 count ip from table(1) to any", "add 20 allow tcp from any to any", "table 1 add 10.0.0.0/8"];
    f.load(set(&script)).unwrap();
    hit(&f, 10, 1);
    hit(&f, 20, 5);
    f.load(set(&[
        "add 10 count ip from table(1) to any",
        "add 20 allow udp from any to any",
        "table 1 add 10.9.0.0/16",
    ]))
    .unwrap();
    assert_eq!(
        said(&f, "-a list"),
        "00010 1 100 count ip from table(1) to any\n00020 0   0 allow udp from any to any\n65535 0   0 deny ip from any to any\n"
    );
    assert_eq!(said(&f, "table 1 list"), "10.9.0.0/16 0\n");
}

#[test]
fn a_file_of_commands_ends_at_its_first_error() {
    let f = firewall();
    let file = |text: &str| {
        let commands = CommandFile { name: "/x".into(), text: text.into(), options: vec!["-q".into()] };
        f.ipfw(&Call { program: "ipfw".into(), commands: Some(commands), ..Call::default() }).0
    };
    let reply = file("add 10 allow tcp from any to any\n\nadd 20 nonsense\nadd 30 allow udp from any to any\n");
    assert_eq!((reply.exit, reply.stderr.starts_with("Line 3: ")), (65, true), "{reply:?}");
    assert_eq!(engine(&f), [10, 65535]);
    hit(&f, 10, 4);
    let reply = file("flush\nadd 10 allow tcp from any to any\nshow 10\n");
    assert_eq!(reply.stdout, "00010 0 0 allow tcp from any to any\n");
    assert_eq!(reply.exit, 0, "{reply:?}");
}

#[test]
fn tables_are_changed_and_swapped_in_the_engine() {
    let f = firewall();
    for line in ["table a create", "table b create", "table a add 10.0.0.0/8 1", "table b add 10.0.0.0/8 2"] {
        said(&f, line);
    }
    said(&f, "add 10 allow ip from table(a) to any");
    let generation = f.live.generation();
    said(&f, "table a add 192.0.2.0/24 7");
    said(&f, "table a swap b");
    assert_eq!(f.live.generation(), generation, "the rules are what they were");
    assert_eq!(said(&f, "table a list"), "10.0.0.0/8 2\n");
    assert_eq!(said(&f, "table b lookup 192.0.2.9"), "192.0.2.0/24 7\n");
    assert_eq!(ask(&f, "table a destroy").exit, 71, "a rule looks it up");
    said(&f, "delete 10");
    said(&f, "table a destroy");
}

#[test]
fn nothing_is_changed_before_the_first_script_has_ended() {
    let f = Firewall::new(&Settings::default(), &Domain::new(1), 1, Vec::new());
    let reply = ask(&f, "add allow ip from any to any");
    assert_eq!(reply.exit, 69);
    assert!(reply.stderr.contains("try again when it has ended"), "{}", reply.stderr);
    assert_eq!(said(&f, "list"), "65535 deny ip from any to any\n");
    let mut settings = Settings::default();
    settings.management.port = 2222;
    let text = f.fall_back(&settings).unwrap();
    assert!(text.contains("allow tcp from any to me 2222 in\n"), "{text}");
    assert_eq!(engine(&f), [10, 20, 30, 65000, 65535]);
    said(&f, "add 40 allow ip from any to any");
}

#[test]
fn what_is_shown_is_data_too() {
    let f = firewall();
    for line in ["table t create", "table t add 10.0.0.0/8 7", "pipe 1 config bw 1Mbit/s", "set disable 3"] {
        said(&f, line);
    }
    said(&f, "add 100 allow ip from any to any");
    let data = |words: &str| {
        let arguments = words.split(' ').map(str::to_owned).collect();
        f.ipfw(&Call { program: "ipfw".into(), arguments, ..Call::default() }).1.unwrap()
    };
    assert_eq!(data("-a list")["rules"][0]["number"], 100);
    assert_eq!(data("table all list")["tables"][0]["entries"].as_array().unwrap().len(), 1);
    assert_eq!(data("table t info")["tables"][0]["items"], 1);
    assert_eq!(data("pipe show")["pipes"][0]["number"], 1);
    assert_eq!(data("nat show config")["nats"].as_array().unwrap().len(), 0);
    assert_eq!(data("set show")["disabled_sets"][0], 3);
}

#[test]
fn variables_are_read_and_set_live() {
    let f = firewall();
    let sysctl = |words: &str| {
        let arguments = words.split(' ').map(str::to_owned).collect();
        f.sysctl(&Call { program: "sysctl".into(), arguments, ..Call::default() })
    };
    assert_eq!(sysctl("net.inet.ip.fw.dyn_udp_lifetime=30").stdout, "net.inet.ip.fw.dyn_udp_lifetime: 10 -> 30\n");
    assert_eq!(f.shared.get("dyn_udp_lifetime"), Some(30));
    assert_eq!(sysctl("-n net.inet.ip.fw.dyn_udp_lifetime").stdout, "30\n");
    assert_eq!(sysctl("-n net.inet.ip.fw.default_rule").stdout, "65535\n");
    let refused = sysctl("net.inet.ip.fw.default_rule=1");
    assert_eq!((refused.exit, refused.stderr.contains("read only")), (1, true));
    said(&f, "add 100 deny ip from any to any");
    assert_eq!(sysctl("net.inet.ip.fw.enable=0").exit, 0);
    assert_eq!(engine(&f), [1, 100, 65535], "IPv4 passes before any rule");
    said(&f, "disable firewall");
    said(&f, "enable firewall");
    assert_eq!(engine(&f), [100, 65535]);
    assert_eq!(sysctl("-n net.inet.ip.fw.static_count").stdout, "2\n");
}

#[test]
fn one_rule_more_among_ten_thousand_is_in_force_soon() {
    let f = firewall();
    let text: String =
        (0..10_000).map(|i| format!("add {} deny ip from 1.{}.{}.0/24 to any\n", i + 1, i / 256, i % 256)).collect();
    let commands = CommandFile { name: "/x".into(), text, options: vec!["-q".into()] };
    assert_eq!(f.ipfw(&Call { program: "ipfw".into(), commands: Some(commands), ..Call::default() }).0.exit, 0);
    let start = std::time::Instant::now();
    said(&f, "-q add 20000 allow ip from any to any");
    let took = start.elapsed();
    assert_eq!(engine(&f).len(), 10_002);
    println!("one rule more among 10,000: {took:?}");
}
