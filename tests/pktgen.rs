//! `ferrule pkt-gen` over real devices: a veth between two namespaces of our own, AF_PACKET and AF_XDP, IPv4 and IPv6.

#![forbid(unsafe_code)]

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

struct Namespaces {
    near: String,
    far: String,
}

fn ip(line: &str) -> bool {
    Command::new("ip").args(line.split_whitespace()).output().is_ok_and(|o| o.status.success())
}

impl Namespaces {
    /// None where this user may not make them.
    fn new(name: &str) -> Option<Namespaces> {
        let tag = format!("fpg{}{name}", std::process::id() % 100_000);
        let n = Namespaces { near: format!("{tag}a"), far: format!("{tag}b") };
        let (a, b) = (&n.near, &n.far);
        let made = ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!("-n {a} link add v0 type veth peer name v1 netns {b}"))
            && ip(&format!("-n {a} link set v0 up"))
            && ip(&format!("-n {b} link set v1 up"));
        if !made {
            println!("skipped: needs root and iproute2 to make network namespaces");
            return None;
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while !carrier(a, "v0") || !carrier(b, "v1") {
            assert!(Instant::now() < deadline, "no carrier");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(n)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.near));
        ip(&format!("netns del {}", self.far));
    }
}

fn carrier(namespace: &str, device: &str) -> bool {
    let out = Command::new("ip").args(["-n", namespace, "-br", "link", "show", device]).output().unwrap();
    String::from_utf8_lossy(&out.stdout).contains("LOWER_UP")
}

/// pkt-gen in a namespace, killed by `timeout` if it hangs.
fn spawn(namespace: &str, line: &str) -> Child {
    Command::new("ip")
        .args([
            "netns",
            "exec",
            namespace,
            "timeout",
            "-s",
            "INT",
            "20",
            env!("CARGO_BIN_EXE_ferrule"),
            "pkt-gen",
            "--json",
        ])
        .args(line.split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The summary, which is the last line.
fn summary(out: &Output) -> Value {
    let text = String::from_utf8_lossy(&out.stdout);
    let last = text.lines().last().unwrap_or_else(|| panic!("nothing: {}", String::from_utf8_lossy(&out.stderr)));
    serde_json::from_str(last).unwrap()
}

/// Until the receiver has bound: it drops nothing that was sent after its first report.
fn wait_for_receiver(child: &mut Child) -> std::io::BufReader<std::process::ChildStdout> {
    let mut reader = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut reader, &mut line).unwrap();
    assert!(line.contains("interval"), "{line}");
    reader
}

fn last_line(mut reader: std::io::BufReader<std::process::ChildStdout>) -> Value {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn what_is_sent_is_received_to_the_packet() {
    let Some(n) = Namespaces::new("x") else { return };
    for driver in ["packet", "xdp"] {
        for (family, ranges, size) in [
            ("-4", "-s 10.0.0.1:2000-10.0.0.5:2999", 60u64),
            ("-6", "-s [fd00::1]:2000-[fd00::5]:2999 -d [fd00:1::1]:7", 128),
        ] {
            let mut rx = spawn(&n.far, &format!("-i {driver}:v1 -f rx -n 5000 --own -w 0 -T 50"));
            let reader = wait_for_receiver(&mut rx);
            let tx = spawn(&n.near, &format!("-i {driver}:v0 -f tx {family} {ranges} -l {size} -n 5000 -R 50000 -w 0"));
            let tx = tx.wait_with_output().unwrap();
            assert!(tx.status.success(), "{driver} {family}: {}", String::from_utf8_lossy(&tx.stderr));
            let (sent, got) = (summary(&tx), last_line(reader));
            assert!(rx.wait().unwrap().success());
            assert_eq!(sent["summary"]["packets"], 5000, "{driver} {family}");
            assert_eq!(got["summary"]["packets"], 5000, "{driver} {family}: {got}");
            assert_eq!(got["summary"]["bytes"], 5000 * size);
            assert!(got["driver"].as_str().unwrap().starts_with(driver));
        }
    }
}

#[test]
fn pings_come_back() {
    let Some(n) = Namespaces::new("p") else { return };
    for driver in ["packet", "xdp"] {
        let mut pong = spawn(&n.far, &format!("-i {driver}:v1 -f pong -w 0 -n 100 -T 50"));
        let reader = wait_for_receiver(&mut pong);
        let ping = spawn(&n.near, &format!("-i {driver}:v0 -f ping -n 100 -w 0")).wait_with_output().unwrap();
        assert!(ping.status.success(), "{}", String::from_utf8_lossy(&ping.stderr));
        let result = summary(&ping);
        assert_eq!(
            (result["summary"]["packets"].as_u64(), result["lost"].as_u64()),
            (Some(100), Some(0)),
            "{driver}: {result}"
        );
        assert!(
            result["rtt_min_ns"].as_u64() > Some(0) && result["rtt_min_ns"].as_u64() <= result["rtt_mean_ns"].as_u64()
        );
        assert!(pong.wait().unwrap().success());
        assert_eq!(last_line(reader)["summary"]["packets"], 100);
    }
}

#[test]
fn a_device_that_is_not_there_is_bad_input() {
    let out =
        Command::new(env!("CARGO_BIN_EXE_ferrule")).args(["pkt-gen", "-i", "nosuch0", "-f", "tx"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(text.contains("nosuch0") && text.contains("ip link"), "{text}");
}
