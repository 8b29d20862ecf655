use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: PktGenArgs,
}

fn args(line: &str) -> PktGenArgs {
    Line::try_parse_from(format!("pkt-gen {line}").split_whitespace()).unwrap().args
}

struct NoDevices;

impl Opener for NoDevices {
    fn open(&self, wanted: &Wanted<'_>) -> Result<Opened, Failure> {
        Err(Failure::input(format!("no device {}", wanted.device)))
    }
}

fn run_json(line: &str) -> Result<Vec<serde_json::Value>, Failure> {
    let mut out = Vec::new();
    run(&args(line), true, &NoDevices, &mut out)?;
    Ok(String::from_utf8(out).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect())
}

#[test]
fn interfaces_name_their_driver() {
    assert_eq!(interface("eth0"), Ok((Driver::Auto, "eth0")));
    assert_eq!(interface("xdp:eth0"), Ok((Driver::Xdp, "eth0")));
    assert_eq!(interface("packet:wan"), Ok((Driver::Packet, "wan")));
    assert_eq!(interface("netmap:ix0"), Ok((Driver::Netmap, "ix0")));
    assert_eq!(interface("null"), Ok((Driver::Null, "null")));
    for bad in ["pcap:eth0", "xdp:", "", "a-name-of-16-char"] {
        assert!(interface(bad).is_err(), "{bad}");
    }
}

#[test]
fn bad_arguments_say_which() {
    for (line, word) in [
        ("-i eth0 -f tx -l 30", "-l: 30 is not between 42"),
        ("-i eth0 -f tx -6 -l 60", "-l: 60 is not between 62"),
        ("-i eth0 -f ping -l 50", "-l: 50 is not between 54"),
        ("-i eth0 -f tx -l 60 -l 70", "above the first"),
        ("-i eth0 -f tx -l 70 -l 65 -l 60", "at most two"),
        ("-i eth0 -f tx -b 0", "-b: 0"),
        ("-i eth0 -f tx -d 10.0.0.300", "-d: `10.0.0.300`"),
        ("-i eth0 -f tx -6 -s 10.0.0.1", "-s: `10.0.0.1` is an IPv4"),
        ("-i eth0 -f pong -p 2", "one thread"),
        ("-i bogus:eth0 -f tx", "-i: `bogus:`"),
        ("-i eth0 -f tx", "no device eth0"),
    ] {
        let Err(Failure::Input(text)) = run_json(line) else { panic!("{line}") };
        assert!(text.contains(word), "{line}: {text}");
    }
}

#[test]
fn several_threads_send_exactly_the_count() {
    let lines = run_json("-i null -f tx -n 100001 -p 3 -w 0 -l 60 -T 10").unwrap();
    let last = lines.last().unwrap();
    assert_eq!((last["function"].as_str(), last["driver"].as_str()), (Some("tx"), Some("null")));
    assert_eq!(
        (last["summary"]["packets"].as_u64(), last["summary"]["bytes"].as_u64()),
        (Some(100_001), Some(6_000_060))
    );
    assert_eq!(last["lost"], 0);
    let reported: u64 = lines[..lines.len() - 1].iter().map(|l| l["interval"]["packets"].as_u64().unwrap()).sum();
    assert!(reported <= 100_001);
}

#[test]
fn text_output_ends_as_pkt_gens_does() {
    let mut out = Vec::new();
    run(&args("-i null -f tx -n 1000 -w 0 -N -s 10.0.0.1:5 -D 02:00:00:00:00:02"), false, &NoDevices, &mut out)
        .unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "Sending on null: 1 queues, 1 threads and 1 cpus.");
    assert_eq!(lines[1], "10.0.0.1:5 -> 10.1.0.1 (02:00:00:00:00:01 -> 02:00:00:00:00:02)");
    assert!(lines[2].starts_with("Sent 1000 packets 60000 bytes 2 events 60 bytes each in 0.0"), "{text}");
    assert!(lines[3].starts_with("Speed: ") && lines[3].ends_with("Average batch: 500.00 pkts"), "{text}");
}

#[test]
fn rates_hold_in_real_time_roughly() {
    // Wall time only bounds from above here: a loaded machine is slower, never faster.
    let begin = std::time::Instant::now();
    let lines = run_json("-i null -f tx -n 300 -R 1000 -w 0").unwrap();
    assert_eq!(lines.last().unwrap()["summary"]["packets"], 300);
    assert!(begin.elapsed() >= Duration::from_millis(290));
}
