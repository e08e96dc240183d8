//! Cases about the DNS forwarder.

use std::net::SocketAddr;

use anyhow::{Result, ensure};

use super::{expect, replace_file};
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::server;

pub(super) fn cases() -> Vec<Case> {
    [
        Case::both("dns.udp", 20, |context, family| ask(context, family, "+notcp")),
        Case::both("dns.tcp", 20, |context, family| ask(context, family, "+tcp")),
        Case::both("dns.4k-edns", 20, big),
        Case::both("dns.queries-alone", 20, update).map(Case::pontoon_only),
        Case::both("dns.first-resolver-does-not-answer", 30, first_silent).map(Case::pontoon_only),
        Case::both("dns.10000-queries-at-once", 60, many).map(Case::alone),
        Case::both("dns.resolvers-change", 30, change).map(Case::pontoon_only),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns a network whose host has the DNS server at the far end as its resolver, over `family`.
fn with_resolver<'a>(context: &'a Context, family: Family, before: &str) -> Result<Network<'a>> {
    let network = Network::new(context)?;
    let address = network.server_address(family);
    replace_file("/etc/resolv.conf", &format!("{before}nameserver {address}\n"))?;
    network
        .server()
        .enter(|| server::dns::start(SocketAddr::new(address, 53)))?;
    Ok(network)
}

fn ask(context: &Context, family: Family, transport: &str) -> Result<()> {
    let network = with_resolver(context, family, "")?;
    for (kind, wanted) in [
        ("A", server::dns::A.to_string()),
        ("AAAA", server::dns::AAAA.to_string()),
    ] {
        let line = format!("dig +short +tries=1 {transport} some.test {kind}");
        expect(&network.run().shell(&line).text()?, &wanted)?;
    }
    Ok(())
}

/// Tests that operations other than QUERY are not forwarded to the resolver.
fn update(context: &Context, family: Family) -> Result<()> {
    let network = with_resolver(context, family, "")?;
    let line = "dig +notcp +tries=1 +time=3 +opcode=update some.test SOA";
    let text = network.run().shell(line).text()?;
    ensure!(text.contains("status: NOTIMP"), "over UDP:\n{text}");
    let line = "dig +tcp +tries=1 +time=3 +opcode=update some.test SOA || true";
    let text = network.run().shell(line).text()?;
    ensure!(!text.contains("status:"), "over TCP:\n{text}");
    Ok(())
}

fn big(context: &Context, family: Family) -> Result<()> {
    let network = with_resolver(context, family, "")?;
    let line = "dig +tries=1 +notcp +ignore +bufsize=4096 big.test TXT";
    let text = network.run().shell(line).text()?;
    let answers = text
        .lines()
        .filter(|line| line.starts_with("big.test.") && line.contains("TXT"))
        .count();
    ensure!(
        answers == 15 && text.contains("(UDP)"),
        "{answers} records:\n{text}"
    );
    // Without EDNS the response is truncated (TC), and dig repeats the query over TCP.
    let text = network.run().shell("dig +tries=1 +noedns big.test TXT").text()?;
    ensure!(
        text.contains("Truncated") && text.contains("(TCP)"),
        "no retry over TCP:\n{text}"
    );
    Ok(())
}

/// Tests a first resolver that does not answer: the first query is answered by the second resolver, and later queries
/// are sent to that one at once.
fn first_silent(context: &Context, family: Family) -> Result<()> {
    let nowhere = family.pick([203, 0, 113, 1].into(), "2001:db8:ffff::1".parse()?);
    let network = with_resolver(context, family, &format!("nameserver {nowhere}\n"))?;
    let line = "dig +short +tries=1 +time=4 one.test A; dig +short +tries=1 +time=1 two.test A";
    let wanted = format!("{0}\n{0}", server::dns::A);
    expect(&network.run().shell(line).text()?, &wanted)
}

fn many(context: &Context, family: Family) -> Result<()> {
    let network = with_resolver(context, family, "")?;
    let resolver = network
        .run()
        .shell("sed -n 's/^nameserver //p' /etc/resolv.conf | head -n 1")
        .text()?;
    let resolver = SocketAddr::new(resolver.trim_end().parse()?, 53);
    expect(
        &network
            .run()
            .guest(["dns", &resolver.to_string(), "10000"])
            .text()?,
        "10000",
    )
}

/// Tests that the forwarder uses a changed resolv.conf of the host while the guest runs.
fn change(context: &Context, family: Family) -> Result<()> {
    let nowhere = family.pick([203, 0, 113, 1].into(), "2001:db8:ffff::1".parse()?);
    let network = Network::new(context)?;
    let address = network.server_address(family);
    network
        .server()
        .enter(|| server::dns::start(SocketAddr::new(address, 53)))?;
    // The directory is the host's own, so that a new file can be renamed over the old one, as resolvconf does.
    replace_directory()?;
    std::fs::write("/etc/resolv.conf", format!("nameserver {nowhere}\n"))?;
    let line = "before=$(cat /etc/resolv.conf); dig +short +tries=1 +time=1 one.test A >/dev/null; \
                echo listening; sleep 1; dig +short +tries=2 +time=2 two.test A; \
                [ \"$before\" = \"$(cat /etc/resolv.conf)\" ] && echo same || echo other";
    let mut running = network.run().shell(line).spawn()?.listening()?;
    std::fs::write("/etc/resolv.conf.new", format!("nameserver {address}\n"))?;
    std::fs::rename("/etc/resolv.conf.new", "/etc/resolv.conf")?;
    expect(&running.line()?, &server::dns::A.to_string())?;
    // The guest's resolv.conf is mounted over the new file as well.
    expect(&running.line()?, "same")
}

/// Mounts a new /etc for the case, with the files that programs need.
fn replace_directory() -> Result<()> {
    let copy = "mkdir -p /run/etc && mount -t tmpfs tmpfs /run/etc \
                && for f in passwd group hosts nsswitch.conf subuid subgid ld.so.cache; do \
                     cp /etc/$f /run/etc/ 2>/dev/null; done; \
                mount --move /run/etc /etc";
    super::tmpfs(std::path::Path::new("/run"))?;
    crate::process::output(std::process::Command::new("sh").args(["-c", copy]))?;
    Ok(())
}
