use super::*;

fn spec(text: &str) -> Forward {
    text.parse().unwrap()
}

fn forwards() -> Forwards {
    Forwards::new(AddressPlan::usual(true))
}

#[test]
fn values_lead_from_the_gateway_to_the_hosts_loopback() {
    let expand = |text: &str| {
        let all = spec(text).expand(&AddressPlan::usual(true));
        all.iter()
            .map(|one| format!("{} {} {} {}", one.protocol, one.from, one.to, one.count))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        expand("5432"),
        [
            "tcp 10.0.2.2:5432 127.0.0.1:5432 1",
            "tcp [fd70:6f6e:746f::2]:5432 [::1]:5432 1"
        ]
    );
    assert_eq!(
        expand("10.0.2.9:5000-5009,~5003:6000-6009/udp"),
        [
            "udp 10.0.2.9:5000 127.0.0.1:6000 3",
            "udp 10.0.2.9:5004 127.0.0.1:6004 6"
        ]
    );
    assert_eq!(
        expand("10.0.2.9:5005-5014,5000-5009,6000,5015,6000"),
        [
            "tcp 10.0.2.9:5000 127.0.0.1:5000 16",
            "tcp 10.0.2.9:6000 127.0.0.1:6000 1"
        ]
    );
    assert_eq!(
        expand("5432:[2001:db8::1]:5433/both"),
        [
            "tcp [fd70:6f6e:746f::2]:5432 [2001:db8::1]:5433 1",
            "udp [fd70:6f6e:746f::2]:5432 [2001:db8::1]:5433 1"
        ]
    );
}

#[test]
fn unsuitable_values_are_refused() {
    let wrong = |text: &str| text.parse::<Forward>().unwrap_err();
    assert_eq!(wrong("%lo:80"), "an interface of the host is for --publish only");
    assert!(wrong("all").starts_with("'all' is for --publish only"));
    for address in ["0.0.0.0", "224.0.0.1", "[fe80::2]", "169.254.169.254"] {
        let why = format!("{address}:80").parse::<Forward>().unwrap_err();
        assert!(why.starts_with("the guest cannot reach the host at"), "{why}");
    }
    for target in [
        "0.0.0.0",
        "255.255.255.255",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[ff02::1]",
    ] {
        let why = format!("80:{target}:80").parse::<Forward>().unwrap_err();
        assert!(why.starts_with("the host cannot connect to"), "{why}");
    }
    let mut all = forwards();
    let mut refused = |text: &str| all.change(&[], &[spec(text)]).unwrap_err().to_string();
    assert!(refused("10.0.2.15:80").contains("10.0.2.15 is the guest's own address"));
    assert!(refused("10.0.2.3:50-60/udp").contains("the DNS forwarder has port 53"));
}

#[test]
fn loopback_addresses_of_the_guest_are_ports_there() {
    let ports = |all: &mut Forwards| {
        let ports = all.close_loopback().into_iter();
        let text = |port: Published| {
            assert!(port.is_in_guest());
            format!("{} {:?}:{}", port.host, port.target, port.guest_port)
        };
        ports.map(text).collect::<Vec<_>>()
    };
    let mut all = forwards().permitting_loopback(true);
    let values = ["localhost:5432", "127.0.0.2:80-81:127.0.0.3:90-91", "5433"].map(spec);
    assert_eq!(values[0].to_string(), "localhost:5432:5432/tcp");
    assert_eq!(values[0].to_string().parse(), Ok(values[0].clone()));
    all.change(&[], &values).unwrap();
    assert_eq!(
        ports(&mut all),
        [
            "127.0.0.1:5432 Some(127.0.0.1):5432",
            "[::1]:5432 Some(::1):5432",
            "127.0.0.2:80 Some(127.0.0.3):90",
            "127.0.0.2:81 Some(127.0.0.3):91",
        ]
    );
    // The engine permits them like other forwards.
    assert_eq!(all.forwards().len(), 5);
    let error = all.change(&[], &[spec("localhost:1")]).unwrap_err();
    assert!(error.to_string().contains("at the start only"), "{error}");
    all.change(&[spec("localhost:5432")], &[]).unwrap();
    assert_eq!(all.forwards().len(), 3);
}

