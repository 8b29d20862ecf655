use super::*;
use clap::CommandFactory;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn the_tree_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_visible_command_has_an_example_in_its_help() {
    for command in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
        let help = command.clone().render_help().to_string();
        assert!(help.contains("Example"), "{} has no example:\n{help}", command.get_name());
    }
}

#[test]
fn commands_of_the_issue_parse() {
    for line in [
        "ferrule run gateway.toml",
        "ferrule run",
        "ferrule check --print gateway.toml",
        "ferrule doctor",
        "ferrule doctor gateway.toml --json",
        "ferrule show ports",
        "ferrule show routes -6 --json",
        "ferrule show --json neighbors",
        "ferrule show workers -H",
        "ferrule show drops",
        "ferrule show stats --socket /tmp/x.sock",
        "ferrule reload",
        "ferrule reload other.toml",
        "ferrule apply --confirm 60s new.toml",
        "ferrule confirm",
        "ferrule stop",
        "ferrule top --once",
        "ferrule pkt-gen -i packet:eth0 -f tx -l 60 -d 10.0.0.1:7-10.0.0.9:9 -s 10.1.0.1 -n 5000 -R 1000 -4 -T 500 -p 2 -w 0",
        "ferrule lab up --hosts 3 --queues 4 --mtu 9000",
        "ferrule lab down",
        "ferrule lab exec A ping -c 3 10.2.0.10",
        "ferrule lab demo --driver packet",
        "ferrule compare --json",
        "ferrule compare --all --seed 7 --only mixed",
    ] {
        if let Err(e) = parse(line) {
            panic!("{line}: {e}");
        }
    }
}

#[test]
fn flags_reach_their_places() {
    let cli = parse("ferrule apply --confirm 2m /x.toml --json").unwrap();
    assert!(cli.common.json);
    let Command::Apply(args) = cli.command else { panic!() };
    assert_eq!((args.confirm, args.file), (Some(Duration::from_secs(120)), "/x.toml".into()));
    let Command::Lab(args) = parse("ferrule lab exec C1 ls -l --color").unwrap().command else { panic!() };
    let LabCommand::Exec { host, command } = args.command else { panic!() };
    assert_eq!((host.as_str(), command.join(" ").as_str()), ("C1", "ls -l --color"));
}

#[test]
fn bad_usage_is_code_two() {
    for line in [
        "ferrule frobnicate",
        "ferrule check",
        "ferrule apply --confirm soon x.toml",
        "ferrule lab up --mtu 100",
        "ferrule pkt-gen -f sideways -i eth0",
        "ferrule show routes -4 -6",
        "ferrule show routes --lookup here",
    ] {
        assert_eq!(parse(line).map(|_| ()).unwrap_err().exit_code(), 2, "{line}");
    }
    assert_eq!(parse("ferrule --help").map(|_| ()).unwrap_err().exit_code(), 0);
}
