#![forbid(unsafe_code)]

use std::time::Instant;

use super::*;
use crate::ipfw::ast::{Action, Addresses, Block, Side, Term, Test};
use crate::ipfw::command::Word;
use crate::ipfw::language::{NoHosts, ParsedRule, RuleStyle};
use crate::ipfw::names::builtin;
use crate::span::Span;

/// Rules of one word, for tests of everything around them: `[NUMBER] [set N] allow [TABLE]`.
struct Toy;

impl RuleLanguage for Toy {
    fn parse(&self, words: &[Word], end: Span) -> Result<ParsedRule, Vec<Failure>> {
        let mut rule = Rule { number: 0, set: 0, span: end, ..RuleSet::default().default_rule() };
        let mut texts = words.iter().map(|word| word.text.as_str()).peekable();
        rule.number = texts.next_if(|text| text.parse::<u16>().is_ok()).map_or(0, |text| text.parse().unwrap());
        if texts.next_if_eq(&"set").is_some() {
            rule.set = texts.next().unwrap().parse().unwrap();
        }
        if texts.next() != Some("allow") {
            return Err(vec![Failure::data(end, "no such action")]);
        }
        rule.action = Action::Allow;
        if let Some(table) = texts.next() {
            let test = Test::Address(Side::Source, Addresses::Table(table.to_owned(), None));
            rule.blocks = vec![Block { terms: vec![Term { not: false, test, span: end }] }];
        }
        Ok(ParsedRule { rule, warnings: Vec::new() })
    }

    fn print(&self, rule: &Rule, _: RuleStyle) -> String {
        if rule.action == Action::Allow { "allow".to_owned() } else { "deny".to_owned() }
    }
}

fn environment() -> Environment<'static> {
    Environment { language: &Toy, names: builtin(), hosts: &NoHosts, read_file: &|_| Err("no files".to_owned()) }
}

fn run(set: &mut PendingSet, text: &str) -> Answer {
    set.run(&CommandLine::from_line(text), &mut Options::default(), environment())
}

/// Exit code, standard output, standard error.
fn said(set: &mut PendingSet, text: &str) -> (u8, String, String) {
    let answer = run(set, text);
    (answer.exit, answer.stdout, answer.stderr.join("\n"))
}

fn filled(commands: &[&str]) -> PendingSet {
    let mut set = PendingSet::new();
    for command in commands {
        let answer = run(&mut set, command);
        assert_eq!((answer.exit, answer.incomplete), (0, false), "{command}: {:?}", answer.stderr);
    }
    set
}

fn numbers(set: &PendingSet) -> Vec<u16> {
    set.rules().map(|rule| rule.number).collect()
}

#[test]
fn rules_are_numbered_after_the_last_one() {
    let mut set = filled(&["-q add allow", "-q add 65000 allow", "-q add allow", "-q add 50 allow"]);
    assert_eq!(numbers(&set), [50, 100, 65000, 65100]);
    for _ in 0..6 {
        run(&mut set, "add allow");
    }
    assert_eq!(numbers(&set)[8..], [65500, 65500], "no room for a step of 100");
    set.set_variable("net.inet.ip.fw.autoinc_step", 10).unwrap();
    assert_eq!(said(&mut set, "add allow"), (0, "65510 allow\n".into(), String::new()));
    assert_eq!(said(&mut set, "100 add allow").1, "00100 allow\n", "the first ipfw's order");
    assert_eq!(said(&mut set, "-S add set 3 allow").1, "65520 set 3 allow\n");
    let refused = run(&mut set, "add 65535 allow");
    assert_eq!((refused.exit, refused.incomplete), (69, true));
    assert!(refused.stderr[0].starts_with("getsockopt(IP_FW_XADD): Invalid argument"));
}

