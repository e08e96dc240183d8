use super::*;

fn parse(text: &str) -> Publish {
    text.parse().unwrap()
}

#[test]
fn every_form_is_parsed() {
    let plain = Publish {
        protocol: Protocol::Tcp,
        address: None,
        host: 8080,
        guest: 80,
        count: 1,
    };
    assert_eq!(parse("8080:80"), plain);
    assert_eq!(parse("8080:80/tcp"), plain);
    assert_eq!(
        parse("8080:80/udp"),
        Publish {
            protocol: Protocol::Udp,
            ..plain
        }
    );
    assert_eq!(
        parse("127.0.0.1:8080:80"),
        Publish {
            address: Some(Ipv4Addr::LOCALHOST.into()),
            ..plain
        }
    );
    assert_eq!(
        parse("[::1]:8080-8089:80-89/udp"),
        Publish {
            protocol: Protocol::Udp,
            address: Some(Ipv6Addr::LOCALHOST.into()),
            count: 10,
            ..plain
        }
    );
    assert_eq!(parse("1-65535:1-65535").count, 65535);
}

#[test]
fn display_is_parsed_to_the_same_value() {
    for text in [
        "8080:80/tcp",
        "127.0.0.1:8000-8009:80-89/udp",
        "[2001:db8::1]:53:53/udp",
    ] {
        assert_eq!(parse(text).to_string(), text);
    }
}

#[test]
fn parse_errors_name_the_mistake() {
    let wrong = |text: &str| text.parse::<Publish>().unwrap_err();
    assert!(wrong("80").starts_with("no guest port"));
    assert_eq!(wrong("80:80/sctp"), "protocol 'sctp' is neither tcp nor udp");
    assert_eq!(wrong("0:80"), "'0' is not a port (1 to 65535)");
    assert_eq!(wrong("80:"), "'' is not a port (1 to 65535)");
    assert_eq!(wrong("80:65536"), "'65536' is not a port (1 to 65535)");
    assert_eq!(wrong("80-89:80-88"), "the two ranges differ in length");
    assert_eq!(wrong("89-80:89-80"), "'89-80' runs backwards");
    assert_eq!(
        wrong("::1:80:80"),
        "an IPv6 address goes in brackets: [::1]:HOST:GUEST"
    );
    assert_eq!(wrong("[1.2.3.4]:80:80"), "'1.2.3.4' is not an IPv6 address");
    assert_eq!(wrong("host:80:80"), "'host' is not an IPv4 address");
}

#[test]
fn collisions_are_by_protocol_address_and_port() {
    let collide = |a: &str, b: &str| parse(a).collides(parse(b));
    assert!(collide("80:80", "80:81"));
    assert!(collide("80-90:80-90", "85:1"));
    assert!(collide("85:1", "80-90:80-90"));
    assert!(collide("127.0.0.1:80:80", "80:80"));
    assert!(collide("127.0.0.1:80:80", "0.0.0.0:80:80"));
    assert!(!collide("127.0.0.1:80:80", "127.0.0.2:80:80"));
    assert!(!collide("127.0.0.1:80:80", "[::]:80:80"));
    assert!(!collide("80:80", "80:80/udp"));
    assert!(!collide("80:80", "81:80"));
}

/// Returns a TCP port that the kernel has chosen and that is free again.
fn free_port() -> u16 {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    taken.local_addr().unwrap().port()
}

fn connects(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[test]
fn port_in_use_is_refused_and_changes_nothing() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, free) = (taken.local_addr().unwrap().port(), free_port());
    let spec = parse(&format!("127.0.0.1:{port}:80"));
    let other = parse(&format!("127.0.0.1:{free}:80"));
    let mut ports = Ports::new(Families::Both);
    let error = Error::from(ports.change(&[], &[other, spec]).unwrap_err());
    assert_eq!(
        error.to_string(),
        format!(
            "cannot publish 127.0.0.1:{port}/tcp: address already in use \
             (try: another port; 'ss -ltnp sport = :{port}' shows the process that uses it)"
        )
    );
    assert_eq!(ports.iter().count(), 0);
    assert!(!connects(free));

    drop(taken);
    let changed = ports.change(&[], &[other, spec]).unwrap();
    assert_eq!((changed.added.len(), changed.port_updates.len()), (2, 2));
    assert!(connects(port) && connects(free));
}

