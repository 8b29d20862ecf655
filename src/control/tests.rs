use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::access::{Accounts, Policy};
use super::server::Listener;
use super::*;
use crate::snapshot::sample;

#[derive(Default)]
struct Fake {
    said: Mutex<Vec<String>>,
    stops: AtomicUsize,
    slow_ms: u64,
}

impl Fake {
    fn note(&self, text: String) -> Result<String, Failure> {
        self.said.lock().unwrap().push(text.clone());
        Ok(text)
    }
}

impl Gateway for Fake {
    fn snapshot(&self) -> Snapshot {
        sample::snapshot()
    }

    fn routes(&self, query: &RouteQuery) -> Vec<RouteRow> {
        let count = if query.lookup.is_some() { 1 } else { 2500 };
        (0..count)
            .map(|i| RouteRow { prefix: format!("10.{}.{}.0/24", i / 256, i % 256), ..RouteRow::default() })
            .collect()
    }

    fn neighbors(&self) -> Vec<NeighborRow> {
        Vec::new()
    }

    fn doctor(&self) -> Vec<Finding> {
        Vec::new()
    }

    fn reload(&self, path: Option<&Path>) -> Result<String, Failure> {
        std::thread::sleep(Duration::from_millis(self.slow_ms));
        match path {
            Some(p) if p.ends_with("bad.toml") => Err(Failure::input("bad.toml:3:7: unknown key")),
            Some(p) if p.ends_with("torn.toml") => Err(Failure::runtime("no memory")),
            other => self.note(format!("reload {other:?}")),
        }
    }

    fn apply(&self, path: &Path, confirm: Option<Duration>) -> Result<String, Failure> {
        self.note(format!("apply {} {confirm:?}", path.display()))
    }

    fn confirm(&self) -> Result<String, Failure> {
        self.note("confirm".into())
    }

    fn ipfw(
        &self,
        call: &ipfw::call::Call,
        json: bool,
    ) -> Result<(ipfw::call::Reply, Option<serde_json::Value>), Failure> {
        let text = self.note(format!("{} {}", call.program, call.arguments.join(" ")))?;
        Ok((ipfw::call::Reply { stdout: text, ..Default::default() }, json.then(|| serde_json::json!([]))))
    }

    fn stop(&self) {
        self.stops.fetch_add(1, Relaxed);
    }
}