#[test]
fn deleting_what_is_absent_is_told_and_no_failure_for_a_script() {
    let mut set =
        filled(&["-q add 100 allow", "-q add 100 set 2 allow", "-q add 200 allow", "-q add 300 set 31 allow"]);
    let answer = run(&mut set, "delete 150");
    assert_eq!((answer.exit, answer.incomplete, answer.stderr.join("")), (69, false, "rule 150 not found".into()));
    assert_eq!(said(&mut set, "-f delete 150").0, 0);
    assert_eq!(said(&mut set, "-q delete 150"), (69, String::new(), String::new()));
    assert_eq!(said(&mut set, "delete 150-180").2, "no rules rules in 150-180 range");
    assert_eq!(said(&mut set, "delete 65535").2, "rule 65535 not found");
    assert_eq!(said(&mut set, "set 2 delete 100-300").0, 0);
    assert_eq!(numbers(&set), [100, 200, 300]);
    assert_eq!(said(&mut set, "flush").1, "Flushed all rules.\n");
    assert_eq!(numbers(&set), [300], "set 31 survives");
    assert_eq!(said(&mut set, "delete set 31").0, 0);
    assert!(set.is_empty());
    assert_eq!(said(&mut set, "delete").0, 64);
    assert_eq!(said(&mut set, "delete x"), (65, String::new(), "invalid rule number \"x\"".into()));
}

#[test]
fn sets_are_moved_swapped_and_disabled() {
    let mut set = filled(&["-q add 1 set 1 allow", "-q add 2 set 2 allow", "-q add 3 set 1 allow"]);
    let sets = |set: &PendingSet| set.rules().map(|rule| rule.set).collect::<Vec<_>>();
    run(&mut set, "set swap 1 2");
    assert_eq!(sets(&set), [2, 1, 2]);
    run(&mut set, "set move 2 to 5");
    run(&mut set, "set move rule 2 to 7");
    assert_eq!(sets(&set), [5, 7, 5]);
    run(&mut set, "set disable 5 enable 9");
    assert!(said(&mut set, "set show").1.starts_with("disable 5 enable 0 1 2 3 4 6"));
    assert_eq!(said(&mut set, "list").1, "00002 allow\n65535 deny\n");
    assert_eq!(
        said(&mut set, "-S list").1,
        "# DISABLED 00001 set 5 allow\n00002 set 7 allow\n# DISABLED 00003 set 5 allow\n65535 set 31 deny\n"
    );
    assert_eq!(said(&mut set, "set 7 show").1, "00002 0 0 allow\n");
    run(&mut set, "set disable 31");
    assert_eq!(set.rule_set().disabled_sets, 1 << 5, "set 31 is always enabled");
    assert_eq!(said(&mut set, "set disable 1 enable 1").0, 65);
    assert_eq!(said(&mut set, "set 32 list").0, 65);
    assert_eq!(said(&mut set, "set move 1 2").2, "syntax: set move [rule] X to Y");
}

#[test]
fn tables_live_as_in_the_original() {
    let mut set = PendingSet::new();
    assert_eq!(
        said(&mut set, "table 13 flush"),
        (0, String::new(), "failed to flush table 13 info: No such process".into())
    );
    assert_eq!(said(&mut set, "table 13 destroy").0, 0);
    let (code, out, err) = said(&mut set, "table 13 add 10.0.0.0/8");
    assert_eq!((code, out.as_str()), (0, "added: 10.0.0.0/8 0\n"));
    assert_eq!(err, "DEPRECATED: inserting data into non-existent table 13. (auto-created)");
    let (code, out, err) = said(&mut set, "table 13 add 10.0.0.0/8 5");
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (71, "exists: 10.0.0.0/8 5\n", "Adding record failed: record already exists")
    );
    assert_eq!(said(&mut set, "-q table 13 add 10.0.0.0/8 5"), (0, String::new(), String::new()));
    assert_eq!(said(&mut set, "table 13 list").1, "10.0.0.0/8 5\n");
    assert_eq!(said(&mut set, "table 13 lookup 10.1.2.3").1, "10.0.0.0/8 5\n");
    assert_eq!(said(&mut set, "table 13 lookup 11.1.2.3"), (69, String::new(), "Entry 11.1.2.3 not found".into()));
    assert_eq!(
        said(&mut set, "table 13 delete 11.0.0.0/8"),
        (71, "notfound: 11.0.0.0/8 0\n".into(), "Deleting record failed: record not found".into())
    );
    assert_eq!(said(&mut set, "table none list").0, 71);
    assert_eq!(said(&mut set, "table none delete 1.1.1.1"), (65, String::new(), "Table none does not exist".into()));

    run(&mut set, "add allow 13");
    let (code, _, err) = said(&mut set, "table 13 destroy");
    assert_eq!(code, 71);
    assert!(err.starts_with("failed to destroy table 13: Device busy"), "{err}");
    assert!(said(&mut set, "table 13 info").1.contains(" references: 1, valtype: legacy\n"));
    run(&mut set, "flush");
    assert_eq!(said(&mut set, "table 13 destroy"), (0, String::new(), String::new()));
    run(&mut set, "add allow new");
    assert!(set.rule_set().tables.contains_key("new"), "a rule makes its table");
}

