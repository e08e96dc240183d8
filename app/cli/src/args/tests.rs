use pontoon_supervisor::options::{AddressSource, Loopback};

use super::*;

const HELP: &str = "pontoon run --help";

fn parse(words: &[&str]) -> RunArgs {
    let words = ["pontoon", "run"].iter().chain(words);
    match Cli::try_parse_from(words).unwrap().verb {
        Verb::Run(run) => *run,
        other => panic!("{other:?}"),
    }
}

fn parse_vm(words: &[&str]) -> Result<VmArgs, String> {
    let words = ["pontoon", "vm"].iter().chain(words);
    match Cli::try_parse_from(words).map(|cli| cli.verb) {
        Ok(Verb::Vm(vm)) => Ok(*vm),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(crate::usage::one_line(&error, HELP)),
    }
}

fn refused(words: &[&str]) -> String {
    let words = ["pontoon", "run"].iter().chain(words);
    crate::usage::one_line(&Cli::try_parse_from(words).unwrap_err(), HELP)
}

#[test]
fn definitions_are_consistent() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}

#[test]
fn help_is_one_screen() {
    use clap::CommandFactory;
    let mut cli = Cli::command().term_width(120);
    for verb in ["run", "vm", "relay"] {
        let help = cli.find_subcommand_mut(verb).unwrap().render_help().to_string();
        assert!(help.lines().count() <= 50, "{help}");
        assert!(help.lines().all(|line| line.len() <= 120), "{help}");
    }
}

#[test]
fn options_end_at_the_command() {
    assert_eq!(
        parse(&["ls", "-l", "--publish"]).command,
        ["ls", "-l", "--publish"]
    );
    assert_eq!(
        parse(&["-q", "--", "-odd", "--", "x"]).command,
        ["-odd", "--", "x"]
    );
    assert!(parse(&[]).command.is_empty());
}

#[test]
fn host_loopback_takes_an_address_after_an_equals_sign_only() {
    let run = parse(&["--host-loopback", "--host-loopback=10.0.2.9", "ls"]);
    let address = Loopback::Address("10.0.2.9".parse().unwrap());
    assert_eq!(run.network.host_loopback, [Loopback::Gateway, address]);
    assert_eq!(run.command, ["ls"]);
}

#[test]
fn usage_errors_are_one_line() {
    assert_eq!(
        refused(&["--publsh", "80:80"]),
        "unexpected argument '--publsh' found (try: --publish)"
    );
    assert_eq!(
        refused(&["--warp"]),
        "unexpected argument '--warp' found (try: pontoon run --help)"
    );
    assert_eq!(
        refused(&["-p", "127.0.0.1"]),
        "invalid value '127.0.0.1' for '--publish <SPEC>': no port: the form is \
         [ADDR:]PORTS[:[TARGET:]PORTS] (try: pontoon run --help)"
    );
    assert_eq!(
        refused(&["--workers", "17"]),
        "invalid value '17' for '--workers <N>': 17 is not in 1..=16 (try: pontoon run --help)"
    );
    assert_eq!(
        refused(&["--attach", "1", "ls"]),
        "the argument '--attach <PID|PATH>' cannot be used with '[COMMAND]...' (try: pontoon run --help)"
    );
    for words in [
        &["--mtu", "500"][..],
        &["--no-ipv6", "--ipv6", "fd00::/64"],
        &["--io", "fast"],
        &["--max-flows", "0"],
        &["--max-udp-ports", "0"],
        &["--ready-fd", "1"],
        &["--ready-fd"],
    ] {
        let line = refused(words);
        assert!(!line.contains('\n') && line.ends_with(')'), "{line}");
    }
}

#[test]
fn vm_needs_a_path_or_a_descriptor_and_a_protocol() {
    let vm = parse_vm(&["--socket", "/tmp/net", "--protocol", "stream", "--one-off"]).unwrap();
    assert_eq!((vm.socket, vm.fd), (vec!["/tmp/net".into()], None));
    assert_eq!((vm.protocol.name, vm.one_off), ("stream", true));
    let vm = parse_vm(&["--fd", "3", "--protocol", "vhost-user", "-p", "80:80"]).unwrap();
    assert_eq!((vm.fd, vm.protocol.name), (Some(3), "vhost-user"));
    assert_eq!((vm.one_off, vm.network.publish.len()), (false, 1));
    for words in [
        &["--protocol", "stream"][..],
        &["--socket", "/tmp/net"],
        &["--socket", "/tmp/net", "--fd", "3", "--protocol", "stream"],
        &["--fd", "2", "--protocol", "stream"],
        &["--fd", "3", "--protocol", "bess"],
        &["--fd", "3", "--protocol", "packet", "ls"],
    ] {
        let line = parse_vm(words).unwrap_err();
        assert!(!line.contains('\n') && line.ends_with(')'), "{line}");
    }
}

