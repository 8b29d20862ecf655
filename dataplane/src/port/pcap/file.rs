//! The capture file format: classic pcap (draft-ietf-opsawg-pcap; pcap-savefile(5)), read in all four forms, written in one.

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::clock::Nanos;

/// LINKTYPE_ETHERNET.
const ETHERNET: u32 = 1;
/// What tcpdump writes as snap length, and the longest record that is believed.
const SNAP_LENGTH: u32 = 262_144;
const MAGIC_MICROS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
const MAGIC_PCAPNG: u32 = 0x0a0d_0d0a;
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

/// What is wrong with a capture.
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// The file cannot be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another format.
    #[error("{}: {what}", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// What it is, and what to do.
        what: String,
    },
    /// A record makes no sense.
    #[error("{}: at byte {at}: {what}", path.display())]
    Record {
        /// Which file.
        path: PathBuf,
        /// Where the record begins, from the file's start.
        at: u64,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// What stands before a frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it was captured, nanoseconds since 1970.
    pub time: Nanos,
    /// Length on the wire; more than the bytes that are there where the capture cut it short.
    pub wire_len: u32,
}

/// Reads a capture, record by record.
pub struct Reader {
    input: Box<dyn Read + Send>,
    path: PathBuf,
    big_endian: bool,
    nanos: bool,
    at: u64,
}

impl Reader {
    /// Opens a file and checks its header.
    ///
    /// # Errors
    /// When it cannot be read, is no classic pcap file, or its link type is not Ethernet.
    pub fn open(path: &Path) -> Result<Reader, PcapError> {
        let file = File::open(path).map_err(|source| PcapError::Io { path: path.to_owned(), source })?;
        Reader::new(Box::new(BufReader::with_capacity(1 << 16, file)), path)
    }

    /// Reads from anything; `path` is its name in messages.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn new(mut input: Box<dyn Read + Send>, path: &Path) -> Result<Reader, PcapError> {
        let path = path.to_owned();
        let mut header = [0; FILE_HEADER];
        let got = fill(&mut *input, &mut header).map_err(|source| PcapError::Io { path: path.clone(), source })?;
        let refuse = |path, what| Err(PcapError::Format { path, what });
        if got < 4 {
            return refuse(path, "too short for a capture".into());
        }
        let magic = word(&header, 0, true);
        let (big_endian, nanos) = match (magic, magic.swap_bytes()) {
            (MAGIC_MICROS, _) => (true, false),
            (MAGIC_NANOS, _) => (true, true),
            (_, MAGIC_MICROS) => (false, false),
            (_, MAGIC_NANOS) => (false, true),
            (MAGIC_PCAPNG, _) => {
                return refuse(path, "a pcapng file; turn it into pcap with: tcpdump -r FILE -w NEW.pcap".into());
            }
            _ => return refuse(path, format!("no pcap file (it begins with {magic:#010x})")),
        };
        if got < FILE_HEADER {
            return refuse(path, "the file ends within its header".into());
        }
        let (major, minor) = (half(&header, 4, big_endian), half(&header, 6, big_endian));
        if major != 2 || minor != 4 {
            return refuse(path, format!("pcap version {major}.{minor}; only 2.4 is known"));
        }
        let link = word(&header, 20, big_endian);
        // The upper half may say how long the FCS behind each frame is (bit 26 set, length in the top four bits).
        if link & 0xffff != ETHERNET {
            return refuse(path, format!("link type {}; only Ethernet (1) can be replayed", link & 0xffff));
        }
        if link & 1 << 26 != 0 && link >> 28 != 0 {
            return refuse(path, "its frames end in an FCS, which no port here has; capture without it".into());
        }
        Ok(Reader { input, path, big_endian, nanos, at: FILE_HEADER as u64 })
    }

    /// Reads the next frame into `bytes` (its contents are replaced); None at the end of the file.
    ///
    /// # Errors
    /// When reading fails, the file ends within a record, or a record cannot be true.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Result<Option<Record>, PcapError> {
        bytes.clear();
        let mut header = [0; RECORD_HEADER];
        let got = fill(&mut *self.input, &mut header).map_err(|source| self.io(source))?;
        if got == 0 {
            return Ok(None);
        }
        if got < RECORD_HEADER {
            return Err(self.bad("the file ends within a record"));
        }
        let field = |at| word(&header, at, self.big_endian);
        let (seconds, fraction, len, wire_len) = (field(0), field(4), field(8), field(12));
        let unit = if self.nanos { 1 } else { 1000 };
        let fraction = u64::from(fraction) * unit;
        if fraction >= 1_000_000_000 {
            return Err(self.bad("a fraction of a second that is more than a second"));
        }
        if len > SNAP_LENGTH {
            return Err(self.bad("a record longer than 262144 bytes"));
        }
        bytes.resize(len as usize, 0);
        let got = fill(&mut *self.input, bytes).map_err(|source| self.io(source))?;
        if got < bytes.len() {
            return Err(self.bad("the file ends within a record"));
        }
        self.at += RECORD_HEADER as u64 + u64::from(len);
        Ok(Some(Record { time: u64::from(seconds) * 1_000_000_000 + fraction, wire_len }))
    }

    fn io(&self, source: io::Error) -> PcapError {
        PcapError::Io { path: self.path.clone(), source }
    }

    fn bad(&self, what: &'static str) -> PcapError {
        PcapError::Record { path: self.path.clone(), at: self.at, what }
    }
}

