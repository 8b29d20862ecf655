//! Privileges really are gone: the program drops them in a child process and tries what must then fail.

#![forbid(unsafe_code)]

use std::process::Command;

use serde_json::Value;

fn run(arguments: &[&str]) -> (Option<i32>, Value, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_ferrule")).arg("privilege-test").args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    (out.status.code(), serde_json::from_slice(&out.stdout).unwrap_or_default(), text)
}

fn is_root() -> bool {
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    if !root {
        println!("skipped: only root has privileges to drop");
    }
    root
}

#[test]
fn what_must_fail_fails_and_the_rest_works() {
    if !is_root() {
        return;
    }
    let (code, result, stderr) = run(&["--user", "nobody"]);
    assert_eq!(code, Some(0), "{stderr}\n{result:#}");
    let attempts = result["attempts"].as_array().unwrap();
    let error = |what: &str| {
        let found = attempts.iter().find(|a| a["what"] == what).unwrap_or_else(|| panic!("{what} was not tried"));
        found["error"].as_str().map(str::to_owned)
    };
    for what in ["open /etc/shadow", "socket(AF_PACKET)", "socket(AF_XDP)", "run a program", "become root again"] {
        assert!(
            error(what).is_some_and(|e| e.contains("denied") || e.contains("not permitted")),
            "{what}: {:?}",
            error(what)
        );
    }
    for what in ["socket(AF_NETLINK)", "a thread with its own memory", "a socket pair", "read /etc/passwd"] {
        assert_eq!(error(what), None, "{what}");
    }
    assert_ne!(result["report"]["uid"], 0);
    assert_eq!(result["report"]["capabilities"], serde_json::json!(["CAP_NET_ADMIN"]));
    assert_eq!(result["report"]["seccomp"], "error");
    if result["report"]["landlock"] == "full" {
        assert!(error("open a file that anybody may read, off the list").is_some());
        assert!(error("write to /tmp").is_some());
    } else {
        println!("skipped the file system: landlock is {}", result["report"]["landlock"]);
    }
}

#[test]
fn an_unknown_user_is_bad_input() {
    if !is_root() {
        return;
    }
    let (code, _, stderr) = run(&["--user", "no-such-user-here"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("no user `no-such-user-here`"), "{stderr}");
    let (code, _, stderr) = run(&["--user", "root"]);
    assert_eq!(code, Some(2), "{stderr}");
}

#[test]
fn the_helper_is_not_for_hands() {
    let out =
        Command::new(env!("CARGO_BIN_EXE_ferrule")).arg("helper").stdin(std::process::Stdio::null()).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("started by the daemon"));
}
