use super::*;
use crate::args::{Cli, Verb};
use clap::Parser as _;

fn translated(line: &str) -> Result<Translation, Failure> {
    let words = line.split(' ').filter(|word| !word.is_empty());
    translate("slirp4netns", words.map(OsString::from).collect())
}

/// Returns the arguments of `pontoon` into which a command line is translated, and checks that they can be parsed.
fn run(line: &str) -> String {
    match translated(line) {
        Ok(Translation::Run(words)) => {
            let parsed = Cli::try_parse_from([OsString::from("pontoon")].iter().chain(&words));
            assert!(
                matches!(parsed.map(|cli| cli.verb), Ok(Verb::Run(_) | Verb::Vm(_))),
                "{words:?}"
            );
            let words: Vec<_> = words
                .into_iter()
                .map(|word| word.into_string().unwrap())
                .collect();
            words.join(" ")
        }
        other => panic!("{line}: {other:?}"),
    }
}

/// Returns the text of an error after which the usage is printed.
fn misused(line: &str) -> String {
    match translated(line) {
        Err(Failure {
            text,
            usage: Some(usage),
        }) if usage.starts_with("Usage: slirp4netns ") => text,
        other => panic!("{line}: {other:?}"),
    }
}

/// Returns the text of an error after which no usage is printed.
fn refused(line: &str) -> String {
    match translated(line) {
        Err(Failure { text, usage: None }) => text,
        other => panic!("{line}: {other:?}"),
    }
}

const OPEN: &str = "--host-loopback --host-addresses --metadata";

#[test]
fn command_lines_of_known_callers_are_translated() {
    // RootlessKit, which creates the tap itself.
    assert_eq!(
        run(
            "--mtu 65520 -r 3 --disable-host-loopback --api-socket /run/api --enable-sandbox --enable-seccomp 17 tap0"
        ),
        "run --attach=17 --ifname=tap0 --no-configure --address=10.0.2.100/24 --no-ipv6 --mtu=65520 --host-addresses \
         --metadata --slirp-api=/run/api --no-splice --ready-fd=3"
    );
    // RootlessKit with --detach-netns.
    assert_eq!(
        run(
            "--mtu 65520 -r 3 --cidr 192.168.80.0/24 --enable-ipv6 --userns-path=/proc/self/ns/user --netns-type=path \
             /proc/self/ns/net tap0"
        ),
        format!(
            "run --attach=/proc/self/ns/net --ifname=tap0 --no-configure --address=192.168.80.100/24 \
             --address=fd00::100/64 --mtu=65520 {OPEN} --ready-fd=3"
        )
    );
    // Podman.
    assert_eq!(
        run(
            "--disable-host-loopback --mtu=65520 --enable-sandbox --enable-seccomp --enable-ipv6 -c -r 3 -e 4 \
             --netns-type=path /proc/self/ns/net tap0"
        ),
        "run --attach=/proc/self/ns/net --ifname=tap0 --address=10.0.2.100/24 --address=fd00::100/64 --mtu=65520 \
         --host-addresses --metadata --ready-fd=3 --exit-fd=4"
    );
    // User Mode Linux.
    assert_eq!(
        run("--target-type=bess /tmp/bess.sock"),
        format!(
            "vm --socket=/tmp/bess.sock --protocol=packet --one-off --address=10.0.2.100/24 --no-ipv6 --mtu=1500 {OPEN}"
        )
    );
}

