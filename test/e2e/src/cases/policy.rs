//! Cases about egress rules: destinations that are allowed or denied, each tried by the guest over TCP, UDP and ICMP.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use pontoon_netns::add_address;

use super::{expect, icmp, replace_file, talk};
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::server;

/// Port of the servers at the far end, TCP and UDP.
const PORT: u16 = 7000;

pub(super) fn cases() -> Vec<Case> {
    [
        Case::both("policy.by-address", 60, by_address),
        Case::both("policy.by-name", 60, by_name),
        Case::both("policy.other-resolvers", 30, other_resolvers),
        Case::both("policy.denied-connects-fail-and-are-logged", 30, denied),
        Case::both("policy.file", 30, file),
    ]
    .into_iter()
    .flatten()
    .map(Case::pontoon_only)
    .collect()
}

/// The far end of the network, with servers on two addresses and on the address of a name that its DNS server knows.
struct FarEnd<'a> {
    network: Network<'a>,
    one: IpAddr,
    two: IpAddr,
    named: IpAddr,
}

impl<'a> FarEnd<'a> {
    fn new(context: &'a Context, family: Family) -> Result<Self> {
        let network = Network::new(context)?;
        icmp::open_ping(context)?;
        let one = network.server_address(family);
        let two = network.add_server_address(family, 3)?;
        let named = family.pick(server::dns::A, server::dns::AAAA);
        replace_file("/etc/resolv.conf", &format!("nameserver {one}\n"))?;
        network.server().enter(|| {
            let width = if family == Family::V4 { 32 } else { 128 };
            add_address("lo", &format!("{named}/{width}"))?;
            for address in [one, two, named] {
                server::tcp::start(SocketAddr::new(address, PORT))?;
                // A UDP server on the unspecified address would answer from another address than the one queried.
                server::udp::start(SocketAddr::new(address, PORT))?;
            }
            server::dns::start(SocketAddr::new(one, 53))
        })?;
        Ok(Self {
            network,
            one,
            two,
            named,
        })
    }

    /// Tries the three addresses, after the shell line `before`. Returns the names and protocols that answer.
    fn reached(&self, family: Family, options: &[String], before: &str) -> Result<Vec<String>> {
        let line = format!(
            "{before} $E2E guest raw reach {} {PORT} {} {} {}",
            family.suffix(),
            self.one,
            self.two,
            self.named
        );
        let text = self.network.run().options(options).shell(&line).text()?;
        Ok(text
            .lines()
            .filter(|line| *line != "end")
            .map(str::to_owned)
            .collect())
    }
}

fn by_protocol(to: IpAddr, protocols: &[&str]) -> Vec<String> {
    protocols
        .iter()
        .map(|protocol| format!("{to} {protocol}"))
        .collect()
}

const ALL: &[&str] = &["tcp", "udp", "icmp"];

/// Returns `to` as written in a rule with ports: IPv6 in brackets.
fn bracketed(to: IpAddr) -> String {
    super::host(to)
}

fn by_address(context: &Context, family: Family) -> Result<()> {
    let far = FarEnd::new(context, family)?;
    let (one, two) = (far.one, far.two);
    let width = if family == Family::V4 { 24 } else { 64 };
    // Options, protocols that reach the first address, and protocols that reach the second.
    let table: Vec<(Vec<String>, &[&str], &[&str])> = vec![
        (words(&["--deny", &one.to_string()]), &[], ALL),
        (words(&["--allow", &one.to_string()]), ALL, &[]),
        (words(&["--deny", &format!("{one}/{width}")]), &[], &[]),
        (
            words(&["--deny", &format!("{}:{PORT}/tcp", bracketed(one))]),
            &["udp", "icmp"],
            ALL,
        ),
        (
            words(&["--deny", "*:6999-7001/udp"]),
            &["tcp", "icmp"],
            &["tcp", "icmp"],
        ),
        (words(&["--deny", "*:7001-7002"]), ALL, ALL),
        (words(&["--deny", "*/icmp"]), &["tcp", "udp"], &["tcp", "udp"]),
        (
            words(&["--allow", "*/tcp", "--deny", &two.to_string()]),
            &["tcp"],
            &[],
        ),
        (words(&["--deny", &one.to_string(), "--allow", "*"]), &[], ALL),
    ];
    for (options, first, second) in table {
        let mut wanted = by_protocol(one, first);
        wanted.extend(by_protocol(two, second));
        let mut got = far.reached(family, &options, "")?;
        got.retain(|line| !line.starts_with(&far.named.to_string()));
        ensure!(
            got == wanted,
            "{options:?}: the guest reaches {got:?} instead of {wanted:?}"
        );
    }
    Ok(())
}

