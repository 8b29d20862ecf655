#![forbid(unsafe_code)]

use super::*;
use crate::ipfw::command::CommandLine;
use crate::ipfw::dummynet::{CodelParameters, FqParameters};

fn read(kind: DummynetKind, text: &str) -> Result<ParsedConfig, Failure> {
    let line = CommandLine::from_line(text);
    let read_file = |name: &str| match name {
        "lan" => {
            Ok("name x\nsamples 10\nloss-level 0.9\nprob delay\n0 100\n0.5 100\n0.5 200 # jump\n1 700\n".to_owned())
        }
        "bad" => Ok("samples 10\nprob\n".to_owned()),
        _ => Err("No such file or directory".to_owned()),
    };
    let context = ShaperContext { slot_limit: 100, byte_limit: 1 << 20, read_file: &read_file };
    parse(kind, 7, &line.words, line.end(), &context)
}

fn pipe(text: &str) -> PipeConfig {
    match read(DummynetKind::Pipe, text).unwrap().config {
        DummynetConfig::Pipe(pipe) => pipe,
        other => panic!("{other:?}"),
    }
}

fn bad(kind: DummynetKind, text: &str) -> (u8, String) {
    read(kind, text).map_err(|failure| (failure.exit, failure.message)).unwrap_err()
}

#[test]
fn bandwidth_has_every_unit() {
    for (text, bits) in [
        ("300Kbit/s", 300_000),
        ("10Mbit/s", 10_000_000),
        ("10MBit/s", 10_000_000),
        ("1GBit/s", 1_000_000_000),
        ("10Gbit/s", 10_000_000_000),
        ("1MByte/s", 8_000_000),
        ("1Mbyte/s", 8_000_000),
        ("64KB", 512_000),
        ("0", 0),
        ("9600", 9600),
    ] {
        assert_eq!(pipe(&format!("bw {text}")).bandwidth, bits, "{text}");
    }
    assert_eq!(bad(DummynetKind::Pipe, "bw tun0"), (1, "no if support".into()));
    assert_eq!(bad(DummynetKind::Queue, "bw 1M"), (64, "bw is only for links".into()));
}

#[test]
fn a_pipe_in_full() {
    let pipe = pipe(
        "bw 1Mbit/s delay 50 plr 0.1 queue 20KBytes burst 10k mask src-ip 0xffffffff dst-port 0x00ff buckets 256 noerror gred 0.002/5/15/0.1",
    );
    assert_eq!((pipe.number, pipe.delay_ms, pipe.burst), (7, 50, 10_240));
    let queue = &pipe.queue;
    assert_eq!(
        (queue.size, queue.loss_rate, queue.buckets, queue.no_error),
        (QueueSize::Bytes(20_480), 0.1, 256, true)
    );
    assert_eq!(queue.mask, FlowMask { source4: u32::MAX, destination_port: 0xff, ..FlowMask::NONE });
    let red = RedParameters { weight: 0.002, minimum: 5, maximum: 15, probability: 0.1, ecn: false };
    assert_eq!(queue.management, QueueManagement::Gred(red));
    assert_eq!(pipe.scheduler, None);
}

#[test]
fn masks_of_every_field() {
    let mask = |text: &str| pipe(&format!("mask {text}")).queue.mask;
    assert_eq!(mask("all").extra, 0);
    assert_eq!(mask("all").destination6, Ipv6Addr::from(u128::MAX));
    assert_eq!(mask("src-ip /32 dst-ip /8 proto 0xff").destination4, 0xff);
    assert_eq!(mask("src-ip6 /64 flow-id 0xfffff").source6, "ffff:ffff:ffff:ffff::".parse::<Ipv6Addr>().unwrap());
    assert_eq!(mask("queue").extra, u32::MAX);
    assert_eq!(bad(DummynetKind::Pipe, "mask src-port 0x10000").1, "port mask must be 16 bit");
    assert_eq!(bad(DummynetKind::Pipe, "mask flow-id 0x100000").1, "flow_id mask must be 20 bit");
    assert_eq!(bad(DummynetKind::Pipe, "mask src-ip"), (64, "mask: value missing".into()));
}

