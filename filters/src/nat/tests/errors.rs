//! ICMP errors in both directions.

use super::*;
use ferrule_config::ipfw::ast::Range;
use ferrule_config::ipfw::nat::Redirect;

const ROUTER: &str = "203.0.113.254";

/// The packets that may be quoted, as the inside host sends them.
fn sent() -> Vec<Vec<u8>> {
    let gre = packet(HOST, PEER, 47, &[0, 0, 8, 0, 1, 2, 3, 4]);
    vec![udp((HOST, 700), (PEER, 53)), tcp((HOST, 701), (PEER, 80), 2), echo(HOST, PEER, 8, 42), gre]
}

#[test]
fn an_error_comes_back_as_if_nothing_had_been_translated() {
    for original in sent() {
        for kind in [3, 4, 11, 12] {
            for quoted in [28, original.len()] {
                let mut rig = rig(NatConfig { deny_in: true, ..config() });
                let wire = rig.out(&original).unwrap();
                assert_ne!(wire, original);
                let about = error(ROUTER, ALIAS, kind, &wire[..quoted]);
                let (translation, back) = rig.through(Direction::In, &about, Offload::NONE);
                assert_eq!(translation, Translation::Translated);
                assert_eq!(back, error(ROUTER, HOST, kind, &original[..quoted]), "to the bit");
            }
        }
    }
}

#[test]
fn an_error_about_an_answer_leaves_as_if_the_alias_had_sent_it() {
    let port = 900;
    for (mut from, protocol) in [("192.168.0.1", 17), (HOST, 17), (HOST, 6), (HOST, 1)] {
        let mut rig = rig(NatConfig { same_ports: true, ..config() });
        let (out, answer) = match protocol {
            17 => (udp((HOST, port), (PEER, 53)), udp((PEER, 53), (ALIAS, port))),
            6 => (tcp((HOST, port), (PEER, 53), 2), tcp((PEER, 53), (ALIAS, port), 0x12)),
            _ => (echo(HOST, PEER, 8, port), echo(PEER, ALIAS, 0, port)),
        };
        rig.out(&out).unwrap();
        let inside = rig.back(&answer).unwrap();
        let leaves = rig.out(&error(from, PEER, 3, &inside)).unwrap();
        // A router inside keeps its address, as with libalias.
        if from == HOST {
            from = ALIAS;
        }
        assert_eq!(leaves, error(from, PEER, 3, &answer));
    }
}

#[test]
fn errors_about_redirected_flows_need_no_state() {
    let one = |port| Range { low: port, high: port };
    let redirects = vec![Redirect::Port {
        protocol: 6,
        locals: vec![(ip(HOST), one(6667))],
        public: None,
        ports: one(80),
        remote: None,
    }];
    let mut rig = rig(NatConfig { redirects, deny_in: true, ..config() });
    let inside = tcp((HOST, 6667), (PEER, 4000), 0x12);
    let wire = tcp((ALIAS, 80), (PEER, 4000), 0x12);
    assert_eq!(rig.back(&error(ROUTER, ALIAS, 3, &wire)).unwrap(), error(ROUTER, HOST, 3, &inside));
    assert_eq!(rig.nat.states().count(), 0);
}

#[test]
fn errors_about_nothing_of_ours_pass_or_are_denied() {
    let strange = error(ROUTER, ALIAS, 3, &udp((ALIAS, 7), (PEER, 8)));
    assert_eq!(rig(config()).back(&strange).unwrap(), strange);
    assert_eq!(rig(NatConfig { deny_in: true, ..config() }).back(&strange), None);
    // Quoting too little, a later fragment, or nonsense.
    let mut fragment = udp((ALIAS, 7), (PEER, 8));
    fragment[7] = 9;
    for about in [vec![], vec![0x45; 19], fragment, vec![0xff; 40], udp((ALIAS, 7), (PEER, 8))[..22].to_vec()] {
        let strange = error(ROUTER, ALIAS, 11, &about);
        let mut rig = rig(config());
        assert_eq!(rig.through(Direction::In, &strange, Offload::NONE), (Translation::Unchanged, strange.clone()));
        assert_eq!(rig.through(Direction::Out, &strange, Offload::NONE), (Translation::Unchanged, strange));
    }
}

#[test]
fn a_quoted_udp_checksum_never_becomes_none() {
    let mut rig = rig(config());
    let mut original = udp((HOST, 700), (PEER, 53));
    for word in 0..=u16::MAX {
        original[30..32].copy_from_slice(&word.to_be_bytes());
        seal(&mut original);
        let (_, wire) = rig.through(Direction::Out, &original, Offload::NONE);
        let (_, back) = rig.through(Direction::In, &error(ROUTER, ALIAS, 3, &wire[..28]), Offload::NONE);
        assert_eq!(back[48..56], original[20..28], "{word:04x}");
    }
}

#[test]
fn a_quoted_udp_without_checksum_stays_without() {
    let mut rig = rig(config());
    let mut original = udp((HOST, 700), (PEER, 53));
    original[26..28].fill(0);
    let wire = rig.out(&original).unwrap();
    assert_eq!(rig.back(&error(ROUTER, ALIAS, 3, &wire)).unwrap(), error(ROUTER, HOST, 3, &original));
}
