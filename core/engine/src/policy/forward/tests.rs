use super::*;

fn forward(protocol: Protocol, from: &str, to: &str, count: u16) -> GuestForward {
    GuestForward {
        protocol,
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        count,
    }
}

#[test]
fn only_the_ports_of_forwards_are_translated() {
    let forwards: GuestForwards = [
        forward(Protocol::Tcp, "10.0.2.2:5000", "127.0.0.1:6000", 10),
        forward(Protocol::Tcp, "10.0.2.2:65535", "192.0.2.1:1", 1),
        forward(Protocol::Udp, "[fd70::2]:53", "[::1]:5353", 1),
    ]
    .into_iter()
    .collect();
    let at = |protocol, written: &str| {
        let to = forwards.translate(protocol, written.parse().unwrap());
        to.map(|to| to.to_string())
    };
    let tcp = |written| at(Protocol::Tcp, written);
    assert_eq!(tcp("10.0.2.2:5000").as_deref(), Some("127.0.0.1:6000"));
    assert_eq!(tcp("10.0.2.2:5009").as_deref(), Some("127.0.0.1:6009"));
    assert_eq!(tcp("10.0.2.2:65535").as_deref(), Some("192.0.2.1:1"));
    assert_eq!(at(Protocol::Udp, "[fd70::2]:53").as_deref(), Some("[::1]:5353"));
    for other in [
        "10.0.2.2:4999",
        "10.0.2.2:5010",
        "10.0.2.3:5000",
        "10.0.2.1:5000",
        "[fd70::2]:53",
    ] {
        assert_eq!(tcp(other), None, "{other}");
    }
    assert_eq!(at(Protocol::Udp, "10.0.2.2:5000"), None);
}

#[test]
fn overlapping_forward_does_not_replace_one_that_exists() {
    let mut forwards = GuestForwards::default();
    let first = forward(Protocol::Tcp, "10.0.2.2:5000", "127.0.0.1:6000", 10);
    forwards.add(first);
    for (from, count) in [
        ("10.0.2.2:5009", 1),
        ("10.0.2.2:4990", 11),
        ("10.0.2.2:4990", 100),
    ] {
        let other = forward(Protocol::Tcp, from, "127.0.0.1:1", count);
        assert!(first.overlaps(&other) && other.overlaps(&first), "{from}");
        forwards.add(other);
        let to = forwards.translate(Protocol::Tcp, from.parse().unwrap());
        assert!(to.is_none_or(|to| to.port() == 6009), "{from} leads to {to:?}");
    }
    forwards.remove(&first);
    assert_eq!(forwards.translate(Protocol::Tcp, first.from), None);
}
