//! Network namespaces for tests: each is a thread that left the namespace of the process. Nothing has a name on the system, and
//! all of it is gone when the thread ends.

use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace with its own thread.
pub struct Namespace {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    tid: i32,
}

impl Namespace {
    /// Makes one with `lo` up and IPv6 quiet (no router solicitations or duplicate address detection in between).
    /// None, with the reason printed, where the system does not let us.
    pub fn new() -> Option<Self> {
        let (jobs, work) = mpsc::channel::<Job>();
        let (ready, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: unshare(2) and gettid(2) take no pointers; the namespace changes for this thread alone.
            let (result, tid) = unsafe { (libc::unshare(libc::CLONE_NEWNET), libc::gettid()) };
            let result = if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(tid) };
            if ready.send(result).is_ok() {
                work.iter().for_each(|job| job());
            }
        });
        let tid = match told.recv().expect("the namespace thread reports") {
            Ok(tid) => tid,
            Err(error) => {
                eprintln!("skipped: a network namespace needs root: {error}");
                return None;
            }
        };
        let namespace = Self { jobs: Some(jobs), thread: Some(thread), tid };
        if Command::new("ip").arg("-V").output().is_err() {
            eprintln!("skipped: the `ip` command is missing");
            return None;
        }
        namespace.sh("ip link set lo up; sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.default.router_solicitations=0");
        Some(namespace)
    }

    /// The thread's id, which `ip link set DEV netns` takes.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Runs `work` inside and waits for its result; a panic in it is a panic here.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(work)()
    }

    /// Starts `work` inside; the function returned waits for its result. Works run one after another.
    pub fn start<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> impl FnOnce() -> T {
        let (done, result) = mpsc::channel();
        let job = move || {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            let _ = done.send(outcome);
        };
        self.jobs.as_ref().expect("open until dropped").send(Box::new(job)).expect("the namespace thread runs");
        move || match result.recv().expect("the job reports") {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Runs shell commands inside; they must succeed. Gives their output.
    pub fn sh(&self, script: &str) -> String {
        let script = format!("set -e\n{script}");
        self.run(move || {
            let output = Command::new("sh").args(["-c", &script]).output().expect("sh runs");
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{script}: {error}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Connects two namespaces with a veth pair that is up at both ends.
pub fn connect(a: (&Namespace, &str), b: (&Namespace, &str), mtu: u32) {
    let (left, right, tid) = (a.1, b.1, b.0.tid());
    a.0.sh(&format!(
        "ip link add {left} mtu {mtu} type veth peer name {right} mtu {mtu} netns {tid}; ip link set {left} up"
    ));
    b.0.sh(&format!("ip link set {right} up"));
    // The end that came up first drops what it sends until the kernel's link watcher has run, some milliseconds later. Setting
    // an alias takes the lock that the watcher holds from "state UP" to the end of its work.
    for (namespace, interface) in [a, b] {
        namespace.sh(&format!(
            "for try in $(seq 200); do ip link show {interface} | grep -q 'state UP' && break; sleep 0.01; done
             ip link set {interface} alias ready"
        ));
    }
}