#[test]
fn tables_are_created_once_and_bounded() {
    let mut set = filled(&["table t create type number valtype skipto,dscp limit 2 algo number:array"]);
    let answer = run(&mut set, "table t create type number");
    assert_eq!((answer.exit, answer.incomplete), (71, true));
    assert!(answer.stderr[0].starts_with("Table creation failed: File exists"));
    assert_eq!(said(&mut set, "table t create type number valtype skipto,dscp limit 2 missing").0, 0);
    assert_eq!(said(&mut set, "table t create type number missing").0, 65);
    assert_eq!(said(&mut set, "table t add 1 100,af41 2 200,0").1, "added: 1 100,34\nadded: 2 200,0\n");
    assert_eq!(said(&mut set, "table t add 3 1,1").2, "Adding record failed: limit hit");
    let (_, out, _) = said(&mut set, "table t atomic add 4 1,1");
    assert_eq!(out, "limit: 4 1,1\n");
    run(&mut set, "table t delete 2");
    assert_eq!(
        said(&mut set, "table t atomic add 5 1,1 1 1,1 6 1,1").1,
        "added(reverted): 5 1,1\nexists: 1 1,1\nignored: 6 1,1\n"
    );
    assert_eq!(said(&mut set, "table t list").1, "1 100,34\n");
    run(&mut set, "table t lock");
    assert_eq!(said(&mut set, "table t add 9 1,1").2, "Adding record failed: table is locked");
    run(&mut set, "table t unlock");
    assert_eq!(said(&mut set, "table u create type addr").0, 0);
    assert_eq!(said(&mut set, "table t swap u").2, "Unable to swap table: check types");
    assert_eq!(said(&mut set, "table all list").1, "--- table(t), set(0) ---\n1 100,34\n--- table(u), set(0) ---\n");
    run(&mut set, "table v create type number valtype skipto,dscp");
    run(&mut set, "table t swap v");
    assert_eq!(said(&mut set, "table v list").1, "1 100,34\n");
    assert_eq!(
        said(&mut set, "table x create typ addrs").2,
        "Unknown tabletype: addrs. Supported: addr, mac, iface, number, flow (did you mean `addr`?)"
    );
}

#[test]
fn nat_and_dummynet_objects() {
    let mut set = PendingSet::new();
    assert_eq!(said(&mut set, "nat 1 config if dc0 same_ports").1, "ipfw nat 1 config if dc0 same_ports\n");
    assert_eq!(said(&mut set, "nat show config").1, "ipfw nat 1 config if dc0 same_ports\n");
    assert_eq!(
        said(&mut set, "nat 5 show config"),
        (71, String::new(), "Error getting nat 5 instance info: No such process".into())
    );
    assert_eq!(said(&mut set, "nat show").2, "Please specify action. Available: config,log");
    assert_eq!(said(&mut set, "nat 1 delete").0, 0);
    assert_eq!(said(&mut set, "nat 1 delete"), (69, String::new(), "nat 1 not available: No such process".into()));
    assert_eq!(said(&mut set, "nat config x log").0, 65);

    assert_eq!(said(&mut set, "pipe 1 config bw 1Mbit/s").0, 0);
    let (code, _, err) = said(&mut set, "queue 2 config weight 5");
    assert_eq!((code, err.split(" (").next().unwrap()), (1, "setsockopt(IP_DUMMYNET_CONFIGURE): Invalid argument"));
    assert_eq!(said(&mut set, "queue 2 config pipe 1 weight 500").0, 0);
    assert_eq!(said(&mut set, "queue 2 config weight 5").0, 0, "the scheduler is kept");
    assert_eq!(set.rule_set().queues[&2].scheduler, 1);
    assert_eq!(
        said(&mut set, "queue show 2").1,
        "q00002  50 sl. 0 flows (1 buckets) sched 1 weight 5 lmax 0 pri 0 droptail\n"
    );
    assert_eq!(said(&mut set, "pipe 7 show").1, "");
    assert_eq!(said(&mut set, "pipe delete 9").0, 1);
    run(&mut set, "pipe flush");
    assert!(set.rule_set().pipes.is_empty() && set.rule_set().queues.is_empty());
}

