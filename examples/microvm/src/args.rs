//! Command-line arguments of `pontoon-microvm`.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, ValueEnum};

use crate::outcome::Outcome;
use pontoon_microvm_abi::{Link, Task};

/// A small virtual machine with the engine of Pontoon inside the VMM.
#[derive(Debug, Parser)]
#[command(name = "pontoon-microvm", version)]
pub(crate) struct Args {
    /// Task of the guest, after it has received an address by DHCP
    #[arg(long, value_enum, default_value = "crr")]
    task: TaskName,
    /// Number of repetitions of the task
    #[arg(long, value_name = "N", default_value = "100")]
    pub(crate) count: u32,
    /// Network interface of the guest
    #[arg(long, value_enum, default_value = "virtio")]
    link: LinkName,
    /// Receiver of the guest's notifications
    #[arg(long, value_enum, default_value = "engine")]
    pub(crate) doorbells: Route,
    /// Sender of interrupts to the guest
    #[arg(long, value_enum, default_value = "engine")]
    pub(crate) interrupts: Route,
    /// Do not negotiate VIRTIO_F_EVENT_IDX
    #[arg(long)]
    pub(crate) no_event_idx: bool,
    /// Pacing of the guest and of the engine
    #[arg(long, value_enum, default_value = "event")]
    pub(crate) io: Io,
    /// Time limit in seconds
    #[arg(long, value_name = "S", default_value = "120")]
    deadline: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TaskName {
    /// Ping the gateway
    Ping,
    /// Connect to the server, send a byte, receive a byte, close
    Crr,
    /// Send datagrams to the server
    Send,
    /// Receive datagrams from the server
    Receive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LinkName {
    /// The guest calls the VMM for each frame
    Calls,
    /// A virtio-net device
    Virtio,
}

/// Component that receives the guest's notifications, or sends its interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Route {
    /// The engine, by ioeventfd or irqfd
    Engine,
    /// The VMM, which forwards them
    Vmm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Io {
    Event,
    Hybrid,
    Poll,
}

impl Args {
    pub(crate) fn task(&self) -> Task {
        match self.task {
            TaskName::Ping => Task::Ping,
            TaskName::Crr => Task::Crr,
            TaskName::Send => Task::Send,
            TaskName::Receive => Task::Receive,
        }
    }

    pub(crate) fn link(&self) -> Link {
        match self.link {
            LinkName::Calls => Link::Calls,
            LinkName::Virtio => Link::Virtio,
        }
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline)
    }

    pub(crate) fn print(&self, outcome: &Outcome) -> Result<()> {
        let text = if self.json {
            serde_json::to_string(outcome)?
        } else {
            outcome.to_string()
        };
        writeln!(std::io::stdout(), "{text}")?;
        Ok(())
    }
}
