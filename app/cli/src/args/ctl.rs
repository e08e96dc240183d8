//! Definitions of commands of `pontoon ctl` that change rules and flows.

use std::path::PathBuf;

use clap::{ArgGroup, Subcommand};
use pontoon_engine::egress::Match;

use crate::values;

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Replace all rules at once, and reset the flows that the new rules refuse
    Replace {
        /// Rules, one in each line: allow TO, or deny TO; # begins a comment. - is standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Keep the flows that the new rules refuse until they end
        #[arg(long)]
        keep_flows: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum FlowsCommand {
    /// End flows: reset TCP connections on both sides, close UDP endpoints and echo ids
    #[command(group = ArgGroup::new("which").args(["id", "rule"]).required(true))]
    Kill {
        /// The flow with this id, which `flows` shows
        #[arg(value_name = "ID", value_parser = values::flow_id)]
        id: Option<String>,
        #[arg(
            long,
            value_name = "TO",
            help = "The flows of the guest to this destination: CIDR|DOMAIN[:PORTS][/tcp|/udp|/icmp]"
        )]
        rule: Option<Match>,
    },
}