#[test]
fn abbreviations_mean_what_main_c_makes_of_them() {
    let mut set = filled(&["-q add 100 allow"]);
    assert_eq!(
        said(&mut set, "l"),
        (0, "00100 allow\n65535 deny\n".into(), "DEPRECATED: 'l' matched 'list' as a sub-string".into())
    );
    assert_eq!(said(&mut set, "sh 100").1, "00100 0 0 allow\n");
    assert_eq!(said(&mut set, "-a list 100").1, "00100 0 0 allow\n");
    assert_eq!(said(&mut set, "-at l 100").1, format!("00100 0 0 {:24}allow\n", ""));
    assert!(said(&mut set, "d one").2.contains("'d' matched 'disable'"), "disable comes before delete");
    assert_eq!(set.variable("net.inet.ip.fw.one_pass"), Some(0));
    assert_eq!(said(&mut set, "enable firewal").0, 0);
    assert_eq!(
        said(&mut set, "enable fierwall").2,
        "unrecognize enable/disable keyword: fierwall (did you mean `firewall`?)"
    );
    assert_eq!(said(&mut set, "sets").2, "bad command `sets' (did you mean `set`?)");
    assert!(said(&mut set, "f").2.ends_with("missing command"), "flowset comes before flush");
    assert_eq!(said(&mut set, "internal iflist").0, 64);
    assert_eq!(said(&mut set, "-x list").0, 64);
    assert_eq!(said(&mut set, "-p cpp list").2, "An absolute pathname must be used with -p option.");
    assert_eq!(said(&mut set, "zero 100 7"), (69, "Entry 100 cleared.\nEntry 7 not found\n".into(), String::new()));
    assert_eq!(said(&mut set, "-n add 7 allow"), (0, "00007 allow\n".into(), String::new()));
    assert_eq!(numbers(&set), [100], "-n changes nothing");
    assert_eq!(said(&mut set, "-n list").2, "Testing only, list disabled");
}

#[test]
fn variables_are_known_bounded_and_some_read_only() {
    let mut set = PendingSet::new();
    assert_eq!(set.set_variable("net.inet.ip.fw.verbose", 1), Ok(0));
    assert_eq!(set.set_variable("net.inet.ip.fw.verbose", 0), Ok(1));
    assert!(set.set_variable("net.inet.ip.fw.autoinc_step", 0).is_err());
    assert!(set.set_variable("net.inet.ip.fw.static_count", 0).unwrap_err().contains("read only"));
    assert!(
        set.set_variable("net.inet.ip.fw.verbos", 0).unwrap_err().contains("did you mean `net.inet.ip.fw.verbose`?")
    );
    assert_eq!(set.variable("net.inet.ip.fw.static_count"), Some(1));
}

#[test]
fn variables_without_effect_stay_at_their_value() {
    let mut set = PendingSet::new();
    assert_eq!(set.set_variable("net.inet.ip.dummynet.hash_size", 64), Ok(64), "as it is");
    let refused = set.set_variable("net.inet.ip.dummynet.hash_size", 256).unwrap_err();
    assert!(refused.contains("not supported") && refused.contains("follows the number of queues"), "{refused}");
    assert_eq!(set.variable("net.inet.ip.dummynet.hash_size"), Some(64));
    let (exit, _, stderr) = said(&mut set, "enable skipto_cache");
    assert_eq!(exit, 69);
    assert!(stderr.contains("needs no cache"), "{stderr}");
    assert_eq!(said(&mut set, "disable one_pass").0, 0);
    assert_eq!(set.variable("net.inet.ip.fw.one_pass"), Some(0));
}

