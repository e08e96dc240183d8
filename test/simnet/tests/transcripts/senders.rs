//! Tests of packets whose source address no host may have.

use super::*;

/// Returns a packet from `sender` to `server` for each protocol.
fn one_of_each(sender: IpAddr, server: IpAddr, dns: IpAddr) -> [Packet; 4] {
    let datagram = |to, port| {
        Packet::Udp(Datagram {
            from: (sender, 1000).into(),
            to: (to, port).into(),
            payload: vec![7; 40],
        })
    };
    [
        Packet::Tcp(syn_between((sender, 1000).into(), (server, 80).into())),
        datagram(server, 7),
        datagram(dns, 53),
        Packet::Icmp(IcmpMessage {
            from: sender,
            to: server,
            kind: if sender.is_ipv4() { 8 } else { 128 },
            code: 0,
            rest: vec![0; 8],
        }),
    ]
}

#[test]
fn frames_with_invalid_sender_addresses_are_dropped() {
    let addresses = config(1500).plan;
    let (server_v4, server_v6) = (SERVER_V4.into(), SERVER_V6.into());
    let (dns_v4, dns_v6) = (
        addresses.v4.unwrap().dns.unwrap().into(),
        addresses.v6.unwrap().dns.unwrap().into(),
    );
    let mut given = Given::server();
    for (sender, server, dns) in [
        ("0.0.0.0", server_v4, dns_v4),
        ("0.0.0.1", server_v4, dns_v4),
        ("127.0.0.1", server_v4, dns_v4),
        ("224.0.0.1", server_v4, dns_v4),
        ("240.0.0.1", server_v4, dns_v4),
        ("255.255.255.255", server_v4, dns_v4),
        ("::", server_v6, dns_v6),
        ("::1", server_v6, dns_v6),
        ("ff02::1", server_v6, dns_v6),
    ] {
        for packet in one_of_each(sender.parse().expect("an address"), server, dns) {
            given.packet_up(&packet);
            given.quiet();
            given.counted(|counters| {
                counters.frames_up += 1;
                counters.bad_source += 1;
            });
        }
    }
    assert_eq!((given.host.calls(), given.engine.flows()), (0, 0));
}
