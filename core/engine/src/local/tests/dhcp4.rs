use super::*;
use crate::address_plan::PlannedRoute;
use crate::config::LinkService;

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
    reply_from("10.0.2.2", frame)
}

#[track_caller]
fn reply_from(gateway: &str, frame: &[u8]) -> Reply {
    let (source, to, _, datagram) = open(frame);
    assert_eq!(source, ip(gateway));
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

#[test]
fn dns_is_not_announced_if_that_is_disabled() {
    let mut net = net();
    assert!(offered(&mut net, 6).is_some() && offered(&mut net, 119).is_some());
    net.config.disabled = [LinkService::DnsOption].into_iter().collect();
    assert_eq!((offered(&mut net, 6), offered(&mut net, 119)), (None, None));
}

/// Returns the value of an option in the offer to a client.
#[track_caller]
fn offered(net: &mut Net, code: u8) -> Option<Vec<u8>> {
    let gateway = net.config.plan.v4.as_ref().unwrap().gateway.to_string();
    let answer = give(net, &broadcast(&with_options(&[53, 1, 1, 255]))).answer();
    let mut options = reply_from(&gateway, &answer).options.into_iter();
    options.find(|(other, _)| *other == code).map(|(_, value)| value)
}

fn route(destination: &str, gateway: Option<&str>) -> PlannedRoute {
    PlannedRoute {
        destination: destination.parse().unwrap(),
        gateway: gateway.map(ip),
    }
}

/// Tests the order of the classless routes (RFC 3442): the default route is the first, and a route on the link precedes
/// the first route whose gateway is outside of the subnet.
#[test]
fn routes_are_offered_as_classless_routes() {
    let mut net = net();
    assert_eq!(offered(&mut net, 121), None);
    net.config.plan.routes = vec![
        route("192.0.2.0/24", Some("10.0.2.7")),
        route("2001:db8::/32", Some("fe80::7")),
        route("198.51.100.128/25", None),
        route("203.0.113.9/32", Some("172.16.0.1")),
        route("192.0.0.0/3", Some("10.0.2.8")),
    ];
    let routes = [
        &[24, 192, 0, 2, 10, 0, 2, 7][..],
        &[25, 198, 51, 100, 128, 0, 0, 0, 0],
        &[32, 172, 16, 0, 1, 0, 0, 0, 0],
        &[32, 203, 0, 113, 9, 172, 16, 0, 1],
        &[3, 192, 10, 0, 2, 8],
    ]
    .concat();
    let default = [0, 10, 0, 2, 2];
    assert_eq!(offered(&mut net, 121), Some([&default[..], &routes].concat()));
    assert_eq!(offered(&mut net, 3), Some(vec![10, 0, 2, 2]));
    net.config.plan.v4.as_mut().unwrap().default_route = false;
    assert_eq!(offered(&mut net, 121), Some(routes));
    assert_eq!(offered(&mut net, 3), None);
}

#[test]
fn gateway_outside_of_the_subnet_is_preceded_by_a_route_to_it() {
    let mut net = net();
    let own = net.config.plan.v4.as_mut().unwrap();
    own.address = "10.9.0.9/32".parse().unwrap();
    own.gateway = "169.254.2.1".parse().unwrap();
    let expected = [&[32, 169, 254, 2, 1, 0, 0, 0, 0][..], &[0, 169, 254, 2, 1]].concat();
    assert_eq!(offered(&mut net, 121), Some(expected));
    assert_eq!(offered(&mut net, 1), Some(vec![255; 4]));
}

#[test]
fn classless_routes_end_at_the_first_that_has_no_room() {
    let mut net = net();
    net.config.hostname = Some("h".repeat(63));
    net.config.fqdn = Some(["x".repeat(60).as_str(); 2].join("."));
    let gateway = Some("10.0.2.7");
    net.config.plan.routes = (0..40)
        .map(|n| route(&format!("192.0.{n}.0/24"), gateway))
        .collect();
    let routes = offered(&mut net, 121).unwrap();
    assert_eq!(routes.len() % 8, 5, "whole routes after the default route");
    assert!(routes.len() > 50, "{}", routes.len());
    assert!(routes[5..].starts_with(&[24, 192, 0, 0, 10, 0, 2, 7]));
}

/// Tests the encoding of the name in the option Client FQDN (RFC 4702 section 2).
#[test]
fn name_with_domain_is_offered_as_labels() {
    let mut net = net();
    assert_eq!(offered(&mut net, 81), None);
    for name in ["box.corp.example", "box.corp.example."] {
        net.config.fqdn = Some(name.to_owned());
        let expected = b"\x05\xff\xff\x03box\x04corp\x07example\0";
        assert_eq!(offered(&mut net, 81), Some(expected.to_vec()));
    }
}

#[test]
fn disabled_dhcp_is_silent_for_ipv4_only() {
    let mut net = net();
    net.config.disabled = [LinkService::Dhcp].into_iter().collect();
    give(&mut net, &broadcast(&with_options(&[53, 1, 1, 255]))).silence();
    let mut request = with_options(&[53, 1, 3, 255]);
    request[12..16].copy_from_slice(&[10, 0, 2, 15]);
    give(&mut net, &udp(("10.0.2.15", 68), ("10.0.2.2", 67), &request)).silence();
    give(&mut net, &dhcp6::information_request()).answer();
}
