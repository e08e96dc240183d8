//! `pontoon vm`.

use std::process::ExitCode;

use pontoon_supervisor::options::{Guest, Machine, Seat, VhostNet};

use crate::args::VmArgs;
use crate::run;

pub(crate) fn run(arguments: VmArgs) -> ExitCode {
    let seat = match arguments.socket {
        Some(path) => Seat::Path(path),
        None => Seat::Descriptor(arguments.fd.expect("the parser asks for one of the two")),
    };
    let machine = Machine {
        seat,
        protocol: arguments.protocol,
        one_off: arguments.one_off,
    };
    run::serve(arguments.network, Guest::Machine(machine), VhostNet::Off)
}
