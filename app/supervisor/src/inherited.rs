//! Descriptors that the process which has executed the program has passed by their numbers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use pontoon_process::descriptor;
use pontoon_process::error::Error;
use pontoon_process::ready_notify::ReadyNotifier;

use crate::options::{Guest, GuestOptions, Machine, MachineSocket};

/// Checks that no two of `--fd`, `--ready-fd`, `--exit-fd` and `--decider-fd` name the same descriptor.
pub(crate) fn one_use_each(options: &GuestOptions) -> Result<(), Error> {
    let named = [
        ("--fd", machine_descriptor(options)),
        ("--ready-fd", options.ready_fd),
        ("--exit-fd", options.exit_fd),
        ("--decider-fd", options.decider_fd),
    ];
    for (place, (option, number)) in named.iter().enumerate() {
        let mut earlier = named[..place].iter();
        if let Some((number, (other, _))) =
            number.zip(earlier.find(|(_, other)| number.is_some() && other == number))
        {
            return Err(Error::new(format!("{other} and {option} are both {number}")).with_status(2));
        }
    }
    Ok(())
}

/// Descriptors that the process which has executed the program has passed by their numbers.
pub(crate) struct InheritedDescriptors {
    pub(crate) ready: Option<OwnedFd>,
    pub(crate) exit: Option<OwnedFd>,
    pub(crate) decider: Option<OwnedFd>,
    /// Socket of a virtual machine.
    pub(crate) machine: Option<OwnedFd>,
}

impl InheritedDescriptors {
    /// Takes ownership of the descriptors that the options name.
    ///
    /// # Safety
    /// Same as [`descriptor::take_over`]; the numbers differ.
    pub(crate) unsafe fn take_over(options: &GuestOptions) -> Result<Self, Error> {
        let take_over = |number: Option<RawFd>, option, advice| {
            // SAFETY: the caller ensures the conditions of `descriptor::take_over`.
            let take_over = |number| unsafe { descriptor::take_over(number, option, advice) };
            number.map(take_over).transpose()
        };
        let pipe = "N</path/of/a/fifo or a pipe in the shell";
        let stream = "a stream socket that the parent process passes as descriptor N";
        let machine = "a socket that the parent process leaves open as N";
        Ok(Self {
            // SAFETY: as above.
            ready: unsafe { ReadyNotifier::take_over(options.ready_fd)? },
            exit: take_over(options.exit_fd, "--exit-fd", pipe)?,
            decider: take_over(options.decider_fd, "--decider-fd", stream)?,
            machine: take_over(machine_descriptor(options), "--fd", machine)?,
        })
    }

    /// Returns all descriptors.
    pub(crate) fn all(&self) -> Vec<BorrowedFd<'_>> {
        let all = [&self.ready, &self.exit, &self.decider, &self.machine];
        all.into_iter().flatten().map(AsFd::as_fd).collect()
    }
}

/// Returns the number of the socket of a virtual machine that the options name.
const fn machine_descriptor(options: &GuestOptions) -> Option<RawFd> {
    match &options.guest {
        Guest::Machine(Machine {
            socket: MachineSocket::Descriptor(number),
            ..
        }) => Some(*number),
        _ => None,
    }
}
