//! The user's scripts, run as the daemon runs them: the shell is real, and so are the programs in its PATH.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ferrule::ipfw::script::{ScriptError, ScriptRequest, ScriptRun, run};
use ferrule_config::ipfw::language::NoHosts;
use ferrule_config::ipfw::names::builtin;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ferrule-script-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn script(&self, text: &str) -> ScriptRequest {
        let path = self.0.join("rules.sh");
        std::fs::write(&path, text).unwrap();
        self.request(&path, &[])
    }

    fn request(&self, script: &Path, settings: &[(&str, &str)]) -> ScriptRequest {
        ScriptRequest {
            script: script.to_owned(),
            arguments: vec!["one".to_owned(), "two words".to_owned()],
            settings: settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect(),
            program: env!("CARGO_BIN_EXE_ferrule").into(),
            directory: self.0.clone(),
            time_limit: Duration::from_secs(60),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let left: Vec<_> = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        std::fs::remove_dir_all(&self.0).unwrap();
        if !std::thread::panicking() {
            assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("script-")), "left behind: {left:?}");
        }
    }
}

fn good(request: &ScriptRequest) -> ScriptRun {
    run(request, builtin(), &NoHosts).unwrap_or_else(|e| panic!("{}: {e}", request.script.display()))
}

fn bad(request: &ScriptRequest) -> ScriptError {
    run(request, builtin(), &NoHosts).expect_err("the script should fail")
}

fn conformance() -> Option<PathBuf> {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/conformance/rules");
    if rules.is_dir() {
        return Some(rules);
    }
    assert!(std::env::var_os("CI").is_none(), "no conformance data in {}", rules.display());
    println!("skipped: no conformance data");
    None
}

#[test]
fn every_rule_file_people_use_comes_to_its_rules() {
    let Some(rules) = conformance() else { return };
    let folder = Folder::new("files");
    for (name, count, tables) in [
        ("handbook-nat.ipfw.sh", 20, 0),
        ("handbook-stateful.ipfw.sh", 35, 0),
        ("netbenches-niclevel.ipfw.sh", 2, 1),
        ("netbenches-stateful.ipfw.sh", 1, 0),
        ("netbenches-stateless.ipfw.sh", 1, 0),
        ("netbenches-rules1000.ipfw.sh", 1000, 0),
        ("netbenches-table1000.ipfw.sh", 2, 1),
    ] {
        let out = good(&folder.request(&rules.join(name), &[]));
        assert_eq!(
            (out.rules.rules.len(), out.rules.tables.len()),
            (count, tables),
            "{name}\n{}{}",
            out.stdout,
            out.stderr
        );
        if name.starts_with("handbook-nat") {
            assert_eq!(out.rules.nats[&1].redirects.len(), 2);
            assert_eq!(out.rules.variable("net.inet.ip.fw.one_pass"), 0);
        }
    }
}

#[test]
fn rc_firewall_in_each_of_its_types() {
    let Some(rules) = conformance() else { return };
    let folder = Folder::new("types");
    let script = rules.join("rc.firewall.ipfw.sh");
    let v6 = [
        ("firewall_client_net_ipv6", "2001:db8:1::/48"),
        ("firewall_simple_inet_ipv6", "2001:db8:2::/48"),
        ("firewall_simple_onet_ipv6", "2001:db8:3::/48"),
    ];
    for (kind, plain, with_v6) in [
        ("open", 11, 11),
        ("client", 20, 25),
        ("simple", 25, 60),
        ("closed", 11, 11),
        ("workstation", 33, 33),
        ("UNKNOWN", 10, 10),
    ] {
        let out = good(&folder.request(&script, &[("firewall_type", kind)]));
        assert_eq!(out.rules.rules.len(), plain, "{kind}\n{}{}", out.stdout, out.stderr);
        let settings: Vec<_> = v6.into_iter().chain([("firewall_type", kind), ("firewall_quiet", "YES")]).collect();
        let out = good(&folder.request(&script, &settings));
        assert_eq!(out.rules.rules.len(), with_v6, "{kind} with IPv6\n{}{}", out.stdout, out.stderr);
        assert_eq!(out.stdout, "", "{kind} is quiet");
    }
    let nat = [("firewall_type", "open"), ("firewall_nat_enable", "YES"), ("firewall_nat_interface", "em0")];
    assert_eq!(good(&folder.request(&script, &nat)).rules.nats[&123].interface.as_deref(), Some("em0"));
    let natd = [("firewall_type", "open"), ("natd_enable", "YES"), ("natd_interface", "em0")];
    let ScriptError::Commands(text) = bad(&folder.request(&script, &natd)) else { panic!() };
    assert!(text.contains("divert is not supported"), "{text}");
}

