use pontoon_engine::address_plan::AddressPlan;
use pontoon_test_support::process::{close_port, free_port};

use super::*;
use crate::listeners::ListenerSet;

fn ipv4_only() -> AddressPlan {
    let mut plan = AddressPlan::usual(true);
    plan.v6 = None;
    plan
}

fn parse(text: &str) -> Publish {
    text.parse().unwrap()
}

#[test]
fn collisions_are_by_protocol_address_and_port() {
    let collide = |a: &str, b: &str| check(&[parse(a), parse(b)]).is_err();
    assert!(collide("80:80", "80:81"));
    assert!(collide("80-90:80-90", "85:1"));
    assert!(collide("85:1", "80-90:80-90"));
    assert!(collide("127.0.0.1:80:80", "80:80"));
    assert!(collide("127.0.0.1:80:80", "0.0.0.0:80:80"));
    assert!(!collide("127.0.0.1:80:80", "127.0.0.2:80:80"));
    assert!(!collide("127.0.0.1:80:80", "[::]:80:80"));
    assert!(!collide("80:80", "80:80/udp"));
    assert!(!collide("80:80", "81:80"));
    assert!(collide("80:80/both", "80:80/udp"));
    assert!(collide("80,90-99:10.0.2.100", "0.0.0.0:95:80"));
    assert!(!collide("80,90-99:10.0.2.100", "[::]:95:80"));
    assert!(!collide("90-99,~95", "95:80"));
    assert!(!collide("%lo:80:80", "%eth0:80:81"));
    assert!(collide("%lo:80:80", "80:81"));
    assert!(!collide("80:80", "all") && !collide("80:80", "auto"));
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
    let mut ports = Ports::new(AddressPlan::usual(true));
    let error = Error::from(ports.change(&[], &[other.clone(), spec.clone()]).unwrap_err());
    assert_eq!(
        error.to_string(),
        format!(
            "cannot publish 127.0.0.1:{port}/tcp: address already in use \
             (try: another port; 'ss -ltnp sport = :{port}' shows the process that uses it)"
        )
    );
    assert_eq!(ports.iter().count(), 0);
    assert!(!connects(free));

    close_port(taken);
    let changed = ports.change(&[], &[other.clone(), spec.clone()]).unwrap();
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
    let limit = Some(160);
    let (current, maximum) = (limit, limit);
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current, maximum },
    )
    .unwrap();
    let mut ports = Ports::new(ipv4_only());
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
    let files: Vec<_> = (0..96)
        .map(|_| std::fs::File::open("/dev/null").unwrap())
        .collect();
    assert_eq!((ports.iter().count(), files.len()), (50, 96));
}

#[test]
fn published_ports_may_be_added_again_and_others_removed() {
    let port = free_port();
    let here = parse(&format!("127.0.0.1:{port}:80"));
    let elsewhere = parse(&format!("127.0.0.1:{port}:81"));
    let mut ports = Ports::new(AddressPlan::usual(true));
    ports.change(&[], std::slice::from_ref(&here)).unwrap();
    for (remove, add) in [
        (vec![], vec![here.clone()]),
        (vec![elsewhere.clone()], vec![]),
        (vec![here.clone()], vec![here.clone()]),
        (vec![], vec![]),
    ] {
        let changed = ports.change(&remove, &add).unwrap();
        assert_eq!(
            (changed.added, changed.removed, changed.port_updates),
            (vec![], vec![], vec![])
        );
    }
    let Err(PortRefusal::Conflict(error)) = ports.change(&[], std::slice::from_ref(&elsewhere)) else {
        panic!("one port leads to two");
    };
    assert!(
        error.to_string().contains("already leads to guest port 80"),
        "{error}"
    );

    // The socket of an unchanged port stays open: no client finds the port closed.
    let waiting = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let changed = ports.change(&[here], std::slice::from_ref(&elsewhere)).unwrap();
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

    let changed = ports.change(std::slice::from_ref(&elsewhere), &[]).unwrap();
    assert_eq!(changed.removed, [elsewhere]);
    drop(changed);
    assert!(!connects(port));
}

#[test]
fn values_that_cannot_be_published_are_refused_without_waiting() {
    let mut ports = Ports::new(AddressPlan::usual(true));
    let port = free_port();
    for values in [
        vec![parse(&format!("%no-such-if:{port}:80"))],
        vec![parse(&format!("192.0.2.1:{port}:80"))],
    ] {
        let start = Instant::now();
        open(&mut ports, &values, Duration::from_secs(60)).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(30), "{values:?}");
    }
}

