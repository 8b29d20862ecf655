use super::*;

fn run_with(cycles: f64, control: f64) -> Run {
    Run { cycles, nodes: [1.0; NODES.len()], loop_pps: 1e6, control }
}

#[test]
fn the_answer_has_both_families_and_the_agreed_keys() {
    let report = measure(2, 5000, None).unwrap();
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
        assert_eq!(number("ratio_to_forwarding"), 1.0);
        let stages = row["stages"].as_object().unwrap();
        assert_eq!(stages["fastforward"].as_f64(), Some(number("cycles_per_packet")));
        for stage in ["rx", "forward", "tx"] {
            assert!(stages[&format!("fastforward.{stage}")].as_f64().unwrap() > 0.0, "{stages:?}");
        }
    }
}

#[test]
fn the_table_says_what_is_not_built_and_how_it_was_measured() {
    let report = measure(1, 1, Some(7)).unwrap();
    let text = table::text(&report);
    assert_eq!(text.matches("not built").count(), 4, "{text}");
    for part in
        ["forwarding      inet ", "forwarding      inet6", "pf stateful", "core 7", "control loop", "4,970 flows"]
    {
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
    let row = row(Family::Inet, &runs.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(row.cycles_per_packet, 25.0);
    let rate = clock::cycles_per_second();
    let expected = [rate / 25.0, rate / 40.0, rate / 20.0].map(f64::round);
    assert_eq!([row.median_pps, row.min_pps, row.max_pps], expected);
}

#[test]
fn digits_are_grouped() {
    assert_eq!([0, 999, 1000, 1_234_567].map(table::grouped), ["0", "999", "1,000", "1,234,567"]);
}
