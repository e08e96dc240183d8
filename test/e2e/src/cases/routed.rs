//! Cases about hosts behind the guest, such as containers, for which the guest routes.

use anyhow::Result;

use super::{expect, tcp_server};
use crate::case::{Case, Context, Family};
use crate::network::Network;

pub(super) fn cases() -> Vec<Case> {
    Case::both("routed.path-mtu-below-link-mtu", 30, narrow)
        .map(Case::pontoon_only)
        .into()
}

/// Shell script of the guest: creates a namespace `$inner` behind a link whose near end has an MTU of 1,400 and the
/// far end 9,000.
const INNER: &str = "
    for conf in /proc/sys/net/ipv6/conf/*; do echo 2 > $conf/accept_ra; done
    echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
    echo 1 > /proc/sys/net/ipv4/ip_forward
    unshare --net sleep 60 > /dev/null &
    inner=$!
    until [ $(readlink /proc/$inner/ns/net) != $(readlink /proc/self/ns/net) ]; do sleep 0.05; done
    ip link add in0 mtu 1400 type veth peer name out0 netns $inner
    ip addr add 10.9.0.1/24 dev in0
    ip addr add fd09::1/64 dev in0 nodad
    ip link set in0 up
    within() { nsenter --net=/proc/$inner/ns/net \"$@\"; }
    within ip link set out0 mtu 9000 up
    within ip addr add 10.9.0.2/24 dev out0
    within ip addr add fd09::2/64 dev out0 nodad
    within ip route add default via 10.9.0.1
    within ip route add default via fd09::1";

/// Tests that the engine reduces its segments when the guest drops a packet that is too large for the link behind it
/// and reports that by an ICMP error.
fn narrow(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, family)?;
    let line = format!("set -e; {INNER}; within $E2E guest tcp {server} fetch 0 21 8388608; kill $inner");
    expect(&network.run().shell(&line).text()?, "ok")
}