#[test]
fn each_option_has_its_counterpart() {
    let start = "run --attach=17 --ifname=tap0";
    let usual = "--address=10.0.2.100/24 --no-ipv6 --mtu=1500";
    for (given, expected) in [
        ("", format!("{start} --no-configure {usual} {OPEN}")),
        ("-c", format!("{start} {usual} {OPEN}")),
        ("--conf", format!("{start} {usual} {OPEN}")),
        ("-c -e9", format!("{start} {usual} {OPEN} --exit-fd=9")),
        ("-cr3", format!("{start} {usual} {OPEN} --ready-fd=3")),
        (
            "-c -m 1280",
            format!("{start} --address=10.0.2.100/24 --no-ipv6 --mtu=1280 {OPEN}"),
        ),
        // One byte more than the kernel's options leave room for.
        (
            "-c -m 65521",
            format!("{start} --address=10.0.2.100/24 --no-ipv6 --mtu=65520 {OPEN}"),
        ),
        (
            "-c -6",
            format!("{start} --address=10.0.2.100/24 --address=fd00::100/64 --mtu=1500 {OPEN}"),
        ),
        (
            "-c -a s",
            format!("{start} {usual} {OPEN} --slirp-api=s --no-splice"),
        ),
        (
            "-c -a -s",
            format!("{start} {usual} {OPEN} --slirp-api=-s --no-splice"),
        ),
        (
            "-c --cidr 10.0.135.128/25",
            format!("{start} --address=10.0.135.228/25 --no-ipv6 --mtu=1500 {OPEN}"),
        ),
        (
            "-c --cidr 128.0.0.0/1",
            format!("{start} --address=128.0.0.100/1 --no-ipv6 --mtu=1500 {OPEN}"),
        ),
        (
            "-c --disable-host-loopback",
            format!("{start} {usual} --host-addresses --metadata"),
        ),
        (
            "-c --no-host-loopback",
            format!("{start} {usual} --host-addresses --metadata"),
        ),
        ("-c --netns-type=pid", format!("{start} {usual} {OPEN}")),
        ("-c --target-type=netns", format!("{start} {usual} {OPEN}")),
        (
            "-c --userns-path=/proc/self/ns/user",
            format!("{start} {usual} {OPEN}"),
        ),
        (
            "-c --enable-sandbox --create-sandbox --enable-seccomp",
            format!("{start} {usual} {OPEN}"),
        ),
        (
            "-c --outbound-addr 192.0.2.1",
            format!("{start} {usual} {OPEN} --outbound=192.0.2.1"),
        ),
        (
            "-c --outbound-addr6=2001:db8::1",
            format!("{start} {usual} {OPEN} --outbound=2001:db8::1"),
        ),
        (
            "-c --outbound-addr eth0 --outbound-addr6 eth0",
            format!("{start} {usual} {OPEN} --outbound=eth0"),
        ),
        ("-c --disable-dns", format!("{start} {usual} {OPEN} --dns=none")),
        (
            "-c --macaddress e:d4:18:D9:38:fb",
            format!("{start} {usual} {OPEN} --mac=0e:d4:18:d9:38:fb"),
        ),
        // The last value is used.
        ("-c -m 1280 -m 1500", format!("{start} {usual} {OPEN}")),
    ] {
        assert_eq!(run(&format!("{given} 17 tap0")), expected, "{given}");
        assert_eq!(run(&format!("17 tap0 {given}")), expected, "{given}");
    }
    // slirp4netns ignores further operands.
    assert_eq!(run("-c 17 tap0 more"), format!("{start} {usual} {OPEN}"));
}

#[test]
fn a_path_is_never_a_process_id() {
    // Tests run in the directory of the package.
    let words = run("-c --netns-type=path Cargo.toml tap0");
    assert!(
        words.starts_with("run --attach=./Cargo.toml --ifname=tap0 "),
        "{words}"
    );
    // Every value other than `pid` and `tapfd` means a path.
    assert!(run("-c --netns-type=any /proc/self/ns/net tap0").starts_with("run --attach=/proc/self/ns/net "));
}

