#![forbid(unsafe_code)]
//! Golden files of `gateway.toml`: `gateway/NAME.toml` with `NAME.ok` (the canonical print, then the notes) or
//! `NAME.err` (the rendered diagnostics). `UPDATE_GOLDEN=1` writes them anew, for a human to read over.

use ferrule_config::gateway::{self, Driver, Gateway};
use ferrule_config::{Color, Source, render_all};
use std::path::{Path, PathBuf};

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What the file comes to, and the extension of its golden file.
fn outcome(name: &str, text: &str) -> (&'static str, String) {
    let source = Source::new(name, text);
    match gateway::parse(text) {
        Err(diagnostics) => ("err", render_all(&diagnostics, &source, Color::No)),
        Ok(gateway) => {
            let printed = gateway.to_string();
            let again = gateway::parse(&printed).unwrap_or_else(|errors| {
                panic!("{name} prints as\n{}", render_all(&errors, &Source::new("print", &printed), Color::No))
            });
            assert_eq!(again, gateway, "{name}: the print means something else");
            assert_eq!(again.to_string(), printed, "{name}: the print is not canonical");
            let notes = render_all(&gateway.notes(), &source, Color::No);
            ("ok", if notes.is_empty() { printed } else { format!("{printed}\n{notes}") })
        }
    }
}

#[test]
fn golden_files() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut inputs: Vec<PathBuf> = std::fs::read_dir(file("tests/gateway"))
        .expect("tests/gateway")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    inputs.sort();
    assert!(inputs.len() > 30, "the golden files are missing");
    let mut wrong = Vec::new();
    for input in inputs {
        let name = input.file_name().expect("a name").to_string_lossy().into_owned();
        let (extension, actual) = outcome(&name, &read(&input));
        let golden = input.with_extension(extension);
        if update {
            std::fs::write(&golden, &actual).expect("write the golden file");
            let other = input.with_extension(if extension == "ok" { "err" } else { "ok" });
            let _ = std::fs::remove_file(other);
        } else if std::fs::read_to_string(&golden).ok().as_deref() != Some(actual.as_str()) {
            wrong.push(format!("{} is not\n{actual}", golden.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn example(name: &str) -> Gateway {
    let text = read(&file("../examples").join(name));
    gateway::parse(&text).unwrap_or_else(|errors| {
        panic!("{}", render_all(&errors, &Source::new(name, &text), Color::No));
    })
}

#[test]
fn the_gateway_example_is_understood() {
    let gateway = example("gateway.toml");
    assert!(!gateway.is_standalone());
    assert_eq!(gateway.workers(), None, "it starts on a box of any size");
    let names: Vec<&str> = gateway.interfaces().map(|interface| interface.name.as_str()).collect();
    assert_eq!(names, ["em0", "em1", "em1.10", "guests"]);
    assert!(
        matches!(&gateway.ports[1].driver.value, Driver::Packet { device, offload: true } if device.value == "eth1")
    );
    assert!(gateway.notes().is_empty(), "an example raises no eyebrows");
}

#[test]
fn the_standalone_example_is_understood() {
    let gateway = example("standalone.toml");
    assert!(gateway.is_standalone());
    assert_eq!(gateway.routes.len(), 4);
    assert_eq!(gateway.interface("em1.10").expect("the VLAN").addresses.len(), 1);
    assert!(gateway.notes().is_empty(), "an example raises no eyebrows");
}

/// What the example calls a default is one: without those lines the meaning is the same.
#[test]
fn values_called_default_are_the_defaults() {
    let shown = example("gateway.toml");
    let least = gateway::parse("[[port]]\ndevice = \"eth0\"\n[[port]]\ndevice = \"eth1\"\n").expect("two ports");
    assert_eq!(shown.host, least.host);
    assert_eq!(shown.icmp, least.icmp);
    assert_eq!(shown.control.socket, least.control.socket);
    let mut engine = shown.engine;
    engine.name = None;
    engine.workers = None;
    engine.cores.clear();
    engine.user = None;
    assert_eq!(engine, least.engine);
}

#[test]
fn bytes_that_are_not_text_are_refused_at_their_place() {
    let bytes = b"[gateway]\nname = \"\xff\"\n";
    let errors = gateway::parse_bytes(bytes).unwrap_err();
    let text = String::from_utf8_lossy(bytes);
    let rendered = render_all(&errors, &Source::new("g.toml", &text), Color::No);
    assert!(rendered.starts_with("g.toml:2:9: error: not UTF-8 text: byte 0xff\n"), "{rendered}");
}

#[test]
fn a_file_that_is_too_large_is_refused_unread() {
    let errors = gateway::parse_bytes(&vec![b'x'; 10_000_000]).unwrap_err();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].message.starts_with("the file has 10000000 bytes"));
}