#[test]
fn sets_compare_by_meaning_and_begin_where_another_ended() {
    let commands = ["-q add 100 allow t", "-q add allow", "-q table t add 1.1.1.1", "pipe 1 config bw 8Kbit/s"];
    let set = filled(&commands).rule_set();
    let mut spaced = PendingSet::new();
    for command in commands {
        run(&mut spaced, &format!("   {command}"));
    }
    assert_eq!(set, spaced.rule_set(), "places do not count");
    let mut again = PendingSet::from_rule_set(&set);
    assert_eq!(again.rule_set(), set);
    assert_eq!(said(&mut again, "table t destroy").0, 71, "references are counted");
    run(&mut again, "-q delete 200");
    assert_ne!(again.rule_set(), set);
    assert_eq!(set.rules.len(), 2);
}

#[test]
fn ten_thousand_adds_are_quick() {
    let mut set = PendingSet::new();
    let mut options = Options { quiet: true, ..Options::default() };
    let start = Instant::now();
    for number in 0..10_000_u32 {
        let line = CommandLine::from_line(&format!("add {} allow", 60_000 - number % 50_000));
        assert_eq!(set.run(&line, &mut options, environment()).exit, 0);
    }
    assert_eq!(set.rule_set().rules.len(), 10_000);
    assert!(start.elapsed().as_millis() < 1_000, "{:?}", start.elapsed());
}

mod noise {
    use proptest::prelude::*;

    use super::*;
    use crate::ipfw::grammar::Grammar;

    const WORDS: [&str; 64] = [
        "add",
        "delete",
        "set",
        "list",
        "show",
        "table",
        "create",
        "type",
        "flow:src-ip,proto",
        "valtype",
        "skipto,dscp",
        "destroy",
        "nat",
        "config",
        "pipe",
        "queue",
        "sched",
        "bw",
        "10Mbit/s",
        "mask",
        "src-ip",
        "/32",
        "0xffff",
        "all",
        "red",
        "0.1/2/3/0.4",
        "codel",
        "target",
        "5ms",
        "type",
        "fq_pie",
        "redirect_port",
        "tcp",
        "1.1.1.1:80-90",
        "2.2.2.2,3.3.3.3",
        "80",
        "-q",
        "-s",
        "-atS",
        "0",
        "1",
        "65535",
        "100-200",
        "swap",
        "move",
        "to",
        "rule",
        "enable",
        "disable",
        "31",
        "flush",
        "zero",
        "allow",
        "ip",
        "from",
        "any",
        "{",
        "or",
        "}",
        "atomic",
        "lookup",
        "10.0.0.0/8",
        "em0",
        "burst",
    ];

    fn word() -> impl Strategy<Value = String> {
        prop_oneof![8 => prop::sample::select(&WORDS[..]).prop_map(str::to_owned), 1 => any::<String>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Whatever the words are, there is an answer, its failures are said and lie within the text, and the set stays one.
        #[test]
        fn any_words_are_answered(commands in prop::collection::vec(prop::collection::vec(word(), 0..12), 1..6)) {
            let grammar = Grammar { names: builtin(), refuse_unsupported: true };
            let environment = Environment { language: &grammar, ..environment() };
            let mut set = PendingSet::new();
            for arguments in commands {
                let line = CommandLine::from_arguments(&arguments);
                let answer = set.run(&line, &mut Options::default(), environment);
                prop_assert!(answer.exit == 0 || !answer.stderr.is_empty() || answer.stdout.contains("not found") || answer.stdout.is_empty());
                for failure in &answer.failures {
                    prop_assert!(failure.span.end as usize <= line.text.len(), "{failure:?} in {:?}", line.text);
                }
            }
            let built = set.rule_set();
            prop_assert!(built.rules.is_sorted_by_key(|rule| rule.number));
            prop_assert_eq!(PendingSet::from_rule_set(&built).rule_set(), built);
        }
    }
}
