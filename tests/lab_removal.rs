//! The lab removes what it made and nothing else: after `down`, after a panic, after kill -9, and beside another lab.
use ferrule::lab::probe::ping::Ping;
use ferrule::lab::{KernelRouter, Lab, LabError, LabState, Topology, down, host_of, sweep, tools, wait_until};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(20);

/// A state directory of this test's own, so that no other test sweeps it.
fn directory(test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ferrule-test-{test}-{}", std::process::id()))
}

/// What of a lab is still there.
fn remains(state: &LabState, directory: &Path) -> Vec<String> {
    let namespaces = state.namespaces.values().map(|name| Path::new("/run/netns").join(name));
    let paths = namespaces.chain([state.scratch.clone(), LabState::path(directory, &state.name)]);
    paths.filter(|path| path.exists()).map(|path| path.display().to_string()).collect()
}

/// The devices of the machine itself: a lab must not add or remove any.
fn own_devices() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/net").unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn down_leaves_nothing() {
    if !tools::can_test(&[]) {
        return;
    }
    let (before, directory) = (own_devices(), directory("down"));
    let lab = Lab::up(&Topology::new().directory(&directory).clients(2), &KernelRouter).unwrap();
    let state = lab.state().clone();
    assert_eq!(remains(&state, &directory).len(), state.namespaces.len() + 2, "all of it is there while it is up");
    assert_eq!(own_devices(), before, "no device is made outside of the lab's namespaces");
    // Processes that ignore SIGTERM end as well, and so do those that nobody holds any more.
    let script = "trap '' TERM; echo ready; sleep 1000 & wait; wait";
    let mut stubborn = lab.host("c").unwrap().spawn(&["sh", "-c", script]).unwrap();
    wait_until("the trap", LIMIT, || {
        stubborn.check()?;
        Ok(if stubborn.log().contains("ready") { Ok(()) } else { Err(stubborn.log()) })
    })
    .unwrap();
    let id = stubborn.detach().unwrap();
    lab.down().unwrap();
    assert_eq!(remains(&state, &directory), [""; 0]);
    assert_eq!(own_devices(), before);
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    assert!(matches!(down(&directory, &state.name), Err(LabError::NoLab { .. })));
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_failed_start_and_a_panic_leave_nothing() {
    if !tools::can_test(&[]) {
        return;
    }
    let directory = directory("failed");
    let refusing = |_: &Lab| -> Result<_, LabError> { Err(LabError::Request("no router today".to_string())) };
    let error = Lab::up(&Topology::new().directory(&directory).name("x"), &refusing).unwrap_err();
    assert_eq!(error.to_string(), "no router today");
    assert_eq!(LabState::list(&directory), [""; 0]);
    let topology = Topology::new().directory(&directory);
    let panicked = std::panic::catch_unwind(|| {
        let lab = Lab::without_router(&topology).unwrap();
        let state = lab.state().clone();
        lab.host("a").unwrap().enter(|| std::panic::panic_any(state)).unwrap();
    });
    let state = panicked.unwrap_err().downcast::<LabState>().expect("the panic of the thread in the host goes on here");
    assert_eq!(remains(&state, &directory), [""; 0]);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn two_labs_at_once_do_not_meet() {
    if !tools::can_test(&["ping"]) {
        return;
    }
    let directory = directory("two");
    let topology = Topology::new().directory(&directory);
    let one = Lab::up(&topology.clone().name("one"), &KernelRouter).unwrap();
    let two = Lab::up(&topology.clone().name("two"), &KernelRouter).unwrap();
    assert!(matches!(Lab::up(&topology.name("one"), &KernelRouter), Err(LabError::Exists { .. })));
    for lab in [&one, &two] {
        assert!(Ping::new(lab.v4("c")).run(&lab.host("a").unwrap()).unwrap().is_clean());
    }
    let state = one.state().clone();
    one.down().unwrap();
    assert_eq!(remains(&state, &directory), [""; 0]);
    assert!(Ping::new(two.v6("c")).run(&two.host("a").unwrap()).unwrap().is_clean(), "the other one goes on");
    two.down().unwrap();
    std::fs::remove_dir_all(directory).unwrap();
}

/// Not a test by itself: makes a lab with a process in it, says so, and waits to be killed.
#[test]
#[ignore = "run by a_killed_run_is_cleaned_up as a child of its own"]
fn child_to_be_killed() {
    let Some(directory) = std::env::var_os("FERRULE_LAB_TO_BE_KILLED") else { return };
    let topology = Topology::new().directory(PathBuf::from(directory)).name("killed");
    let lab = Lab::up(&topology, &KernelRouter).unwrap();
    let sleeper = lab.host("b").unwrap().spawn(&["sleep", "1000"]).unwrap();
    std::fs::write(topology_ready(&lab), sleeper.id().unwrap().to_string()).unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

fn topology_ready(lab: &Lab) -> PathBuf {
    lab.scratch().join("ready")
}

#[test]
fn a_killed_run_is_cleaned_up() {
    if !tools::can_test(&[]) {
        return;
    }
    let directory = directory("killed");
    let kill_one = || {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_to_be_killed", "--ignored"])
            .env("FERRULE_LAB_TO_BE_KILLED", &directory)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let ready = wait_until("the child's lab", LIMIT, || {
            let state = LabState::read(&directory, "killed").ok();
            let ready = state.and_then(|state| {
                let sleeper: u32 = std::fs::read_to_string(state.scratch.join("ready")).ok()?.parse().ok()?;
                Some((state, sleeper))
            });
            Ok(ready.ok_or("not yet".to_string()))
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let (state, sleeper) = ready.unwrap();
        assert_eq!(remains(&state, &directory).len(), 5, "kill -9 leaves all of it");
        assert!(Path::new(&format!("/proc/{sleeper}")).exists(), "and the process in it");
        assert!(state.is_orphan());
        (state, sleeper)
    };
    // By its name.
    let (state, sleeper) = kill_one();
    assert!(host_of(&state, "b").unwrap().run(&["true"], LIMIT).unwrap().status.success(), "exec works until then");
    assert_eq!(down(&directory, "killed").unwrap(), state);
    assert_eq!(remains(&state, &directory), [""; 0]);
    gone(sleeper);
    // By the next lab that comes up.
    let (state, sleeper) = kill_one();
    let next = Lab::without_router(&Topology::new().directory(&directory)).unwrap();
    assert_eq!(remains(&state, &directory), [""; 0]);
    gone(sleeper);
    drop(next);
    assert_eq!(sweep(&directory).unwrap(), [""; 0]);
    std::fs::remove_dir_all(directory).unwrap();
}

/// It may stay a zombie for a moment until init reaps it.
fn gone(pid: u32) {
    wait_until("the process to be gone", LIMIT, || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        Ok(if stat.is_empty() || stat.contains(") Z ") { Ok(()) } else { Err(stat) })
    })
    .unwrap();
}

#[test]
fn a_kept_lab_stays_until_it_is_taken_down() {
    if !tools::can_test(&[]) {
        return;
    }
    let directory = directory("kept");
    let router = |lab: &Lab| Ok(vec![lab.host("b")?.spawn(&["sleep", "1000"])?]);
    let lab = Lab::up(&Topology::new().directory(&directory).name("kept"), &router).unwrap();
    let state = lab.keep().unwrap();
    assert_eq!(sweep(&directory).unwrap(), [""; 0]);
    assert_eq!(remains(&state, &directory).len(), 5);
    let pids = host_of(&state, "b").unwrap().run(&["pgrep", "-x", "sleep"], LIMIT).unwrap();
    assert!(pids.status.success(), "the router runs on");
    down(&directory, "kept").unwrap();
    assert_eq!(remains(&state, &directory), [""; 0]);
    std::fs::remove_dir_all(directory).unwrap();
}
