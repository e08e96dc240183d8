use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::{Rule, RuleTable};

/// A packet as the kernel passes it to a filter, from the offset at which the socket's packets begin, with its
/// metadata.
#[derive(Clone, Copy)]
pub(super) struct Received<'a> {
    /// Packet type (`PACKET_*`).
    pub(super) kind: u32,
    /// Hardware type of the interface (`ARPHRD_*`).
    pub(super) hardware: u32,
    /// Link-layer header.
    pub(super) link_layer: &'a [u8],
    pub(super) bytes: &'a [u8],
}

/// Executes a filter as the kernel does, on a frame to a group that has arrived on interface 7.
fn accepts(program: &[Instruction], frame: &[u8]) -> bool {
    accepts_of_type(2, program, frame)
}

/// Executes a filter like [`accepts`], on a frame of packet type `kind` (`PACKET_*`).
fn accepts_of_type(kind: u32, program: &[Instruction], frame: &[u8]) -> bool {
    let received = Received {
        kind,
        hardware: 1,
        link_layer: frame,
        bytes: frame,
    };
    execute(program, received)
}

/// Executes a filter as the kernel does.
pub(super) fn execute(program: &[Instruction], received: Received<'_>) -> bool {
    let load = |at: u32, len: usize| {
        const LINK_LAYER: u32 = 0xffe0_0000;
        let (bytes, at) = match at {
            INTERFACE_INDEX => return Some(7),
            PACKET_TYPE => return Some(received.kind),
            // SKF_AD_OFF + SKF_AD_HATYPE.
            0xffff_f01c => return Some(received.hardware),
            LINK_LAYER.. => (received.link_layer, at - LINK_LAYER),
            _ => (received.bytes, at),
        };
        let at = at as usize;
        let bytes = bytes.get(at..at + len)?;
        Some(bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)))
    };
    let (mut at, mut a, mut x) = (0, 0_u32, 0_u32);
    loop {
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        let loaded = match code {
            LOAD_WORD => load(k, 4),
            LOAD_HALF => load(k, 2),
            LOAD_BYTE => load(k, 1),
            LOAD_HALF_AT_X => load(k + x, 2),
            LOAD_BYTE_AT_X => load(k + x, 1),
            LOAD_X_HEADER_LENGTH => load(k, 1).map(|byte| {
                x = byte % 16 * 4;
                a
            }),
            COPY_TO_X => {
                x = a;
                Some(a)
            }
            AND => Some(a & k),
            OR => Some(a | k),
            SHIFT_LEFT => Some(a << k),
            JUMP_EQUAL | JUMP_EQUAL_X => {
                let operand = if code == JUMP_EQUAL { k } else { x };
                at += usize::from(if a == operand { jt } else { jf });
                Some(a)
            }
            RETURN => return k > 0,
            other => panic!("instruction {other:#x}"),
        };
        // A load beyond the packet's end ends the program, and the kernel drops the packet.
        let Some(loaded) = loaded else { return false };
        a = loaded;
    }
}

fn inputs(texts: &[&str]) -> Vec<Input> {
    let input = |text: &&str| {
        format!("{text} -> z 239.255.0.1:1")
            .parse::<Rule>()
            .unwrap()
            .input
    };
    texts.iter().map(input).collect()
}

/// Returns an Ethernet frame with a UDP datagram.
fn frame(from: &str, to: &str, protocol: u8) -> Vec<u8> {
    let from: IpAddr = from.parse().unwrap();
    let to: SocketAddr = to.parse().unwrap();
    let mut frame = vec![0; 14];
    match (from, to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            // IPv4 header with an option of four bytes.
            frame.extend([0x46, 0, 0, 32, 0, 0, 0, 0, 9, protocol, 0, 0]);
            frame.extend([from.octets(), to.octets(), [1, 1, 1, 1]].concat());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            frame.extend([0x60, 0, 0, 0, 0, 8, protocol, 9]);
            frame.extend([from.octets(), to.octets()].concat());
        }
        _ => panic!("two families"),
    }
    frame.extend(1_u16.to_be_bytes());
    frame.extend(to.port().to_be_bytes());
    frame.extend([0, 8, 0, 0]);
    frame
}

#[test]
fn filter_accepts_packets_that_a_rule_matches() {
    let program = v4(
        14,
        &inputs(&[
            "a 239.1.1.1:5001",
            "a 239.1.1.2:5001 from 10.0.0.0/24",
            "a 239.2.0.0/16:*",
            "a 224.0.0.0/4:9",
        ]),
    );
    for (from, to, taken) in [
        ("10.0.0.1", "239.1.1.1:5001", true),
        ("10.0.0.1", "239.1.1.1:5002", false),
        ("10.0.0.1", "239.1.1.2:5001", true),
        ("10.0.1.1", "239.1.1.2:5001", false),
        ("10.0.0.1", "239.2.77.1:1", true),
        ("10.0.0.1", "239.3.77.1:1", false),
        ("10.0.0.1", "239.3.77.1:9", true),
        ("10.0.0.1", "10.0.0.2:9", false),
    ] {
        assert_eq!(accepts(&program, &frame(from, to, 17)), taken, "{from} {to}");
    }
    assert!(!accepts(&program, &frame("10.0.0.1", "239.1.1.1:5001", 6)));
    assert!(!accepts(&DROP_ALL, &frame("10.0.0.1", "239.1.1.1:5001", 17)));
}

