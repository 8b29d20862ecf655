//! The gateway after it has given up its privileges: what is left of them, and that it still does all that it has to. Needs root.
#![forbid(unsafe_code)]

mod gateway_common;

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use ferrule::control::Client;
use ferrule::lab::probe::ping::Ping;
use ferrule::lab::{Background, GatewayRouter, Host, Lab, Offloads, Topology, mac_text, wait_until};
use ferrule::snapshot::Severity;
use gateway_common::{Gateway, LIMIT, assert_balanced, ferrule};

with_both_drivers! {
    nothing_is_left_but_what_it_needs
    a_device_that_comes_back_is_opened_by_the_helper
    after_a_kill_nothing_passes_and_the_next_start_goes_on
    a_killed_gateway_gives_the_box_back_where_it_is_to
    the_end_restores_the_kernel_and_removes_the_socket
    files_of_roots_are_reloaded
}

/// For ends and starts on an overloaded machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn up(driver: &str, engine: &str) -> Option<Gateway> {
    Gateway::up(&["ping"], &Topology::new(), &GatewayRouter { engine: engine.to_owned(), ..ferrule(driver) })
}

fn client(lab: &Lab) -> Client {
    Client::connect(GatewayRouter::socket(lab)).unwrap()
}

/// The text of /proc/PID/task/TID/status (proc_pid_status(5)); none of a thread that has ended.
fn statuses(pid: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    threads.filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok()).collect()
}