#[test]
fn port_that_another_program_is_about_to_close_is_waited_for() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let values = [parse(&format!("127.0.0.1:{port}:80"))];
    let mut ports = Ports::new(AddressPlan::usual(true));
    let error = open(&mut ports, &values, Duration::from_millis(30)).unwrap_err();
    assert!(error.to_string().contains("address already in use"), "{error}");
    let closing = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        close_port(taken);
    });
    open(&mut ports, &values, Duration::from_secs(10)).unwrap();
    closing.join().unwrap();
}

#[test]
fn duplicate_ports_and_ipv6_ports_without_ipv6_are_refused() {
    let error = check(&[parse("80:80"), parse("127.0.0.1:80:81")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "ports are published twice: 80:80/tcp and 127.0.0.1:80:81/tcp"
    );
    let error = Ports::new(ipv4_only())
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
    let socket =
        open_socket(Published::new(Protocol::Tcp, SocketAddr::from(([127, 0, 0, 1], port)), 80).key())
            .unwrap();
    let shared = socket.try_clone().unwrap();
    let options = DefaultOptions::of(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    assert!(!listen_again(&socket, &options, None).unwrap(), "it listens");
    for connected in [false, true] {
        rustix::net::shutdown(&shared, rustix::net::Shutdown::Both).unwrap();
        assert!(!connects(port));
        if connected {
            let _ = rustix::net::connect(&shared, &other.local_addr().unwrap());
        }
        assert!(listen_again(&socket, &options, None).unwrap());
        assert!(connects(port));
    }
}

#[test]
fn udp_socket_that_cannot_be_replaced_shares_its_port_with_no_other() {
    let host = SocketAddr::from(([127, 0, 0, 1], 0));
    let key = Published::new(Protocol::Udp, host, 80).key();
    let socket = open_socket(key).unwrap();
    // An address that this host does not have.
    let host = ([192, 0, 2, 1], 9).into();
    let error = bind_again(&socket, PublishedKey { host, ..key }).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL));
    assert!(!sockopt::socket_reuseport(&socket).unwrap());
    assert!(!sockopt::socket_reuseaddr(&socket).unwrap());
}

/// Returns the error of a value that `ports` refuses.
fn refusal(ports: &mut Ports, text: &str) -> String {
    Error::from(ports.change(&[], &[parse(text)]).unwrap_err()).to_string()
}

#[test]
fn targets_that_are_not_behind_the_link_are_refused() {
    let mut ports = Ports::new(AddressPlan::usual(true));
    ports.set_owned(&["192.0.2.7/32".parse().unwrap(), "2001:db8::/64".parse().unwrap()]);
    let gateway = "that is an address of the gateway, not of the guest (try: an address of the guest)";
    let host = "that is an address of this host (try: an address of the guest)";
    let none = "no host behind the guest's link can have that address (try: another address)";
    for (target, why) in [
        ("10.0.2.2", gateway),
        ("10.0.2.3", gateway),
        ("[fd70:6f6e:746f::2]", gateway),
        ("192.0.2.7", host),
        ("[2001:db8::9]", host),
        ("127.0.0.1", none),
        ("0.0.0.0", none),
        ("224.0.0.1", none),
        ("255.255.255.255", none),
        ("169.254.169.254", none),
        ("[::1]", none),
        ("[::]", none),
        ("[::ffff:10.0.2.100]", none),
        ("[fe80::2]", none),
        ("[ff02::1]", none),
    ] {
        let text = format!("40080:{target}:80/tcp");
        assert_eq!(
            refusal(&mut ports, &text),
            format!("cannot publish {text}: {why}")
        );
    }
    assert!(refusal(&mut Ports::new(ipv4_only()), "80:[fd00::9]").contains("the guest has no IPv6"));
    assert!(refusal(&mut ports, "auto").contains("cannot be read from the host (try: port numbers)"));
    assert!(refusal(&mut ports, "%no-such-iface:40080").contains("no such device"));
    assert_eq!(ports.iter().count(), 0);
}

