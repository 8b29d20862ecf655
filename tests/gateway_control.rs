//! Operating the gateway: what it refuses and how, reload and apply, who may use the control socket, metrics, JSON, and the mode without
//! a kernel beside it. Needs root.
mod gateway_common;

use ferrule::control::RouteQuery;
use ferrule::lab::probe::ping::{Ping, PingErrorKind};
use ferrule::lab::probe::trace;
use ferrule::lab::{Background, GatewayRouter, Host, Lab, Topology, tools, wait_until};
use gateway_common::control::*;
use gateway_common::{assert_balanced, count, ferrule as router};
use ipnetwork::IpNetwork;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

with_both_drivers! {
    bad_input_is_told_and_touches_nothing
    a_second_gateway_is_refused_and_the_first_goes_on
    a_file_that_needs_a_restart_or_is_bad_leaves_the_running_one_in_force
    the_socket_knows_who_may_ask_and_who_may_change
    every_report_is_json_and_metrics_are_prometheus_text
    without_a_kernel_the_gateway_answers_and_resolves_by_itself
    routes_of_the_file_are_reloaded_applied_and_taken_back
    without_a_host_path_the_box_is_closed_after_an_end_and_a_kill
}

/// A file in the lab's scratch directory.
fn write(lab: &Lab, name: &str, text: &str) -> String {
    let path = lab.scratch().join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Runs the gateway with a file that it must refuse: exit code 2, a message of one screen with all of `wanted`, nothing touched.
fn refused(lab: &Lab, wrapper: &[&str], text: &str, wanted: &[&str]) {
    let b = lab.host("b").unwrap();
    let path = write(lab, "bad.toml", text);
    let records = lab.scratch().join("bad-records");
    let socket = lab.scratch().join("bad.sock");
    let before = kernel_state(&b);
    let (records_text, socket_text) = (records.display().to_string(), socket.display().to_string());
    let own = [PROGRAM, "--socket", &socket_text, "run", &path, "--state-directory", &records_text];
    let words: Vec<&str> = wrapper.iter().copied().chain(own).collect();
    let done = b.run(&words, PATIENCE).unwrap();
    assert_eq!(done.status.code(), Some(2), "{}", done.stderr);
    for part in wanted {
        assert!(done.stderr.contains(part), "{part:?} is not in:\n{}", done.stderr);
    }
    assert!(done.stderr.lines().count() <= 24, "more than a screen:\n{}", done.stderr);
    assert!(done.stderr.lines().all(|line| line.chars().count() <= 200), "{}", done.stderr);
    assert_same(&before, &kernel_state(&b));
    assert!(!records.exists() || fs::read_dir(&records).unwrap().next().is_none(), "no record is left");
    assert!(!socket.exists(), "no socket is left");
}

fn bad_input_is_told_and_touches_nothing(driver: &str) {
    if !tools::can_test(&["ping", "setpriv", "nft"]) {
        return;
    }
    let lab = Lab::without_router(&Topology::new().queues(2)).unwrap();
    let b = lab.host("b").unwrap();
    b.ip_batch(&lab.plan().router_batch()).unwrap();
    let file = lab.scratch().join("bad.toml").display().to_string();
    let at = |line: u32, column: u32| format!("{file}:{line}:{column}: error:");
    let port = |device: &str, more: &str| format!("[[port]]\ndevice = \"{device}\"\ndriver = \"{driver}\"\n{more}");
    let good = format!("{}{}", port("ba0", ""), port("bc0", ""));

    refused(&lab, &[], &port("ba7", ""), &["no device ba7", "there are:", "lo", "ba0", "bc0"]);
    let text = good.replacen("device", "devcie", 1);
    refused(&lab, &[], &text, &[&at(2, 1), "unknown key \"devcie\"", "did you mean `device`?"]);
    refused(&lab, &[], "[[port]\n", &[&at(1, 1)[..file.len()], "error:"]);
    refused(&lab, &[], &port("ba0", "adresses = [\"192.0.2.1/24\"]\n"), &[&at(4, 1), "did you mean `addresses`?"]);
    let standalone = "[host]\nenabled = false\n";
    let [one, two] = ["addresses = [\"10.0.0.1/8\"]\n", "addresses = [\"10.9.0.1/16\"]\n"];
    let text = format!("{standalone}{}{}", port("ba0", one), port("bc0", two));
    refused(&lab, &[], &text, &[&at(10, 14), "overlaps 10.0.0.0/8 of \"ba0\"", &format!("{file}:6:14: note:")]);
    let nothing = "[[route]]\nto = \"203.0.113.0/24\"\nvia = \"192.0.2.1\"\n";
    let text = format!("{standalone}{}{nothing}", port("ba0", one));
    refused(&lab, &[], &text, &[&at(9, 7), "route via nothing", "10.0.0.0/8"]);
    let text = format!("[control]\nsocket = \"/run/f.sock\"\nmetrics = \"192.0.2.1:9100\"\n{good}");
    refused(&lab, &[], &text, &["loopback"]);
    let text = format!("[control]\nread_group = \"no-such-group\"\n{good}");
    refused(&lab, &[], &text, &["no group no-such-group"]);
    if driver == "xdp" {
        // AF_XDP takes a device as it is: with fewer queues than it has, some had no reader.
        let one_queue = format!("{}{}", port("ba0", "queues = 1\n"), port("bc0", ""));
        refused(&lab, &[], &one_queue, &["ba0", "2 receive queues", "needs a reader", "ethtool -L ba0"]);
        let text = format!("{}{}", port("ba0", "queues = 3\n"), port("bc0", ""));
        refused(&lab, &[], &text, &["ba0", "2 receive queues", "ethtool -L ba0"]);
        let bpf = ["setpriv", "--bounding-set=-bpf,-sys_admin", "--inh-caps=-bpf,-sys_admin"];
        refused(&lab, &bpf, &good, &["cap_bpf"]);
    }
    for (capability, flag) in [("cap_net_admin", "-net_admin"), ("cap_net_raw", "-net_raw")] {
        let (bounding, inherited) = (format!("--bounding-set={flag}"), format!("--inh-caps={flag}"));
        refused(&lab, &["setpriv", &bounding, &inherited], &good, &[capability, "setcap"]);
    }
    // Devices that are no ports, found while others have been taken over already: those are given back.
    b.ip_batch("link add br9 type bridge\nlink add averylongname type veth peer name em7\n").unwrap();
    b.ip_batch("link add em9 type veth peer name em8\nlink set em9 master br9\n").unwrap();
    refused(&lab, &[], &format!("{good}{}", port("em9", "")), &["em9", "belongs to a bridge", "nomaster"]);
    refused(&lab, &[], &format!("{good}{}", port("averylongname", "")), &["averylongname is too long", "ip link set"]);
    refused(&lab, &[], &format!("{good}{}", port("lo", "")), &["the loopback device cannot be a port"]);
    b.ip_batch("link del em9\nlink del br9\nlink del averylongname\n").unwrap();
    // A user without any right, and with a program that he can reach.
    let nobody =
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"];
    refused(&lab, &nobody, &good, &["cap_net_admin", "cap_net_raw", "run it as root"]);
    let tables = b.run(&["nft", "list", "tables"], PATIENCE).unwrap();
    assert_eq!(tables.stdout, "", "no table is left");
    // The files were refused for their faults: the same without them starts.
    let path = write(&lab, "gateway.toml", &format!("[control]\nsocket = {:?}\n{good}", GatewayRouter::socket(&lab)));
    let child = router(driver).launch(&lab, path.as_ref()).unwrap();
    assert_balanced(&lab);
    drop(child);
}

fn a_second_gateway_is_refused_and_the_first_goes_on(driver: &str) {
    let Some(lab) = up(driver, &Topology::new(), &[]) else { return };
    let a = lab.host("a").unwrap();
    let b = lab.host("b").unwrap();
    let text = router(driver).config(&lab);
    let socket = GatewayRouter::socket(&lab);
    let pid = client(&lab).snapshot().unwrap().daemon.pid.to_string();
    // With another socket it comes as far as the ports, which are taken.
    refused(&lab, &[], &text, &["taken"]);
    // With the same socket it is told which process has it.
    let before = kernel_state(&b);
    let path = write(&lab, "second.toml", &text);
    let records = lab.scratch().join("records").display().to_string();
    let done = b.run(&[PROGRAM, "run", &path, "--state-directory", &records], PATIENCE).unwrap();
    assert_eq!(done.status.code(), Some(2), "{}", done.stderr);
    for part in ["already running", &pid, &socket.display().to_string()] {
        assert!(done.stderr.contains(part), "{part:?} is not in:\n{}", done.stderr);
    }
    assert_same(&before, &kernel_state(&b));
    for to in [IpAddr::from(lab.v4("c")), lab.v6("c").into()] {
        assert!(Ping::new(to).run(&a).unwrap().is_clean());
    }
    assert_balanced(&lab);
}

fn a_file_that_needs_a_restart_or_is_bad_leaves_the_running_one_in_force(driver: &str) {
    let Some(mut lab) = up(driver, &Topology::new(), &[]) else { return };
    let a = lab.host("a").unwrap();
    let text = router(driver).config(&lab);
    let alive = |lab: &Lab| {
        assert!(Ping::new(lab.v4("c")).run(&a).unwrap().is_clean());
        client(lab).snapshot().unwrap()
    };
    let done = ask(&lab, &["reload"]);
    assert!(done.status.success() && done.stdout.contains("is in force"), "{done:?}");
    for (changed, wanted) in [
        (text.replace("[gateway]\n", "[gateway]\nbatch = 8\n"), "a change in [gateway] needs a restart"),
        (text.replace("device = \"bc0\"\n", "device = \"bc0\"\nmtu = 1400\n"), "a change in [[port]] needs a restart"),
        (text.replace("[[port]]\ndevice = \"bc0\"", "[[port]]\ndevise = \"bc0\""), "did you mean `device`?"),
        ("not a file of ours".to_owned(), "gateway.toml:1:"),
        (String::new(), "gateway.toml"),
    ] {
        assert_ne!(changed, text);
        write(&lab, "gateway.toml", &changed);
        let done = ask(&lab, &["reload"]);
        assert_eq!(done.status.code(), Some(2), "{done:?}");
        assert!(done.stderr.contains(wanted), "{wanted:?} is not in:\n{}", done.stderr);
        let last_error = alive(&lab).daemon.last_error;
        assert!(last_error.is_some_and(|error| error.contains(wanted)));
    }
    // The same by signal: the log tells, and the right file is taken when it is there.
    let reloads = |lab: &Lab, name: &str| count(&client(lab).snapshot().unwrap().events, name);
    let refusals = reloads(&lab, "reloads_refused");
    assert_eq!(refusals, 5);
    let signal = |lab: &mut Lab| lab.router()[0].signal(Signal::HUP).unwrap();
    signal(&mut lab);
    wait_until("a refusal", PATIENCE, || {
        Ok((reloads(&lab, "reloads_refused") == 6).then_some(()).ok_or(String::new()))
    })
    .unwrap();
    assert!(lab.router()[0].log().contains("reload refused, the old configuration stays in force"));
    write(&lab, "gateway.toml", &text);
    signal(&mut lab);
    wait_until("a reload", PATIENCE, || Ok((reloads(&lab, "reloads") == 2).then_some(()).ok_or(String::new())))
        .unwrap();
    assert_eq!(alive(&lab).daemon.last_error, None);
    let done = ask(&lab, &["reload", "/no/such/file.toml"]);
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert_balanced(&lab);
}

fn the_socket_knows_who_may_ask_and_who_may_change(driver: &str) {
    if !tools::can_test(&["ping", "setpriv"]) {
        return;
    }
    let mut lab = Lab::without_router(&Topology::new().without_ipv6()).unwrap();
    // Users need a program that they can reach.
    let program = lab.scratch().join("ferrule");
    fs::copy(PROGRAM, &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let (program, socket) = (program.display().to_string(), GatewayRouter::socket(&lab).display().to_string());
    let as_user = |lab: &Lab, gid: u32, words: &[&str]| {
        let group = format!("--regid={gid}");
        let wrapper = ["setpriv", "--reuid=54321", &group, "--clear-groups", &program, "--socket", &socket];
        let all: Vec<&str> = wrapper.iter().chain(words).copied().collect();
        lab.host("b").unwrap().run(&all, PATIENCE).unwrap()
    };
    lab.host("b").unwrap().ip_batch(&lab.plan().router_batch()).unwrap();
    let with = |groups: &'static str| {
        move |lab: &Lab| {
            let text = router(driver).config(lab).replace("[control]\n", &format!("[control]\n{groups}"));
            let path = write(lab, "gateway.toml", &text);
            Ok(vec![router(driver).launch(lab, path.as_ref())?])
        }
    };
    lab.start_router(&with("")).unwrap();
    assert!(ask(&lab, &["show", "stats"]).status.success(), "root may");
    for gid in [54321, 12345] {
        let done = as_user(&lab, gid, &["show", "stats"]);
        assert!(
            done.status.code() == Some(1) && done.stderr.contains("you may not use the control socket"),
            "{done:?}"
        );
    }
    lab.stop_router().unwrap();
    lab.start_router(&with("read_group = \"12345\"\nwrite_group = \"12346\"\n")).unwrap();
    let done = as_user(&lab, 54321, &["show", "stats"]);
    assert!(done.status.code() == Some(1) && done.stderr.contains("uid 54321 is neither root"), "{done:?}");
    for gid in [12345, 12346] {
        let done = as_user(&lab, gid, &["show", "stats", "--json"]);
        assert!(done.status.success() && serde_json::from_str::<Value>(&done.stdout).is_ok(), "{done:?}");
    }
    for words in [&["reload"][..], &["confirm"], &["stop"]] {
        let done = as_user(&lab, 12345, words);
        assert!(done.status.code() == Some(1) && done.stderr.contains("read-only group may ask"), "{done:?}");
    }
    let done = as_user(&lab, 12346, &["reload"]);
    assert!(done.status.success(), "the write group may: {done:?}");
    assert_balanced(&lab);
    let done = as_user(&lab, 12346, &["stop", "--wait", "10s"]);
    assert!(done.status.success(), "{done:?}");
    let (status, log) = lab.take_router().remove(0).wait(PATIENCE).unwrap();
    assert!(status.success() && log.contains("ended"), "{log}");
    assert!(!GatewayRouter::socket(&lab).exists(), "the socket goes with the gateway");
    let done = ask(&lab, &["show", "stats"]);
    assert!(done.status.code() == Some(1) && done.stderr.contains("ferrule run"), "{done:?}");
}

fn every_report_is_json_and_metrics_are_prometheus_text(driver: &str) {
    if !tools::can_test(&["ping"]) {
        return;
    }
    let mut lab = Lab::without_router(&Topology::new()).unwrap();
    let start = |lab: &Lab| {
        lab.host("b")?.ip_batch(&lab.plan().router_batch())?;
        let text = router(driver).config(lab).replace("[control]\n", "[control]\nmetrics = \"127.0.0.1:9100\"\n");
        let path = write(lab, "gateway.toml", &text);
        Ok(vec![router(driver).launch(lab, path.as_ref())?])
    };
    lab.start_router(&start).unwrap();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let reports: [&[&str]; 11] = [
        &["show", "ports"],
        &["show", "routes"],
        &["show", "routes", "-4"],
        &["show", "routes", "-6"],
        &["show", "routes", "--lookup", "198.19.10.2"],
        &["show", "neighbors"],
        &["show", "workers"],
        &["show", "drops"],
        &["show", "stats"],
        &["doctor"],
        &["top", "--once"],
    ];
    let mut values = BTreeMap::new();
    for words in reports {
        let text = ask(&lab, words);
        assert!(text.status.success() && text.stdout.lines().count() >= 1, "{text:?}");
        assert!(!text.stdout.contains('\u{1b}'), "no colour into a pipe: {text:?}");
        let json = if words[0] == "top" {
            ask(&lab, &["top", "--json", "-c", "1", "-n", "0.2"])
        } else {
            ask(&lab, &[words, &["--json"]].concat())
        };
        assert!(json.status.success(), "{json:?}");
        let value: Value = serde_json::from_str(&json.stdout).unwrap_or_else(|e| panic!("{words:?}: {e}: {json:?}"));
        values.insert(words.join(" "), value);
    }
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let ports = values["show ports"].as_array().unwrap();
    assert_eq!(ports.iter().map(|port| text(&port["name"])).collect::<Vec<_>>(), ["ba0", "bc0"]);
    assert!(ports.iter().all(|port| port["driver"] == driver && port["state"] == "up"), "{ports:?}");
    let families = ["-4", "-6"].map(|f| values[&format!("show routes {f}")].as_array().unwrap().len());
    assert_eq!(families[0] + families[1], values["show routes"].as_array().unwrap().len());
    assert!(families.iter().all(|n| *n > 3), "{families:?}");
    let found = &values["show routes --lookup 198.19.10.2"][0];
    assert!(found["next_hops"][0]["port"] == "bc0" && found["next_hops"][0]["mac"] == "02:fe:00:00:00:04", "{found}");
    let neighbors = values["show neighbors"].as_array().unwrap();
    assert!(neighbors.iter().any(|row| row["address"] == "198.19.10.2" && row["state"] == "resolved"), "{neighbors:?}");
    assert!(values["show stats"]["balance"]["difference"].is_i64());
    assert!(values["doctor"].as_array().unwrap().iter().any(|finding| finding["subject"] == "ba0"));

    let get = |host: &Host, address: &str| -> std::io::Result<String> {
        let connected = host.connect(address.parse().unwrap(), Duration::from_secs(1));
        let mut stream = connected.map_err(std::io::Error::other)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    assert!(Ping::new(lab.v6("c")).count(20).run(&a).unwrap().is_clean());
    let snapshot = assert_balanced(&lab);
    let answer = get(&b, "127.0.0.1:9100").unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
    let samples = parse_metrics(body);
    assert_eq!(samples["ferrule_balance_difference_packets"], 0.0);
    for port in &snapshot.ports {
        let labels = format!("ferrule_port_packets_total{{port=\"{}\",direction=\"received\"}}", port.name);
        let shown = samples.get(&labels).unwrap_or_else(|| panic!("no {labels} in:\n{body}"));
        assert!(*shown >= port.received.packets as f64 && *shown < port.received.packets as f64 + 20.0);
    }
    get(&a, "198.18.10.1:9100").expect_err("on loopback only");
    assert_balanced(&lab);
}

/// Samples of the text format 0.0.4 by name and labels; every line must be one, or a comment of a kind that the format knows.
fn parse_metrics(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            assert!(rest.starts_with("HELP ") || rest.starts_with("TYPE "), "{line}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?} is no sample"));
        let name = series.split('{').next().unwrap();
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':'), "{line}");
        assert!(series == name || series.ends_with('}'), "{line}");
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line:?} has no number"));
        assert!(samples.insert(series.to_owned(), value).is_none(), "{series} twice");
    }
    assert!(samples.len() > 50, "{text}");
    samples
}

