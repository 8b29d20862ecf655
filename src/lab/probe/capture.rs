//! Captures: tcpdump writes them, this reads them back, and tshark says what it makes of them.
#![forbid(unsafe_code)]

use crate::lab::process::{run, wait_until};
use crate::lab::{Background, Host, LabError};
use rustix::process::Signal;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A running capture.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Background,
    file: PathBuf,
}

/// A captured frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedFrame {
    /// Microseconds since 1970.
    pub time_us: u64,
    /// The bytes from the destination MAC on, VLAN tags in place.
    pub bytes: Vec<u8>,
}

/// A finished capture.
#[derive(Debug)]
pub struct Captured {
    /// The pcap file, in the lab's scratch directory.
    pub file: PathBuf,
    /// The frames in the order they were seen.
    pub frames: Vec<CapturedFrame>,
}

impl Capture {
    /// Captures on a device of `host` what `filter` (pcap-filter(7), may be empty) lets through, and returns when it
    /// is listening.
    ///
    /// # Errors
    /// [`LabError::MissingTool`], tcpdump's own message.
    pub fn start(host: &Host, device: &str, filter: &str) -> Result<Capture, LabError> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let file = host.scratch().join(format!("{}-{device}-{number}.pcap", host.name()));
        // As root: it would otherwise give up the right to write into the scratch directory.
        let path = file.to_string_lossy().into_owned();
        let words = ["tcpdump", "-i", device, "-w", &path, "-U", "-n", "-Z", "root", "--immediate-mode", filter];
        let words = if filter.is_empty() { &words[..words.len() - 1] } else { &words };
        let mut tcpdump = host.spawn(words)?;
        wait_until("tcpdump to listen", Duration::from_secs(10), || {
            tcpdump.check()?;
            let log = tcpdump.log();
            Ok(if log.contains("listening on") { Ok(()) } else { Err(log) })
        })?;
        Ok(Capture { tcpdump, file })
    }

    /// The frames captured so far.
    ///
    /// # Errors
    /// [`LabError::Io`], [`LabError::Output`] when it is no pcap file.
    pub fn frames(&self) -> Result<Vec<CapturedFrame>, LabError> {
        let bytes = fs::read(&self.file).map_err(|e| LabError::io(format!("reading {}", self.file.display()), e))?;
        read_pcap(&bytes).map_err(|reason| LabError::output("tcpdump", reason, ""))
    }

    /// Waits until at least `count` frames are there, then ends the capture.
    ///
    /// # Errors
    /// [`LabError::NotReached`] and those of [`Capture::stop`].
    pub fn stop_after(self, count: usize, limit: Duration) -> Result<Captured, LabError> {
        wait_until(&format!("{count} captured frames"), limit, || {
            let have = self.frames()?.len();
            Ok(if have >= count { Ok(()) } else { Err(format!("{have} frames")) })
        })?;
        self.stop()
    }

    /// Ends the capture and reads it.
    ///
    /// # Errors
    /// [`LabError::Timeout`], [`LabError::Output`].
    pub fn stop(self) -> Result<Captured, LabError> {
        self.tcpdump.signal(Signal::INT)?;
        let (status, log) = self.tcpdump.wait(Duration::from_secs(10))?;
        if !status.success() {
            return Err(LabError::Command { what: "tcpdump".to_string(), status: status.to_string(), output: log });
        }
        let bytes = fs::read(&self.file).map_err(|e| LabError::io(format!("reading {}", self.file.display()), e))?;
        let frames = read_pcap(&bytes).map_err(|reason| LabError::output("tcpdump", reason, &log))?;
        Ok(Captured { file: self.file, frames })
    }
}

impl Captured {
    /// The named fields of every frame as tshark dissects them, one row a frame: `["ip.src", "ip.ttl"]`. Checksums are
    /// verified, so that `ip.checksum.status` and `tcp.checksum.status` tell (1 good, 0 bad).
    ///
    /// # Errors
    /// [`LabError::MissingTool`], tshark's own message.
    pub fn fields(&self, fields: &[&str]) -> Result<Vec<Vec<String>>, LabError> {
        let mut command = Command::new(crate::lab::tools::find("tshark")?);
        command.arg("-n").arg("-r").arg(&self.file).args(["-T", "fields", "-E", "separator=/t"]);
        for check in ["ip.check_checksum", "tcp.check_checksum", "udp.check_checksum"] {
            command.args(["-o", &format!("{check}:TRUE")]);
        }
        for field in fields {
            command.args(["-e", field]);
        }
        let done = run(&mut command, b"", Duration::from_secs(60))?.success()?;
        Ok(done.stdout.lines().map(|line| line.split('\t').map(str::to_string).collect()).collect())
    }
}

/// Reads a classic pcap file of either byte order with Ethernet frames (pcap-savefile(5)). A frame that is not fully
/// written yet ends the list.
fn read_pcap(bytes: &[u8]) -> Result<Vec<CapturedFrame>, String> {
    let mut frames = Vec::new();
    if bytes.is_empty() {
        return Ok(frames);
    }
    let header = bytes.get(..24).ok_or("a pcap header of less than 24 bytes")?;
    let magic: [u8; 4] = [header[0], header[1], header[2], header[3]];
    let word: fn([u8; 4]) -> u32 = match u32::from_le_bytes(magic) {
        0xa1b2_c3d4 => u32::from_le_bytes,
        0xd4c3_b2a1 => u32::from_be_bytes,
        other => return Err(format!("magic number {other:08x}")),
    };
    let at = |bytes: &[u8], offset: usize| word(bytes[offset..offset + 4].try_into().expect("four bytes"));
    if at(header, 20) & 0xffff != 1 {
        return Err(format!("link type {}, not Ethernet", at(header, 20)));
    }
    let mut rest = &bytes[24..];
    while let Some(record) = rest.get(..16) {
        let (captured, length) = (at(record, 8) as usize, at(record, 12) as usize);
        if captured != length {
            return Err(format!("a frame of {length} bytes was cut to {captured}"));
        }
        let Some(bytes) = rest.get(16..16 + captured) else { break };
        let time_us = u64::from(at(record, 0)) * 1_000_000 + u64::from(at(record, 4));
        frames.push(CapturedFrame { time_us, bytes: bytes.to_vec() });
        rest = &rest[16 + captured..];
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_both_byte_orders_are_read() {
        for order in [u32::to_le_bytes, u32::to_be_bytes] {
            let words = [0xa1b2_c3d4, 0x0002_0004, 0, 0, 262_144, 1, 7, 5, 3, 3];
            let mut file = words.map(order).concat();
            file.extend(b"abc");
            let whole = CapturedFrame { time_us: 7_000_005, bytes: b"abc".to_vec() };
            assert_eq!(read_pcap(&file).unwrap(), [whole]);
            assert_eq!(read_pcap(&file[..file.len() - 1]).unwrap(), [], "not yet fully written");
        }
        assert!(read_pcap(&[0; 24]).is_err());
        assert_eq!(read_pcap(&[]).unwrap(), []);
    }
}
