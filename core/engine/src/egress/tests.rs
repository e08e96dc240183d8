//! Tests of egress rules: their text form, and their decisions about packets of the guest.

mod end;
mod fixture;
mod kept;
mod names;
mod pins;
mod reload;
mod text;
mod wire;

use core::net::SocketAddr;
use core::time::Duration;

use fixture::Fixture;

use super::{EgressProtocol, EgressRule, RefusedFlows};
use crate::test_world::addr;

fn rules(lines: &[&str]) -> Vec<EgressRule> {
    lines.iter().map(|line| line.parse().unwrap()).collect()
}

const TCP: EgressProtocol = EgressProtocol::Tcp;
const UDP: EgressProtocol = EgressProtocol::Udp;
const ICMP: EgressProtocol = EgressProtocol::Icmp;