/// The file of a gateway without a kernel beside it, with the lab's addresses and more sections.
fn standalone(lab: &Lab, driver: &str, more: &str) -> String {
    let mut text = format!("[control]\nsocket = {:?}\n[host]\nenabled = false\n", GatewayRouter::socket(lab));
    for port in lab.ports() {
        let addresses: Vec<String> = port.networks.iter().map(|network| format!("\"{network}\"")).collect();
        let _ = write!(
            text,
            "[[port]]\ndevice = \"{}\"\ndriver = \"{driver}\"\naddresses = [{}]\n",
            port.device,
            addresses.join(", ")
        );
    }
    text + more
}

/// Routes of a file to the networks behind C.
fn behind_c(lab: &Lab) -> String {
    let route = |to: &str, via: IpAddr| format!("[[route]]\nto = \"{to}\"\nvia = \"{via}\"\n");
    route("198.18.200.0/24", lab.v4("c").into()) + &route("2001:2:0:200::/64", lab.v6("c").into())
}

/// C's addresses behind it.
const BEHIND: [&str; 2] = ["198.18.200.1", "2001:2:0:200::1"];

/// Starts a standalone gateway in a lab whose C has something behind it.
fn start_standalone(driver: &str, more: impl Fn(&Lab) -> String) -> Option<(Lab, Background)> {
    if !tools::can_test(&["ping"]) {
        return None;
    }
    let lab = Lab::without_router(&Topology::new()).unwrap();
    let c = lab.host("c").unwrap();
    c.ip_batch("addr add 198.18.200.1/24 dev lo\naddr add 2001:2:0:200::1/64 dev lo nodad\n").unwrap();
    let path: PathBuf = write(&lab, "gateway.toml", &standalone(&lab, driver, &more(&lab))).into();
    let child = router(driver).launch(&lab, &path).unwrap();
    Some((lab, child))
}

