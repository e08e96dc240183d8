//! Cases about ICMP: ping and traceroute.

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::sysctl;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::case::{Case, Context, Family};
use crate::network::Network;

/// Value of `net.ipv4.ping_group_range` that permits ping sockets to all groups, as most distributions configure it.
const OPEN: &str = "0 2147483647";

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        Case::both("icmp.ping", 20, ping),
        Case::both("icmp.ping-of-60000-bytes", 20, large_ping),
        Case::both("icmp.traceroute-udp-three-hops", 40, |context, family| {
            traceroute(context, family, "-U")
        }),
        Case::both("icmp.traceroute-icmp-three-hops", 40, |context, family| {
            traceroute(context, family, "-I")
        }),
    ]
    .into_iter()
    .flatten()
    .collect();
    let closed = Case::new("icmp.ping-forbidden-by-the-host", 20, forbidden)
        .caller(crate::case::Caller::User(
            "root opens raw sockets, which nothing forbids",
        ))
        .pontoon_only();
    cases.push(closed);
    cases
}

/// Permits ping sockets to the users of the host.
pub(super) fn open_ping(context: &Context) -> Result<()> {
    // In a user namespace with one user only the groups of that namespace are valid in the range.
    let range = if context.program.drop_privileges {
        "0 0"
    } else {
        OPEN
    };
    sysctl("net/ipv4/ping_group_range", range)
}

fn ping(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    open_ping(context)?;
    let line = format!(
        "ping {} -n -c 5 -i 0.2 -W 2 {}",
        family.flag(),
        network.server_address(family)
    );
    let text = network.run().shell(&line).text()?;
    ensure!(text.contains(" 5 received, 0% packet loss"), "{text}");
    Ok(())
}

fn large_ping(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    open_ping(context)?;
    let line = format!(
        "ping {} -n -c 3 -i 0.2 -W 2 -s 60000 {}",
        family.flag(),
        network.server_address(family)
    );
    let text = network.run().shell(&line).text()?;
    // The first ping may be answered by the error that reports the path MTU.
    let answers = text
        .lines()
        .filter(|line| line.starts_with("60008 bytes from"))
        .count();
    ensure!(answers >= 2, "{text}");
    Ok(())
}

/// Binds this thread, and with it the processes that it starts, to one CPU. On several CPUs traceroute may remove an ICMP
/// error from its error queue before the guest's kernel has set the error of the socket (`rawv6_err`, Linux
/// net/ipv6/raw.c). Then poll(2) returns POLLERR until the end, because traceroute clears the error only by reading another
/// entry, and it never reads the replies.
fn use_one_cpu() -> Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    let cpu = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
    one.set(cpu.context("no CPU is permitted")?);
    Ok(sched_setaffinity(None, &one)?)
}

/// Tests that traceroute shows the guest's gateway, both routers, and the far end.
fn traceroute(context: &Context, family: Family, method: &str) -> Result<()> {
    let network = Network::with_routers(context, 2)?;
    open_ping(context)?;
    use_one_cpu()?;
    let end = network.server_address(family);
    let line = format!("traceroute {} {method} -n -q 1 -w 2 -m 8 {end}", family.flag());
    let text = network.run().shell(&line).text()?;
    let hops: Vec<&str> = text
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    let router = |link: u8| {
        let v6 = std::net::Ipv6Addr::new(0x2001, 0xdb8, 1 + u16::from(link), 0, 0, 0, 0, 2);
        family.pick([198, 51, 100 + link, 2].into(), v6).to_string()
    };
    let wanted = [router(0), router(1), router(2)];
    ensure!(
        hops.len() <= 4 && hops.ends_with(&wanted.each_ref().map(String::as_str)),
        "instead of {wanted:?}:\n{text}"
    );
    Ok(())
}

/// Tests that one clear line is logged if neither ping sockets nor raw sockets may be opened, and that pings are not
/// answered.
fn forbidden(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    // In a new network namespace ping sockets are permitted to no group.
    let line = format!(
        "ping -n -c 2 -i 0.2 -W 1 {}; true",
        network.server_address(Family::V4)
    );
    let output = network.run().shell(&line).output()?;
    let talk = String::from_utf8_lossy(&output.stderr);
    let lines = talk
        .lines()
        .filter(|line| line.contains("ping_group_range"))
        .count();
    ensure!(output.status.success(), "{}", output.status);
    ensure!(lines == 1, "{lines} lines name ping_group_range:\n{talk}");
    Ok(())
}