/// Tests rules with a domain name: they apply to an address as soon as the program's resolver has returned it.
fn by_name(context: &Context, family: Family) -> Result<()> {
    let far = FarEnd::new(context, family)?;
    let kind = if family == Family::V4 { "A" } else { "AAAA" };
    let ask = |name: &str| format!("dig +short +tries=1 {name} {kind} >/dev/null;");
    let others: Vec<String> = [far.one, far.two]
        .iter()
        .flat_map(|to| by_protocol(*to, ALL))
        .collect();
    let named = by_protocol(far.named, ALL);
    let all = [others.clone(), named.clone()].concat();
    let denied_net = if family == Family::V4 {
        "192.0.2.0/24"
    } else {
        "2001:db8::/64"
    };
    let table: Vec<(Vec<String>, String, &[String])> = vec![
        (words(&["--allow", "some.test"]), String::new(), &[]),
        (words(&["--allow", "some.test"]), ask("some.test"), &named),
        (words(&["--allow", "some.test"]), ask("other.test"), &[]),
        (words(&["--allow", "*.test"]), ask("other.test"), &named),
        (words(&["--deny", "some.test"]), String::new(), &all),
        (words(&["--deny", "some.test"]), ask("some.test"), &others),
        // The name resolves to an address that another rule denies.
        (
            words(&["--allow", "some.test", "--deny", denied_net]),
            ask("some.test"),
            &[],
        ),
    ];
    for (options, before, wanted) in table {
        let got = far.reached(family, &options, &before)?;
        ensure!(
            got == wanted,
            "{options:?} {before}: reached {got:?}, wanted {wanted:?}"
        );
    }
    Ok(())
}

/// Tests that the guest reaches no resolver but the program's own while a rule names a domain.
fn other_resolvers(context: &Context, family: Family) -> Result<()> {
    let far = FarEnd::new(context, family)?;
    let line = format!(
        "for how in +notcp +tcp; do dig +short +tries=1 +time=2 $how @{} some.test A | grep -v '^;'; done; \
         dig +short +tries=1 some.test A",
        far.one
    );
    let run = |options: &[&str]| far.network.run().options(options).shell(&line).text();
    let answer = server::dns::A;
    expect(&run(&["--deny", "unknown.test"])?, &answer.to_string())?;
    expect(
        &run(&["--deny", "203.0.113.9"])?,
        &format!("{answer}\n{answer}\n{answer}"),
    )
}

/// Tests that the guest receives an error at once for a denied destination, and that the log has a line for each rule
/// instead of each packet.
fn denied(context: &Context, family: Family) -> Result<()> {
    let far = FarEnd::new(context, family)?;
    let talk = talk()?;
    let line = format!(
        "ping {} -n -c 3 -i 0.2 -W 5 {one}; timeout 5 curl -sS --noproxy '*' http://{}:{PORT}/ 2>&1; true",
        family.flag(),
        bracketed(far.one),
        one = far.one
    );
    let rule = format!("{}", far.one);
    let text = far
        .network
        .run()
        .options(["--deny", &rule])
        .shell(&line)
        .talk_to(&talk)
        .text()?;
    let errors = match family {
        Family::V4 => text.matches("Packet filtered").count(),
        Family::V6 => text.matches("Administratively prohibited").count(),
    };
    ensure!(errors == 3, "ping received {errors} errors:\n{text}");
    ensure!(text.contains("curl: (7)"), "no refused connection:\n{text}");
    let talk = std::fs::read_to_string(&talk)?;
    let lines = talk.lines().filter(|line| line.contains("refused")).count();
    let first = format!("warning: refused icmp to {rule}: deny {rule}");
    ensure!(
        talk.lines().any(|line| line == first) && (1..=2).contains(&lines),
        "not a line a second:\n{talk}"
    );
    Ok(())
}

fn file(context: &Context, family: Family) -> Result<()> {
    let far = FarEnd::new(context, family)?;
    let path = "/run/policy.toml";
    std::fs::write(path, format!("allow = [\"*\"]\ndeny = [\"{}\"]\n", far.one))?;
    let got = far.reached(
        family,
        &words(&["--policy", path, "--deny", &far.named.to_string()]),
        "",
    )?;
    let wanted = by_protocol(far.two, ALL);
    ensure!(got == wanted, "the guest reaches {got:?} instead of {wanted:?}");

    std::fs::write(path, "allow = [\"10.0.0\"]\n")?;
    let output = far
        .network
        .run()
        .options(["--policy", path])
        .shell("true")
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(2) && text.contains("'10.0.0'"),
        "{text}"
    );
    Ok(())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}
