//! Children with a time limit: run to the end, or in the background with a log, never leaked.
//!
//! Output goes to files in memory rather than pipes, so that a child which leaves its own children behind can neither
//! block us nor fill a pipe. Each child leads a process group, which is what is killed.
#![forbid(unsafe_code)]

use super::error::LabError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A child that ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The command line, for messages.
    pub what: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Finished {
    /// Itself if the child succeeded, else an error with its output.
    ///
    /// # Errors
    /// [`LabError::Command`] when the status is not zero.
    pub fn success(self) -> Result<Finished, LabError> {
        if self.status.success() {
            return Ok(self);
        }
        let output = format!("{}{}", self.stderr, self.stdout).trim().to_string();
        Err(LabError::Command { what: self.what, status: self.status.to_string(), output })
    }
}

/// The command line of `command`, for messages.
pub fn describe(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

/// Runs `command` to its end with `input` as its standard input, for at most `limit`.
///
/// # Errors
/// [`LabError::MissingTool`], [`LabError::Timeout`] (the child's group is killed) or [`LabError::Io`]; a child that
/// ends with a failure is no error here, see [`Finished::success`].
pub fn run(command: &mut Command, input: &[u8], limit: Duration) -> Result<Finished, LabError> {
    let what = describe(command);
    let mut stdout = memory_file(&what)?;
    let mut stderr = memory_file(&what)?;
    let mut stdin = memory_file(&what)?;
    stdin.write_all(input).and_then(|()| stdin.rewind()).map_err(|e| LabError::io(&what, e))?;
    command.stdin(stdin).stdout(share(&stdout, &what)?).stderr(share(&stderr, &what)?).process_group(0);
    let mut child = command.spawn().map_err(|e| spawn_error(command, e))?;
    let status = wait_child(&mut child, limit).map_err(|e| LabError::io(&what, e))?;
    let stdout_text = read_all(&mut stdout);
    let stderr_text = read_all(&mut stderr);
    match status {
        Some(status) => Ok(Finished { what, status, stdout: stdout_text, stderr: stderr_text }),
        None => {
            kill_group(&mut child);
            Err(LabError::Timeout { what, limit, output: format!("{stderr_text}{stdout_text}") })
        }
    }
}

fn memory_file(what: &str) -> Result<File, LabError> {
    memfd_create("ferrule-lab", MemfdFlags::CLOEXEC).map(File::from).map_err(|e| LabError::io(what, e))
}

fn share(file: &File, what: &str) -> Result<Stdio, LabError> {
    file.try_clone().map(Stdio::from).map_err(|e| LabError::io(what, e))
}

fn read_all(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // A memory file cannot fail to be read; were it to, an empty output is judged by the caller's parser.
    let _ = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn spawn_error(command: &Command, error: std::io::Error) -> LabError {
    if error.kind() == std::io::ErrorKind::NotFound {
        super::tools::missing(&command.get_program().to_string_lossy())
    } else {
        LabError::io(describe(command), error)
    }
}

/// Waits until the child ends (its status) or the time is over (`None`), sleeping in the kernel on its pidfd.
fn wait_child(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Kills the child's group and reaps the child. The group is gone already if the child was the last of it.
fn kill_group(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.wait();
}

/// A child in the background. Dropping it kills it and all of its process group.
#[derive(Debug)]
pub struct Background {
    what: String,
    child: Option<Child>,
    log: PathBuf,
}

impl Background {
    /// Starts `command` with both outputs going to the file `log`.
    ///
    /// # Errors
    /// [`LabError::MissingTool`] or [`LabError::Io`].
    pub fn start(command: &mut Command, log: &Path) -> Result<Background, LabError> {
        let what = describe(command);
        let file = File::create(log).map_err(|e| LabError::io(format!("creating {}", log.display()), e))?;
        command.stdin(Stdio::null()).stdout(share(&file, &what)?).stderr(share(&file, &what)?).process_group(0);
        let child = command.spawn().map_err(|e| spawn_error(command, e))?;
        Ok(Background { what, child: Some(child), log: log.to_path_buf() })
    }

    /// The process id (`None` after it ended or was given away).
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The command line.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// All that it has written so far.
    pub fn log(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// An error with the log if it has ended; to be asked while waiting for something that it should do.
    ///
    /// # Errors
    /// [`LabError::Command`] when it no longer runs.
    pub fn check(&mut self) -> Result<(), LabError> {
        let status = match self.child.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => return Ok(()),
            Some(Ok(Some(status))) => status.to_string(),
            Some(Err(error)) => error.to_string(),
            None => "ended before".to_string(),
        };
        Err(LabError::Command { what: self.what.clone(), status, output: self.log() })
    }

    /// Sends one signal to the process (not to its group).
    ///
    /// # Errors
    /// [`LabError::Io`] when there is no such process any more.
    pub fn signal(&self, signal: Signal) -> Result<(), LabError> {
        let gone = || LabError::Request(format!("{} has ended", self.what));
        let child = self.child.as_ref().ok_or_else(gone)?;
        rustix::process::kill_process(Pid::from_child(child), signal).map_err(|e| LabError::io(&self.what, e))
    }

    /// Waits for its end by itself; the status and the log.
    ///
    /// # Errors
    /// [`LabError::Timeout`]: it is killed then.
    pub fn wait(mut self, limit: Duration) -> Result<(ExitStatus, String), LabError> {
        let Some(mut child) = self.child.take() else {
            return Err(LabError::Request(format!("{} has ended", self.what)));
        };
        match wait_child(&mut child, limit) {
            Ok(Some(status)) => Ok((status, self.log())),
            Ok(None) => {
                kill_group(&mut child);
                Err(LabError::Timeout { what: self.what.clone(), limit, output: self.log() })
            }
            Err(error) => {
                kill_group(&mut child);
                Err(LabError::io(&self.what, error))
            }
        }
    }

    /// Asks it to end (SIGTERM), and waits as [`Background::wait`] does.
    ///
    /// # Errors
    /// As [`Background::wait`].
    pub fn stop(self, limit: Duration) -> Result<(ExitStatus, String), LabError> {
        // Already gone is what is wanted; wait() tells the status.
        let _ = self.signal(Signal::TERM);
        self.wait(limit)
    }

    /// Kills it at once with its group (SIGKILL), as a crash would.
    pub fn kill(mut self) {
        if let Some(mut child) = self.child.take() {
            kill_group(&mut child);
        }
    }

    /// Lets it run on after us; the lab's `down` ends it, because it lives in the lab's namespace.
    pub fn detach(mut self) -> Option<u32> {
        self.child.take().map(|child| child.id())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            kill_group(&mut child);
        }
    }
}

/// Polls `probe` until it gives a value, an error, or `limit` is over. `probe` returns `Err(text)` inside the `Ok` while
/// the condition does not hold; the text says what was seen instead.
///
/// # Errors
/// Whatever `probe` returns, and [`LabError::NotReached`] with the last observation.
pub fn wait_until<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Result<T, String>, LabError>,
) -> Result<T, LabError> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        let last = match probe()? {
            Ok(value) => return Ok(value),
            Err(last) => last,
        };
        if start.elapsed() >= limit {
            return Err(LabError::NotReached { what: what.to_string(), limit, last });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_input_pass_through() {
        let done =
            run(Command::new("sh").args(["-c", "cat; echo oops >&2; exit 3"]), b"hello", Duration::from_secs(10));
        let done = done.unwrap();
        assert_eq!((done.stdout.as_str(), done.stderr.as_str(), done.status.code()), ("hello", "oops\n", Some(3)));
        let error = done.success().unwrap_err().to_string();
        assert!(error.contains("oops") && error.contains("hello"), "{error}");
    }

    #[test]
    fn a_child_over_its_time_is_killed_with_its_children() {
        let script = "echo started; sleep 1000 & echo $!; wait";
        let error = run(Command::new("sh").args(["-c", script]), b"", Duration::from_millis(300)).unwrap_err();
        let LabError::Timeout { output, .. } = error else { panic!("{error}") };
        let grandchild = output.lines().nth(1).expect("the pid of the sleep").to_string();
        let gone = wait_until("the grandchild's end", Duration::from_secs(5), || {
            let stat = std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
            Ok(if stat.is_empty() || stat.contains(") Z ") { Ok(()) } else { Err(stat) })
        });
        gone.unwrap();
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = run(&mut Command::new("iperf3-no-such"), b"", Duration::from_secs(1)).unwrap_err();
        assert!(error.to_string().contains("iperf3-no-such is not installed"), "{error}");
    }

    #[test]
    fn dropping_a_background_child_kills_it() {
        let log = std::env::temp_dir().join(format!("ferrule-lab-test-{}.log", std::process::id()));
        let mut child = Background::start(Command::new("sleep").arg("1000"), &log).unwrap();
        let id = child.id().unwrap();
        assert!(child.is_running());
        drop(child);
        assert!(!Path::new(&format!("/proc/{id}")).exists(), "reaped, so no zombie either");
        std::fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_condition_that_never_holds_reports_what_was_seen() {
        let error = wait_until::<()>("rain", Duration::from_millis(20), || Ok(Err("sun".to_string()))).unwrap_err();
        assert!(error.to_string().contains("rain") && error.to_string().contains("sun"), "{error}");
    }
}