#[test]
fn ports_lead_to_targets_and_interfaces() {
    let port = free_port();
    let mut ports = Ports::new(AddressPlan::usual(true));
    let specs = [
        parse(&format!("127.0.0.1%lo:{port}:10.0.2.100:80")),
        parse(&format!("127.0.0.2:{port}:10.88.0.5:81")),
    ];
    ports.change(&[], &specs).unwrap();
    assert_eq!(ports.iter().collect::<Vec<_>>(), specs);
    let published = ports.published();
    let lo = published.iter().find(|port| port.interface.is_some()).unwrap();
    assert_eq!((lo.interface.unwrap().get(), lo.guest_port), (1, 80));
    assert_eq!(lo.target, Some("10.0.2.100".parse().unwrap()));
    let error = refusal(&mut ports, &format!("127.0.0.2:{port}:81"));
    assert!(error.ends_with("already leads to 10.88.0.5:81"), "{error}");
    let changed = ports.change(&specs, &[]).unwrap();
    assert_eq!(changed.removed.len(), 2);
    assert!(!connects(port));
}

#[test]
fn all_skips_ports_that_are_taken_and_ephemeral_ones() {
    let taken = std::net::TcpListener::bind("127.0.0.5:0").unwrap();
    let ephemeral = taken.local_addr().unwrap().port();
    let low = std::net::TcpListener::bind("127.0.0.5:20001").unwrap();
    let mut ports = Ports::new(ipv4_only());
    let all = parse("127.0.0.5:all,~1-19999,~20010-32000");
    let explicit = parse("127.0.0.5:20005:80");
    ports.change(&[], &[all.clone(), explicit.clone()]).unwrap();
    let is_published =
        |ports: &Ports, port: u16| ports.published().iter().any(|other| other.host.port() == port);
    for (port, expected) in [
        (20_000, true),
        (20_001, false),
        (20_009, true),
        (20_010, false),
        (ephemeral, false),
    ] {
        assert_eq!(is_published(&ports, port), expected, "{port}");
    }
    assert!(ports.iter().any(|port| port == explicit));
    close_port(low);
    ports.change(std::slice::from_ref(&all), &[]).unwrap();
    assert_eq!(ports.iter().collect::<Vec<_>>(), [explicit]);
}

/// Returns a set of TCP ports on which a guest listens, in both families.
fn listeners(list: impl IntoIterator<Item = u16>) -> ListenerSet {
    let mut set = ListenerSet::new();
    for port in list {
        set.insert(Protocol::Tcp, false, port);
        set.insert(Protocol::Tcp, true, port);
    }
    set
}

#[test]
fn auto_follows_the_listeners() {
    let mut ports = Ports::new(ipv4_only()).permitting_auto(true);
    ports
        .change(&[], &[parse("127.0.0.6:21000-21999,auto,~21005")])
        .unwrap();
    let none = std::collections::BTreeSet::new();
    let taken = std::net::TcpListener::bind("127.0.0.6:21001").unwrap();
    let set = listeners([80, 21_000, 21_001, 21_005]);
    let (changed, counts) = ports.apply_scan(&set, &none);
    assert_eq!(changed.port_updates.len(), 1);
    assert_eq!((counts.open, counts.taken, counts.excess), (1, 1, 0));
    assert_eq!(
        ports.found().map(|port| port.to_string()).collect::<Vec<_>>(),
        ["127.0.0.6:21000:21000/tcp"]
    );
    assert_eq!(ports.iter().count(), 0);
    // `changed` still holds the sockets.
    drop(changed);
    // The port that another socket had is opened at the next scan.
    close_port(taken);
    let (changed, counts) = ports.apply_scan(&set, &none);
    assert_eq!((changed.added.len(), counts.open, counts.taken), (1, 2, 0));
    drop(changed);
    assert!(ports.apply_scan(&set, &none).0.port_updates.is_empty());
    // A value that names the port keeps it published after the guest has stopped listening.
    ports.change(&[], &[parse("127.0.0.6:21000:80")]).unwrap();
    let (changed, _) = ports.apply_scan(&listeners([]), &none);
    assert_eq!(changed.removed.len(), 1);
    assert_eq!(
        ports.iter().map(|port| port.to_string()).collect::<Vec<_>>(),
        ["127.0.0.6:21000:80/tcp"]
    );
    // After the value is removed, none of the ports is published.
    ports.apply_scan(&set, &none);
    let changed = ports
        .change(&[parse("127.0.0.6:21000-21999,auto,~21005")], &[])
        .unwrap();
    assert_eq!(changed.port_updates.len(), 1);
    assert!(!ports.needs_scan() && ports.found().count() == 0);
}

#[test]
fn auto_publishes_a_limited_number_of_ports() {
    let mut ports = Ports::new(ipv4_only()).permitting_auto(true);
    ports.change(&[], &[parse("127.0.0.7:auto")]).unwrap();
    let (_, counts) = ports.apply_scan(&listeners(22_000..23_100), &std::collections::BTreeSet::new());
    assert_eq!((counts.open, counts.taken, counts.excess), (1_024, 0, 76));
    assert_eq!(ports.found().count(), 1_024);
}