#[test]
fn filter_accepts_only_packets_of_the_interface() {
    let program = v4(14, &inputs(&["a 239.1.1.1:5001"]));
    let (wanted, other) = (
        frame("10.0.0.1", "239.1.1.1:5001", 17),
        frame("10.0.0.1", "239.1.1.1:5002", 17),
    );
    assert!(accepts(&only_own(7, program.clone()), &wanted));
    assert!(!accepts(&only_own(7, program.clone()), &other));
    assert!(!accepts(&only_own(8, program.clone()), &wanted));
    // Accepted: PACKET_HOST, PACKET_BROADCAST and PACKET_MULTICAST. Dropped: PACKET_OTHERHOST.
    let kinds = (0..4).filter(|kind| accepts_of_type(*kind, &only_own(7, program.clone()), &wanted));
    assert_eq!(kinds.collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn filter_accepts_ipv6_packets_of_a_rule() {
    let program = v6(
        14,
        &inputs(&[
            "a [ff3e::1]:5001 from 2001:db8::/32",
            "a [ff3e:0:0:1::/64]:*",
            "a [ff15::/17]:9",
        ]),
    );
    for (from, to, taken) in [
        ("2001:db8::1", "[ff3e::1]:5001", true),
        ("2001:db8::1", "[ff3e::2]:5001", false),
        ("2001:db8::1", "[ff3e::1]:5002", false),
        ("2001:db9::1", "[ff3e::1]:5001", false),
        ("2001:db9::1", "[ff3e:0:0:1::7]:1", true),
        ("2001:db9::1", "[ff3e:0:0:2::7]:1", false),
        ("::1", "[ff15:7fff::1]:9", true),
        ("::1", "[ff15:8000::1]:9", false),
    ] {
        assert_eq!(accepts(&program, &frame(from, to, 17)), taken, "{from} {to}");
    }
    // Behind an extension header the filter accepts any port; the rule table decides.
    assert!(accepts(&program, &frame("2001:db8::1", "[ff3e::1]:5002", 0)));
    assert!(!accepts(&program, &frame("2001:db8::1", "[ff3e::2]:5002", 0)));
    assert!(!accepts(&program, &frame("2001:db8::1", "[ff3e::1]:5001", 58)));
}

#[test]
fn too_many_rules_are_replaced_by_one_range() {
    let many: Vec<_> = (0..900_u32)
        .map(|index| format!("a 239.1.{}.{}:5001", index / 256, index % 256))
        .collect();
    let many = inputs(&many.iter().map(String::as_str).collect::<Vec<_>>());
    let program = v4(14, &many);
    assert!(program.len() <= MAX_INSTRUCTIONS);
    assert!(accepts(&program, &frame("10.0.0.1", "239.1.3.1:5001", 17)));
    assert!(!accepts(&program, &frame("10.0.0.1", "239.1.3.1:5001", 6)));
    assert!(accepts(&program, &frame("10.0.0.1", "239.1.3.255:1", 17)));
    assert!(!accepts(&program, &frame("10.0.0.1", "239.1.4.0:5001", 17)));
    let fewer = v4(14, &many[..80]);
    assert!(!accepts(&fewer, &frame("10.0.0.1", "239.1.0.80:5001", 17)));
}

proptest! {
    /// Without extension headers and IPv4 options, the filter and the rule table make the same decision.
    #[test]
    fn filter_agrees_with_the_table(
        picks in prop::collection::btree_set((0..4_usize, 0..3_usize, 0..3_usize), 0..10),
        from in 0..3_u8, to in 0..3_u8, port in 0..3_u16,
    ) {
        let texts: Vec<_> = picks.iter().map(|(net, port, from)| format!(
            "a {}:{}{}",
            ["239.0.0.0/8", "239.1.0.0/17", "239.1.1.0/31", "239.1.1.1"][*net],
            ["*", "1", "2"][*port],
            ["", " from 10.0.0.0/31", " from 10.0.0.1"][*from],
        )).collect();
        let inputs = inputs(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let (from, to) = (format!("10.0.0.{from}"), format!("239.1.1.{to}:{port}"));
        let table = RuleTable::new(inputs.iter().map(|input| (input, ())));
        let at: SocketAddr = to.parse().unwrap();
        let found = table.find(from.parse().unwrap(), at.ip(), at.port()).is_some();
        prop_assert_eq!(accepts(&v4(14, &inputs), &frame(&from, &to, 17)), found);
    }
}
