//! Runs the user's script: `sh FILE ARGUMENTS`, with a private directory first in its PATH whose `ipfw`, `sysctl` ... are this program,
//! and gives back the rule set that its commands come to, or everything that is wrong with them.
//!
//! How a script reaches us: by name (`ipfw`) through PATH; by a full name (`/sbin/ipfw`, as `fwcmd="/sbin/ipfw"` of rc.firewall) through
//! a link that the administrator made there, or, where there is no such program, because the script is run from a copy in which the
//! full name is cut to its last part (the lines stay, `$0` is the script's own name).
//!
//! Bounded: in time, in output, and in the size of one message; the script's process group ends with it.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ferrule_config::ipfw::document::RuleSet;
use ferrule_config::ipfw::language::Hosts;
use ferrule_config::ipfw::names::Names;
use ferrule_config::{Color, Diagnostic, Source, render_all};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use super::call::{Call, PROGRAMS, SOCKET_VARIABLE, receive, send};
use super::locate::Located;
use super::session::{FailedCommand, Session};

/// How long a script may run where nothing else is said.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);
/// How much a script may print.
pub const OUTPUT_LIMIT: u64 = 16 << 20;
/// Longest script.
const SCRIPT_LIMIT: u64 = 64 << 20;
/// How long a program of the script may take to hand over its arguments.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Errors shown.
const ERRORS_SHOWN: usize = 30;

/// Where programs live that scripts name in full.
const FOLDERS: [&str; 4] = ["/sbin/", "/usr/sbin/", "/bin/", "/usr/bin/"];

/// Variables that FreeBSD's rc(8) hands to rc.firewall, with the values of its defaults/rc.conf.
pub const RC_DEFAULTS: [(&str, &str); 24] = [
    ("ipv6_available", "0"),
    ("firewall_enable", "YES"),
    ("firewall_type", "UNKNOWN"),
    ("firewall_quiet", "NO"),
    ("firewall_logging", "NO"),
    ("firewall_client_net", "192.0.2.0/24"),
    ("firewall_client_net_ipv6", ""),
    ("firewall_simple_iif", "ed1"),
    ("firewall_simple_inet", "192.0.2.16/28"),
    ("firewall_simple_oif", "ed0"),
    ("firewall_simple_onet", "192.0.2.0/28"),
    ("firewall_simple_iif_ipv6", ""),
    ("firewall_simple_inet_ipv6", ""),
    ("firewall_simple_oif_ipv6", ""),
    ("firewall_simple_onet_ipv6", ""),
    ("firewall_myservices", ""),
    ("firewall_allowservices", ""),
    ("firewall_trusted", ""),
    ("firewall_logdeny", "NO"),
    ("firewall_nologports", "135-139,445 1026,1027 1433,1434"),
    ("firewall_nat_enable", "NO"),
    ("firewall_nat_interface", ""),
    ("firewall_nat_flags", ""),
    ("natd_enable", "NO"),
];

/// What is run, and how.
#[derive(Clone, Debug)]
pub struct ScriptRequest {
    /// The script; read with our rights, run with them.
    pub script: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Settings (`firewall_type` ...): variables of its environment, and what `sysrc` shows. [`RC_DEFAULTS`] fill the rest.
    pub settings: BTreeMap<String, String>,
    /// The program that answers as `ipfw` and the others: ferrule itself.
    pub program: PathBuf,
    /// Where the private directory is made (the daemon's run directory).
    pub directory: PathBuf,
    /// Longest run.
    pub time_limit: Duration,
}

/// A script that ran and whose commands all succeeded.
#[derive(Clone, Debug)]
pub struct ScriptRun {
    /// What it came to.
    pub rules: RuleSet,
    /// What it printed.
    pub stdout: String,
    /// What it complained of; not all complaints are failures.
    pub stderr: String,
    /// Calls of the programs.
    pub calls: usize,
    /// These calls, in their order.
    pub recorded: Vec<Call>,
}

/// Why a script gave no rule set. Nothing of it is in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// Commands failed: each with `file:line:column: error: ...` where the line is known, and the number and text of the command
    /// otherwise.
    #[error("{0}")]
    Commands(String),
    /// It did not run, or not to its end.
    #[error("{0}")]
    Run(String),
}

/// Runs a script.
///
/// # Errors
/// [`ScriptError`].
pub fn run(request: &ScriptRequest, names: &dyn Names, hosts: &dyn Hosts) -> Result<ScriptRun, ScriptError> {
    let text = read(&request.script)?;
    let folder = PrivateFolder::new(&request.directory, &request.program)
        .map_err(|e| failed(format!("no private directory in {}: {e}", request.directory.display())))?;
    let mut running = Running::start(request, &folder, &text)?;
    let mut settings: BTreeMap<String, String> =
        RC_DEFAULTS.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    settings.extend(request.settings.clone());
    let mut session = Session::new(names, hosts, settings);
    let status = running.serve(&mut session, &folder.listener, request)?;
    let (stdout, stderr) = (contents(&mut running.stdout), contents(&mut running.stderr));
    if !session.failed().is_empty() {
        return Err(ScriptError::Commands(report(&request.script, &text, session.failed())));
    }
    // A script that comes to its end may end with the status of any last test; one that exits before says what it means.
    let ended = folder.path.join(ENDED).exists();
    if !ended && !status.success() {
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("ended early with status {code}"),
            (None, signal) => format!("was ended by signal {}", signal.unwrap_or(0)),
        };
        let tail = stderr.lines().rev().take(5).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n  ");
        let said = if tail.is_empty() { String::new() } else { format!("; it said:\n  {tail}") };
        return Err(failed(format!("{} {how}{said}", request.script.display())));
    }
    let recorded = session.recorded();
    Ok(ScriptRun { rules: session.pending().rule_set(), stdout, stderr, calls: session.calls(), recorded })
}

