//! Verb `pontoon run`, and the start of the supervisor for every kind of guest.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use pontoon_control::Metrics;
use pontoon_engine::egress::{Action, EgressRule, Match, Target};
use pontoon_process::Error;
use pontoon_supervisor::config::GUEST_MAC;
use pontoon_supervisor::options::{Guest, GuestOptions, Ipv6, Resolvers, VhostNet};
use pontoon_supervisor::policy;

use crate::args::{NetworkArgs, Resolver, RunArgs};
use crate::{log, usage};

/// Minimum MTU of a link with IPv6 (RFC 8200 section 5).
const LEAST_IPV6_MTU: u16 = 1280;

pub(crate) fn run(arguments: RunArgs) -> ExitCode {
    let guest = match arguments.attach {
        Some(target) => Guest::Attach {
            target,
            ifname: arguments.ifname,
        },
        None => Guest::Command {
            argv: command_or_shell(arguments.command),
            hostname: arguments.hostname,
            ifname: arguments.ifname,
            keep_capabilities: arguments.keep_capabilities,
        },
    };
    serve(arguments.network, guest, arguments.vhost_net)
}

/// Provides a network to `guest`, and returns the exit status of the program.
pub(crate) fn serve(arguments: NetworkArgs, guest: Guest, vhost_net: VhostNet) -> ExitCode {
    log::start(
        arguments.report.log_format,
        log::level(arguments.report.quiet, arguments.report.verbose),
    );
    let options = match options(arguments, guest, vhost_net) {
        Ok(options) => options,
        Err(error) => return log::end(Err(error)),
    };
    log::end(pontoon_supervisor::run(&options, log::set))
}

fn options(arguments: NetworkArgs, guest: Guest, vhost_net: VhostNet) -> Result<GuestOptions, Error> {
    let ipv6 = match (arguments.no_ipv6, arguments.ipv6) {
        (true, _) => Ipv6::Off,
        (false, Some(subnet)) => Ipv6::Subnet(subnet),
        (false, None) => Ipv6::Auto,
    };
    if ipv6 != Ipv6::Off && arguments.mtu < LEAST_IPV6_MTU {
        let wrong = format!("--mtu {}: IPv6 needs {LEAST_IPV6_MTU}", arguments.mtu);
        return Err(misused(wrong, "--no-ipv6"));
    }
    let resolvers = resolvers(&arguments.dns)?;
    let rules = rules(arguments.allow, arguments.deny, arguments.policy.as_deref())?;
    if resolvers == Resolvers::None
        && let Some(rule) = rules
            .iter()
            .find(|rule| matches!(rule.to.target, Target::Name(_)))
    {
        let wrong = format!("'{rule}' needs the DNS forwarder, which --dns none disables");
        return Err(misused(wrong, "addresses, or another --dns"));
    }
    Ok(GuestOptions {
        guest,
        publish: arguments.publish,
        host_loopback: arguments.host_loopback,
        host_addresses: arguments.host_addresses,
        metadata: arguments.metadata,
        rules,
        ipv4: arguments.ipv4,
        ipv6,
        mtu: arguments.mtu,
        resolvers,
        search: arguments.search,
        pacing: arguments.io,
        workers: arguments.workers,
        no_offload: arguments.no_offload,
        require_sandbox: arguments.require_sandbox,
        vhost_net,
        mac: arguments.mac.unwrap_or(GUEST_MAC),
        outbound: arguments.outbound,
        connect_timeout: arguments.connect_timeout,
        udp_filter: arguments.udp_filter,
        max_flows: arguments.max_flows,
        max_udp_ports: arguments.max_udp_ports,
        max_flow_rate: arguments.max_flow_rate,
        max_bandwidth: arguments.max_bandwidth,
        ready_fd: arguments.report.ready_fd,
        control: arguments.control,
        pcap: arguments.pcap,
        metrics: arguments.metrics.map(|at| Metrics {
            at,
            hosts: arguments.metrics_host,
        }),
        pid_file: arguments.report.pid_file,
    })
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
    let all = |action| move |to| EgressRule { action, to };
    rules.extend(allow.into_iter().map(all(Action::Allow)));
    rules.extend(deny.into_iter().map(all(Action::Deny)));
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
