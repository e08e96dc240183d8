//! `pontoon run`.

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use pontoon_engine::config::UdpFilter;
use pontoon_runtime::Pacing;
use pontoon_supervisor::config::GUEST_MAC;
use pontoon_supervisor::options::{Guest, Ipv6, Options, Resolvers, VhostNet};
use tracing_subscriber::filter::LevelFilter;

use crate::args::{self, Resolver, Run};
use crate::{log, usage};

/// Least MTU of a link with IPv6 (RFC 8200 section 5).
const LEAST_IPV6_MTU: u16 = 1280;

pub(crate) fn run(arguments: Run) -> ExitCode {
    log::start(arguments.log_format, level(&arguments));
    let options = match options(arguments) {
        Ok(options) => options,
        Err(line) => {
            tracing::error!("{line}");
            return usage::STATUS.into();
        }
    };
    match pontoon_supervisor::run(&options) {
        Ok(status) => status.into(),
        Err(error) => {
            tracing::error!("{error}");
            error.status().into()
        }
    }
}

fn level(arguments: &Run) -> LevelFilter {
    match (arguments.quiet, arguments.verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::INFO,
        (false, 1) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    }
}

fn options(arguments: Run) -> Result<Options, String> {
    let ipv6 = match (arguments.no_ipv6, arguments.ipv6) {
        (true, _) => Ipv6::Off,
        (false, Some(subnet)) => Ipv6::Subnet(subnet),
        (false, None) => Ipv6::Auto,
    };
    if ipv6 != Ipv6::Off && arguments.mtu < LEAST_IPV6_MTU {
        return Err(format!(
            "--mtu {}: IPv6 needs {LEAST_IPV6_MTU} (try: --no-ipv6)",
            arguments.mtu
        ));
    }
    Ok(Options {
        guest: match arguments.attach {
            Some(target) => Guest::Attach(target),
            None => Guest::Command {
                argv: command_or_shell(arguments.command),
                hostname: arguments.hostname,
            },
        },
        publish: arguments.publish,
        host_loopback: arguments.host_loopback,
        host_addresses: arguments.host_addresses,
        ipv4: arguments.ipv4,
        ipv6,
        mtu: arguments.mtu,
        resolvers: resolvers(&arguments.dns)?,
        search: arguments.search,
        pacing: match arguments.io {
            args::Io::Event => Pacing::Event,
            args::Io::Hybrid => Pacing::Hybrid,
            args::Io::Poll => Pacing::Poll,
        },
        workers: arguments.workers,
        no_offload: arguments.no_offload,
        vhost_net: match arguments.vhost_net {
            args::VhostNet::Auto => VhostNet::Auto,
            args::VhostNet::On => VhostNet::On,
            args::VhostNet::Off => VhostNet::Off,
        },
        ifname: arguments.ifname,
        mac: arguments.mac.unwrap_or(GUEST_MAC),
        outbound: arguments.outbound,
        connect_timeout: arguments.connect_timeout,
        udp_filter: match arguments.udp_filter {
            args::UdpFilter::Endpoint => UdpFilter::Endpoint,
            args::UdpFilter::Address => UdpFilter::Address,
            args::UdpFilter::AddressPort => UdpFilter::AddressPort,
        },
        max_flows: arguments.max_flows,
        max_flow_rate: arguments.max_flow_rate,
        ready_fd: arguments.ready_fd,
        pid_file: arguments.pid_file,
    })
}

fn command_or_shell(command: Vec<OsString>) -> Vec<OsString> {
    if command.is_empty() {
        let shell = env::var_os("SHELL").filter(|shell| !shell.is_empty());
        return vec![shell.unwrap_or_else(|| "/bin/sh".into())];
    }
    command
}

fn resolvers(wishes: &[Resolver]) -> Result<Resolvers, String> {
    match wishes {
        [] => Ok(Resolvers::Host),
        [Resolver::None] => Ok(Resolvers::None),
        several => {
            let given = several.iter().map(|wish| match wish {
                Resolver::At(server) => Ok(*server),
                Resolver::None => Err("--dns none goes with no other --dns (try: one of them)".to_owned()),
            });
            given.collect::<Result<_, _>>().map(Resolvers::Given)
        }
    }
}