fn failed(reason: impl Into<String>) -> ScriptError {
    ScriptError::Run(reason.into())
}

fn read(script: &Path) -> Result<String, ScriptError> {
    let shown = script.display();
    let bad = |e: io::Error| failed(format!("{shown}: {e}"));
    let mut bytes = Vec::new();
    File::open(script).map_err(bad)?.take(SCRIPT_LIMIT + 1).read_to_end(&mut bytes).map_err(bad)?;
    if bytes.len() as u64 > SCRIPT_LIMIT {
        return Err(failed(format!("{shown}: longer than {} MiB", SCRIPT_LIMIT >> 20)));
    }
    String::from_utf8(bytes).map_err(|_| failed(format!("{shown}: not a text in UTF-8")))
}

/// Written when a script comes to its end.
const ENDED: &str = "ended";

/// The directory with the programs and the socket; removed with everything in it.
struct PrivateFolder {
    path: PathBuf,
    listener: UnixListener,
}

impl PrivateFolder {
    fn new(parent: &Path, program: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("script-{}-{number}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path)?;
        let made = || {
            std::fs::create_dir(path.join("bin"))?;
            for name in PROGRAMS {
                std::os::unix::fs::symlink(program, path.join("bin").join(name))?;
            }
            UnixListener::bind(path.join("socket"))
        };
        match made() {
            Ok(listener) => Ok(Self { path, listener }),
            Err(e) => {
                let _ = std::fs::remove_dir_all(&path);
                Err(e)
            }
        }
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The script with the full names of our programs cut to their last part, where there is no such program; None where nothing is to be cut.
fn shortened(text: &str, exists: &dyn Fn(&str) -> bool) -> Option<String> {
    let mut out = text.to_owned();
    for name in PROGRAMS {
        for folder in FOLDERS {
            let full = format!("{folder}{name}");
            if out.contains(&full) && !(exists(&full) && name == "ipfw") {
                out = cut(&out, &full, name);
            }
        }
    }
    (out != text).then_some(out)
}

/// Replaces `full` by `name` where it is a whole word.
fn cut(text: &str, full: &str, name: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(full) {
        let after = &rest[at + full.len()..];
        let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
        let whole = !out.chars().chain(rest[..at].chars()).next_back().is_some_and(part) && !after.starts_with(part);
        out.push_str(&rest[..at]);
        out.push_str(if whole { name } else { full });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// A script that runs.
struct Running {
    child: Child,
    stdout: File,
    stderr: File,
}

impl Running {
    fn start(request: &ScriptRequest, folder: &PrivateFolder, text: &str) -> Result<Self, ScriptError> {
        let bad = |e: io::Error| failed(format!("{}: {e}", request.script.display()));
        // A link made by the administrator leads to us; anything else there would change another firewall, and is not called.
        let is_ours = |path: &str| {
            let same = |path: &Path| std::fs::canonicalize(path).ok();
            same(Path::new(path)).is_some_and(|there| Some(there) == same(&request.program))
        };
        let script = match shortened(text, &is_ours) {
            None => std::fs::canonicalize(&request.script).map_err(bad)?,
            Some(copy) => {
                let path = folder.path.join("script");
                std::fs::write(&path, copy).map_err(bad)?;
                path
            }
        };
        let output = |name: &str| {
            let path = folder.path.join(name);
            File::options().read(true).append(true).create_new(true).open(path).map_err(bad)
        };
        let (stdout, stderr) = (output("stdout")?, output("stderr")?);
        let mut path = OsString::from(folder.path.join("bin"));
        path.push(":/sbin:/bin:/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin");
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(". \"$FERRULE_SCRIPT\"\n: >\"$FERRULE_ENDED\"")
            .arg(&request.script)
            .args(&request.arguments)
            .env_clear()
            .envs(RC_DEFAULTS)
            .envs(&request.settings)
            .env("PATH", path)
            .env("FERRULE_SCRIPT", script)
            .env("FERRULE_ENDED", folder.path.join(ENDED))
            .env(SOCKET_VARIABLE, folder.path.join("socket"))
            .stdin(Stdio::null())
            .stdout(stdout.try_clone().map_err(bad)?)
            .stderr(stderr.try_clone().map_err(bad)?)
            .process_group(0);
        if let Some(home) = request.script.parent().filter(|parent| parent.is_dir()) {
            command.current_dir(home);
        }
        let child = command.spawn().map_err(|e| failed(format!("/bin/sh: {e}")))?;
        Ok(Self { child, stdout, stderr })
    }

    /// Answers calls until the script ends.
    fn serve(
        &mut self,
        session: &mut Session<'_>,
        listener: &UnixListener,
        request: &ScriptRequest,
    ) -> Result<ExitStatus, ScriptError> {
        let shown = request.script.display();
        let deadline = Instant::now() + request.time_limit;
        listener.set_nonblocking(true).map_err(|e| failed(format!("{shown}: {e}")))?;
        loop {
            while let Ok((stream, _)) = listener.accept() {
                // A program that goes away unheard (`ipfw & kill $!`) asked for nothing.
                let _ = exchange(stream, session);
                if Instant::now() >= deadline {
                    break;
                }
            }
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => {}
                Err(e) => return Err(failed(format!("{shown}: {e}"))),
            }
            if Instant::now() >= deadline {
                let limit = request.time_limit.as_secs_f64();
                return Err(failed(format!(
                    "{shown} did not end within {limit} s and was ended; nothing of it is in force"
                )));
            }
            let printed = |file: &File| file.metadata().map_or(0, |metadata| metadata.len());
            if printed(&self.stdout) + printed(&self.stderr) > OUTPUT_LIMIT {
                return Err(failed(format!("{shown} printed more than {} MiB and was ended", OUTPUT_LIMIT >> 20)));
            }
            // Short enough to notice the end of the script soon, which no descriptor tells.
            let wait = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
            let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&wait));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Background children too: whatever the script left behind would speak to a socket that is gone.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

fn exchange(stream: UnixStream, session: &mut Session<'_>) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(CALL_LIMIT))?;
    stream.set_write_timeout(Some(CALL_LIMIT))?;
    let mut reader = BufReader::new(stream);
    let call: Call = receive(&mut reader)?;
    let reply = session.answer(&call);
    send(reader.get_mut(), &reply)
}

fn contents(file: &mut File) -> String {
    let mut bytes = Vec::new();
    if file.seek(SeekFrom::Start(0)).is_ok() {
        let _ = file.take(OUTPUT_LIMIT).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Every failure, in the order of the commands.
fn report(script: &Path, text: &str, failed: &[FailedCommand]) -> String {
    let name = script.display().to_string();
    let source = Source::new(&name, text);
    let mut located = Located::new(text);
    let mut out = String::new();
    for command in failed.iter().take(ERRORS_SHOWN) {
        let diagnostics = command.diagnostics();
        if let Some((file, line)) = &command.file {
            // Only this line of the file is known here, so its number is put into the name and the text given is the line's.
            let padded = format!("{}{}", "\n".repeat(*line as usize - 1), command.line.text);
            let shift = *line - 1;
            let moved: Vec<_> = diagnostics.into_iter().map(|diagnostic| shifted(diagnostic, shift)).collect();
            out.push_str(&render_all(&moved, &Source::new(file, &padded), Color::No));
            continue;
        }
        match located.find(&command.line.words) {
            Some(found) => {
                let place = |diagnostic: Diagnostic| {
                    let words = command.line.words.iter().zip(&found.words);
                    let of =
                        words.filter(|(word, _)| word.span.end > diagnostic.span.start).find_map(|(_, place)| *place);
                    Diagnostic { span: of.unwrap_or(found.whole), ..diagnostic }
                };
                let moved: Vec<_> = diagnostics.into_iter().map(place).collect();
                out.push_str(&render_all(&moved, &source, Color::No));
                // What the shell made of the line, where it is not what stands there.
                let span = found.whole.start as usize..found.whole.end as usize;
                if text[span].contains(['$', '`']) {
                    out.push_str(&format!("  the command was: ipfw {}\n", command.line.text));
                }
            }
            None => {
                let label = format!("{name}: ipfw command {}", command.number);
                out.push_str(&render_all(&diagnostics, &Source::new(&label, &command.line.text), Color::No));
            }
        }
    }
    if failed.len() > ERRORS_SHOWN {
        out.push_str(&format!("and {} more commands that failed\n", failed.len() - ERRORS_SHOWN));
    }
    out
}

fn shifted(diagnostic: Diagnostic, by: u32) -> Diagnostic {
    let mut span = diagnostic.span;
    (span.start, span.end) = (span.start + by, span.end + by);
    Diagnostic { span, ..diagnostic }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_names_are_cut_where_there_is_no_such_program() {
        let script =
            "fwcmd=\"/sbin/ipfw -q\"\n/sbin/ipfw add\n/sbin/ipfw-extra /usr/local/sbin/ipfw /usr/sbin/sysrc -n x\n";
        let cut = shortened(script, &|_| false).unwrap();
        assert_eq!(cut, "fwcmd=\"ipfw -q\"\nipfw add\n/sbin/ipfw-extra /usr/local/sbin/ipfw sysrc -n x\n");
        assert_eq!(shortened("/sbin/ipfw list\n", &|_| true), None, "the administrator's link is used");
        assert_eq!(shortened("ipfw list\n", &|_| false), None);
    }
}
