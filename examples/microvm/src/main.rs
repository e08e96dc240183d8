//! A small virtual machine with the engine of Pontoon inside the VMM: one CPU, one virtio-net device, a guest without
//! an operating system.
//!
//! The engine is a thread of this process and serves the device's queues itself. The guest's notifications arrive
//! through an ioeventfd and its interrupts are sent through an irqfd, so the CPU's thread does not process frames. With
//! `--doorbells vmm` and `--interrupts vmm` the VMM forwards notifications and interrupts, and with `--link calls` the
//! guest calls the VMM for each frame; `pontoon bench exits` compares the numbers of exits.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

mod args;
mod boot;
mod calls;
mod machine;
mod outcome;
mod server;
mod statistics;
mod virtio;

use args::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pontoon-microvm: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let Some(kvm) = machine::kvm()? else {
        eprintln!("pontoon-microvm: there is no /dev/kvm here, so there is no machine to run");
        return Ok(());
    };
    let outcome = machine::run(&kvm, args)?;
    args.print(&outcome)
}
