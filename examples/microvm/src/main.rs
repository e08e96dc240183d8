//! A small virtual machine with Pontoon inside: one CPU, one virtio-net device, a guest without an operating system.
//!
//! The engine is a thread of this process. It serves the device's queues itself: the guest's doorbell is an ioeventfd that
//! it waits for, and its answer an irqfd, so that no frame passes through the CPU's thread. `--doorbells vmm` and
//! `--interrupts vmm` take both through the VMM instead, and `--link calls` has the guest call the VMM for each frame; what
//! that costs in exits is what `pontoon bench exits` shows.

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