#[test]
fn wrong_values_have_the_texts_of_slirp4netns() {
    for (line, text) in [
        ("", ""),
        ("17", ""),
        ("--foo 17 tap0", "slirp4netns: unrecognized option '--foo'"),
        ("-r", "slirp4netns: option requires an argument -- 'r'"),
        ("--cidr", "slirp4netns: option '--cidr' requires an argument"),
        (
            "--configure=1 17 tap0",
            "slirp4netns: option '--configure' doesn't allow an argument",
        ),
        (
            "--e 17 tap0",
            "slirp4netns: option '--e' is ambiguous; possibilities: '--exit-fd' '--enable-ipv6' '--enable-sandbox' \
             '--enable-seccomp'",
        ),
        ("-e x 17 tap0", "exit-fd must be a non-negative integer"),
        ("-e -1 17 tap0", "exit-fd must be a non-negative integer"),
        ("-r 3x 17 tap0", "ready-fd must be a non-negative integer"),
        ("-m 0 17 tap0", "MTU must be a positive integer (< 65522)"),
        ("-m 65522 17 tap0", "MTU must be a positive integer (< 65522)"),
        ("-m x 17 tap0", "MTU must be a positive integer (< 65522)"),
        ("x tap0", "PID must be a positive integer"),
        ("0 tap0", "PID must be a positive integer"),
        ("-- -1 tap0", "PID must be a positive integer"),
        (
            "--netns-type=path /no/such tap0",
            "existing path expected when --netns-type=path: no such file or directory",
        ),
        (
            "--netns-type=tapfd 3",
            "--netns-type=tapfd is not supported (try: --netns-type=path or pid)",
        ),
        (
            "--userns-path=/no/such 17 tap0",
            "userns path doesn't exist: /no/such",
        ),
        (
            "--macaddress=0e:d4:18:d9:38:fb 17 tap0",
            "--macaddr cannot be specified when --configure or -c is not specified",
        ),
        (
            "--target-type=vm 17 tap0",
            "--target-type must be either \"netns\" or \"bess\"",
        ),
        ("--target-type=bess", ""),
        ("--target-type=bess s tap0", "too many arguments"),
        (
            "--target-type=bess -c s",
            "--configure conflicts with --target-type=bess",
        ),
        (
            "--target-type=bess --netns-type=pid s",
            "--netns-type conflicts with --target-type=bess",
        ),
        (
            "--target-type=bess --userns-path=/proc/self/ns/user s",
            "--userns-path conflicts with --target-type=bess",
        ),
    ] {
        assert_eq!(misused(line), text, "{line}");
    }
    for (option, text) in [
        ("--cidr 24", "invalid CIDR: 24"),
        ("--cidr foo", "invalid CIDR: foo"),
        ("--cidr 10.0.2.0", "invalid CIDR: 10.0.2.0"),
        ("--cidr 10.0.2.0/", "invalid CIDR: 10.0.2.0/"),
        ("--cidr 10.0.2/24", "invalid CIDR: 10.0.2/24"),
        ("--cidr 10.0.2.0/+8", "invalid CIDR: 10.0.2.0/+8"),
        ("--cidr 300.0.0.0/24", "invalid network address: 300.0.0.0"),
        ("--cidr 10.0.2.0/0", "prefix length needs to be 1-25"),
        ("--cidr 10.0.2.0/26", "prefix length needs to be 1-25"),
        (
            "--cidr 10.0.2.100/24",
            "CIDR needs to be a network address like 10.0.2.0/24, not like 10.0.2.100/24",
        ),
        (
            "--outbound-addr 2001:db8::1",
            "outbound-addr has to be a valid address of its family or an interface name.",
        ),
        (
            "--outbound-addr6 192.0.2.1",
            "outbound-addr6 has to be a valid address of its family or an interface name.",
        ),
    ] {
        assert_eq!(refused(&format!("-c {option} 17 tap0")), text, "{option}");
    }
    for mac in ["1", "x:1:2:3:4:5", "100:1:2:3:4:5", "1:2:3:4:5:6:7", ":::::"] {
        let text = refused(&format!("-c --macaddress {mac} 17 tap0"));
        assert!(
            text.starts_with(&format!(
                "\"{mac}\" is an invalid MAC address.\nmacaddress has to be"
            )),
            "{text}"
        );
    }
}

#[test]
fn help_and_version_contain_what_callers_search() {
    let text = |line: &str| match translated(line) {
        Ok(Translation::Print(text)) => text,
        other => panic!("{line}: {other:?}"),
    };
    for spec in SPECS
        .iter()
        .filter(|spec| !spec.long.starts_with("no-") && spec.long != "create-sandbox")
    {
        let name = format!("--{}", spec.long);
        assert!(text("--help").contains(&name), "{name}");
    }
    assert_eq!(text("-h"), text("--help"));
    // Options before `--help` are checked, those after it are not.
    assert_eq!(text("-c -h --foo"), text("--help"));
    let version = text("-v");
    assert_eq!(version.lines().next(), Some("slirp4netns version 1.3.2"));
    assert!(version.contains("\npontoon: "), "{version}");
    assert_eq!(version.lines().last(), Some("SLIRP_CONFIG_VERSION_MAX: 3"));
}
