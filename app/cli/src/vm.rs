//! Verb `pontoon vm`: converts its arguments and runs the supervisor.

use std::process::ExitCode;

use pontoon_supervisor::options::{Guest, Machine, MachineSocket, VhostNet};

use crate::args::VmArgs;
use crate::run;

pub(crate) fn run(arguments: VmArgs) -> ExitCode {
    let socket = match arguments.socket {
        Some(path) => MachineSocket::Path(path),
        None => MachineSocket::Descriptor(arguments.fd.expect("the parser asks for one of the two")),
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