/// Writes a capture: nanoseconds, little-endian, Ethernet.
pub struct Writer {
    output: Box<dyn Write + Send>,
    path: PathBuf,
}

impl Writer {
    /// Makes the file, or empties it, and writes its header.
    ///
    /// # Errors
    /// When it cannot be made or written.
    pub fn create(path: &Path) -> Result<Writer, PcapError> {
        let file = File::create(path).map_err(|source| PcapError::Io { path: path.to_owned(), source })?;
        Writer::new(Box::new(BufWriter::with_capacity(1 << 16, file)), path)
    }

    /// Writes to anything; `path` is its name in messages.
    ///
    /// # Errors
    /// As [`Writer::create`].
    pub fn new(output: Box<dyn Write + Send>, path: &Path) -> Result<Writer, PcapError> {
        let mut writer = Writer { output, path: path.to_owned() };
        let mut header = [0; FILE_HEADER];
        header[..4].copy_from_slice(&MAGIC_NANOS.to_le_bytes());
        header[4] = 2;
        header[6] = 4;
        header[16..20].copy_from_slice(&SNAP_LENGTH.to_le_bytes());
        header[20..].copy_from_slice(&ETHERNET.to_le_bytes());
        writer.write(&header).map_err(|source| writer.error(source))?;
        Ok(writer)
    }

    /// Appends a frame given in pieces of `len` bytes together.
    ///
    /// # Errors
    /// When writing fails.
    pub fn append<'a>(
        &mut self,
        time: Nanos,
        len: usize,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), PcapError> {
        let mut header = [0; RECORD_HEADER];
        // The field has 32 bits; it overflows in 2106.
        header[..4].copy_from_slice(&((time / 1_000_000_000) as u32).to_le_bytes());
        header[4..8].copy_from_slice(&((time % 1_000_000_000) as u32).to_le_bytes());
        header[8..12].copy_from_slice(&(len as u32).to_le_bytes());
        header[12..].copy_from_slice(&(len as u32).to_le_bytes());
        self.write(&header).map_err(|source| self.error(source))?;
        for piece in pieces {
            self.write(piece).map_err(|source| self.error(source))?;
        }
        Ok(())
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// When writing fails.
    pub fn flush(&mut self) -> Result<(), PcapError> {
        self.output.flush().map_err(|source| self.error(source))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes)
    }

    fn error(&self, source: io::Error) -> PcapError {
        PcapError::Io { path: self.path.clone(), source }
    }
}

/// Reads until `bytes` is full or the input ends; returns how many bytes there were.
fn fill(input: &mut dyn Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match input.read(&mut bytes[done..]) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn word(bytes: &[u8], at: usize, big_endian: bool) -> u32 {
    let b = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    if big_endian { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) }
}

fn half(bytes: &[u8], at: usize, big_endian: bool) -> u16 {
    let b = [bytes[at], bytes[at + 1]];
    if big_endian { u16::from_be_bytes(b) } else { u16::from_le_bytes(b) }
}