fn without_a_kernel_the_gateway_answers_and_resolves_by_itself(driver: &str) {
    let refusals = "[[route]]\nto = \"198.18.201.0/24\"\ntype = \"prohibit\"\n[[route]]\nto = \"2001:2:0:201::/64\"\ntype = \"unreachable\"\n";
    let Some((lab, child)) = start_standalone(driver, |lab| behind_c(lab) + refusals) else { return };
    let (a, b, c) = (lab.host("a").unwrap(), lab.host("b").unwrap(), lab.host("c").unwrap());
    assert_eq!(
        b.ip_json(&["-4", "addr", "show", "dev", "ba0"]).unwrap()[0]["addr_info"].as_array().map_or(0, Vec::len),
        0
    );
    // The box's own addresses on either side, asked from either side; then what lies beyond.
    for own in ["198.18.10.1", "198.19.10.1", "2001:2:0:a::1", "2001:2:0:b::1"] {
        let own: IpAddr = own.parse().unwrap();
        for host in [&a, &c] {
            let report = Ping::new(own).run(host).unwrap();
            assert!(report.is_clean(), "{own} from {}: {report:?}", host.name());
        }
    }
    // fe80 and the EUI-64 of the port's MAC (RFC 4291, appendix A).
    let mac = lab.mac("b", "ba0");
    let local = format!(
        "fe80::{:x}:{:x}ff:fe{:02x}:{:x}%ab0",
        u16::from_be_bytes([mac[0] ^ 2, mac[1]]),
        mac[2],
        mac[3],
        u16::from_be_bytes([mac[4], mac[5]])
    );
    let done = a.run(&["ping", "-c", "2", "-i", "0.1", "-W", "2", &local], PATIENCE).unwrap();
    assert!(done.status.success(), "{done:?}");
    let targets: Vec<IpAddr> =
        [[lab.v4("c").into(), lab.v6("c").into()], BEHIND.map(|address| address.parse().unwrap())].concat();
    for to in targets {
        for size in [0, 56, 1452, 3000] {
            let report = Ping::new(to).size(size).run(&a).unwrap();
            assert!(report.is_clean() && report.reply_ttl == Some(63), "{to} size {size}: {report:?}");
        }
    }
    for (to, router) in [IpAddr::from(lab.v4("c")), lab.v6("c").into()].into_iter().zip(ROUTER) {
        assert_eq!(trace::by_ping(&a, to).unwrap(), [Some(router.parse().unwrap()), Some(to)]);
    }
    let refused = |to: &str, count: u32, interval: u32, text: &str| {
        let report = Ping::new(to.parse::<IpAddr>().unwrap()).count(count).interval_ms(interval).run(&a).unwrap();
        let text = PingErrorKind::Other(text.to_owned());
        let said = report.errors.iter().filter(|error| error.kind == text).count();
        assert!(report.received == 0 && said > 0 && said == report.errors.len(), "{to}: {report:?}");
    };
    refused("198.18.201.7", 3, 10, "Packet filtered");
    refused("2001:2:0:201::7", 3, 10, "Destination unreachable: Address unreachable");
    refused("192.0.2.7", 3, 10, "Destination Net Unreachable");
    refused("198.19.10.77", 6, 1000, "Destination Host Unreachable");
    refused("2001:2:0:b::77", 6, 1000, "Destination unreachable: Address unreachable");
    let end = assert_balanced(&lab);
    assert_eq!((end.balance.from_host, end.balance.to_host, end.balance.held), (0, 0, 0), "there is no host");
    assert!(count(&end.consumed, "answered") > 20 && count(&end.generated, "answer") > 20, "{end:?}");
    let (status, log) = child.stop(PATIENCE).unwrap();
    assert!(status.success(), "{log}");
}

