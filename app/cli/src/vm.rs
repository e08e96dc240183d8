//! `pontoon vm`.

use std::process::ExitCode;

use pontoon_supervisor::options::{Guest, Machine, Protocol, Seat, VhostNet};

use crate::args::{self, Vm};
use crate::run;

pub(crate) fn run(arguments: Vm) -> ExitCode {
    let seat = match arguments.socket {
        Some(path) => Seat::Path(path),
        None => Seat::Descriptor(arguments.fd.expect("the parser asks for one of the two")),
    };
    let machine = Machine {
        seat,
        protocol: match arguments.protocol {
            args::Protocol::VhostUser => Protocol::VhostUser,
            args::Protocol::Stream => Protocol::Stream,
            args::Protocol::Packet => Protocol::Packet,
        },
        one_off: arguments.one_off,
    };
    run::serve(arguments.network, Guest::Machine(machine), VhostNet::Off)
}
