use clap::Parser as _;

use super::*;
use crate::args::{Cli, Verb};

fn translated(line: &str) -> Result<Translation, Failure> {
    let words = line.split(' ').filter(|word| !word.is_empty());
    translate("passt", words.map(OsString::from).collect())
}

/// Returns the arguments of `pontoon` for a command line, in one line.
fn machine(line: &str) -> String {
    let words = match translated(line) {
        Ok(Translation::Run(words)) => words,
        other => panic!("{line}: {other:?}"),
    };
    let parsed = Cli::try_parse_from([OsString::from("pontoon")].iter().chain(&words));
    match parsed.map(|cli| cli.verb) {
        Ok(Verb::Vm(_)) => {}
        other => panic!("{words:?}: {other:?}"),
    }
    let words = words.into_iter().map(|word| word.into_string().unwrap());
    words.collect::<Vec<_>>().join(" ")
}

fn refused(line: &str) -> String {
    match translated(line) {
        Err(Failure { text, usage: None }) => text,
        other => panic!("{line}: {other:?}"),
    }
}

fn printed(line: &str) -> String {
    match translated(line) {
        Ok(Translation::Print(text)) => text,
        other => panic!("{line}: {other:?}"),
    }
}

const LINK: &str = "--addressing=auto --mtu=65520 --gateway-mac=9a:55:9a:55:9a:55";
const OPEN: &str = "--host-loopback --host-addresses --metadata";

#[test]
fn command_lines_of_libvirt_are_translated() {
    assert_eq!(
        machine("--one-off --socket /run/u/net.socket --pid /run/u/net-passt.pid"),
        format!(
            "vm --socket=/run/u/net.socket --protocol=stream --one-off --daemon {LINK} {OPEN} \
             --pid-file=/run/u/net-passt.pid --keep-pid-file"
        )
    );
    assert_eq!(
        machine(
            "--vhost-user --one-off --socket /s --pid /p --mtu 1500 --interface eth0 --hostname h --fqdn h.test --address \
             192.0.2.5 --netmask 24 --tcp-ports 127.0.0.1/2022:22 --udp-ports 5000-5010:6000-6010"
        ),
        format!(
            "vm --socket=/s --protocol=vhost-user --one-off --daemon --hostname=h --addressing=auto:eth0 \
             --address=192.0.2.5/24 --mtu=1500 --gateway-mac=9a:55:9a:55:9a:55 {OPEN} --fqdn=h.test \
             --publish=127.0.0.1:2022:22/tcp --publish=5000-5010:6000-6010/udp --pid-file=/p --keep-pid-file"
        )
    );
}

#[test]
fn command_line_of_qemu_is_translated() {
    assert_eq!(
        machine(
            "--quiet --dns 192.0.2.53 --no-dhcp-search --no-ra --tcp-ports 2222:22 --pid /tmp/passt-pid --fd 3"
        ),
        format!(
            "vm --fd=3 --protocol=stream --one-off --daemon {LINK} {OPEN} --dns-address=192.0.2.53 --dns=192.0.2.53 \
             --search=. --disable=ra --publish=2222:22/tcp --quiet --pid-file=/tmp/passt-pid --keep-pid-file"
        )
    );
}

#[test]
fn command_line_of_libkrun_is_translated() {
    assert_eq!(
        machine("-q -f --fd 12"),
        format!("vm --fd=12 --protocol=stream --one-off {LINK} {OPEN} --quiet")
    );
}

#[test]
fn guest_gets_no_dns_servers_and_no_domains_without_them() {
    let link = format!("vm --fd=3 --protocol=stream --one-off --daemon {LINK} {OPEN}");
    assert_eq!(
        machine("--fd 3 --no-dhcp-dns"),
        format!("{link} --disable=dns-option")
    );
    assert_eq!(
        machine("--fd 3 --search a.test --no-dhcp-search"),
        format!("{link} --search=.")
    );
    assert_eq!(machine("--fd 3 --dns none"), format!("{link} --dns=none"));
}

#[test]
fn later_one_of_socket_and_descriptor_counts() {
    assert!(machine("--fd 3 --socket /s").starts_with("vm --socket=/s --protocol=stream --daemon"));
    assert!(machine("-s /s -F 3").starts_with("vm --fd=3 --protocol=stream --one-off"));
    assert!(machine("--socket-path /s --vhost-user").starts_with("vm --socket=/s --protocol=vhost-user"));
}

#[test]
fn options_of_pasta_and_of_migration_are_refused() {
    for (line, text) in [
        ("-T auto", "-T is for pasta mode only"),
        ("-U none", "-U is for pasta mode only"),
        ("--config-net", "--config-net is for pasta mode only"),
        ("--netns /n", "--netns is for pasta mode only"),
        ("-I eth0", "-I is for pasta mode only"),
        ("--splice-only", "--splice-only is for pasta mode only"),
        ("--migrate-exit", "--migrate-exit is for vhost-user mode only"),
        ("--fd 2", "Invalid --fd: 2"),
        ("--fd x", "Invalid --fd: x"),
        ("-s /s sh", "Extra non-option argument: sh"),
    ] {
        assert_eq!(refused(line), text, "{line}");
    }
    assert!(refused("--vhost-user --repair-path /r").ends_with("(try: --repair-path none)"));
    machine("-s /s --vhost-user --repair-path none --migrate-exit --migrate-no-linger");
}

#[test]
fn version_and_capabilities_are_those_of_passt() {
    assert!(printed("--version").starts_with("passt 2026_"));
    let capabilities: serde_json::Value = serde_json::from_str(&printed("--print-capabilities")).unwrap();
    assert_eq!(capabilities["type"], "net");
    let usage = printed("--help");
    for option in [
        "--vhost-user",
        "--one-off",
        "--fd",
        "--tcp-ports",
        "--no-dhcp-dns",
    ] {
        assert!(usage.contains(option), "{option}");
    }
}

#[test]
fn default_socket_is_the_first_free_one_of_63() {
    let line = machine("--ipv4-only");
    let sockets: Vec<_> = line
        .split(' ')
        .filter(|word| word.starts_with("--socket="))
        .collect();
    assert_eq!(sockets.len(), 63);
    assert_eq!(sockets[0], "--socket=/tmp/passt_1.socket");
    assert_eq!(sockets[62], "--socket=/tmp/passt_63.socket");
}

#[test]
fn socket_of_pesto_is_translated() {
    assert_eq!(
        machine("--fd 3 -c /run/pesto"),
        format!("vm --fd=3 --protocol=stream --one-off --daemon {LINK} {OPEN} --pesto=/run/pesto")
    );
    let refused = translated("--fd 3 --conf-path /run/pesto,via=link");
    assert!(refused.is_err(), "{refused:?}");
    assert!(translated("--fd 3 --conf-path=").is_err());
}