/// A - C in both families: whether the pings are answered.
fn passes(lab: &Lab) -> Vec<bool> {
    let a = lab.host("a").unwrap();
    let targets = [IpAddr::from(lab.v4("c")), lab.v6("c").into()];
    targets.map(|to| Ping::new(to).count(2).run(&a).unwrap().received > 0).to_vec()
}

fn without_a_host_path_the_box_is_closed_after_an_end_and_a_kill(driver: &str) {
    if !tools::can_test(&["ping"]) {
        return;
    }
    let lab = Lab::without_router(&Topology::new()).unwrap();
    let b = lab.host("b").unwrap();
    // The kernel has addresses on the NICs and would forward.
    b.sysctl("net.ipv4.ip_forward", "1").unwrap();
    b.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
    b.ip_batch(&lab.plan().router_batch()).unwrap();
    wait_until("the kernel to forward", PATIENCE, || {
        let all = passes(&lab);
        Ok(if all == [true, true] { Ok(()) } else { Err(format!("{all:?}")) })
    })
    .unwrap();
    let found = kernel_state(&b);
    let path: PathBuf = write(&lab, "gateway.toml", &standalone(&lab, driver, "")).into();
    let start = || router(driver).launch(&lab, &path).unwrap();
    let child = start();
    assert_eq!(passes(&lab), [true, true]);
    child.kill();
    assert_eq!(passes(&lab), [false, false], "after a kill");
    let child = start();
    assert!(child.log().contains("as the last run left it"), "{}", child.log());
    assert_eq!(passes(&lab), [true, true]);
    let (status, log) = child.stop(PATIENCE).unwrap();
    assert!(status.success(), "{log}");
    assert_eq!(passes(&lab), [false, false], "after the end");
    // And back, without running again: `ferrule restore`.
    let records = lab.scratch().join("records").display().to_string();
    let words = [PROGRAM, "restore", "--state-directory", &records];
    let done = b.run(&words, PATIENCE).unwrap();
    assert!(done.status.success() && done.stdout.contains("ba0: the kernel has its device back"), "{done:?}");
    wait_until("B as it was", PATIENCE, || {
        let after = kernel_state(&b);
        Ok(if after == found { Ok(()) } else { Err(String::new()) })
    })
    .unwrap_or_else(|_| assert_same(&found, &kernel_state(&b)));
    assert_eq!(passes(&lab), [true, true], "restored");
    assert!(b.run(&words, PATIENCE).unwrap().stdout.contains("nothing to give back"));
    // Not from under one that runs.
    let child = start();
    let refused = b.run(&words, PATIENCE).unwrap();
    assert!(refused.status.code() == Some(2) && refused.stderr.contains("owns"), "{refused:?}");
    assert_eq!(passes(&lab), [true, true]);
    assert!(child.stop(PATIENCE).unwrap().0.success());
}

