use super::*;

/// Returns a DHCP message of a client with these options.
pub(super) fn with_options(options: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 240];
    message[..12].copy_from_slice(b"\x01\x01\x06\0\xde\xad\xbe\xef\0\x05\0\0");
    message[28..34].copy_from_slice(&GUEST_MAC.0);
    message[236..].copy_from_slice(b"\x63\x82\x53\x63");
    message.extend(options);
    message
}

fn broadcast(message: &[u8]) -> Vec<u8> {
    udp(("0.0.0.0", 68), ("255.255.255.255", 67), message)
}

struct Reply {
    mac: [u8; 6],
    to: IpAddr,
    your_ip: [u8; 4],
    options: Vec<(u8, Vec<u8>)>,
}

#[track_caller]
fn reply(frame: &[u8]) -> Reply {
    let (source, to, _, datagram) = open(frame);
    assert_eq!(source, ip("10.0.2.2"));
    assert_eq!(datagram[..4], [0, 67, 0, 68]);
    let message = &datagram[8..];
    assert!((300..=548).contains(&message.len()), "{} bytes", message.len());
    assert_eq!(message[..8], *b"\x02\x01\x06\0\xde\xad\xbe\xef");
    assert_eq!(message[28..34], GUEST_MAC.0);
    assert_eq!(message[236..240], *b"\x63\x82\x53\x63");
    let mut options = vec![];
    let mut list = &message[240..];
    while let [code @ 1..=254, len, rest @ ..] = list {
        let (value, rest) = rest.split_at(usize::from(*len));
        options.push((*code, value.to_vec()));
        list = rest;
    }
    assert_eq!(list[0], 255, "end");
    assert!(list[1..].iter().all(|byte| *byte == 0));
    Reply {
        mac: frame[..6].try_into().unwrap(),
        to,
        your_ip: message[16..20].try_into().unwrap(),
        options,
    }
}

fn lease(kind: u8) -> Vec<(u8, Vec<u8>)> {
    [
        (53, &[kind][..]),
        (54, &[10, 0, 2, 2]),
        (3, &[10, 0, 2, 2]),
        (1, &[255, 255, 255, 0]),
        (51, &[255; 4]),
        (26, &[0x05, 0xdc]),
        (6, &[10, 0, 2, 3]),
        (12, b"box"),
        (119, b"\x07example\x03org\0\x04corp\x07example\0"),
    ]
    .map(|(code, value)| (code, value.to_vec()))
    .into()
}

#[test]
fn client_is_offered_the_guests_address() {
    let mut net = net();
    let offer = reply(&give(&mut net, &broadcast(&with_options(&[53, 1, 1, 255]))).answer());
    assert_eq!((offer.mac, offer.to), (GUEST_MAC.0, ip("10.0.2.15")));
    assert_eq!(offer.your_ip, [10, 0, 2, 15]);
    assert_eq!(offer.options, lease(2));

    let request = with_options(&[53, 1, 3, 54, 4, 10, 0, 2, 2, 50, 4, 10, 0, 2, 15, 255]);
    let ack = reply(&give(&mut net, &broadcast(&request)).answer());
    assert_eq!((ack.mac, ack.to), (GUEST_MAC.0, ip("10.0.2.15")));
    assert_eq!(ack.your_ip, [10, 0, 2, 15]);
    assert_eq!(ack.options, lease(5));
}

#[test]
fn broadcast_flag_is_respected() {
    let mut discover = with_options(&[53, 1, 1, 255]);
    discover[10] = 0x80;
    let offer = reply(&give(&mut net(), &broadcast(&discover)).answer());
    assert_eq!((offer.mac, offer.to), ([0xff; 6], ip("255.255.255.255")));
}

#[test]
fn renewal_is_answered_by_unicast() {
    let mut request = with_options(&[53, 1, 3, 255]);
    request[12..16].copy_from_slice(&[10, 0, 2, 15]);
    let ack = reply(&give(&mut net(), &udp(("10.0.2.15", 68), ("10.0.2.2", 67), &request)).answer());
    assert_eq!((ack.mac, ack.to), (GUEST_MAC.0, ip("10.0.2.15")));
    assert_eq!(ack.options, lease(5));
}

