use super::*;

use ferrule_dataplane::counters::NODES;

fn run_with(cycles: f64, control: f64) -> Run {
    Run { cycles, nodes: [1.0; NODES.len()], stages: 0.0, loop_pps: 1e6, control }
}

/// Only sets whose name holds `only`.
fn only(only: &str) -> Wanted {
    Wanted { only: Some(only.to_owned()), seed: 7, all: false }
}

#[test]
fn the_answer_has_both_families_and_the_agreed_keys() {
    let report = measure(2, 5000, None, &only("nothing")).unwrap();
    let value = serde_json::to_value(&report).unwrap();
    let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["rows"]);
    let rows = value["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, family) in rows.iter().zip(["inet", "inet6"]) {
        assert_eq!((row["set"].as_str(), row["family"].as_str()), (Some("forwarding"), Some(family)));
        let number = |key: &str| row[key].as_f64().unwrap();
        assert!(number("min_pps") > 0.0 && number("min_pps") <= number("median_pps"));
        assert!(number("median_pps") <= number("max_pps"));
        assert!(number("cycles_per_packet") > 1.0);
        assert_eq!((number("ratio_to_forwarding"), number("added_cycles")), (1.0, 0.0));
        let stages = row["stages"].as_object().unwrap();
        assert_eq!(stages["fastforward"].as_f64(), Some(number("cycles_per_packet")));
        for stage in ["rx", "forward", "tx"] {
            assert!(stages[&format!("fastforward.{stage}")].as_f64().unwrap() > 0.0, "{stages:?}");
        }
    }
}

#[test]
fn every_set_of_the_default_run_is_there_in_its_order() {
    let report = measure(1, 1, Some(7), &Wanted { seed: 3, ..Wanted::default() }).unwrap();
    let both = |set: &str| Family::ALL.map(|family| (set.to_owned(), family.label().to_owned()));
    let inet = |set: &str| (set.to_owned(), "inet".to_owned());
    let mut expected: Vec<_> = ["forwarding", "ipfw stateless", "ipfw stateful"].map(both).concat();
    expected.extend(["ipfw 10 rules", "ipfw 100 rules", "ipfw 1,000 rules", "ipfw 10,000 rules"].map(inet));
    expected.extend(both("ipfw table 1,000"));
    let mixed = ["ipfw mixed 1,000", "ipfw mixed 1,000, missed", "ipfw mixed 10,000", "ipfw mixed 10,000, missed"];
    expected.extend(mixed.map(inet));
    let rows: Vec<_> = report.rows.iter().map(|row| (row.set.clone(), row.family.clone())).collect();
    assert_eq!(rows, expected);
    for row in &report.rows[2..] {
        let forwarding = row.cycles_per_packet - row.added_cycles;
        assert!((row.ratio_to_forwarding * row.cycles_per_packet - forwarding).abs() < 0.01 * forwarding, "{row:?}");
        let stage = row.stages["ipfw"];
        // The one rule of the stateless set is decided for whole batches, in the path itself.
        assert_eq!(stage == 0.0, row.set == "ipfw stateless", "{row:?}");
        assert!((row.stages["fastforward"] + stage - row.cycles_per_packet).abs() < 0.01 * row.cycles_per_packet);
    }
    let text = table::text(&report);
    assert_eq!(text.matches("not built").count(), 2, "{text}");
    let parts = [
        "forwarding                  inet ",
        "forwarding                  inet6",
        "ipfw stateless              inet6",
        "added cycles",
        "pf stateful",
        "core 7",
        "control loop",
        "4,970 flows",
        "--seed 3.",
        "ipfw mixed 1,000 inet: 999 of 1,000 rules matched",
        "ipfw mixed 10,000 inet: 9,999 of 10,000 rules matched",
        "ipfw mixed 1,000, missed inet: 0 of 1,000 rules matched",
    ];
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn disturbed_runs_are_told_by_the_control_loop_over_all_rows() {
    let rows = [vec![run_with(30.0, 10.0), run_with(60.0, 19.0)], vec![run_with(35.0, 10.1), run_with(35.0, 10.0)]];
    assert_eq!(kept(&rows), [vec![0], vec![0, 1]]);
}

#[test]
fn a_row_has_median_and_extremes_of_its_runs() {
    let runs = [run_with(40.0, 1.0), run_with(20.0, 1.0), run_with(25.0, 1.0)];
    let plain = run_with(20.0, 1.0);
    let row = row("ipfw stateless", Family::Inet, &runs.iter().collect::<Vec<_>>(), &[&plain]).unwrap();
    assert_eq!((row.cycles_per_packet, row.added_cycles, row.ratio_to_forwarding), (25.0, 5.0, 0.8));
    let rate = clock::cycles_per_second();
    let expected = [rate / 25.0, rate / 40.0, rate / 20.0].map(f64::round);
    assert_eq!([row.median_pps, row.min_pps, row.max_pps], expected);
}

#[test]
fn digits_are_grouped() {
    assert_eq!([0, 999, 1000, 1_234_567].map(table::grouped), ["0", "999", "1,000", "1,234,567"]);
}
