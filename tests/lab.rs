//! Proves the lab with the kernel as the router: what a test sees through the gateway later, it sees here first.
use ferrule::lab::{KernelRouter, Lab, Topology, tools};
use std::time::Duration;

#[test]
fn ping_through() {
    if !tools::can_test(&["ping"]) {
        return;
    }
    let lab = Lab::up(&Topology::new().queues(2), &KernelRouter).unwrap();
    let a = lab.host("a").unwrap();
    for to in [lab.v4("c").to_string(), lab.v6("c").to_string()] {
        let done = a.run(&["ping", "-c", "3", "-i", "0.01", &to], Duration::from_secs(10)).unwrap();
        println!("{}", done.success().unwrap().stdout);
    }
}
