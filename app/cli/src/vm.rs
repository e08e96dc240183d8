//! Verb `pontoon vm`: converts its arguments and runs the supervisor.

use std::process::ExitCode;

use pontoon_supervisor::options::{Guest, Machine, MachineSocket, VhostNet};

use crate::args::VmArgs;
use crate::run;

pub(crate) fn run(arguments: VmArgs) -> ExitCode {
    let socket = match arguments.fd {
        Some(number) => MachineSocket::Descriptor(number),
        // The parser asks for one of the two.
        None => MachineSocket::Paths(arguments.socket),
    };
    let machine = Machine {
        socket,
        protocol: arguments.protocol,
        one_off: arguments.one_off,
        hostname: arguments.hostname,
    };
    run::serve(
        arguments.network,
        Guest::Machine(machine),
        VhostNet::Off,
        arguments.daemon,
    )
}