fn directory(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("ferrule-control-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn policy() -> Policy {
    let own_uid = rustix::process::getuid().as_raw();
    Policy { own_uid, write_gid: None, read_gid: None, accounts: Accounts::default() }
}

fn options(name: &str) -> Options {
    Options::new(directory(name).join("control.sock"), policy())
}

fn serve(options: &Options, gateway: Arc<Fake>) -> Server {
    Listener::bind(options.clone()).unwrap().serve(gateway).unwrap()
}

#[test]
fn questions_are_answered_and_changes_made() {
    let (options, gateway) = (options("ask"), Arc::new(Fake::default()));
    let server = serve(&options, gateway.clone());
    let mut client = Client::connect(&options.path).unwrap();
    assert_eq!(client.snapshot().unwrap(), sample::snapshot());
    let routes = client.routes(RouteQuery::default()).unwrap();
    assert_eq!((routes.len(), routes[2499].prefix.as_str()), (2500, "10.9.195.0/24"));
    assert_eq!(client.routes(RouteQuery { limit: Some(3), ..RouteQuery::default() }).unwrap().len(), 3);
    assert!(client.neighbors().unwrap().is_empty() && client.doctor().unwrap().is_empty());
    assert_eq!(client.change(Request::Reload { path: None }).unwrap(), "reload None");
    let apply = Request::Apply { path: "/x".into(), confirm_s: Some(60) };
    assert_eq!(client.change(apply).unwrap(), "apply /x Some(60s)");
    client.change(Request::Confirm).unwrap();
    assert_eq!(gateway.said.lock().unwrap().len(), 3);
    assert_eq!(server.clients(), 1);
    drop(client);
}

#[test]
fn a_client_waits_for_a_daemon_that_starts() {
    let (options, gateway) = (options("starts"), Arc::new(Fake::default()));
    let Err(nobody) = Client::connect(&options.path) else { panic!("nobody listens") };
    assert!(nobody.to_string().contains("is not running"), "{nobody}");
    // As a daemon that waits for its predecessor's helper: it has the lock, and no socket yet.
    let lock_path = options.path.with_extension("lock");
    fs::write(&lock_path, format!("{}\n", std::process::id())).unwrap();
    let lock = fs::File::open(&lock_path).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let path = options.path.clone();
    let early = std::thread::spawn(move || Client::connect(path)?.snapshot());
    std::thread::sleep(Duration::from_millis(100));
    assert!(!early.is_finished(), "it waits for the socket");
    // It ended before it had one.
    fs::write(&lock_path, "").unwrap();
    let failure = early.join().unwrap().unwrap_err();
    assert!(failure.to_string().contains("is not running"), "{failure}");
    drop(lock);
    let listener = Listener::bind(options.clone()).unwrap();
    // Bound, and not serving yet: the question waits for its answer.
    let path = options.path.clone();
    let late = std::thread::spawn(move || Client::connect(path)?.snapshot());
    std::thread::sleep(Duration::from_millis(100));
    assert!(!late.is_finished(), "it waits for the answer");
    let _server = listener.serve(gateway).unwrap();
    assert_eq!(late.join().unwrap().unwrap(), sample::snapshot());
}

#[test]
fn a_bad_file_is_the_users_fault_and_a_torn_reload_the_daemons() {
    let options = options("errors");
    let _server = serve(&options, Arc::default());
    let mut client = Client::connect(&options.path).unwrap();
    let reload = |p: &str| Request::Reload { path: Some(p.into()) };
    assert_eq!(client.change(reload("/bad.toml")), Err(Failure::input("bad.toml:3:7: unknown key")));
    assert_eq!(client.change(reload("/torn.toml")), Err(Failure::runtime("no memory")));
    assert!(client.snapshot().is_ok(), "the connection lives on");
}

#[test]
fn stop_waits_for_the_end() {
    let (options, gateway) = (options("stop"), Arc::new(Fake::default()));
    let server = serve(&options, gateway.clone());
    let client = Client::connect(&options.path).unwrap();
    let ender = std::thread::spawn(move || {
        while gateway.stops.load(Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(server);
    });
    assert_eq!(client.stop(Duration::from_secs(10)).unwrap(), "stopping");
    ender.join().unwrap();
    assert!(!options.path.exists(), "the socket file goes with the server");
    let Err(Failure::Runtime(text)) = Client::connect(&options.path) else { panic!("nobody is there") };
    assert!(text.contains("is not running") && text.contains("ferrule run"), "{text}");
}

#[test]
fn garbage_long_lines_and_wrong_versions_are_refused() {
    let mut options = options("garbage");
    options.change_max = protocol::REQUEST_MAX;
    let _server = serve(&options, Arc::default());
    let say = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(&options.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let _ = stream.write_all(bytes);
        let mut line = String::new();
        let _ = BufReader::new(stream).read_line(&mut line);
        line
    };
    assert!(say(b"hello\n").contains("not JSON"));
    assert!(say(b"{}\n").contains("a request is"));
    assert!(say(b"{\"version\":99,\"request\":{}}\n").contains("speaks version 1"));
    assert!(say(b"{\"version\":1,\"request\":{\"ask\":\"dance\"}}\n").contains("no such request"));
    assert!(say(b"\xff\xfe\n").contains("not JSON"));
    assert!(say(&vec![b'a'; protocol::REQUEST_MAX + 8192]).contains("at most"));
}

#[test]
fn a_slow_request_does_not_hold_a_seat_for_ever() {
    let mut options = options("slow");
    options.patience = Duration::from_millis(200);
    let _server = serve(&options, Arc::default());
    let mut stream = UnixStream::connect(&options.path).unwrap();
    stream.write_all(b"{\"version\"").unwrap();
    let start = Instant::now();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("did not end in time"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_slow_change_does_not_hold_up_questions() {
    let options = options("parallel");
    let _server = serve(&options, Arc::new(Fake { slow_ms: 2000, ..Fake::default() }));
    let path = options.path.clone();
    let slow = std::thread::spawn(move || Client::connect(path).unwrap().change(Request::Reload { path: None }));
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    Client::connect(&options.path).unwrap().snapshot().unwrap();
    assert!(start.elapsed() < Duration::from_millis(1500));
    slow.join().unwrap().unwrap();
}

#[test]
fn clients_are_bounded() {
    let mut options = options("many");
    options.clients_max = 4;
    let server = serve(&options, Arc::default());
    let mut clients: Vec<_> = (0..4).map(|_| Client::connect(&options.path).unwrap()).collect();
    for c in &mut clients {
        c.snapshot().unwrap();
    }
    let Err(Failure::Runtime(text)) = Client::connect(&options.path).unwrap().snapshot() else { panic!("a fifth") };
    assert!(text.contains("too many clients"), "{text}");
    drop(clients);
    let deadline = Instant::now() + Duration::from_secs(10);
    while server.clients() > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    Client::connect(&options.path).unwrap().snapshot().unwrap();
}

#[test]
fn a_live_socket_is_left_alone_and_a_stale_one_replaced() {
    let options = options("stale");
    let server = serve(&options, Arc::default());
    let Err(Failure::Input(text)) = Listener::bind(options.clone()) else { panic!("bound twice") };
    assert!(text.contains("already running") && text.contains(&std::process::id().to_string()), "{text}");
    assert!(Client::connect(&options.path).unwrap().snapshot().is_ok());
    drop(server);
    // What kill -9 leaves behind: a file that nobody listens on, and no lock.
    drop(std::os::unix::net::UnixListener::bind(&options.path).unwrap());
    assert!(Client::connect(&options.path).is_err());
    let _server = serve(&options, Arc::default());
    assert!(Client::connect(&options.path).unwrap().snapshot().is_ok());
}

#[test]
fn a_listener_without_our_lock_is_named_too() {
    let options = options("foreign");
    let _foreign = std::os::unix::net::UnixListener::bind(&options.path).unwrap();
    let Err(Failure::Input(text)) = Listener::bind(options.clone()) else { panic!("took it") };
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
}

#[test]
fn a_plain_file_in_the_way_is_not_removed() {
    let options = options("file");
    fs::write(&options.path, "precious").unwrap();
    let Err(Failure::Input(text)) = Listener::bind(options.clone()) else { panic!("took it") };
    assert!(text.contains("no socket"), "{text}");
    assert_eq!(fs::read_to_string(&options.path).unwrap(), "precious");
}

/// Not a test of its own: what the next one runs as another user.
#[test]
#[ignore = "run by other_users_get_what_their_groups_allow as another user"]
fn probe() {
    let path = std::env::var("FERRULE_TEST_SOCKET").unwrap();
    let mut client = match Client::connect(path) {
        Ok(client) => client,
        Err(e) => return println!("PROBE connect: {e}"),
    };
    let show = |r: Result<(), Failure>| r.map_or_else(|e| e.to_string().replace('\n', " "), |()| "ok".to_owned());
    println!("PROBE read: {}", show(client.snapshot().map(|_| ())));
    if let Ok(mut again) = Client::connect(std::env::var("FERRULE_TEST_SOCKET").unwrap()) {
        println!("PROBE write: {}", show(again.change(Request::Confirm).map(|_| ())));
    }
}

#[test]
fn other_users_get_what_their_groups_allow() {
    if !rustix::process::getuid().is_root() {
        println!("skipped: needs root to become another user");
        return;
    }
    const WRITE: u32 = 61_500;
    const READ: u32 = 61_501;
    let mut options = options("users");
    options.policy.write_gid = Some(WRITE);
    options.policy.read_gid = Some(READ);
    let _server = serve(&options, Arc::default());
    assert_eq!(fs::metadata(&options.path).unwrap().gid(), WRITE);
    // The test program may stand where another user cannot reach it.
    let program = options.path.with_file_name("probe");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let run = |gid| {
        let out = Command::new(&program)
            .args(["--exact", "control::tests::probe", "--ignored", "--nocapture", "--test-threads=1"])
            .env("FERRULE_TEST_SOCKET", &options.path)
            .current_dir("/")
            .uid(61_001)
            .gid(gid)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let mut said: Vec<_> = text.lines().filter(|l| l.contains("PROBE")).map(str::to_owned).collect();
        said.iter_mut().for_each(|l| *l = l[l.find("PROBE").unwrap() + 6..].to_owned());
        said
    };
    let writer = run(WRITE);
    assert_eq!(writer, ["read: ok", "write: ok"]);
    let reader = run(READ);
    assert_eq!(reader[0], "read: ok");
    assert!(reader[1].contains("read-only group"), "{reader:?}");
    let stranger = run(61_002);
    assert!(stranger[0].contains("neither root nor in a group"), "{stranger:?}");
    let _ = fs::remove_dir_all(options.path.parent().unwrap());
}