/// The value of a line of such a text.
fn value(text: &str, key: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {key} in {text}")).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Processes whose parent is `pid`.
fn children(pid: u32) -> Vec<u32> {
    let numbers = fs::read_dir("/proc").unwrap().flatten();
    let all = numbers.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    let parent = |child: &u32| {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    all.filter(|child| parent(child) == Some(pid)).collect()
}

fn is_gone(pid: u32) -> Result<(), String> {
    if Path::new(&format!("/proc/{pid}")).exists() { Err(format!("process {pid} is still there")) } else { Ok(()) }
}

fn wait_answer(host: &Host, to: IpAddr) {
    wait_until(&format!("a ping to {to}"), PATIENCE, || {
        let report = Ping::new(to).count(1).run(host).unwrap();
        Ok(if report.received == 1 { Ok(()) } else { Err(format!("{report:?}")) })
    })
    .unwrap();
}

/// All of C's addresses are reached, and every packet is accounted for.
fn assert_forwards(lab: &Gateway) {
    let [a, ..] = lab.hosts();
    for to in lab.both("c") {
        // Neighbours settle within moments of a start; what is asked here is that it goes on, not from which packet.
        wait_until(&format!("five answers of {to}"), PATIENCE, || {
            let report = Ping::new(to).count(5).run(&a).unwrap();
            Ok(if report.is_clean() { Ok(()) } else { Err(format!("{report:?}")) })
        })
        .unwrap();
    }
    assert_balanced(lab);
}

fn nothing_is_left_but_what_it_needs(driver: &str) {
    let Some(lab) = up(driver, "") else { return };
    assert_forwards(&lab);
    let pid = lab.pid();
    let nobody = "65534 65534 65534 65534";
    let threads = statuses(pid);
    // CAP_NET_ADMIN, and CAP_IPC_LOCK where memory may not be locked without limit (linux/capability.h).
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")).unwrap();
    let unlimited = limit.split_whitespace().next() == Some("unlimited");
    let (kept, names) =
        if unlimited { (1 << 12, "CAP_NET_ADMIN") } else { (1 << 12 | 1 << 14, "CAP_IPC_LOCK, CAP_NET_ADMIN") };
    assert!(threads.len() >= 5, "workers and control threads: {threads:?}");
    for thread in &threads {
        let of = |key| value(thread, key);
        assert_eq!((of("Uid").as_str(), of("NoNewPrivs").as_str(), of("Seccomp").as_str()), (nobody, "1", "2"));
        for (set, bits) in [("CapPrm", kept), ("CapEff", kept), ("CapInh", 0), ("CapBnd", 0), ("CapAmb", 0)] {
            assert_eq!(u64::from_str_radix(&of(set), 16).unwrap(), bits, "{set} in {thread}");
        }
        assert_ne!(of("Gid").split(' ').next(), Some("0"));
        assert!(!of("Groups").split(' ').any(|group| group == "0"), "{}", of("Groups"));
    }
    let helpers = children(pid);
    assert_eq!(helpers.len(), 1, "one helper");
    assert!(value(&statuses(helpers[0])[0], "Uid").starts_with("0 "), "the helper is root");

    let findings = client(&lab).doctor().unwrap();
    let find = |subject: &str| {
        findings.iter().find(|f| f.subject == subject).unwrap_or_else(|| panic!("no {subject} in {findings:?}"))
    };
    assert_eq!((find("user").severity, find("user").text.as_str()), (Severity::Ok, "runs as uid 65534"));
    assert_eq!(find("capabilities").text, names);
    assert_eq!(find("seccomp").severity, Severity::Ok);
    assert!(find("privileged helper").text.contains(&helpers[0].to_string()));
    assert!(!findings.iter().any(|f| f.severity == Severity::Error), "{findings:?}");
}

fn a_device_that_comes_back_is_opened_by_the_helper(driver: &str) {
    let Some(lab) = up(driver, "") else { return };
    assert_forwards(&lab);
    let [a, b, _] = lab.hosts();
    let row = || client(&lab).snapshot().unwrap().ports.into_iter().find(|p| p.name == "ba0").unwrap();
    for time in 1..=2 {
        a.ip_batch("link del ab0\n").unwrap();
        let wait = |state: &str| {
            wait_until(&format!("ba0 {state}"), PATIENCE, || {
                let now = row().state;
                Ok(if now == state { Ok(()) } else { Err(now) })
            })
            .unwrap();
        };
        wait("absent");
        let (mac, peer) = (mac_text(lab.mac("b", "ba0")), mac_text(lab.mac("a", "ab0")));
        b.ip_batch(&format!(
            "link add usb{time} address {mac} type veth peer name ab0 address {peer} netns {}\n",
            a.namespace()
        ))
        .unwrap();
        a.offloads("ab0", Offloads::Off).unwrap();
        let mut batch = "link set ab0 up\n".to_owned();
        for address in lab.plan().addresses.iter().filter(|address| address.host == "a" && address.device == "ab0") {
            let nodad = if address.network.is_ipv6() { " nodad" } else { "" };
            batch.push_str(&format!("addr replace {} dev ab0{nodad}\n", address.network));
        }
        for (_, gateway) in lab.plan().gateways.iter().filter(|(host, _)| host == "a") {
            batch.push_str(&format!("route replace default via {gateway}\n"));
        }
        a.ip_batch(&batch).unwrap();
        wait("up");
        assert_forwards(&lab);
        let row = row();
        assert_eq!((row.reattached, row.driver.as_str(), row.device.as_str()), (time, driver, "ba0.phy"));
    }
}

/// What the gateway's configuration is written to.
fn config(lab: &Lab) -> std::path::PathBuf {
    lab.scratch().join("gateway.toml")
}

fn after_a_kill_nothing_passes_and_the_next_start_goes_on(driver: &str) {
    let Some(mut lab) = up(driver, "") else { return };
    let [a, b, _] = lab.hosts();
    // A kernel that would forward if it were let.
    b.sysctl("net.ipv4.ip_forward", "1").unwrap();
    b.sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
    assert_forwards(&lab);
    let (pid, socket) = (lab.pid(), GatewayRouter::socket(&lab));
    let helpers = children(pid);
    // Only the daemon, as a crash would: not its group.
    for child in lab.lab_mut().take_router() {
        child.signal(rustix::process::Signal::KILL).unwrap();
        child.wait(PATIENCE).unwrap();
    }
    let start = || {
        let router = ferrule(driver);
        router.launch(&lab, &config(&lab)).unwrap()
    };
    for to in lab.both("c") {
        assert_eq!(Ping::new(to).count(2).run(&a).unwrap().received, 0, "{to} after a kill");
    }
    for helper in helpers {
        wait_until("the helper's end", PATIENCE, || Ok(is_gone(helper))).unwrap();
    }
    assert!(!socket.exists(), "the helper removes the control socket");
    let child: Background = start();
    assert_forwards(&lab);
    // And at once, while the helper of the killed one may still be there.
    child.signal(rustix::process::Signal::KILL).unwrap();
    child.wait(PATIENCE).unwrap();
    let _child = start();
    assert_forwards(&lab);
}

/// The devices of B by name, with their addresses.
fn links(b: &Host) -> Vec<(String, Vec<String>)> {
    let shown = b.ip_json(&["addr", "show"]).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let addresses = |link: &serde_json::Value| {
        let all = link["addr_info"].as_array().cloned().unwrap_or_default();
        all.iter().filter(|a| a["scope"] == "global").map(|a| text(&a["local"])).collect::<Vec<_>>()
    };
    shown.as_array().unwrap().iter().map(|link| (text(&link["ifname"]), addresses(link))).collect()
}

fn assert_given_back(lab: &Gateway) {
    let [a, b, _] = lab.hosts();
    wait_until("the kernel's devices", PATIENCE, || {
        let links = links(&b);
        let back = ["ba0", "bc0"].iter().all(|name| links.iter().any(|(n, all)| n == name && all.len() == 2));
        let phy = links.iter().any(|(name, _)| name.ends_with(".phy"));
        Ok(if back && !phy { Ok(()) } else { Err(format!("{links:?}")) })
    })
    .unwrap();
    let records = fs::read_dir(lab.scratch().join("records")).unwrap().count();
    assert_eq!(records, 0, "nothing is left to restore");
    b.sysctl("net.ipv4.ip_forward", "1").unwrap();
    wait_answer(&a, lab.v4("c").into());
}

fn a_killed_gateway_gives_the_box_back_where_it_is_to(driver: &str) {
    let Some(mut lab) = up(driver, "on_exit = \"kernel\"\n") else { return };
    assert_forwards(&lab);
    for child in lab.lab_mut().take_router() {
        child.signal(rustix::process::Signal::KILL).unwrap();
        child.wait(PATIENCE).unwrap();
    }
    assert_given_back(&lab);
}

fn the_end_restores_the_kernel_and_removes_the_socket(driver: &str) {
    let Some(mut lab) = up(driver, "on_exit = \"kernel\"\n") else { return };
    assert_forwards(&lab);
    let (helpers, socket) = (children(lab.pid()), GatewayRouter::socket(&lab));
    let log = lab.lab_mut().stop_router().unwrap().concat();
    assert!(!log.lines().any(|line| line.starts_with("error") || line.starts_with("warning")), "{log}");
    assert!(!socket.exists());
    assert_given_back(&lab);
    for helper in helpers {
        wait_until("the helper's end", PATIENCE, || Ok(is_gone(helper))).unwrap();
    }
}

fn files_of_roots_are_reloaded(driver: &str) {
    use std::os::unix::fs::PermissionsExt;
    let Some(lab) = up(driver, "") else { return };
    let path = config(&lab);
    let text = fs::read_to_string(&path).unwrap();
    // Only root can read it, and its directory.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let b = lab.host("b").unwrap();
    let socket = GatewayRouter::socket(&lab).display().to_string();
    let ask = |words: &[&str]| {
        let all = [&[env!("CARGO_BIN_EXE_ferrule"), "--socket", &socket], words].concat();
        b.run(&all, LIMIT).unwrap()
    };
    assert!(ask(&["reload"]).success().is_ok());
    fs::write(&path, format!("{text}\n[gateway\n")).unwrap();
    let refused = ask(&["reload"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(refused.stderr.contains("gateway.toml"), "{refused:?}");
    fs::write(&path, &text).unwrap();
    // From elsewhere, and a file that is no configuration is not shown.
    let elsewhere = lab.scratch().join("elsewhere");
    fs::create_dir_all(&elsewhere).unwrap();
    let (other, secret) = (elsewhere.join("other.conf"), elsewhere.join("secret"));
    fs::write(&other, &text).unwrap();
    fs::write(&secret, "a secret of root's\n").unwrap();
    ask(&["apply", other.to_str().unwrap()]).success().unwrap();
    let refused = ask(&["apply", secret.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(refused.stderr.contains("no configuration") && !refused.stderr.contains("a secret"), "{refused:?}");
    assert_forwards(&lab);
}

#[test]
fn it_stays_root_where_the_file_says_so_and_doctor_tells() {
    let Some(lab) = up("packet", "user = \"root\"\n") else { return };
    assert_forwards(&lab);
    let pid = lab.pid();
    assert!(statuses(pid).iter().all(|thread| value(thread, "Uid").starts_with("0 ")));
    assert_eq!(children(pid), Vec::<u32>::new(), "no helper is needed");
    let findings = client(&lab).doctor().unwrap();
    let told = findings.iter().find(|f| f.subject == "privileges").unwrap_or_else(|| panic!("{findings:?}"));
    assert_eq!(told.severity, Severity::Warning);
    assert!(told.text.contains("stays root"), "{told:?}");
}

#[test]
fn a_user_that_does_not_exist_is_told_before_anything_is_touched() {
    if !ferrule::lab::tools::can_test(&[]) {
        return;
    }
    let path = std::env::temp_dir().join(format!("ferrule-user-{}.toml", std::process::id()));
    let socket = path.with_extension("sock");
    let text = format!(
        "[gateway]\nuser = \"no-such-user\"\n[control]\nsocket = {socket:?}\n[[port]]\nname = \"x\"\ndriver = \"tap\"\ndevice = \"ferrule-no0\"\n"
    );
    fs::write(&path, text).unwrap();
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_ferrule")).arg("run").arg(&path).output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    for file in [&path, &path.with_extension("lock"), &socket] {
        let _ = fs::remove_file(file);
    }
    assert_eq!(out.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("no user no-such-user") && stderr.contains("useradd"), "{stderr}");
}
