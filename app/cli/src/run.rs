//! Verb `pontoon run`, and the start of the supervisor for every kind of guest.

use std::env;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;

use ipnet::IpNet;
use pontoon_control::Metrics;
use pontoon_engine::egress::{Action, EgressRule, Match, Target};
use pontoon_process::Error;
use pontoon_supervisor::config::{GUEST_MAC, OUR_MAC};
use pontoon_supervisor::options::{
    AddressSource, Addressing, Guest, GuestOptions, Ipv4, Ipv6, Resolvers, VhostNet,
};
use pontoon_supervisor::policy;
use pontoon_supervisor::proxy::{ProxyOptions, UrlError};
use pontoon_worker::Outbound;

use crate::args::{LogFormat, NetworkArgs, OutboundSource, Resolver, RunArgs};
use crate::{log, usage};

/// Minimum MTU of a link with IPv6 (RFC 8200 section 5).
const LEAST_IPV6_MTU: u16 = 1280;

pub(crate) fn run(arguments: RunArgs) -> ExitCode {
    let guest = match arguments.attach {
        Some(target) => Guest::Attach {
            target,
            ifname: arguments.ifname,
            configure: !arguments.no_configure,
            loopback: !arguments.no_configure || arguments.bring_up_loopback,
            stay: arguments.stay,
        },
        None => Guest::Command {
            argv: command_or_shell(arguments.command),
            hostname: arguments.hostname,
            ifname: arguments.ifname,
            keep_capabilities: arguments.keep_capabilities,
        },
    };
    serve(arguments.network, guest, arguments.vhost_net, arguments.daemon)
}

/// Provides a network to `guest`, in the background if `daemon`, and returns the exit status of the program.
pub(crate) fn serve(arguments: NetworkArgs, guest: Guest, vhost_net: VhostNet, daemon: bool) -> ExitCode {
    log::start(
        arguments.report.log_format,
        log::level(arguments.report.quiet, arguments.report.verbose),
    );
    let options = match options(arguments, guest, vhost_net) {
        Ok(options) => GuestOptions { daemon, ..options },
        Err(error) => return log::end(Err(error)),
    };
    log::end(pontoon_supervisor::run(&options, log::set))
}

fn options(arguments: NetworkArgs, guest: Guest, vhost_net: VhostNet) -> Result<GuestOptions, Error> {
    if let Some(mtu) = arguments
        .mtu
        .filter(|mtu| *mtu < LEAST_IPV6_MTU && !arguments.no_ipv6)
    {
        let wrong = format!("--mtu {mtu}: IPv6 needs {LEAST_IPV6_MTU}");
        return Err(misused(wrong, "--no-ipv6"));
    }
    let addressing = addressing(&arguments)?;
    let outbound = outbound(&arguments.outbound)?;
    let (mac, gateway_mac) = (
        arguments.mac.unwrap_or(GUEST_MAC),
        arguments.gateway_mac.unwrap_or(OUR_MAC),
    );
    if mac == gateway_mac {
        let wrong = format!("{mac} is the Ethernet address of the guest and of the gateway");
        return Err(misused(wrong, "another --mac or --gateway-mac"));
    }
    let resolvers = resolvers(&arguments.dns)?;
    let proxy = proxy(&arguments)?;
    let rules = rules(arguments.allow, arguments.deny, arguments.policy.as_deref())?;
    if resolvers == Resolvers::None {
        check_without_forwarder(&addressing, &rules)?;
    }
    if let (Resolvers::None, Some(proxy)) = (&resolvers, &proxy) {
        check_proxy_without_forwarder(proxy)?;
    }
    if arguments.decision_deadline.is_some()
        && arguments.control_decide.is_none()
        && arguments.decider_fd.is_none()
    {
        let wrong = "--decision-deadline needs a decider".to_owned();
        return Err(misused(wrong, "--control-decide PATH"));
    }
    Ok(GuestOptions {
        guest,
        publish: arguments.publish,
        splice: !arguments.no_splice,
        forwards: arguments.guest_forward,
        host_loopback: arguments.host_loopback,
        host_addresses: arguments.host_addresses,
        metadata: arguments.metadata,
        rules,
        proxy,
        map_host: arguments.map_host,
        addressing,
        mtu: arguments.mtu,
        resolvers,
        search: arguments.search,
        pacing: arguments.io,
        workers: arguments.workers,
        no_offload: arguments.no_offload,
        require_sandbox: arguments.require_sandbox,
        vhost_net,
        mac,
        gateway_mac,
        fqdn: arguments.fqdn,
        disabled: arguments.disable.into_iter().collect(),
        outbound,
        connect_timeout: arguments.connect_timeout,
        udp_filter: arguments.udp_filter,
        max_flows: arguments.max_flows,
        max_udp_ports: arguments.max_udp_ports,
        max_flow_rate: arguments.max_flow_rate,
        max_bandwidth: arguments.max_bandwidth,
        ready_fd: arguments.report.ready_fd,
        exit_fd: arguments.exit_fd,
        control: arguments.control,
        control_read: arguments.control_read,
        control_decide: arguments.control_decide,
        decider_fd: arguments.decider_fd,
        decision_deadline: arguments.decision_deadline,
        slirp_api: arguments.slirp_api,
        pesto: arguments.pesto,
        pcap: arguments.pcap,
        audit: arguments.audit,
        metrics: arguments.metrics.map(|at| Metrics {
            at,
            hosts: arguments.metrics_host,
        }),
        pid_file: arguments.report.pid_file(),
        log_file: arguments.log_file,
        timed_log: matches!(arguments.report.log_format, LogFormat::Text),
        daemon: false,
    })
}

