//! `ipfw`, `sysctl` and their kin inside a script: the program under another name, which asks the runner.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use ferrule_config::ipfw::failure::exit;

use super::call::{Call, CommandFile, PROGRAMS, Reply, SOCKET_VARIABLE, receive, send};

/// Where this process was started by a script that is being run: does what the script asked for. None otherwise.
pub fn main() -> Option<ExitCode> {
    let socket = std::env::var_os(SOCKET_VARIABLE)?;
    let mut arguments = std::env::args_os();
    let program = arguments.next()?;
    let program = Path::new(&program).file_name()?.to_str()?.to_owned();
    if !PROGRAMS.contains(&program.as_str()) {
        return None;
    }
    let reply = ask(&program, arguments.collect(), &socket).unwrap_or_else(|(exit, reason)| Reply {
        stderr: format!("{program}: {reason}\n"),
        exit,
        ..Reply::default()
    });
    // A reader that went away (`ipfw list | head`) is no failure.
    let _ = io::stdout().write_all(reply.stdout.as_bytes()).and_then(|()| io::stdout().flush());
    let _ = io::stderr().write_all(reply.stderr.as_bytes());
    Some(ExitCode::from(reply.exit))
}

fn ask(program: &str, arguments: Vec<OsString>, socket: &OsString) -> Result<Reply, (u8, String)> {
    let text = |argument: OsString| {
        argument.into_string().map_err(|bad| (exit::USAGE, format!("an argument is not UTF-8: {}", bad.display())))
    };
    let arguments = arguments.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
    let mut call = Call { program: program.to_owned(), terminal: io::stdin().is_terminal(), ..Call::default() };
    if program == "ipfw" {
        call.commands = command_file(&arguments)?;
        call.files = profiles(&arguments);
    }
    call.arguments = arguments;
    let lost = |reason: io::Error| (exit::UNAVAILABLE, format!("the runner of the script does not answer: {reason}"));
    let stream = UnixStream::connect(Path::new(socket)).map_err(lost)?;
    let mut reader = BufReader::new(stream);
    send(reader.get_mut(), &call).map_err(lost)?;
    receive(&mut reader).map_err(lost)
}

/// Files after `profile`, read here because here is where the script may read them.
pub fn profiles(arguments: &[String]) -> BTreeMap<String, Result<String, String>> {
    let named = arguments.windows(2).filter(|pair| pair[0] == "profile");
    named.map(|pair| (pair[1].clone(), std::fs::read_to_string(&pair[1]).map_err(|e| reason(&e)))).collect()
}

/// An error without Rust's "(os error 2)".
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// The file of commands, where the last argument is one.
///
/// # Errors
/// As ipfw_readfile() of FreeBSD's main.c, with its exit codes.
pub fn command_file(arguments: &[String]) -> Result<Option<CommandFile>, (u8, String)> {
    let Some((name, rest)) = arguments.split_last() else { return Ok(None) };
    let Ok(file) = (if name.starts_with('/') { File::open(name) } else { return Ok(None) }) else { return Ok(None) };
    let mut options = Vec::new();
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        let letters = word.strip_prefix('-').filter(|letters| !letters.is_empty());
        let Some(letters) = letters else {
            return Err((exit::USAGE, format!("extraneous filename arguments {name}")));
        };
        if let Some(at) = letters.find('p') {
            options.extend(flags(&letters[..at])?);
            let attached = &letters[at + 1..];
            let program = if attached.is_empty() { words.next().map(String::as_str) } else { Some(attached) };
            let program = program.ok_or((exit::USAGE, "no filename argument".to_owned()))?;
            let text = preprocessed(program, words.as_slice(), file)?;
            return Ok(Some(CommandFile { name: name.clone(), text, options }));
        }
        options.extend(flags(letters)?);
    }
    let text = io::read_to_string(file).map_err(|e| (exit::UNAVAILABLE, format!("{name}: {}", reason(&e))))?;
    Ok(Some(CommandFile { name: name.clone(), text, options }))
}

fn flags(letters: &str) -> Result<Vec<String>, (u8, String)> {
    let known = |letter: char| match letter {
        'c' | 'f' | 'N' | 'n' | 'q' | 'S' => Ok(format!("-{letter}")),
        _ => Err((exit::USAGE, "bad arguments, for usage summary ``ipfw''".to_owned())),
    };
    letters.chars().map(known).collect()
}

/// The text that a preprocessor (`cpp -P`, `m4`) makes of the file on its standard input.
fn preprocessed(program: &str, arguments: &[String], file: File) -> Result<String, (u8, String)> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(file).stdout(Stdio::piped());
    let child = command.spawn().and_then(std::process::Child::wait_with_output);
    let out = child.map_err(|e| (exit::OS, format!("execvp({program}) failed: {}", reason(&e))))?;
    match out.status.code() {
        Some(0) => {}
        Some(code) => return Err((exit::UNAVAILABLE, format!("preprocessor exited with status {code}"))),
        None => return Err((exit::UNAVAILABLE, "preprocessor exited with a signal".to_owned())),
    }
    String::from_utf8(out.stdout).map_err(|_| (exit::DATA, "the preprocessor's output is not UTF-8".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> String {
        let path = std::env::temp_dir().join(format!("ferrule-shim-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn read(arguments: &[&str]) -> Result<Option<CommandFile>, (u8, String)> {
        command_file(&arguments.iter().map(|&argument| argument.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_file_of_commands_is_read_and_preprocessed() {
        let name = file("plain", "add pass IP\n");
        let plain = read(&["-q", "-fn", &name]).unwrap().unwrap();
        assert_eq!(
            (plain.text.as_str(), plain.options),
            ("add pass IP\n", vec!["-q".into(), "-f".into(), "-n".into()])
        );
        let made = read(&["-q", "-p", "sed", "s/IP/ip/", &name]).unwrap().unwrap();
        assert_eq!((made.text.as_str(), made.options), ("add pass ip\n", vec!["-q".to_owned()]));
        assert_eq!(read(&["-p", "false", &name]).unwrap_err(), (69, "preprocessor exited with status 1".into()));
        assert_eq!(read(&["-p", "/no/such", &name]).unwrap_err().0, 71);
        assert_eq!(read(&["list", &name]).unwrap_err().0, 64);
        assert_eq!(read(&["-x", &name]).unwrap_err().0, 64);
        std::fs::remove_file(&name).unwrap();
        assert_eq!(read(&["-q", &name]), Ok(None), "a file that is not there is a command");
        assert_eq!(read(&["list"]), Ok(None));
    }
}
