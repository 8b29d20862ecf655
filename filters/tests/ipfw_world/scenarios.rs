//! The scenarios of the conformance data that are about ipfw; the number of each is in the name of its test.

use std::sync::atomic::{AtomicBool, Ordering};

use ferrule_config::ipfw::table::{TableKey, TableValue};
use ferrule_filters::ipfw::table::AddMode;

use super::common::*;

/// Lines of expectations.jsonl that need more than verdicts.
pub fn of_line(script: &str, _packet: &str, _commands: &[String], _workers: usize) -> Option<&'static str> {
    match script {
        "fragments.sh" => Some("no reply: too many fragments"),
        "dummynet.sh" => None,
        _ => None,
    }
}

/// Rules whose packets go to pipes.
pub fn is_shaped(commands: &[String]) -> bool {
    commands.iter().any(|command| command.starts_with("add pipe") || command.starts_with("add reass"))
}

#[test]
fn scenario_03_deny_in_and_deny_out_when_forwarding() {
    let mut gateway = open::<&str>(&[], 1);
    assert_eq!(gateway.send(EM0, &echo4()).by(EM1), 1);
    assert_eq!(gateway.send(EM0, &echo6()).by(EM1), 1);
    gateway.close();
    for (rule, counts) in
        [("add 100 deny all from any to any in", (1, 0)), ("add 100 deny all from any to any out", (1, 1))]
    {
        for workers in [1, 2] {
            let mut gateway = open(&[rule, "add 200 count ip from any to any"], workers);
            assert_eq!(gateway.send(EM0, &echo4()).left().count(), 0, "{rule}");
            assert_eq!((gateway.packets(100), gateway.packets(200)), counts, "{rule}");
            assert_eq!(gateway.send(EM0, &echo6()).left().count(), 0, "{rule}");
            gateway.close();
        }
    }
}

/// Adds, deletes and swaps while two workers look up both tables on threads of their own: no packet finds neither.
#[test]
fn scenario_63_table_swap_under_load() {
    let commands = [
        "table tb0 create type addr",
        "table tb1 create type addr",
        "table tb0 add 10.0.0.0/24 1",
        "add 100 deny ip from table(tb0) to any",
        "add 200 deny ip from table(tb1) to any",
    ];
    let mut gateway = open(&commands, 2);
    // Something that answers, so that a packet which is not denied would get out.
    assert_eq!(gateway.send(EM0, &udp4((1, 2))).by(EM1), 0);
    let frames: Vec<Vec<u8>> = (0..64).map(|port| udp4((port, 53))).collect();
    let done = AtomicBool::new(false);
    let key = |last: u8| TableKey::V4([10, 7, last, 0].into(), 24);
    let mac = gateway.world.mac(ferrule_dataplane::packet::PortId(0)).0;
    let (mut injected, mut rounds) = (0u64, 0);
    while rounds < 50 {
        let ferrule_filters::ipfw::testing::Gateway { world, tables, .. } = &mut gateway;
        for frame in &frames {
            let mut frame = frame.clone();
            frame[..6].copy_from_slice(&mac);
            for worker in 0..2 {
                let port = ferrule_dataplane::packet::PortId(0);
                assert!(world.inject_at(port, worker, &frame, ferrule_dataplane::packet::Offload::NONE));
                injected += 1;
            }
        }
        done.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for lane in world.lanes() {
                let done = &done;
                scope.spawn(move || {
                    // On once more after the last change, so that what one handed to the other is judged.
                    while !done.load(Ordering::Relaxed) {
                        lane.worker.turn();
                        std::thread::yield_now();
                    }
                });
            }
            for turn in 0..20u8 {
                let (a, b) = if turn % 2 == 0 { ("tb0", "tb1") } else { ("tb1", "tb0") };
                let entries = [(key(turn), TableValue::default()), (key(turn + 100), TableValue::default())];
                assert_eq!(tables.add(a, &entries, AddMode { update: true, ..AddMode::default() }).1, Ok(()));
                tables.swap(a, b).unwrap();
                let _ = tables.delete(b, &[key(turn)]);
                std::thread::yield_now();
            }
            done.store(true, Ordering::Relaxed);
        });
        world.settle();
        rounds += 1;
    }
    let seen = gateway.advance(1);
    assert_eq!(seen.left().count(), 0, "{}", gateway.list());
    assert_eq!(gateway.packets(100) + gateway.packets(200), injected + 1, "{}", gateway.list());
    let mut all: Vec<_> = gateway.tables.names().map(str::to_owned).collect();
    all.sort();
    assert_eq!(all, ["tb0", "tb1"]);
    gateway.close();
}
