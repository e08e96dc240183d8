//! Rules as text, and what a guest's packets meet at the engine's door.

mod door;
mod names;
mod reload;
mod text;
mod wire;

use core::net::SocketAddr;
use core::time::Duration;

use door::Door;

use super::{EgressProtocol, EgressRule};
use crate::test_world::addr;

fn rules(lines: &[&str]) -> Vec<EgressRule> {
    lines.iter().map(|line| line.parse().unwrap()).collect()
}

const TCP: EgressProtocol = EgressProtocol::Tcp;
const UDP: EgressProtocol = EgressProtocol::Udp;
const ICMP: EgressProtocol = EgressProtocol::Icmp;
