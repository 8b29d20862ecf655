//! Passes of the link layer, `net.link.ether.ipfw=1`.

mod gateway;

use ferrule_dataplane::verdict::DropReason;
use ferrule_filters::ipfw::testing::frame::{between, udp};
use gateway::*;

fn packets() -> [Vec<u8>; 2] {
    [
        between(HOST.into(), PEER.into(), 17, &udp((1, 53), 20)),
        between(v6(7).into(), peer6().into(), 17, &udp((1, 53), 20)),
    ]
}

#[test]
fn a_forwarded_packet_passes_four_times_and_mac_tests_hold_in_two_of_them() {
    let rules = [
        "add 100 count ip from any to any layer2 in",
        "add 110 count ip from any to any layer2 out",
        "add 120 count ip from any to any not layer2",
        "add 130 count ip from any to any mac any 02:00:00:00:00:01/48",
        "add 140 count ip from any to any mac 02:00:00:00:09:09/48 any layer2 out",
        "add 150 count ip from any to any mac-type 0x800,0x86dd",
        "add 200 allow ip from any to any",
    ];
    for frame in packets() {
        let mut frame = frame;
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        frame[6] = 0x02;
        let mut gateway = Gateway::new(1, &rules);
        assert_eq!(gateway.send(LAN, frame.clone()).len(), 1);
        let counts = |gateway: &Gateway| [100, 110, 120, 130, 140, 150, 200].map(|rule| gateway.count(rule));
        assert_eq!(counts(&gateway), [0, 0, 2, 0, 0, 0, 2], "no MAC tests without passes of the link layer");
        gateway.run(&["sysctl net.link.ether.ipfw=1"]);
        assert_eq!(gateway.send(LAN, frame.clone()).len(), 1);
        assert_eq!(counts(&gateway), [1, 1, 4, 1, 1, 2, 6]);
        gateway.run(&["sysctl net.link.ether.ipfw=0"]);
        assert_eq!(gateway.send(LAN, frame.clone()).len(), 1);
        assert_eq!(counts(&gateway), [1, 1, 6, 1, 1, 2, 8]);
        gateway.close();
    }
}

#[test]
fn arp_is_stopped_by_rules_of_the_link_layer_alone() {
    let mut arp = vec![0xff; 6];
    arp.extend([
        2, 0, 0, 0, 7, 7, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 7, 7, 10, 0, 0, 7, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1,
    ]);
    arp.resize(60, 0);
    let ask = |gateway: &mut Gateway| {
        assert!(gateway.world.inject(LAN, &arp));
        gateway.rest();
        gateway.world.collect(LAN).len()
    };
    let mut gateway =
        Gateway::new(1, &["add 100 deny ip from any to any mac-type 0x806", "add 200 allow ip from any to any"]);
    assert_eq!(ask(&mut gateway), 1, "answered");
    gateway.run(&["sysctl net.link.ether.ipfw=1"]);
    assert_eq!(ask(&mut gateway), 0);
    assert_eq!((gateway.count(100), gateway.dropped(DropReason::Filter)), (1, 1));
    gateway.run(&["delete 100"]);
    assert_eq!(ask(&mut gateway), 1);
    gateway.close();
}

#[test]
fn deny_allow_all_and_pipes_work_there_too() {
    for frame in packets() {
        // All that passes is plain: the short way is not taken.
        let mut gateway = Gateway::new(1, &["sysctl net.link.ether.ipfw=1", "add 200 allow ip from any to any"]);
        assert_eq!(gateway.send(LAN, frame.clone()).len(), 1);
        assert_eq!(gateway.count(200), 4);
        gateway.run(&["add 100 deny ip from any to any layer2 out"]);
        assert!(gateway.send(LAN, frame.clone()).is_empty());
        assert_eq!((gateway.count(100), gateway.count(200)), (1, 7));
        for (one_pass, hook) in [(1, "in"), (1, "out"), (0, "in"), (0, "out")] {
            let mut gateway = Gateway::new(
                1,
                &[
                    "sysctl net.link.ether.ipfw=1",
                    &format!("sysctl net.inet.ip.fw.one_pass={one_pass}"),
                    "pipe 1 config delay 10",
                    &format!("add 100 pipe 1 ip from any to any layer2 {hook}"),
                    "add 150 count ip from any to any layer2",
                    "add 200 allow ip from any to any",
                ],
            );
            assert!(gateway.send(LAN, frame.clone()).is_empty());
            assert_eq!(gateway.held(), 1);
            gateway.advance(10 * MS);
            assert_eq!(gateway.world.collect(WAN).len(), 1);
            let behind = u64::from(one_pass == 0);
            assert_eq!(
                (gateway.count(100), gateway.count(150), gateway.count(200)),
                (1, 1 + behind, 3 + behind),
                "{hook}"
            );
            gateway.close();
        }
        gateway.close();
    }
}