#[test]
fn request_for_another_address_is_answered_with_nak() {
    let request = with_options(&[53, 1, 3, 50, 4, 192, 168, 1, 5, 61, 3, 0, 7, 9, 255]);
    let nak = reply(&give(&mut net(), &broadcast(&request)).answer());
    assert_eq!((nak.mac, nak.to), ([0xff; 6], ip("255.255.255.255")));
    assert_eq!(nak.your_ip, [0; 4]);
    assert_eq!(
        nak.options,
        [(53, vec![6]), (54, vec![10, 0, 2, 2]), (61, vec![0, 7, 9])]
    );
}

#[test]
fn inform_is_answered_without_a_lease() {
    let mut inform = with_options(&[53, 1, 8, 255]);
    inform[12..16].copy_from_slice(&[10, 0, 2, 77]);
    let ack = reply(&give(&mut net(), &udp(("10.0.2.77", 68), ("10.0.2.2", 67), &inform)).answer());
    assert_eq!((ack.mac, ack.to), (GUEST_MAC.0, ip("10.0.2.77")));
    assert_eq!(ack.your_ip, [0; 4]);
    let mut expected = lease(5);
    expected.retain(|(code, _)| *code != 51);
    assert_eq!(ack.options, expected);
}

#[test]
fn long_option_lists_are_cut_at_the_minimum_message_size() {
    let mut net = net();
    net.config.hostname = Some("h".repeat(63));
    net.config.search = (0..40).map(|n| format!("domain{n:02}.example")).collect();
    let id = [&[53, 1, 1, 61, 19][..], &[9; 19], &[255]].concat();
    let offer = reply(&give(&mut net, &broadcast(&with_options(&id))).answer());
    assert_eq!(
        offer.options.iter().find(|(code, _)| *code == 61).unwrap().1,
        [9; 19]
    );
    let search = &offer.options.last().unwrap();
    assert_eq!(search.0, 119);
    assert_eq!(search.1.len() % 18, 0, "whole names");
    assert!(search.1.len() > 150);
    // The longest client identifier leaves no room for a search list, and is returned nevertheless.
    let id = [&[53, 1, 1, 61, 255][..], &[9; 255], &[255]].concat();
    let outcome = give(&mut net, &broadcast(&with_options(&id)));
    check(&outcome.answer());
}

#[test]
fn messages_without_an_answer_are_dropped() {
    let mut net = net();
    for options in [
        &[53, 1, 4, 255][..],                                      // decline
        &[53, 1, 7, 255],                                          // release
        &[53, 1, 2, 255],                                          // a server's
        &[53, 1, 200, 255],                                        // unknown
        &[53, 1, 3, 54, 4, 10, 0, 2, 9, 50, 4, 10, 0, 2, 15, 255], // the client has accepted another server's offer
    ] {
        give(&mut net, &broadcast(&with_options(options))).silence();
    }
}

#[test]
fn invalid_messages_are_malformed() {
    let mut net = net();
    give(&mut net, &broadcast(&[0; 100])).malformed();
    give(&mut net, &broadcast(&with_options(&[]))).malformed();
    give(&mut net, &broadcast(&with_options(&[53, 9, 1]))).malformed();
    let mut reply = with_options(&[53, 1, 1, 255]);
    reply[0] = 2;
    give(&mut net, &broadcast(&reply)).malformed();
}

#[test]
fn unconfigured_options_are_omitted() {
    let mut net = net();
    net.config.resolvers.clear();
    net.config.search.clear();
    net.config.hostname = None;
    let offer = reply(&give(&mut net, &broadcast(&with_options(&[53, 1, 1, 255]))).answer());
    let mut expected = lease(2);
    expected.retain(|(code, _)| ![6, 12, 119].contains(code));
    assert_eq!(offer.options, expected);
}