fn routes_of_the_file_are_reloaded_applied_and_taken_back(driver: &str) {
    let Some((lab, child)) = start_standalone(driver, |_| String::new()) else { return };
    let a = lab.host("a").unwrap();
    let mut client = client(&lab);
    let reaches = |wanted: bool| {
        for to in BEHIND {
            let report = Ping::new(to.parse::<IpAddr>().unwrap()).run(&a).unwrap();
            assert!(if wanted { report.is_clean() } else { report.received == 0 }, "{wanted}: {report:?}");
        }
    };
    reaches(false);
    let without = standalone(&lab, driver, "");
    let with = standalone(&lab, driver, &behind_c(&lab));
    // A reload brings the routes; a bad file changes nothing; another reload takes them.
    write(&lab, "gateway.toml", &with);
    child.signal(Signal::HUP).unwrap();
    wait_kind(&mut client, BEHIND[1].parse().unwrap(), Some("forward"));
    reaches(true);
    write(&lab, "gateway.toml", &format!("{with}[[route]]\nto = \"203.0.113.0/24\"\nvia = \"192.0.2.1\"\n"));
    let done = ask(&lab, &["reload"]);
    assert!(done.status.code() == Some(2) && done.stderr.contains("route via nothing"), "{done:?}");
    reaches(true);
    write(&lab, "gateway.toml", &without);
    assert!(ask(&lab, &["reload"]).status.success());
    reaches(false);
    // Applied for two seconds, and taken back without a word from anyone.
    let new = write(&lab, "new.toml", &with);
    let done = ask(&lab, &["apply", "--confirm", "2s", &new]);
    assert!(done.status.success() && done.stdout.contains("ferrule confirm"), "{done:?}");
    let snapshot = client.snapshot().unwrap();
    assert!(snapshot.daemon.confirm_left_s.is_some_and(|left| left <= 2.0) && snapshot.daemon.config == new);
    reaches(true);
    wait_kind(&mut client, BEHIND[0].parse().unwrap(), None);
    reaches(false);
    let snapshot = client.snapshot().unwrap();
    assert!(snapshot.daemon.confirm_left_s.is_none() && snapshot.daemon.config.ends_with("gateway.toml"));
    assert!(child.log().contains("was not confirmed in time"), "{}", child.log());
    for told in ["gateway.toml is in force", "new.toml is in force, for 2 s unless confirmed"] {
        assert!(child.log().contains(told), "{told}: {}", child.log());
    }
    let rows = client.routes(RouteQuery::default()).unwrap();
    let order: Vec<IpNetwork> = rows.iter().map(|row| row.prefix.parse().unwrap()).collect();
    assert!(order.len() > 8 && order.is_sorted(), "{order:?}");
    let done = ask(&lab, &["confirm"]);
    assert!(done.status.code() == Some(1) && done.stderr.contains("nothing waits"), "{done:?}");
    // Confirmed, it stays.
    assert!(ask(&lab, &["apply", "--confirm", "2s", &new]).status.success());
    assert!(ask(&lab, &["confirm"]).status.success());
    std::thread::sleep(Duration::from_millis(2600));
    reaches(true);
    let bad = write(&lab, "bad.toml", "[[prot]]\n");
    let done = ask(&lab, &["apply", "--confirm", "2s", &bad]);
    assert!(done.status.code() == Some(2) && done.stderr.contains("bad.toml:1:"), "{done:?}");
    reaches(true);
    assert_balanced(&lab);
}
