//! The ipfw stage in the gateway, over real interfaces: A - B - C with `[ipfw] script` in B. Rules are made by shell scripts and by `ferrule
//! ipfw` while packets flow, and what rules counted is read back with `ipfw -a list`. Needs root.
mod gateway_common;

use ferrule::lab::probe::ping::Ping;
use ferrule::lab::{Finished, GatewayRouter, Host, Lab, Topology, tools, wait_until};
use gateway_common::control::*;
use gateway_common::{Gateway, assert_balanced, drops, ferrule as router};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

with_both_drivers! {
    deny_in_and_deny_out_drop_alike_and_count_as_they_see_it
    a_state_lets_the_answers_in_and_is_listed
    tables_are_swapped_under_load
    a_bad_script_changes_nothing_and_a_good_one_keeps_counters
    a_rule_is_added_while_packets_flow
    nothing_passes_before_the_first_script_has_ended
    a_script_that_fails_at_start_leaves_the_management_port
    rules_that_log_write_lines_and_a_capture
}

/// A script in a directory of its own, removed with it.
struct Script(PathBuf);

impl Script {
    fn new(text: &str) -> Script {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("ferrule-ipfw-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let script = Script(directory);
        script.write(text);
        script
    }

    fn path(&self) -> PathBuf {
        self.0.join("ipfw.rules")
    }

    fn write(&self, text: &str) {
        fs::write(self.path(), text).unwrap();
    }

    /// The gateway with this script.
    fn router(&self, driver: &str) -> GatewayRouter {
        let more = format!("\n[ipfw]\nscript = {:?}\nmanagement = {{ port = 2222 }}\n", self.path());
        GatewayRouter { more, ..router(driver) }
    }

    fn up(&self, driver: &str, topology: &Topology) -> Option<Gateway> {
        Gateway::up(&["ping"], topology, &self.router(driver))
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `ferrule ipfw` that must succeed; what it printed.
fn ipfw(lab: &Lab, words: &str) -> String {
    let done = try_ipfw(lab, words);
    assert!(done.status.success(), "{done:?}");
    done.stdout
}

fn try_ipfw(lab: &Lab, words: &str) -> Finished {
    let all: Vec<&str> = ["ipfw"].into_iter().chain(words.split(' ')).collect();
    ask(lab, &all)
}

/// Packets and bytes that the rules of this number counted.
fn counted(lab: &Lab, number: u16) -> (u64, u64) {
    let listed = ipfw(lab, &format!("-a list {number}"));
    let numbers = listed.lines().map(|line| {
        let mut words = line.split_whitespace().skip(1).map(|word| word.parse::<u64>().unwrap());
        (words.next().unwrap(), words.next().unwrap())
    });
    numbers.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// Sends datagrams of 64 bytes of data, and waits until as many of them as are to come have reached the other host; says how many did.
fn send(lab: &Lab, from: &str, to: &str, ports: (u16, u16), number: u64, expected: u64) -> u64 {
    let target = lab.host(to).unwrap();
    let before = datagrams(&target);
    let socket = lab.host(from).unwrap().packet_socket(&format!("{from}b0")).unwrap();
    let addresses: [IpAddr; 2] = [lab.v4(to).into(), lab.v6(to).into()];
    for address in addresses {
        let frame = datagram_from(lab, from, address, ports, &[7; 64]);
        (0..number).for_each(|_| socket.send(&frame).unwrap());
    }
    reached(&target, before, expected)
}

fn reached(target: &Host, before: u64, expected: u64) -> u64 {
    let until = Instant::now() + PATIENCE;
    while datagrams(target) - before < expected && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    // What is not to come has time to come.
    std::thread::sleep(Duration::from_millis(100));
    datagrams(target) - before
}

/// Packets that rules dropped.
fn filtered(lab: &Lab) -> u64 {
    drops(&assert_balanced(lab)).get("filter").copied().unwrap_or_default()
}

/// Scenario 3.
fn deny_in_and_deny_out_drop_alike_and_count_as_they_see_it(driver: &str) {
    let script = Script::new(
        "fwcmd=/sbin/ipfw\n$fwcmd -q flush\n\
         $fwcmd add 100 deny udp from any to any 7001 in\n$fwcmd add 200 deny udp from any to any 7002 out\n\
         $fwcmd add 300 count udp from any to any 7001-7003\n$fwcmd add 65000 allow ip from any to any\n",
    );
    let Some(lab) = script.up(driver, &Topology::new()) else { return };
    assert_eq!(
        ipfw(&lab, "list"),
        "00100 deny udp from any to any 7001 in\n00200 deny udp from any to any 7002 out\n\
         00300 count udp from any to any 7001-7003\n65000 allow ip from any to any\n65535 deny ip from any to any\n"
    );
    let before = filtered(&lab);
    for (port, expected) in [(7001, 0), (7002, 0), (7003, 20)] {
        assert_eq!(send(&lab, "a", "c", (6000, port), 10, expected), expected, "port {port}");
    }
    // 92 bytes over IPv4, 112 over IPv6.
    assert_eq!(counted(&lab, 100), (20, 10 * (92 + 112)), "dropped when it came in");
    assert_eq!(counted(&lab, 200), (20, 10 * (92 + 112)), "dropped when it was to go out");
    assert_eq!(counted(&lab, 300).0, 20 + 40, "seen once where it was dropped on the way out, twice where it passed");
    assert_eq!(filtered(&lab) - before, 40);
    assert_eq!(ipfw(&lab, "zero 100"), "Entry 100 cleared.\n");
    assert_eq!((counted(&lab, 100), counted(&lab, 200).0), ((0, 0), 20));
    let text = try_ipfw(&lab, "-T list 200").stdout;
    let last: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(now.abs_diff(last) < 120, "{text}");
}

fn a_state_lets_the_answers_in_and_is_listed(driver: &str) {
    let script = Script::new(
        "ipfw -q flush\nipfw add 100 check-state\nipfw add 200 allow udp from any to any 53 recv ba0 keep-state\n\
         ipfw add 300 deny udp from any to any\nipfw add 65000 allow ip from any to any\n\
         sysctl net.inet.ip.fw.dyn_udp_lifetime=120\n",
    );
    let Some(lab) = script.up(driver, &Topology::new().queues(2)) else { return };
    assert_eq!(send(&lab, "c", "a", (53, 6001), 3, 0), 0, "nobody asked yet");
    assert_eq!(send(&lab, "a", "c", (6001, 53), 3, 6), 6);
    assert_eq!(send(&lab, "c", "a", (53, 6001), 3, 6), 6, "the answers");
    assert_eq!(send(&lab, "c", "a", (54, 6001), 3, 0), 0, "of another flow");
    let listed = ipfw(&lab, "-d list");
    let states: Vec<&str> = listed.lines().filter(|line| line.contains(" STATE udp ")).collect();
    assert_eq!(states.len(), 2, "{listed}");
    for address in ["a", "c"].map(|host| lab.v4(host).to_string()) {
        assert!(states.iter().any(|line| line.contains(&address)), "{listed}");
    }
    assert_eq!(counted(&lab, 300).0, 12);
    // Both passes of each packet, and its way back.
    assert_eq!(counted(&lab, 200).0, 2 * 12);
    assert_eq!(ask(&lab, &["sysctl", "-n", "net.inet.ip.fw.dyn_count"]).stdout, "2\n");
    // The rule goes, and its states with it.
    ipfw(&lab, "delete 200");
    assert_eq!(send(&lab, "c", "a", (53, 6001), 3, 0), 0);
    wait_until("states of a rule that is gone to end", PATIENCE, || {
        let left = ask(&lab, &["sysctl", "-n", "net.inet.ip.fw.dyn_count"]).stdout;
        Ok(if left == "0\n" { Ok(()) } else { Err(left) })
    })
    .unwrap();
    assert_balanced(&lab);
}

/// Scenario 63.
fn tables_are_swapped_under_load(driver: &str) {
    let script = Script::new(
        "ipfw -q flush\nipfw table tb0 create\nipfw table tb1 create\nipfw add 100 deny udp from any to 'table(tb0)'\n\
         ipfw add 65000 allow ip from any to any\n",
    );
    let Some(lab) = script.up(driver, &Topology::new()) else { return };
    let _alone = alone();
    for host in [lab.v4("c").to_string(), lab.v6("c").to_string()] {
        ipfw(&lab, &format!("table tb1 add {host} 7"));
    }
    let c = lab.host("c").unwrap();
    let (before, dropped) = (datagrams(&c), filtered(&lab));
    let stream = Stream::start(&lab, "a", "c");
    for round in 0..20 {
        ipfw(&lab, "table tb0 swap tb1");
        ipfw(&lab, &format!("table tb1 add 203.0.113.{round} {round}"));
        ipfw(&lab, &format!("table tb0 add 203.0.113.{round}/32 9"));
        ipfw(&lab, &format!("table tb0 delete 203.0.113.{round}"));
        ipfw(&lab, &format!("table tb1 delete 203.0.113.{round}"));
    }
    let sent = stream.end();
    let denied = counted(&lab, 100).0;
    let arrived = reached(&c, before, sent - denied);
    assert_eq!(sent, arrived + denied, "every packet met one table or the other");
    assert!(denied > 0 && arrived > 0, "both tables were met: {denied} denied, {arrived} arrived");
    assert_eq!(filtered(&lab) - dropped, denied);
    assert_eq!(ipfw(&lab, "table tb1 list").lines().count(), 2, "an even number of swaps");
    assert_eq!(ipfw(&lab, "table tb0 list"), "");
}

fn a_bad_script_changes_nothing_and_a_good_one_keeps_counters(driver: &str) {
    let good = "ipfw -q flush\nipfw add 100 count udp from any to any 7001\nipfw add 65000 allow ip from any to any\n";
    let script = Script::new(good);
    let Some(lab) = script.up(driver, &Topology::new()) else { return };
    assert_eq!(send(&lab, "a", "c", (6000, 7001), 5, 10), 10);
    let listed = ipfw(&lab, "list");
    script.write("ipfw -q flush\nipfw add 100 deny ip from any to any\nipfw add 200 alow ip from any to any\nipfw table t add 300.1.1.1\n");
    let done = ask(&lab, &["reload"]);
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    for part in ["ipfw.rules:3:14: error:", "alow", "ipfw.rules:4:"] {
        assert!(done.stderr.contains(part), "{part:?} is not in:\n{}", done.stderr);
    }
    assert_eq!(ipfw(&lab, "list"), listed);
    assert_eq!(send(&lab, "a", "c", (6000, 7001), 5, 10), 10);
    // A good one: what it did not change goes on counting.
    script.write(&good.replace("65000", "50 count udp from any to any\nipfw add 65000"));
    let done = ask(&lab, &["reload"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!((counted(&lab, 100).0, counted(&lab, 50).0), (40, 0));
    assert_eq!(send(&lab, "a", "c", (6000, 7001), 5, 10), 10);
    assert_eq!((counted(&lab, 100).0, counted(&lab, 50).0), (60, 20));
    // By hand it is another rule.
    ipfw(&lab, "delete 100");
    ipfw(&lab, "-q add 100 count udp from any to any 7001");
    assert_eq!(counted(&lab, 100), (0, 0));
    assert_balanced(&lab);
}

fn a_rule_is_added_while_packets_flow(driver: &str) {
    let script = Script::new("ipfw -q flush\nipfw add 65000 allow ip from any to any\n");
    let Some(lab) = script.up(driver, &Topology::new()) else { return };
    let _alone = alone();
    let rules: String =
        (0..10_000).map(|i| format!("add {} deny ip from 1.{}.{}.0/24 to any\n", 1000 + i, i / 256, i % 256)).collect();
    let file = script.0.join("many");
    fs::write(&file, rules).unwrap();
    let c = lab.host("c").unwrap();
    let (before, dropped) = (datagrams(&c), filtered(&lab));
    let stream = Stream::start(&lab, "a", "c");
    ipfw(&lab, &format!("-q {}", file.display()));
    assert_eq!(ipfw(&lab, "list").lines().count(), 10_002);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(filtered_now(&lab), dropped, "no packet was judged by a half-made set");
    let start = Instant::now();
    ipfw(&lab, "-q add 500 deny udp from any to any 9 in");
    println!(
        "{driver}: one rule more among 10,000 was in force after {:?}, the program's start included",
        start.elapsed()
    );
    std::thread::sleep(Duration::from_millis(100));
    let denied = counted(&lab, 500).0;
    assert!(denied > 0);
    ipfw(&lab, "-q delete 500");
    std::thread::sleep(Duration::from_millis(100));
    let sent = stream.end();
    let gone = filtered(&lab) - dropped;
    assert!(gone >= denied);
    assert_eq!(reached(&c, before, sent - gone), sent - gone, "what was not dropped by a rule arrived");
}

/// As [`filtered`], while packets flow.
fn filtered_now(lab: &Lab) -> u64 {
    drops(&client(lab).snapshot().unwrap()).get("filter").copied().unwrap_or_default()
}

/// A gateway that is started and not waited for.
fn spawn(lab: &Lab, driver: &str, script: &Script) -> ferrule::lab::Background {
    let b = lab.host("b").unwrap();
    b.ip_batch(&lab.plan().router_batch()).unwrap();
    let path = lab.scratch().join("gateway.toml");
    fs::write(&path, script.router(driver).config(lab)).unwrap();
    let records = lab.scratch().join("records").display().to_string();
    let child = b.spawn(&[PROGRAM, "run", &path.display().to_string(), "--state-directory", &records]).unwrap();
    let socket = GatewayRouter::socket(lab);
    wait_until("the control socket", PATIENCE, || {
        let there = ferrule::control::Client::connect(&socket).is_ok();
        Ok(if there { Ok(()) } else { Err(child.log()) })
    })
    .unwrap();
    child
}

fn pings(lab: &Lab, to: IpAddr) -> bool {
    Ping::new(to).count(1).run(&lab.host("a").unwrap()).unwrap().received == 1
}

fn nothing_passes_before_the_first_script_has_ended(driver: &str) {
    if !tools::can_test(&["ping"]) {
        return;
    }
    let script = Script::new("");
    let hold = script.0.join("hold");
    fs::write(&hold, "").unwrap();
    script.write(&format!(
        "ipfw -q flush\nipfw add 100 allow ip from any to any\nwhile [ -e {} ]; do sleep 0.1; done\n",
        Path::new(&hold).display()
    ));
    let lab = Lab::without_router(&Topology::new()).unwrap();
    let mut child = spawn(&lab, driver, &script);
    assert!(!pings(&lab, lab.v4("c").into()) && !pings(&lab, lab.v6("c").into()), "closed");
    assert!(!pings(&lab, ROUTER[0].parse().unwrap()), "the box itself, too");
    assert_eq!(ipfw(&lab, "list"), "65535 deny ip from any to any\n");
    let done = try_ipfw(&lab, "add 1 allow ip from any to any");
    assert_eq!(done.status.code(), Some(69), "{done:?}");
    assert!(done.stderr.contains("try again when it has ended"), "{done:?}");
    assert!(counted(&lab, 65535).0 > 0);
    fs::remove_file(&hold).unwrap();
    lab.wait_forwarding(&mut child, PATIENCE).unwrap();
    assert_eq!(ipfw(&lab, "list"), "00100 allow ip from any to any\n65535 deny ip from any to any\n");
    assert_balanced(&lab);
    // Called by the name of `ipfw`.
    let link = script.0.join("ipfw");
    std::os::unix::fs::symlink(PROGRAM, &link).unwrap();
    let by_name = |words: &[&str]| {
        let mut command = std::process::Command::new(&link);
        command.args(words).env("FERRULE_SOCKET", GatewayRouter::socket(&lab)).output().unwrap()
    };
    assert_eq!(by_name(&["list", "100"]).stdout, b"00100 allow ip from any to any\n");
    let shown = ask(&lab, &["--json", "ipfw", "-a", "list"]).stdout;
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert!(shown["rules"][0]["packets"].as_u64().unwrap() > 0, "{shown}");
    // No daemon: said so, with how to start it; what needs none goes on.
    drop(child);
    assert_eq!(by_name(&["-n", "add", "7", "deny", "tcp", "from", "any", "to", "any"]).status.code(), Some(0));
    assert_eq!(by_name(&["list"]).status.code(), Some(69));
    let done = try_ipfw(&lab, "list");
    assert_eq!(done.status.code(), Some(69), "{done:?}");
    assert!(done.stderr.contains("not running") && done.stderr.contains("ferrule run"), "{done:?}");
}

fn a_script_that_fails_at_start_leaves_the_management_port(driver: &str) {
    if !tools::can_test(&["ping", "bash"]) {
        return;
    }
    let script =
        Script::new("ipfw -q flush\nipfw add 100 alow ip from any to any\nipfw add 200 allow ip from any to any\n");
    let lab = Lab::without_router(&Topology::new()).unwrap();
    let mut child = spawn(&lab, driver, &script);
    wait_until("the built-in rules", PATIENCE, || {
        let log = child.log();
        Ok(if log.contains("THE BOX IS CLOSED but for the management port") { Ok(()) } else { Err(log) })
    })
    .unwrap();
    let log = child.log();
    assert!(log.contains("ipfw.rules:2:14: error:") && log.contains("ferrule reload"), "{log}");
    assert!(!pings(&lab, lab.v4("c").into()));
    let a = lab.host("a").unwrap();
    let connect = |port: u16| {
        let command = format!("exec 3<>/dev/tcp/{}/{port}", ROUTER[0]);
        a.run(&["timeout", "3", "bash", "-c", &command], PATIENCE).unwrap()
    };
    let answered = connect(2222);
    assert!(answered.stderr.contains("refused"), "the box answers that nobody listens: {answered:?}");
    assert_eq!(connect(23).status.code(), Some(124), "no answer");
    // Mended, it opens.
    script.write("ipfw -q flush\nipfw add 200 allow ip from any to any\n");
    let done = ask(&lab, &["reload"]);
    assert!(done.status.success(), "{done:?}");
    lab.wait_forwarding(&mut child, PATIENCE).unwrap();
    assert_balanced(&lab);
}

fn rules_that_log_write_lines_and_a_capture(driver: &str) {
    let script = Script::new(
        "ipfw -q flush\nipfw add 100 deny log logamount 5 udp from any to any 7001 in\n\
         ipfw add 200 count log logamount 0 udp from any to any 7002 out\nipfw add 65000 allow ip from any to any\n",
    );
    let (lines, capture) = (script.0.join("ipfw.log"), script.0.join("ipfw.pcap"));
    let mut gateway = script.router(driver);
    gateway.more.push_str(&format!("log = {{ file = {lines:?}, pcap = {capture:?} }}\n"));
    let Some(lab) = Gateway::up(&["ping", "tcpdump"], &Topology::new(), &gateway) else { return };
    assert_eq!(send(&lab, "a", "c", (6000, 7001), 4, 0), 0);
    assert_eq!(send(&lab, "a", "c", (6000, 7002), 2, 4), 4);
    let read = || fs::read_to_string(&lines).unwrap_or_default();
    wait_until("the lines", PATIENCE, || Ok(if read().lines().count() >= 10 { Ok(()) } else { Err(read()) })).unwrap();
    let text = read();
    let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
    let (a, c) = (lab.v4("a"), lab.v4("c"));
    assert_eq!(count(&format!("ipfw: 100 Deny UDP {a}:6000 {c}:7001 in via ba0")), 4, "{text}");
    let (a6, c6) = (lab.v6("a"), lab.v6("c"));
    assert_eq!(count(&format!("ipfw: 100 Deny UDP [{a6}]:6000 [{c6}]:7001 in via ba0")), 1, "{text}");
    assert_eq!(count("ipfw: limit 5 reached on entry 100"), 1, "{text}");
    assert_eq!(count(" ipfw: 200 Count UDP "), 4, "{text}");
    assert_eq!(count(" out via bc0"), 4, "{text}");
    // What tcpdump makes of it.
    let b = lab.host("b").unwrap();
    let dumped = b.run(&["tcpdump", "-nn", "-r", &capture.display().to_string()], PATIENCE).unwrap();
    assert_eq!(dumped.stdout.lines().filter(|line| line.contains(".6000 > ")).count(), 9, "{dumped:?}");
    // Again from the start.
    assert_eq!(ipfw(&lab, "resetlog 100"), "Entry 100 logging count reset.\n");
    assert_eq!(send(&lab, "a", "c", (6000, 7001), 1, 0), 0);
    wait_until("two lines more", PATIENCE, || Ok(if read().lines().count() >= 12 { Ok(()) } else { Err(read()) }))
        .unwrap();
    let snapshot = assert_balanced(&lab);
    let event = |name: &str| gateway_common::count(&snapshot.events, name);
    assert_eq!((event("ipfw_log_written"), event("ipfw_log_lost"), event("ipfw_log_failed")), (11, 0, 0));
}
