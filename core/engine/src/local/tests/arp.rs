use super::*;

pub(super) fn frame(packet: &[u8]) -> Vec<u8> {
    [&[0xff; 6][..], &GUEST_MAC.0, &[8, 6], packet].concat()
}

fn octets(address: &str) -> [u8; 4] {
    match ip(address) {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(_) => panic!("ARP is for IPv4"),
    }
}

fn message(operation: u8, from: &str, to: &str) -> Vec<u8> {
    let (from, to) = (octets(from), octets(to));
    frame(
        &[
            &[0, 1, 8, 0, 6, 4, 0, operation],
            &GUEST_MAC.0[..],
            &from,
            &[0; 6],
            &to,
        ]
        .concat(),
    )
}

pub(super) fn request(from: &str, to: &str) -> Vec<u8> {
    message(1, from, to)
}

#[test]
fn requests_for_all_addresses_but_the_guests_are_answered() {
    let mut net = net();
    for wanted in ["10.0.2.2", "10.0.2.3", "10.0.2.77", "192.0.2.1", "10.0.2.14"] {
        let answer = give(&mut net, &request("10.0.2.15", wanted)).answer();
        let expected = [
            &GUEST_MAC.0[..],
            &OUR_MAC.0,
            &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2],
            &OUR_MAC.0,
            &octets(wanted),
            &GUEST_MAC.0,
            &octets("10.0.2.15"),
        ];
        assert_eq!(answer, expected.concat());
    }
    give(&mut net, &request("10.0.2.77", "10.0.2.15")).silence();
}

#[test]
fn probes_and_announcements_of_the_guests_address_are_not_answered() {
    let mut net = net();
    give(&mut net, &request("0.0.0.0", "10.0.2.15")).silence();
    give(&mut net, &request("0.0.0.0", "10.0.2.77")).silence();
    give(&mut net, &request("10.0.2.15", "10.0.2.15")).silence();
    give(&mut net, &request("10.0.2.77", "10.0.2.77")).silence();
    give(&mut net, &message(2, "10.0.2.15", "10.0.2.2")).silence();
}

#[test]
fn probe_for_the_gateways_address_is_answered() {
    let mut net = net();
    give(&mut net, &request("0.0.0.0", "10.0.2.2")).answer();
    give(&mut net, &request("0.0.0.0", "10.0.2.3")).answer();
}

#[test]
fn other_hardware_and_truncated_packets_are_malformed() {
    let mut net = net();
    let whole = request("10.0.2.15", "10.0.2.2");
    for len in 14..whole.len() {
        give(&mut net, &whole[..len]).malformed();
    }
    let mut token_ring = whole;
    token_ring[15] = 6;
    give(&mut net, &token_ring).malformed();
}
