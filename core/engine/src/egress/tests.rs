//! Rules as text, and what a guest's packets meet at the engine's door.

mod door;
mod names;
mod reload;
mod text;
mod wire;

use core::net::SocketAddr;
use core::time::Duration;

use door::Door;

use super::{Protocol, Rule};
use crate::test_world::addr;

fn rules(lines: &[&str]) -> Vec<Rule> {
    lines.iter().map(|line| line.parse().unwrap()).collect()
}

const TCP: Protocol = Protocol::Tcp;
const UDP: Protocol = Protocol::Udp;
const ICMP: Protocol = Protocol::Icmp;