/// Checks that no option needs the DNS forwarder, which `--dns none` disables.
fn check_without_forwarder(addressing: &Addressing, rules: &[EgressRule]) -> Result<(), Error> {
    if let Some(address) = addressing.dns.first() {
        let wrong = format!("--dns-address {address} is the DNS forwarder's, which --dns none disables");
        return Err(misused(wrong, "one of them"));
    }
    let mut rules = rules.iter();
    if let Some(rule) = rules.find(|rule| matches!(rule.to.target, Target::Name(_))) {
        let wrong = format!("'{rule}' needs the DNS forwarder, which --dns none disables");
        return Err(misused(wrong, "addresses, or another --dns"));
    }
    Ok(())
}

/// Returns the options of the upstream proxy. An error does not repeat the URL, which may contain credentials by mistake.
fn proxy(arguments: &NetworkArgs) -> Result<Option<ProxyOptions>, Error> {
    let Some(url) = &arguments.proxy else {
        return Ok(None);
    };
    let wrong = |why: UrlError| {
        let error = Error::new(format!("--proxy: {why}")).with_status(usage::STATUS);
        match why {
            UrlError::Credentials => error.advise("--proxy-credentials FILE"),
            _ => error,
        }
    };
    let rules = arguments.proxy_for.iter().chain(&arguments.no_proxy);
    for rule in rules {
        if let Some(proof) = rule.proof {
            let wrong = format!("--proxy-for and --no-proxy: '{rule}': '/{proof}' is for --allow");
            return Err(misused(wrong, "the rule without it"));
        }
    }
    Ok(Some(ProxyOptions {
        url: url.parse().map_err(wrong)?,
        credentials: arguments.proxy_credentials.clone(),
        through: arguments.proxy_for.clone(),
        direct: arguments.no_proxy.clone(),
        resolves_names: arguments.proxy_dns,
    }))
}

/// Checks that no option of the proxy needs the DNS forwarder, which `--dns none` disables.
fn check_proxy_without_forwarder(proxy: &ProxyOptions) -> Result<(), Error> {
    let mut rules = proxy.through.iter().chain(&proxy.direct);
    let wrong = match rules.find(|rule| matches!(rule.target, Target::Name(_))) {
        Some(rule) => format!("'{rule}' needs the DNS forwarder, which --dns none disables"),
        None if proxy.resolves_names => {
            "--proxy-dns needs the DNS forwarder, which --dns none disables".to_owned()
        }
        None => return Ok(()),
    };
    Err(misused(wrong, "another --dns"))
}

