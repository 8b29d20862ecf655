//! A file of bounded size: full, it is put aside as `NAME.0`, the older ones move up, and the oldest goes.

#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Opens a log file; with `aside`, the one that is there is put aside first. The privileged helper does this for a daemon that may not.
///
/// # Errors
/// Those of the file system.
pub fn open(path: &Path, aside: bool, keep: u32) -> io::Result<File> {
    if aside {
        put_aside(path, keep)?;
    }
    // A link in the way would lead the log elsewhere.
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

fn put_aside(path: &Path, keep: u32) -> io::Result<()> {
    let missing_is_fine = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    };
    let Some(last) = keep.checked_sub(1) else { return missing_is_fine(fs::remove_file(path)) };
    for number in (0..last).rev() {
        missing_is_fine(fs::rename(numbered(path, number), numbered(path, number + 1)))?;
    }
    missing_is_fine(fs::rename(path, numbered(path, 0)))
}

/// Whoever opens files: path, and whether the one that is there is put aside.
pub type Opener = Box<dyn FnMut(&Path, bool) -> io::Result<File> + Send>;

/// A file that is written until it is full.
pub struct Bounded {
    path: PathBuf,
    file: Option<File>,
    size: u64,
    most: u64,
    /// What every file begins with.
    head: &'static [u8],
}

impl Bounded {
    /// A file of at most `most` bytes.
    pub fn new(path: PathBuf, most: u64, head: &'static [u8]) -> Bounded {
        Bounded { path, file: None, size: 0, most, head }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends, in a new file where this one would become too long.
    ///
    /// # Errors
    /// Those of the file system; the bytes are lost then, and the next are tried on a file that is opened anew.
    pub fn write(&mut self, bytes: &[u8], open: &mut Opener) -> io::Result<()> {
        let full = self.file.is_some() && self.size + bytes.len() as u64 > self.most;
        if full || self.file.is_none() {
            self.begin(full, open)?;
            // What an earlier run left may be full already.
            if self.size > self.head.len() as u64 && self.size + bytes.len() as u64 > self.most {
                self.begin(true, open)?;
            }
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        if let Err(error) = file.write_all(bytes) {
            self.file = None;
            return Err(error);
        }
        self.size += bytes.len() as u64;
        Ok(())
    }

    fn begin(&mut self, aside: bool, open: &mut Opener) -> io::Result<()> {
        self.file = None;
        let mut file = open(&self.path, aside)?;
        self.size = file.metadata()?.len();
        if self.size == 0 {
            file.write_all(self.head)?;
            self.size = self.head.len() as u64;
        }
        self.file = Some(file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_put_aside_and_the_oldest_goes() {
        let directory = std::env::temp_dir().join(format!("ferrule-bounded-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("log");
        let mut opener: Opener = Box::new(|path, aside| open(path, aside, 2));
        let mut log = Bounded::new(path.clone(), 24, b"head");
        for number in 0..7 {
            log.write(format!("line {number:04}\n").as_bytes(), &mut opener).unwrap();
        }
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        assert_eq!(read(&path), "headline 0006\n");
        assert_eq!(read(&numbered(&path, 0)), "headline 0004\nline 0005\n");
        assert_eq!(read(&numbered(&path, 1)), "headline 0002\nline 0003\n");
        assert_eq!(read(&numbered(&path, 2)), "", "only two are kept");
        // A file of an earlier run goes on.
        Bounded::new(path.clone(), 24, b"head").write(b"more\n", &mut opener).unwrap();
        assert_eq!(read(&path), "headline 0006\nmore\n");
        std::os::unix::fs::symlink("/dev/null", directory.join("link")).unwrap();
        assert!(open(&directory.join("link"), false, 2).is_err(), "no link is followed");
        fs::remove_dir_all(&directory).unwrap();
    }
}
