//! Runs the relay's parsers with packets from a link and with text of a configuration file.

use std::net::IpAddr;
use std::time::Duration;

use pontoon_relay::datagram::ChecksumState;
use pontoon_relay::membership::{Memberships, Querier, message};
use pontoon_relay::proxy::{Member, Proxy};
use pontoon_relay::{Datagram, Rule, config};
use pontoon_wire::checksum::Sum;

/// Runs one input of the fuzzer. Its first byte selects the parser.
pub fn run(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    match kind % 4 {
        0 => std::str::from_utf8(rest).map_or((), text),
        1 => datagram(rest),
        2 => members(rest, [10, 0, 0, 5].into()),
        _ => members(rest, [0xfe80, 0, 0, 0, 0, 0, 0, 5].into()),
    }
}

/// Checks that a rule which is parsed and displayed is parsed to the same value again.
fn text(text: &str) {
    if let Ok(rule) = text.parse::<Rule>() {
        assert_eq!(rule.to_string().parse(), Ok(rule));
    }
    let _ = text.parse::<Proxy>();
    match config::parse(text) {
        Ok(rules) => rules.iter().for_each(|rule| {
            assert_eq!(rule.to_string().parse().as_ref(), Ok(rule));
        }),
        Err(error) => {
            let lines = 1 + text.bytes().filter(|byte| *byte == b'\n').count();
            assert!((1..=lines).contains(&error.line), "{error}");
        }
    }
}

/// Parses a packet unchanged, and with corrected checksums.
fn datagram(packet: &[u8]) {
    let mut mended = packet.to_vec();
    mend_header(&mut mended);
    for packet in [packet, mended.as_slice()] {
        for checksum in [ChecksumState::Verified, ChecksumState::Unverified] {
            if let Ok(datagram) = Datagram::parse(packet, checksum) {
                assert!(packet.get(datagram.payload.clone()).is_some(), "{datagram:?}");
                assert_eq!(datagram.from.is_ipv4(), datagram.to.is_ipv4(), "{datagram:?}");
            }
        }
    }
}

/// Runs a script of IGMP and MLD messages of hosts and routers on a link. Before each message there are two bytes:
/// the time since the previous message in quarters of a second, and the length of the message.
fn members(mut script: &[u8], own: IpAddr) {
    let mut now = Duration::ZERO;
    let mut querier = Querier::new(own, now);
    let mut memberships = Memberships::new(own.is_ipv6());
    while let [quarters, len, rest @ ..] = script {
        now += Duration::from_millis(250 * u64::from(*quarters));
        let (packet, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        script = rest;
        let mut packet = packet.to_vec();
        mend_header(&mut packet);
        mend_message(&mut packet);
        if let Some(message) = message::parse(&packet) {
            querier.handle(message, now);
        }
        for query in querier.tick(now) {
            let sent = query.packet(own).map(|(packet, _)| packet);
            assert!(
                sent.is_none_or(|packet| message::parse(&packet).is_some()),
                "{query:?}"
            );
        }
        assert!(querier.next_tick() > now, "it would never sleep: {querier:?}");
        while let Some((group, filter)) = querier.next_change() {
            assert!(memberships.set(group, filter).is_ok(), "{group}");
        }
        assert!(memberships.groups().all(|(group, _)| group.is_multicast()));
    }
    let member = |(group, source)| Member {
        interface: "b".to_owned(),
        group,
        source,
    };
    let members: Vec<_> = memberships.iter().map(member).collect();
    let proxy = Proxy {
        upstream: "a".to_owned(),
        downstream: vec!["b".to_owned()],
    };
    for rule in proxy.rules(&members) {
        assert!(rule.parses_back(), "{rule}");
    }
}

/// Corrects the checksum of an IPv4 header.
fn mend_header(packet: &mut [u8]) {
    let len = packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
    if packet.first().is_some_and(|first| first >> 4 == 4)
        && let Some(header) = packet.get_mut(..len)
    {
        mend(header, 10, Sum::new());
    }
}

/// Corrects the checksum of an IGMP message, or of an MLD message after eight bytes of extension header.
fn mend_message(packet: &mut [u8]) {
    match packet.first().map(|first| first >> 4) {
        Some(4) => {
            let at = usize::from(packet[0] & 0xf) * 4;
            let end = packet
                .get(2..4)
                .map_or(0, |two| usize::from(two[0]) << 8 | usize::from(two[1]));
            if let Some(message) = packet.get_mut(at..end) {
                mend(message, 2, Sum::new());
            }
        }
        Some(6) if packet.len() > 48 => {
            let address = |at: usize| -> IpAddr {
                let mut bytes = [0; 16];
                bytes.copy_from_slice(&packet[at..at + 16]);
                bytes.into()
            };
            let (from, to) = (address(8), address(24));
            let len = usize::from(packet[4]) << 8 | usize::from(packet[5]);
            if let Some(message) = packet.get_mut(48..40 + len) {
                let pseudo = Sum::pseudo(from, to, 58, message.len());
                mend(message, 2, pseudo);
            }
        }
        _ => {}
    }
}

/// Sets the two bytes at `at` so that the checksum over `bytes` is correct.
fn mend(bytes: &mut [u8], at: usize, sum: Sum) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.fill(0);
        let right = sum.add(bytes).finish().to_be_bytes();
        bytes[at..at + 2].copy_from_slice(&right);
    }
}