use std::net::Ipv6Addr;

#[test]
fn queues_and_schedulers() {
    let parsed = read(DummynetKind::Queue, "sched 3 weight 50 codel target 8ms ecn").unwrap();
    let DummynetConfig::Queue(queue) = parsed.config else { panic!() };
    assert_eq!((queue.number, queue.scheduler, queue.weight), (7, 3, 50));
    let codel = CodelParameters { target_us: 8_000, interval_us: 100_000, ecn: true };
    assert_eq!(queue.queue.management, QueueManagement::Codel(codel));

    let parsed = read(DummynetKind::Scheduler, "pipe 1 type fq_codel quantum 300 limit 600 flows 64 noecn").unwrap();
    let DummynetConfig::Scheduler(scheduler) = parsed.config else { panic!() };
    assert_eq!(scheduler.pipe, Some(1));
    let fq = FqParameters { quantum: 300, limit: 600, flows: 64 };
    let codel = CodelParameters { target_us: 5_000, interval_us: 100_000, ecn: false };
    assert_eq!(scheduler.parameters.kind, SchedulerKind::FqCodel(fq, codel));

    for (name, kind) in [
        ("fifo", SchedulerKind::Fifo),
        ("WF2Q+", SchedulerKind::Wf2qPlus),
        ("qfq", SchedulerKind::Qfq),
        ("rr", SchedulerKind::RoundRobin),
        ("prio", SchedulerKind::Priority),
    ] {
        let DummynetConfig::Scheduler(scheduler) =
            read(DummynetKind::Scheduler, &format!("type {name}")).unwrap().config
        else {
            panic!()
        };
        assert_eq!(scheduler.parameters.kind, kind, "{name}");
    }
}

#[test]
fn errors_have_the_originals_words_and_codes() {
    let pipe = DummynetKind::Pipe;
    assert_eq!(bad(pipe, "delay 10001"), (65, "delay must be < 10000".into()));
    assert_eq!(bad(pipe, "queue 101"), (65, "2 <= queue size <= 100".into()));
    assert_eq!(bad(pipe, "queue 2M"), (65, "queue size must be < 1048576B".into()));
    assert_eq!(bad(pipe, "ecn"), (64, "ECN can be used with red/gred/codel/fq_codel only!".into()));
    assert_eq!(bad(pipe, "red 0.1/10/5/0.5").1, "min_th 10 must be < than max_th 5");
    assert_eq!(bad(pipe, "red 2/10/5/0.5").1, "0 < w_q <= 1");
    assert_eq!(bad(pipe, "codel quantum 1").1, "quantum is not for codel");
    assert_eq!(bad(pipe, "codel target x").1, "target needs time");
    assert_eq!(bad(pipe, "burst 1z").1, "burst: invalid argument");
    assert_eq!(bad(DummynetKind::Queue, "type rr").1, "type is only for schedulers");
    let failure = read(pipe, "dealy 10").unwrap_err();
    assert_eq!((failure.exit, failure.hint.as_deref()), (65, Some("did you mean `delay`?")));
}

#[test]
fn a_profile_is_read_and_interpolated() {
    let profile = pipe("profile lan").profile.unwrap();
    assert_eq!((profile.name.as_str(), profile.loss_level), ("x", 0.9));
    assert_eq!(profile.samples_ms, [100, 100, 100, 100, 100, 200, 300, 400, 500, 600]);
    assert_eq!(bad(DummynetKind::Pipe, "profile bad").1, "error in bad at line 2: missing arg for prob");
    assert_eq!(bad(DummynetKind::Pipe, "profile none"), (69, "fopen: none: No such file or directory".into()));
}