#[test]
fn values_with_auto_beyond_the_limit_are_refused() {
    let mut ports = Ports::new(ipv4_only()).permitting_auto(true);
    let autos: Vec<_> = (1..=65)
        .map(|port| parse(&format!("{port}-{port},auto")))
        .collect();
    ports.change(&[], &autos[..64]).unwrap();
    let Err(PortRefusal::Conflict(refused)) = ports.change(&[], &autos) else {
        panic!("accepted");
    };
    assert_eq!(
        refused.to_string(),
        "cannot publish 65,auto/tcp: there are 64 values with 'auto', which is the limit (try: several ranges in one value)"
    );
    ports.change(&autos[..1], &autos[64..]).unwrap();
    assert_eq!(ports.autos().len(), 64);
}

#[test]
fn port_of_another_program_is_skipped_in_both_families() {
    let taken = std::net::TcpListener::bind("127.0.0.1:24001").unwrap();
    let mut ports = Ports::new(AddressPlan::usual(true)).permitting_auto(true);
    ports.change(&[], &[parse("24000-24009,auto")]).unwrap();
    let none = std::collections::BTreeSet::new();
    let mut only_v6 = ListenerSet::new();
    only_v6.insert(Protocol::Tcp, true, 24_001);
    for set in [&only_v6, &listeners([24_001])] {
        let (changed, counts) = ports.apply_scan(set, &none);
        assert_eq!(changed.port_updates.len(), 0);
        assert_eq!((counts.open, counts.taken), (0, 1));
    }
    ports.change(&[], &[parse("all,~1-24000,~24003-65535")]).unwrap();
    let all: Vec<_> = ports.iter().map(|port| port.to_string()).collect();
    assert_eq!(all, ["0.0.0.0:24002:24002/tcp", "[::]:24002:24002/tcp"]);

    close_port(taken);
    let (changed, counts) = ports.apply_scan(&only_v6, &none);
    assert_eq!((changed.port_updates.len(), counts.open, counts.taken), (1, 1, 0));
    // A program begins to listen in the other family.
    let taken = std::net::TcpListener::bind("127.0.0.1:24001").unwrap();
    let (changed, counts) = ports.apply_scan(&only_v6, &none);
    assert_eq!((changed.removed.len(), counts.open, counts.taken), (1, 0, 1));
    close_port(taken);
}

#[test]
fn own_ports_of_the_other_family_do_not_count_as_taken() {
    let mut ports = Ports::new(AddressPlan::usual(true)).permitting_auto(true);
    ports
        .change(
            &[],
            &[parse("0.0.0.0:24100-24109,auto"), parse("[::1]:24100-24109,auto")],
        )
        .unwrap();
    let none = std::collections::BTreeSet::new();
    for new in [2, 0, 0] {
        let (changed, counts) = ports.apply_scan(&listeners([24_100]), &none);
        assert_eq!(
            (changed.port_updates.len(), counts.open, counts.taken),
            (new, 1, 0)
        );
    }
}

#[test]
fn undo_leaves_the_values_of_later_changes() {
    let mut ports = Ports::new(ipv4_only()).permitting_auto(true);
    ports.change(&[], &[parse("1-9,auto")]).unwrap();
    let port = parse(&format!("127.0.0.1:{}:80", free_port()));
    let first = ports
        .change(&[parse("1-9,auto")], &[parse("10-19,auto"), port])
        .unwrap();
    ports.change(&[], &[parse("20-29,auto")]).unwrap();
    ports.revert(&first.undo);
    assert_eq!(ports.autos(), [parse("20-29,auto"), parse("1-9,auto")]);
    assert_eq!(ports.iter().count(), 0);
}

#[test]
fn undo_of_a_value_that_names_a_found_port_leaves_it_found() {
    let mut ports = Ports::new(ipv4_only()).permitting_auto(true);
    ports.change(&[], &[parse("127.0.0.8:auto")]).unwrap();
    ports.apply_scan(&listeners([24_200]), &std::collections::BTreeSet::new());
    let changed = ports.change(&[], &[parse("127.0.0.8:24200:24200")]).unwrap();
    assert_eq!(changed.port_updates.len(), 0);
    assert_eq!((ports.found().count(), ports.iter().count()), (0, 1));
    assert_eq!(ports.revert(&changed.undo).len(), 0);
    assert_eq!((ports.found().count(), ports.iter().count()), (1, 0));
}