/// Returns the address options, of which some exclude each other.
fn addressing(arguments: &NetworkArgs) -> Result<Addressing, Error> {
    let is_private = arguments.addressing == AddressSource::Private;
    let subnet = arguments.ipv4.map(IpNet::V4).or(arguments.ipv6.map(IpNet::V6));
    if let Some(subnet) = subnet.filter(|_| !is_private) {
        let wrong = format!("{subnet} is a private subnet, which --addressing host excludes");
        return Err(misused(wrong, "--address ADDR/LEN"));
    }
    for (option, list) in [
        ("--gateway", &arguments.gateway),
        ("--dns-address", &arguments.dns_address),
    ] {
        let of_family = |v4| list.iter().filter(|address| address.is_ipv4() == v4).count();
        if of_family(true) > 1 || of_family(false) > 1 {
            let wrong = format!("{option} is given twice for one family");
            return Err(misused(wrong, "one IPv4 and one IPv6 address at most"));
        }
    }
    Ok(Addressing {
        source: arguments.addressing.clone(),
        ipv4: match (arguments.no_ipv4, arguments.ipv4) {
            (true, _) => Ipv4::Off,
            (false, Some(subnet)) => Ipv4::Subnet(subnet),
            (false, None) => Ipv4::Auto,
        },
        ipv6: match (arguments.no_ipv6, arguments.ipv6) {
            (true, _) => Ipv6::Off,
            (false, Some(subnet)) => Ipv6::Subnet(subnet),
            (false, None) => Ipv6::Auto,
        },
        addresses: arguments.address.clone(),
        gateways: arguments.gateway.clone(),
        routes: arguments.route.clone(),
        dns: arguments.dns_address.clone(),
        one_host_address: arguments.one_host_address,
        no_host_routes: arguments.no_host_routes,
    })
}

/// Returns the source of outbound packets: an address of each family at most, and an interface.
fn outbound(sources: &[OutboundSource]) -> Result<Outbound, Error> {
    let mut outbound = Outbound::default();
    for source in sources {
        let is_second = match source {
            OutboundSource::Address(IpAddr::V4(address)) => outbound.v4.replace(*address).is_some(),
            OutboundSource::Address(IpAddr::V6(address)) => outbound.v6.replace(*address).is_some(),
            OutboundSource::Interface(name) => outbound.interface.replace(name.clone()).is_some(),
        };
        if is_second {
            return Err(misused(
                "--outbound is given twice for one family, or for the interface".to_owned(),
                "one IPv4 address, one IPv6 address and one interface at most",
            ));
        }
    }
    Ok(outbound)
}

fn command_or_shell(command: Vec<OsString>) -> Vec<OsString> {
    if command.is_empty() {
        let shell = env::var_os("SHELL").filter(|shell| !shell.is_empty());
        return vec![shell.unwrap_or_else(|| "/bin/sh".into())];
    }
    command
}

fn rules(allow: Vec<Match>, deny: Vec<Match>, file: Option<&Path>) -> Result<Vec<EgressRule>, Error> {
    let mut rules = file.map_or(Ok(Vec::new()), policy::read)?;
    let allow = allow.into_iter().map(|to| (Action::Allow, to));
    let deny = deny.into_iter().map(|to| (Action::Deny, to));
    for (action, to) in allow.chain(deny) {
        let rule = EgressRule::new(action, to);
        rules.push(rule.map_err(|why| misused(why, "/tls in an allow rule"))?);
    }
    let wrong = |why| {
        misused(
            format!("--allow, --deny and --policy: {why}"),
            "networks instead of addresses",
        )
    };
    policy::check(&rules).map_err(wrong)?;
    Ok(rules)
}

/// Returns a usage error with advice.
fn misused(what: String, advice: &str) -> Error {
    Error::new(what).advise(advice).with_status(usage::STATUS)
}

fn resolvers(options: &[Resolver]) -> Result<Resolvers, Error> {
    match options {
        [] => Ok(Resolvers::Host),
        [Resolver::None] => Ok(Resolvers::None),
        several => {
            let given = several.iter().map(|option| match option {
                Resolver::At(server) => Ok(*server),
                Resolver::None => Err(misused(
                    "--dns none excludes other --dns options".to_owned(),
                    "one of them",
                )),
            });
            given.collect::<Result<_, _>>().map(Resolvers::Given)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_options_and_file_are_counted_together() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("rules.toml");
        std::fs::write(&file, "allow = [\"192.0.2.1\"]\n").unwrap();
        let deny = |count| -> Vec<Match> { vec!["192.0.2.2".parse().unwrap(); count] };
        let counted = |count| rules(Vec::new(), deny(count), Some(&file)).map(|rules| rules.len());
        assert_eq!(counted(999).unwrap(), 1_000);
        let error = counted(1_000).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--allow, --deny and --policy: 1001 rules exceed the limit of 1000 (try: networks instead of addresses)"
        );
        assert_eq!(error.status(), usage::STATUS);
    }
}