/// The test runs once more in a process of its own, which has a low limit on descriptors.
#[test]
fn last_descriptors_are_not_used_for_ports() {
    const NAME: &str = "publish::tests::last_descriptors_are_not_used_for_ports";
    if let Some(output) = pontoon_test_support::process::alone(NAME) {
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains("1 passed"), "{printed}");
        return;
    }
    let limit = Some(100);
    let (current, maximum) = (limit, limit);
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current, maximum },
    )
    .unwrap();
    let mut ports = Ports::new(Families::V4);
    let error = Error::from(
        ports
            .change(&[], &[parse("127.0.0.3:40000-40099:1-100")])
            .unwrap_err(),
    );
    let error = error.to_string();
    assert!(
        error.ends_with("too many open files (try: fewer ports, or a higher 'ulimit -Hn')"),
        "{error}"
    );
    ports.change(&[], &[parse("127.0.0.3:40000-40049:1-50")]).unwrap();
    let files: Vec<_> = (0..32)
        .map(|_| std::fs::File::open("/dev/null").unwrap())
        .collect();
    assert_eq!((ports.iter().count(), files.len()), (50, 32));
}

#[test]
fn published_ports_may_be_added_again_and_others_removed() {
    let port = free_port();
    let here = parse(&format!("127.0.0.1:{port}:80"));
    let elsewhere = Publish { guest: 81, ..here };
    let mut ports = Ports::new(Families::Both);
    ports.change(&[], &[here]).unwrap();
    for (remove, add) in [
        (&[][..], &[here][..]),
        (&[elsewhere], &[]),
        (&[here], &[here]),
        (&[], &[]),
    ] {
        let changed = ports.change(remove, add).unwrap();
        assert_eq!(
            (changed.added, changed.removed, changed.port_updates),
            (vec![], vec![], vec![])
        );
    }
    let Err(PortRefusal::Conflict(error)) = ports.change(&[], &[elsewhere]) else {
        panic!("one port leads to two");
    };
    assert!(
        error.to_string().contains("already leads to guest port 80"),
        "{error}"
    );

    // The socket of an unchanged port stays open: no client finds the port closed.
    let waiting = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let changed = ports.change(&[here], &[elsewhere]).unwrap();
    assert!(
        matches!(
            changed.port_updates[..],
            [pontoon_worker::messages::PortUpdate::Redirect(_)]
        ),
        "{changed:?}"
    );
    drop(changed);
    waiting.set_nonblocking(true).unwrap();
    let nothing = std::io::Read::read(&mut &waiting, &mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);

    let changed = ports.change(&[elsewhere], &[]).unwrap();
    assert_eq!(changed.removed, [elsewhere]);
    drop(changed);
    assert!(!connects(port));
}

#[test]
fn duplicate_ports_and_ipv6_ports_without_ipv6_are_refused() {
    let error = check(&[parse("80:80"), parse("127.0.0.1:80:81")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "ports are published twice: 80:80/tcp and 127.0.0.1:80:81/tcp"
    );
    let error = Ports::new(Families::V4)
        .change(&[], &[parse("[::1]:80:80")])
        .unwrap_err();
    assert_eq!(
        Error::from(error).to_string(),
        "cannot publish [::1]:80:80/tcp: the guest has no IPv6 (try: an IPv4 address)"
    );
}

#[test]
fn socket_that_was_shut_down_or_connected_listens_again() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free_port();
    let socket = open_socket(Protocol::Tcp, SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    let shared = socket.try_clone().unwrap();
    let options = DefaultOptions::of(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    assert!(!listen_again(&socket, &options).unwrap(), "it listens");
    for connected in [false, true] {
        rustix::net::shutdown(&shared, rustix::net::Shutdown::Both).unwrap();
        assert!(!connects(port));
        if connected {
            let _ = rustix::net::connect(&shared, &other.local_addr().unwrap());
        }
        assert!(listen_again(&socket, &options).unwrap());
        assert!(connects(port));
    }
}

#[test]
fn udp_socket_that_cannot_be_replaced_shares_its_port_with_no_other() {
    let host = SocketAddr::from(([127, 0, 0, 1], 0));
    let socket = open_socket(Protocol::Udp, host).unwrap();
    // An address that this host does not have.
    let error = bind_again(&socket, ([192, 0, 2, 1], 9).into()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL));
    assert!(!sockopt::socket_reuseport(&socket).unwrap());
    assert!(!sockopt::socket_reuseaddr(&socket).unwrap());
}
