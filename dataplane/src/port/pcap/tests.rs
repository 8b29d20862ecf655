#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::path::PathBuf;

use super::*;
use crate::fib::MacAddress;
use crate::world::{PortPlan, World};

/// A file in memory that several hold.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

/// A capture in one of the four forms.
fn capture(big_endian: bool, nanos: bool, frames: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let word = |v: u32| if big_endian { v.to_be_bytes() } else { v.to_le_bytes() };
    let half = |v: u16| if big_endian { v.to_be_bytes() } else { v.to_le_bytes() };
    let mut file = Vec::new();
    file.extend(word(if nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }));
    file.extend(half(2).into_iter().chain(half(4)));
    [0, 0, 65_535, 1].into_iter().for_each(|v| file.extend(word(v)));
    for (time, bytes) in frames {
        let fraction = time % 1_000_000_000 / if nanos { 1 } else { 1000 };
        let len = bytes.len() as u32;
        [(time / 1_000_000_000) as u32, fraction as u32, len, len].into_iter().for_each(|v| file.extend(word(v)));
        file.extend(bytes);
    }
    file
}

fn reader(bytes: Vec<u8>) -> Result<Reader, PcapError> {
    Reader::new(Box::new(io::Cursor::new(bytes)), &PathBuf::from("test.pcap"))
}

fn all(reader: &mut Reader) -> Result<Vec<(u64, Vec<u8>)>, PcapError> {
    let (mut frames, mut bytes) = (vec![], vec![]);
    while let Some(record) = reader.next(&mut bytes)? {
        frames.push((record.time, bytes.clone()));
    }
    Ok(frames)
}

#[test]
fn all_four_forms_are_read() {
    let frames = vec![(1_700_000_000_123_456_000, vec![1; 60]), (1_700_000_001_000_000_000, vec![2; 9000])];
    for (big_endian, nanos) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut reader = reader(capture(big_endian, nanos, &frames)).unwrap();
        assert_eq!(all(&mut reader).unwrap(), frames);
    }
    let mut reader = reader(capture(false, true, &[(5_000_000_007, vec![3; 14])])).unwrap();
    assert_eq!(all(&mut reader).unwrap()[0].0, 5_000_000_007);
}

#[test]
fn what_is_written_is_read_back() {
    let file = Shared::default();
    let mut writer = Writer::new(Box::new(file.clone()), &PathBuf::from("test.pcap")).unwrap();
    writer.append(7_000_000_009, 5, [&b"ab"[..], b"cde"].into_iter()).unwrap();
    writer.append(8, 1, [&b"x"[..]].into_iter()).unwrap();
    let frames = all(&mut reader(file.bytes()).unwrap()).unwrap();
    assert_eq!(frames, [(7_000_000_009, b"abcde".to_vec()), (8, b"x".to_vec())]);
}

#[test]
fn other_files_are_refused_with_what_to_do() {
    let good = capture(false, true, &[]);
    let changed = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        reader(file).err().expect("refused").to_string()
    };
    assert_eq!(
        changed(0, &[0x0a, 0x0d, 0x0d, 0x0a]),
        "test.pcap: a pcapng file; turn it into pcap with: tcpdump -r FILE -w NEW.pcap"
    );
    assert_eq!(changed(20, &[113]), "test.pcap: link type 113; only Ethernet (1) can be replayed");
    assert!(changed(20, &[1, 0, 0, 0x44]).contains("FCS"));
    assert_eq!(changed(4, &[3]), "test.pcap: pcap version 3.4; only 2.4 is known");
    assert_eq!(changed(0, b"GIF8"), "test.pcap: no pcap file (it begins with 0x47494638)");
    assert!(reader(good[..10].to_vec()).err().unwrap().to_string().contains("within its header"));
    assert!(reader(vec![]).err().unwrap().to_string().contains("too short"));
    let missing = open(PortId(0), Some(std::path::Path::new("/nonexistent/a.pcap")), None, &VirtualClock::default());
    assert!(missing.err().unwrap().to_string().starts_with("/nonexistent/a.pcap: No such file"));
}