#[test]
fn a_script_sees_what_it_built_and_its_answers_are_freebsds() {
    let folder = Folder::new("answers");
    let out = good(&folder.script(
        "cmd='ipfw -q add'\n\
         ipfw -f flush\n\
         ipfw delete 77 && echo \"deleted: $?\"\n\
         $cmd 100 allow ip from any to any via lo0\n\
         [ \"$(ipfw list | wc -l)\" -eq 2 ] && echo seen\n\
         sysctl net.inet.ip.fw.verbose=1 >/dev/null\n\
         echo \"$1/$2/$(basename $0)\"\n\
         printf 'add 200 count ip from any to any\\nadd 300 deny IPV4 from any to any\\n' > \"$PWD/more\"\n\
         ipfw -q -p sed s/IPV4/ip4/ \"$PWD/more\"\n\
         rm \"$PWD/more\"\n\
         test -n \"\"\n",
    ));
    let numbers: Vec<u16> = out.rules.rules.iter().map(|rule| rule.number).collect();
    assert_eq!(numbers, [100, 200, 300]);
    assert_eq!(out.stdout, "Flushed all rules.\ndeleted: 0\nseen\none/two words/rules.sh\n");
    assert_eq!(out.stderr, "ipfw: rule 77 not found\n");
    assert_eq!(out.rules.variables, BTreeMap::from([("net.inet.ip.fw.verbose".to_owned(), 1)]));
}

#[test]
fn all_errors_come_at_once_each_with_its_place() {
    let folder = Folder::new("errors");
    let request = folder.script(
        "fwcmd=\"/sbin/ipfw\"\n\
         ${fwcmd} add 100 alow ip from any to any\n\
         ${fwcmd} add 200 allow ip from any to any\n\
         for i in 7; do\n\
         \t${fwcmd} add deny tcp from 10.0.${i}.0/24 to any 99999\n\
         done\n\
         ${fwcmd} pipe 1 config dealy 10\n\
         eval \"$(printf '%s' 'ip' 'fw table t create type addrs')\"\n",
    );
    let ScriptError::Commands(text) = bad(&request) else { panic!() };
    let file = request.script.display();
    for place in [
        format!("{file}:2:18: error: "),
        format!("{file}:5:51: error: "),
        format!("{file}:7:24: error: unrecognised option \"dealy\""),
    ] {
        assert!(text.contains(&place), "{place} in\n{text}");
    }
    assert!(text.contains("did you mean `allow`?") && text.contains("did you mean `delay`?"), "{text}");
    assert!(text.contains("the command was: ipfw add deny tcp from 10.0.7.0/24 to any 99999"), "{text}");
    assert!(text.contains("rules.sh: ipfw command 5:1:"), "the line that eval made is not in the script\n{text}");
}

#[test]
fn a_script_that_stops_early_hangs_or_floods_gives_nothing() {
    let folder = Folder::new("early");
    let text = bad(&folder.script("ipfw add allow ip from any to any\nexit 3\n")).to_string();
    assert!(text.ends_with("ended early with status 3"), "{text}");
    let text = bad(&folder.script("ipfw add allow ip from any to any\nif true; then\n")).to_string();
    assert!(text.contains("ended early with status 2; it said:"), "{text}");
    assert_eq!(good(&folder.script("ipfw -q add allow ip from any to any\nexit 0\n")).rules.rules.len(), 1);
    let text = bad(&folder.script("set -e\nfalse\nipfw add allow ip from any to any\n")).to_string();
    assert!(text.contains("status 1"), "{text}");
    let start = Instant::now();
    let slow = ScriptRequest { time_limit: Duration::from_millis(300), ..folder.script("sleep 30 & sleep 30\n") };
    assert!(bad(&slow).to_string().contains("did not end within 0.3 s"));
    assert!(
        bad(&folder.script("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done\n"))
            .to_string()
            .contains("printed more than 16 MiB")
    );
    assert!(start.elapsed() < Duration::from_secs(20));
    assert!(bad(&folder.request(&folder.0.join("none"), &[])).to_string().contains("No such file"));
}