#[test]
fn unsuitable_values_at_loopback_addresses_are_refused() {
    for (text, why) in [
        ("localhost:80/udp", "TCP only"),
        ("[::1]:80/both", "TCP only"),
        ("127.0.0.1:auto", "'auto' excludes"),
        ("localhost:80:192.0.2.1:80", "one of the host only"),
        ("localhost:10.0.2.2:80", "'localhost' excludes an address"),
        ("127.0.0.1:80:[::1]:80", "different families"),
    ] {
        let refused = text.parse::<Forward>().unwrap_err();
        assert!(refused.contains(why), "{text}: {refused}");
    }
    let refused = |all: &mut Forwards, text: &str| all.change(&[], &[spec(text)]).unwrap_err().to_string();
    assert!(refused(&mut forwards(), "localhost:80").contains("no network namespace"));
    let mut all = forwards().permitting_loopback(true);
    assert!(refused(&mut all, "localhost:1-257").contains("more than 512 ports"));
    all.change(&[], &[spec("localhost:1-256")]).unwrap();
    assert!(refused(&mut all, "127.0.0.2:1").contains("more than 512 ports"));
}

#[test]
fn values_are_changed_together_or_not_at_all() {
    let mut all = forwards();
    let changed = all.change(&[], &[spec("5000-5009"), spec("53/udp")]).unwrap();
    assert_eq!((changed.added.len(), changed.updates.len()), (2, 4));
    let error = all
        .change(&[spec("53/udp")], &[spec("6000"), spec("5009:1")])
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot forward 5009:1/tcp: 5000-5009:5000-5009/tcp forwards the same port (try: another port)"
    );
    assert_eq!((all.iter().count(), all.forwards().len()), (2, 4));
    let changed = all
        .change(&[spec("5000-5009")], &[spec("5009:1"), spec("53/udp")])
        .unwrap();
    let kinds: Vec<_> = changed
        .updates
        .iter()
        .map(|update| matches!(update, ForwardUpdate::Remove(_)))
        .collect();
    assert_eq!(kinds, [true, true, false, false]);
}

#[test]
fn values_with_auto_beyond_the_limit_are_refused() {
    let autos: Vec<_> = (1..=65)
        .map(|port| spec(&format!("{port}-{port},auto")))
        .collect();
    let mut all = forwards();
    all.change(&[], &autos[..64]).unwrap();
    let refused = all.change(&[], &autos).unwrap_err().to_string();
    assert!(
        refused.contains("there are 64 values with 'auto', which is the limit"),
        "{refused}"
    );
    all.change(&autos[..1], &autos[64..]).unwrap();
    assert_eq!(all.autos().len(), 64);
}

#[test]
fn auto_follows_the_hosts_listeners_without_own_ports() {
    let mut all = forwards();
    all.change(&[], &[spec("auto"), spec("7000:7001")]).unwrap();
    let mut set = ListenerSet::new();
    for port in [80, 443, 7000] {
        set.insert(Protocol::Tcp, false, port);
    }
    let own = BTreeSet::from([(Protocol::Tcp, 80)]);
    let (updates, counts) = all.apply_scan(&set, &own);
    let added = GuestForward {
        protocol: Protocol::Tcp,
        from: "10.0.2.2:443".parse().unwrap(),
        to: "127.0.0.1:443".parse().unwrap(),
        count: 1,
    };
    assert_eq!(updates, [ForwardUpdate::Add(added)]);
    assert_eq!((counts.open, counts.taken), (1, 1));
    assert_eq!(all.apply_scan(&set, &own).0, []);
    // A value that names the port replaces the forward that `auto` has made.
    let changed = all.change(&[], &[spec("443:444")]).unwrap();
    assert_eq!(changed.updates[0], ForwardUpdate::Remove(added));
    assert_eq!(all.found().count(), 0);
    all.change(&[spec("443:444")], &[]).unwrap();
    all.apply_scan(&set, &own);
    let (updates, _) = all.apply_scan(&ListenerSet::new(), &own);
    assert_eq!(updates, [ForwardUpdate::Remove(added)]);
}

#[test]
fn removed_auto_value_ends_what_no_other_value_covers() {
    let mut all = forwards();
    all.change(&[], &[spec("auto"), spec("80-89,auto")]).unwrap();
    let mut set = ListenerSet::new();
    set.insert(Protocol::Tcp, false, 80);
    set.insert(Protocol::Tcp, false, 443);
    all.apply_scan(&set, &BTreeSet::new());
    let changed = all.change(&[spec("auto")], &[]).unwrap();
    let [ForwardUpdate::Remove(removed)] = changed.updates[..] else {
        panic!("{changed:?}");
    };
    assert_eq!(removed.from.port(), 443);
    let left: Vec<_> = all.found().map(|forward| forward.from.port()).collect();
    assert_eq!(left, [80]);
}