#[test]
fn mtu_is_between_576_and_65520() {
    assert_eq!(parse(&[]).network.mtu, None);
    assert_eq!(parse(&["--mtu", "9000"]).network.mtu, Some(9000));
    for wrong in ["575", "65521", "many"] {
        let line = refused(&["--mtu", wrong]);
        assert!(line.contains("--mtu") && !line.contains('\n'), "{line}");
    }
}

#[test]
fn address_options_are_parsed() {
    let network = parse(&[
        "--addressing",
        "host:eth7",
        "--address",
        "192.0.2.5/24",
        "--gateway",
        "fe80::1",
        "--route",
        "198.51.100.0/24,192.0.2.1",
        "--dns-address",
        "169.254.1.1",
        "--map-host",
        "169.254.1.2",
        "--no-ipv4",
    ])
    .network;
    assert_eq!(network.addressing, AddressSource::Host(Some("eth7".into())));
    assert_eq!(network.route[0].gateway, Some("192.0.2.1".parse().unwrap()));
    assert!(network.no_ipv4);
    for (option, wrong) in [
        ("--addressing", "bridge"),
        ("--address", "192.0.2.5"),
        ("--address", "127.0.0.1/8"),
        ("--gateway", "0.0.0.0"),
        ("--route", "198.51.100.1/24,192.0.2.1"),
        ("--route", "198.51.100.0/24,fe80::1"),
        ("--dns-address", "ff02::1"),
        ("--map-host", "127.0.0.1"),
    ] {
        let line = refused(&[option, wrong]);
        assert!(line.contains(option) && !line.contains('\n'), "{line}");
    }
}

#[test]
fn invalid_relay_rule_is_reported_with_the_reason() {
    let rule = "eth0 239.1.1.1:5001 -> eth1 239.2.2.2:5002, eth2 *:*";
    match Cli::try_parse_from(["pontoon", "relay", "--rule", rule, "--max-delay", "0"])
        .unwrap()
        .verb
    {
        Verb::Relay(relay) => {
            assert_eq!(relay.rules[0].to_string(), rule);
            assert_eq!(relay.max_delay, Duration::ZERO);
        }
        other => panic!("{other:?}"),
    }
    let wrong = Cli::try_parse_from(["pontoon", "relay", "--rule", "eth0 239.1.1.1:0 -> eth1 *:*"]);
    let line = crate::usage::one_line(&wrong.unwrap_err(), HELP);
    assert!(
        line.starts_with(
            "invalid value 'eth0 239.1.1.1:0 -> eth1 *:*' for '--rule <RULE>': invalid port '0' (1 to 65535, or *)"
        ),
        "{line}"
    );
}

#[test]
fn flows_are_killed_by_an_id_or_a_rule() {
    let parse = |words: &[&str]| {
        let words = ["pontoon", "ctl", "--control", "/c", "flows"].iter().chain(words);
        match Cli::try_parse_from(words).map(|cli| cli.verb) {
            Ok(Verb::Ctl(CtlArgs {
                command: CtlCommand::Flows(flows),
                ..
            })) => Ok(flows.command),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(crate::usage::one_line(&error, "pontoon ctl --help")),
        }
    };
    assert!(matches!(parse(&["--sort", "up"]), Ok(None)));
    let by_id = parse(&["kill", "1f00000002"]);
    assert!(
        matches!(
            by_id,
            Ok(Some(FlowsCommand::Kill {
                id: Some(_),
                rule: None
            }))
        ),
        "{by_id:?}"
    );
    let by_rule = parse(&["kill", "--rule", "example.org:443/tcp"]);
    assert!(
        matches!(
            by_rule,
            Ok(Some(FlowsCommand::Kill {
                id: None,
                rule: Some(_)
            }))
        ),
        "{by_rule:?}"
    );
    for (words, why) in [
        (
            &["kill"][..],
            "the following required arguments were not provided",
        ),
        (&["kill", "1", "--rule", "*"], "cannot be used with"),
        (
            &["kill", "../stats"],
            "not the id of a flow, as 'pontoon ctl flows' shows it",
        ),
        (&["kill", "--rule", "10.0.0"], "'10.0.0' is neither a network"),
        (&["--to", "*", "kill", "1"], "cannot be used with"),
    ] {
        let error = parse(words).unwrap_err();
        assert!(error.contains(why) && !error.contains('\n'), "{words:?}: {error}");
    }
}

#[test]
fn policy_is_loaded_or_replaced() {
    let parse = |words: &[&str]| {
        let words = ["pontoon", "ctl", "--control", "/c", "policy"]
            .iter()
            .chain(words);
        Cli::try_parse_from(words).map_err(|error| crate::usage::one_line(&error, "pontoon ctl --help"))
    };
    assert!(parse(&["replace", "-", "--keep-flows"]).is_ok() && parse(&["--load", "x"]).is_ok());
    assert!(parse(&["--load", "x", "replace", "y"]).is_err() && parse(&["replace"]).is_err());
}
