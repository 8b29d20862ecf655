//! What `ferrule lab up`, `exec`, `down` and `demo` do, with the kernel as the router.
use ferrule::lab::command::{LabOptions, demo, down, exec, up};
use ferrule::lab::{KernelCounters, KernelRouter, LabError, LabState, tools};

fn options(test: &str) -> LabOptions {
    let directory = std::env::temp_dir().join(format!("ferrule-test-{test}-{}", std::process::id()));
    LabOptions { name: test.to_string(), directory, ..LabOptions::default() }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_string).collect()
}

#[test]
fn up_exec_down() {
    if !tools::can_test(&["ping"]) {
        return;
    }
    let options = options("commands");
    let mut said = Vec::new();
    let state = up(&options, &KernelRouter, &mut said).unwrap();
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains("ferrule lab exec --name commands a ping -c 3 198.19.10.2"), "{said}");
    let run = |host, text| exec(&options.directory, &options.name, host, &words(text));
    // Standard output is ours: the command's verdict is what is judged here.
    assert!(run("a", "ping -q -c 2 -i 0.01 198.19.10.2").unwrap().success());
    assert!(!run("a", "ping -q -c 1 -W 1 198.19.10.77").unwrap().success());
    assert_eq!(run("c", "false").unwrap().code(), Some(1));
    assert!(matches!(run("x", "true"), Err(LabError::NoHost { .. })));
    assert!(matches!(up(&options, &KernelRouter, &mut Vec::new()), Err(LabError::Exists { .. })));
    assert_eq!(down(&options.directory, &options.name).unwrap().namespaces, state.namespaces);
    assert!(matches!(run("a", "true"), Err(LabError::NoLab { .. })));
    std::fs::remove_dir_all(&options.directory).unwrap();
}

#[test]
fn the_demo_moves_the_counters_and_leaves_nothing() {
    if !tools::can_test(&["ping"]) {
        return;
    }
    let options = options("demo");
    let mut said = Vec::new();
    demo(&options, &KernelRouter, &|lab| Box::new(KernelCounters::new(lab).unwrap()), &mut said).unwrap();
    let said = String::from_utf8(said).unwrap();
    println!("{said}");
    for expected in [
        "ping a -> 198.19.10.2: 3 of 3 replies",
        "TCP  a -> 2001:2:0:b::2: ",
        "HTTP a -> 198.19.10.2: 67 MB downloaded",
        "content as it was sent",
        "IpForwDatagrams",
        "Ip6OutForwDatagrams",
    ] {
        assert!(said.contains(expected), "{expected} is not in\n{said}");
    }
    assert_eq!(LabState::list(&options.directory), [""; 0]);
    std::fs::remove_dir_all(&options.directory).unwrap();
}