#[test]
fn a_bad_record_is_told_with_its_place() {
    let mut file = capture(false, true, &[(1, vec![0; 60]), (2, vec![0; 60])]);
    let second = 24 + 16 + 60;
    for len in second + 1..file.len() {
        let error = all(&mut reader(file[..len].to_vec()).unwrap()).unwrap_err();
        assert_eq!(error.to_string(), "test.pcap: at byte 100: the file ends within a record", "cut at {len}");
    }
    file[second + 4..second + 8].copy_from_slice(&1_000_000_000u32.to_le_bytes());
    assert!(all(&mut reader(file.clone()).unwrap()).unwrap_err().to_string().contains("more than a second"));
    file[second + 8..second + 12].copy_from_slice(&300_000u32.to_le_bytes());
    file[second + 4] = 0;
    assert!(all(&mut reader(file).unwrap()).is_err());
}

/// A UDP packet from port 0's network to 198.19.0.x.
fn udp(last: u8, payload: usize) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 7, 7], [2, 0, 0, 0, 0, 1])
        .ipv4([198, 18, 0, 7], [198, 19, 0, last], 64)
        .udp(1000, 2000);
    let mut bytes = Vec::new();
    builder.write(&mut bytes, &vec![last; payload]).unwrap();
    bytes
}

fn world() -> World {
    let mut world = World::builder()
        .port(PortPlan::new("a").address("198.18.0.1/24".parse().unwrap()))
        .port(PortPlan::new("b").address("198.19.0.1/24".parse().unwrap()))
        .options(|o| o.batch = 64)
        .buffers(256, 64)
        .build()
        .unwrap();
    for last in 2..=5 {
        let mac = Some(MacAddress([2, 0, 0, 0, 9, last]));
        world.table.neighbor_set(PortId(1), std::net::IpAddr::from([198, 19, 0, last]), mac).unwrap();
    }
    world
}

/// Replays a capture into port 0; gives what came out of both ports and the counts of port 0.
fn run(file: Vec<u8>) -> (Vec<u8>, Vec<u8>, Replayed, Result<Counts, PcapError>) {
    let mut world = world();
    let time = world.clock().unwrap().clone();
    let outputs = [Shared::default(), Shared::default()];
    let mut handles = vec![];
    for (i, output) in outputs.iter().enumerate() {
        let writer = Writer::new(Box::new(output.clone()), &PathBuf::from("out.pcap")).unwrap();
        let input = (i == 0).then(|| reader(file.clone()).unwrap());
        let (pair, handle) = queue(PortId(i as u16), input, Some(writer), &time).unwrap();
        world.attach(0, pair);
        handles.push(handle);
    }
    let replayed = replay(world.workers_mut(), &handles, &time, |_| ()).unwrap();
    let closed = world.close();
    assert!(closed.is_exact(), "{closed:?} {:?}", world.totals());
    (outputs[0].bytes(), outputs[1].bytes(), replayed, handles[0].finish())
}

#[test]
fn the_same_capture_gives_the_same_bytes_and_keeps_its_times() {
    let start = 1_700_000_000_000_000_000;
    let mut frames: Vec<_> = (0..500u64).map(|i| (start + i * 1_234_567, udp(2 + (i % 4) as u8, 18))).collect();
    // A burst at one instant, more than a batch; a frame out of order; one without a neighbour, which is asked for and fails.
    frames.extend((0..200).map(|i| (start + 700_000_000, udp(2, i))));
    frames.push((start, udp(3, 0)));
    frames.push((start + 800_000_000, udp(99, 0)));
    let file = capture(false, true, &frames);
    let (a, b, replayed, counts) = run(file.clone());
    assert_eq!((counts.unwrap().read, replayed.start), (702, start));
    let sent: Vec<_> = all(&mut reader(b.clone()).unwrap()).unwrap();
    let forwarded: Vec<_> = sent.iter().filter(|(_, f)| f[12..14] == [8, 0]).collect();
    assert_eq!(forwarded.len(), 701);
    for (i, (time, bytes)) in forwarded.iter().take(500).enumerate() {
        let mut expected = frames[i].1.clone();
        expected[..12].copy_from_slice(&[2, 0, 0, 0, 9, 2 + (i % 4) as u8, 2, 0, 0, 0, 0, 2]);
        expected[22] = 63;
        expected[24..26].copy_from_slice(&bytes[24..26]);
        assert_eq!((*time, &bytes[..]), (frames[i].0, &expected[..]), "frame {i}");
    }
    // A time stamp that goes back does not take the clock with it.
    assert_eq!(forwarded[700].0, start + 700_000_000);
    // The frame without a neighbour: three requests a second apart, then host unreachable to its sender, who has no MAC either.
    let asked: Vec<_> = sent.iter().filter(|(_, f)| f[12..14] == [8, 6]).map(|(t, _)| t - start).collect();
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(replayed.end - start >= 3_800_000_000);
    let again = run(file);
    assert_eq!((again.0, again.1, again.2), (a, b, replayed));
}

