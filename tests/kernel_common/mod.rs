//! Namespaces for the kernel tests: each test makes its own, works inside them on its own thread and removes them.
#![allow(dead_code)]

use ferrule::kernel::{Event, Monitor};
use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A network namespace, removed when dropped.
pub struct Namespace {
    pub name: String,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Namespace {
    pub fn new() -> Self {
        let name = format!("fk{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        run(&format!("ip netns add {name}"));
        run(&format!("ip -n {name} link set lo up"));
        Namespace { name }
    }

    /// Moves the calling thread into the namespace: its sockets, files under /proc/sys/net and children are there.
    pub fn enter(&self) {
        let path = format!("/run/netns/{}", self.name);
        let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        move_into_link_name_space(fd.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    /// Runs a shell script inside and returns its output; panics when it fails.
    pub fn sh(&self, script: &str) -> String {
        output(Command::new("ip").args(["netns", "exec", &self.name, "sh", "-ec", script]), script)
    }

    /// Runs a shell script inside; false when it fails.
    pub fn try_sh(&self, script: &str) -> bool {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, "sh", "-c", script]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).stderr(Stdio::null()).status();
    }
}

fn output(command: &mut Command, what: &str) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command line in the namespace of the calling thread.
pub fn run(line: &str) -> String {
    output(Command::new("sh").args(["-ec", line]), line)
}

/// True when the test may make namespaces; says why not otherwise.
pub fn may_run() -> bool {
    let probe = format!("fkprobe{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let made = Command::new("ip").args(["netns", "add", &probe]).stderr(Stdio::null()).status();
    match made {
        Ok(status) if status.success() => {
            let _ = Command::new("ip").args(["netns", "del", &probe]).status();
            true
        }
        Ok(_) => {
            eprintln!("skipped: may not make network namespaces (needs root)");
            false
        }
        Err(error) => {
            eprintln!("skipped: no ip command: {error}");
            false
        }
    }
}

/// Runs a test on a thread inside a fresh namespace.
pub fn inside(test: impl FnOnce(&Namespace) + Send + 'static) {
    if !may_run() {
        return;
    }
    let thread = std::thread::spawn(move || {
        let namespace = Namespace::new();
        namespace.enter();
        test(&namespace);
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Polls until `done` says so about all events since the start of the call, at most `limit`; returns them.
pub fn poll_until(monitor: &mut Monitor, limit: Duration, mut done: impl FnMut(&[Event]) -> bool) -> Vec<Event> {
    let end = Instant::now() + limit;
    let mut events = Vec::new();
    while !done(&events) {
        assert!(Instant::now() < end, "nothing within {limit:?}; events: {:#?}", &events[..events.len().min(50)]);
        monitor.poll(Duration::from_millis(20), None, &mut events).unwrap();
    }
    events
}

/// Polls for as long as something comes, at least for `quiet` after the last event.
pub fn poll_all(monitor: &mut Monitor, quiet: Duration) -> Vec<Event> {
    let mut events = Vec::new();
    let mut last = Instant::now();
    while last.elapsed() < quiet {
        let before = events.len();
        monitor.poll(Duration::from_millis(20), None, &mut events).unwrap();
        if events.len() > before {
            last = Instant::now();
        }
    }
    events
}

/// Kernel index of a link in the thread's namespace.
pub fn ifindex(name: &str) -> u32 {
    let json: serde_json::Value = serde_json::from_str(&run(&format!("ip -j link show dev {name}"))).unwrap();
    u32::try_from(json[0]["ifindex"].as_u64().unwrap()).unwrap()
}
