//! Every reason, kind of made packet and way of ending is reached by a test here, or it is said why not.

use std::collections::BTreeSet;

use ferrule_dataplane::verdict::{Consumed, DropReason, Generated};

use crate::common::seen;

/// Not reached here: why, or where it is.
const ELSEWHERE: [(&str, &str); 18] = [
    (
        "dropped host_refused",
        "counted by the host I/O thread when the kernel takes no frame: needs a TAP, and memory ports have none",
    ),
    ("dropped host_frame_bad", "counted by the host I/O thread when a TAP gives a frame without sense: needs a TAP"),
    ("dropped nat_denied", "filters/tests/ipfw_nat.rs"),
    (
        "dropped nat_fragment",
        "filters/src/nat/tests: the cause; that it is told as this reason is one line of filters/src/ipfw/translate.rs",
    ),
    (
        "dropped nat_no_address",
        "filters/src/nat/tests: the cause; that it is told as this reason is one line of filters/src/ipfw/translate.rs",
    ),
    (
        "dropped nat_no_port",
        "filters/src/nat/tests: the cause; that it is told as this reason is one line of filters/src/ipfw/translate.rs",
    ),
    (
        "dropped nat_table_full",
        "filters/src/nat/tests: the cause; that it is told as this reason is one line of filters/src/ipfw/translate.rs",
    ),
    ("dropped next_hop_local", "filters/tests/ipfw_fwd.rs"),
    ("dropped pipe_deleted", "filters/tests/ipfw_pipes.rs"),
    ("dropped pipe_full", "filters/tests/ipfw_pipes.rs"),
    ("dropped pipe_missing", "filters/tests/ipfw_pipes.rs"),
    (
        "dropped pipe_early",
        "filters/src/dummynet/tests: the cause; that it is told as this reason is one line of filters/src/ipfw/shape.rs",
    ),
    (
        "dropped pipe_limit",
        "filters/src/dummynet/tests: the cause; that it is told as this reason is one line of filters/src/ipfw/shape.rs",
    ),
    (
        "dropped pipe_loss",
        "filters/src/dummynet/tests: the cause; that it is told as this reason is one line of filters/src/ipfw/shape.rs",
    ),
    ("dropped reassembly_bad", "filters/tests/ipfw_reass.rs"),
    ("dropped reassembly_limit", "filters/tests/ipfw_reass.rs"),
    ("dropped reassembly_timeout", "filters/tests/ipfw_reass.rs"),
    ("generated keepalive", "filters/tests/ipfw_answers.rs"),
];

#[test]
fn every_end_of_a_packet_is_reached() {
    let tests: [fn(); 20] = [
        crate::forwarding::ttl_runs_out_and_the_sender_is_told_what_it_sent,
        crate::forwarding::every_kind_of_route_does_what_it_says,
        crate::length::a_long_packet_is_cut_into_pieces_that_make_it_whole_again,
        crate::length::what_may_not_be_cut_is_told_the_mtu,
        crate::length::what_came_in_longer_than_the_port_takes_is_dropped,
        crate::links::unknown_and_deep_tags_are_dropped,
        crate::neighbors::packets_wait_in_order_and_go_when_the_neighbour_is_known,
        crate::neighbors::a_neighbour_that_does_not_answer_is_told_to_the_sender,
        crate::neighbors::unresolved_neighbours_are_limited,
        crate::host::group_addresses_in_unicast_frames_are_dropped,
        crate::host::every_class_has_a_limit_of_its_own_and_the_rest_is_not_held_up,
        crate::host::a_host_that_does_not_read_costs_only_its_own,
        crate::standalone::echo_is_answered_ports_and_connections_are_refused,
        crate::stages::drops_at_either_hook_are_counted_and_the_rest_passes,
        crate::stages::what_a_stage_makes_leaves_in_the_same_turn_and_is_counted,
        crate::stages::packets_that_make_packets_end,
        crate::stages::what_a_stage_holds_is_given_up_at_the_end_and_at_a_reload,
        crate::stages::more_than_a_turn_may_make_is_dropped,
        crate::workers::a_full_ring_between_workers_is_a_counted_drop,
        crate::trouble::a_detached_port_drops_what_is_for_it_and_works_again_when_attached,
    ];
    let more: [fn(); 10] = [
        crate::trouble::frames_that_a_device_refuses_are_counted,
        crate::trouble::a_full_transmit_ring_drops_the_rest_and_says_so,
        crate::hostile::ethernet_that_is_wrong,
        crate::hostile::ipv4_headers_that_lie,
        crate::hostile::addresses_that_may_not_be,
        crate::hostile::options_pass_or_are_told,
        crate::hostile::extension_headers_pass_or_are_dropped,
        crate::hostile::fragments_that_cannot_be,
        crate::hostile::transport_headers_that_lie,
        crate::standalone::arp_is_answered_and_learned,
    ];
    tests.iter().chain(&more).for_each(|test| test());
    let all: BTreeSet<String> = DropReason::ALL
        .iter()
        .map(|r| format!("dropped {}", r.label()))
        .chain(Generated::ALL.iter().map(|k| format!("generated {}", k.label())))
        .chain(Consumed::ALL.iter().map(|k| format!("consumed {}", k.label())))
        .collect();
    let elsewhere: BTreeSet<String> = ELSEWHERE.iter().map(|(label, _)| (*label).to_owned()).collect();
    let missing: Vec<_> = all.difference(&seen()).filter(|label| !elsewhere.contains(*label)).cloned().collect();
    assert!(missing.is_empty(), "reached by no test: {missing:?}");
    let stale: Vec<_> = elsewhere.iter().filter(|label| seen().contains(*label) || !all.contains(*label)).collect();
    assert!(stale.is_empty(), "said to be reached elsewhere, but reached here or gone: {stale:?}");
}