#[test]
fn a_capture_that_breaks_off_ends_the_port_and_tells() {
    let mut file = capture(false, false, &[(1_000_000, udp(2, 18)), (2_000_000, udp(3, 18))]);
    file.truncate(file.len() - 1);
    let (_, b, _, counts) = run(file);
    assert_eq!(all(&mut reader(b).unwrap()).unwrap().len(), 1);
    assert!(counts.unwrap_err().to_string().contains("ends within a record"));
}

#[test]
fn frames_of_no_bytes_and_short_ones_are_counted() {
    let mut file = capture(false, true, &[(1, vec![]), (2, udp(2, 18))]);
    // The capture cut the second one short: 40 bytes are there of 60.
    let second = 24 + 16;
    file[second + 8..second + 12].copy_from_slice(&40u32.to_le_bytes());
    file.truncate(second + 16 + 40);
    let (_, b, _, counts) = run(file);
    assert_eq!(counts.unwrap(), Counts { read: 2, cut_short: 1, written: 0 });
    assert_eq!(b.len(), 24);
}

#[test]
fn without_buffers_a_replay_says_so() {
    let mut world = world();
    let time = world.clock().unwrap().clone();
    let input = reader(capture(false, true, &[(5, udp(2, 18))])).unwrap();
    let (pair, handle) = queue(PortId(0), Some(input), None, &time).unwrap();
    world.attach(0, pair);
    let detached = crate::worker::Command::Detach(PortId(0));
    world.command(0, detached);
    // Nobody has the port any more, so there is nothing left to wait for.
    assert_eq!(handle.next_due(), None);
    let input = reader(capture(false, true, &[(5, udp(2, 18))])).unwrap();
    let (_pair, handle) = queue(PortId(0), Some(input), None, &time).unwrap();
    let error = replay(world.workers_mut(), &[handle], &time, |_| ()).unwrap_err();
    assert_eq!(error, ReplayError::Stalled { due: 5 });
}

#[test]
fn files_on_disk_and_tcpdump_reads_them() {
    let directory = std::env::temp_dir().join(format!("ferrule-pcap-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (input, output) = (directory.join("in.pcap"), directory.join("out.pcap"));
    std::fs::write(&input, capture(true, false, &[(1_700_000_000_000_001_000, udp(2, 18))])).unwrap();
    let mut world = world();
    let time = world.clock().unwrap().clone();
    let (a, first) = open(PortId(0), Some(&input), None, &time).unwrap();
    let (b, second) = open(PortId(1), None, Some(&output), &time).unwrap();
    world.attach(0, a);
    world.attach(0, b);
    replay(world.workers_mut(), &[first, second.clone()], &time, |_| ()).unwrap();
    assert!(world.close().is_exact());
    assert_eq!(second.finish().unwrap().written, 1);
    let frames = all(&mut Reader::open(&output).unwrap()).unwrap();
    assert_eq!((frames.len(), frames[0].0), (1, 1_700_000_000_000_001_000));
    match std::process::Command::new("tcpdump").args(["-n", "-tt", "-r"]).arg(&output).output() {
        Ok(run) => {
            let text = String::from_utf8_lossy(&run.stdout);
            assert!(text.contains("1700000000.000001") && text.contains("198.18.0.7.1000 > 198.19.0.2.2000"), "{text}");
        }
        Err(error) => println!("skipped: tcpdump: {error}"),
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
