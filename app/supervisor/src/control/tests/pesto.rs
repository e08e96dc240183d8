//! Tests of the protocol of pesto. The clients send what pesto sends: they are a replay.

use std::net::{Shutdown, TcpListener};

use pontoon_control::EXCHANGE_GRACE;
use pontoon_engine::config::PublishedPath;
use pontoon_worker::messages::PortUpdate;

use super::*;
use crate::options::PestoSocket;
use crate::publish::Publish;

/// Control with a socket for pesto only, for a guest with both families.
struct Pesto(Fixture);

/// One rule as the protocol has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    /// Address and target; IPv4 addresses are mapped.
    addresses: [u128; 2],
    interface: [u8; 16],
    /// First and last port, and the port to which the first one leads.
    ports: [u16; 3],
    protocol: u8,
    flags: u8,
}

const DUAL: u8 = 1;
const WEAK: u8 = 2;
const SCAN: u8 = 4;

/// 127.0.0.1, mapped.
const LOOPBACK: u128 = 0xffff_7f00_0001;

const fn rule(port: u16, to: u16) -> Rule {
    Rule {
        addresses: [LOOPBACK, 0],
        interface: [0; 16],
        ports: [port, port, to],
        protocol: 6,
        flags: 0,
    }
}

impl Rule {
    fn bytes(self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.addresses.into_iter().flat_map(u128::to_be_bytes).collect();
        bytes.extend(self.interface);
        bytes.extend(self.ports.into_iter().flat_map(u16::to_be_bytes));
        bytes.extend([self.protocol, self.flags]);
        bytes
    }

    fn parse(bytes: &[u8]) -> Self {
        let address = |at: usize| u128::from_be_bytes(bytes[at..at + 16].try_into().unwrap());
        let port = |at: usize| u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap());
        Self {
            addresses: [address(0), address(16)],
            interface: bytes[32..48].try_into().unwrap(),
            ports: [port(48), port(50), port(52)],
            protocol: bytes[54],
            flags: bytes[55],
        }
    }
}

impl Pesto {
    fn new(values: &[&str]) -> Self {
        Self::with(Ports::new(AddressPlan::usual(true)).permitting_auto(true), values)
    }

    fn with(mut ports: Ports, values: &[&str]) -> Self {
        let mut fixture = Fixture::new(1);
        fixture.path = fixture.path.with_file_name("pesto");
        let values: Vec<Publish> = values.iter().map(|value| value.parse().unwrap()).collect();
        crate::publish::open(&mut ports, &values, Duration::ZERO).unwrap();
        fixture.control = Control::open(None, None, ControlSetup { ports, ..served() }).unwrap();
        let socket = PestoSocket {
            path: fixture.path.clone(),
            via: PublishedPath::default(),
        };
        fixture.control.open_pesto(&socket, &values).unwrap();
        Self(fixture)
    }

    /// Connects a client, and returns it with the capabilities and rules that it receives.
    fn connect(&mut self) -> (UnixStream, u32, Vec<Rule>) {
        let client = self.0.client();
        self.0.serve();
        let (bytes, ended) = received_bytes(&client);
        assert!(!ended);
        let mut head = b"basil:s\0\0\0\0\x02\0\0\0\x80\0\0\0\x10\x01HOST".to_vec();
        head.resize(20 + 1 + 128, 0);
        assert_eq!(bytes[..149], head);
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let (capabilities, count) = (word(149), word(153) as usize);
        assert_eq!(bytes.len(), 157 + 56 * count + 1, "{count}");
        assert_eq!(bytes.last(), Some(&0));
        let rules = bytes[157..157 + 56 * count].chunks(56).map(Rule::parse);
        (client, capabilities, rules.collect())
    }

    fn rules(&mut self) -> Vec<Rule> {
        let (client, _, rules) = self.connect();
        drop(client);
        self.0.serve();
        rules
    }

    /// Sends a table as pesto does, which disconnects at once, and has the workers confirm the change.
    fn set(&mut self, rules: &[Rule]) {
        let (client, ..) = self.connect();
        write(&client, &table(rules));
        client.shutdown(Shutdown::Both).unwrap();
        drop(client);
        self.0.serve();
        while self.0.control.is_asking() {
            self.0.confirm(1);
        }
        self.0.serve();
        assert_eq!(self.0.control.servers[0].clients(), 0);
        self.0.updates.clear();
    }
}

impl Pesto {
    /// Changes ports by a request to the control socket.
    fn change(&mut self, body: &str) {
        let control = self.0.path.with_file_name("operate");
        if !control.exists() {
            self.0.control.open_role(&control, Role::Operate).unwrap();
        }
        let client = UnixStream::connect(&control).unwrap();
        client.set_nonblocking(true).unwrap();
        send(&client, &post("/v1/publish", body));
        self.0.serve();
        self.0.confirm(1);
        let (answer, _) = received(&client);
        assert_eq!(status(&answer), "200", "{answer}");
        self.0.updates.clear();
    }
}

fn table(rules: &[Rule]) -> Vec<u8> {
    let mut message = vec![1];
    message.extend(u32::try_from(rules.len()).unwrap().to_be_bytes());
    message.extend(rules.iter().flat_map(|rule| rule.bytes()));
    message.push(0);
    message
}

fn write(mut client: &UnixStream, bytes: &[u8]) {
    client.write_all(bytes).unwrap();
}

/// Returns a port that is free on the IPv4 loopback address.
fn free() -> u16 {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    close_port(socket);
    port
}

fn is_open(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_err()
}

#[test]
fn rules_are_added_and_removed_as_they_were_given() {
    let [first, second] = [free(), free()];
    let mut pesto = Pesto::new(&[&format!("127.0.0.1:{first}:80")]);
    let (client, capabilities, rules) = pesto.connect();
    // IPv4, IPv6, TCP, UDP, ports of listeners, interfaces.
    assert_eq!((capabilities, rules), (0b11_1111, vec![rule(first, 80)]));
    drop(client);
    pesto.0.serve();
    pesto.set(&[rule(first, 80), rule(second, 81)]);
    assert_eq!(pesto.rules(), [rule(first, 80), rule(second, 81)]);
    assert!(is_open(first) && is_open(second));
    pesto.set(&[rule(second, 81)]);
    assert_eq!(pesto.rules(), [rule(second, 81)]);
    assert!(!is_open(first) && is_open(second));
    pesto.set(&[]);
    assert_eq!(pesto.rules(), []);
    assert!(!is_open(second));
    // A message without the table changes nothing.
    pesto.set(&[rule(first, 80)]);
    let (client, ..) = pesto.connect();
    write(&client, &[0]);
    pesto.0.serve();
    assert_eq!(received_bytes(&client), (vec![], true));
    drop(client);
    pesto.0.serve();
    assert_eq!(pesto.rules(), [rule(first, 80)]);
}

#[test]
fn ports_of_rules_that_stay_are_not_closed() {
    let [first, second] = [free(), free()];
    let mut pesto = Pesto::new(&[&format!("127.0.0.1:{first}:80")]);
    let (client, ..) = pesto.connect();
    write(&client, &table(&[rule(first, 80), rule(second, 81)]));
    pesto.0.serve();
    let [Update::Published(updates), Update::Confirm(1)] = &pesto.0.updates[..] else {
        panic!("{:?}", pesto.0.updates);
    };
    let [PortUpdate::Open(port, _)] = &updates[..] else {
        panic!("{updates:?}");
    };
    assert_eq!(port.host.port(), second);
    // The connection is closed when the port is open.
    assert_eq!(received_bytes(&client), (vec![], false));
    pesto.0.confirm(1);
    assert_eq!(received_bytes(&client), (vec![], true));
}

/// Tests the rules of values of the command line.
#[test]
fn values_of_the_start_are_rules() {
    let [one, two] = [free(), free()];
    let list = format!("127.0.0.1:{one},{two}/both");
    let mut pesto = Pesto::new(&[&list, "auto/tcp", "3000-3009,auto,~3005/udp"]);
    let rules = pesto.rules();
    let ports = |rule: &Rule| (rule.protocol, rule.flags, rule.ports);
    let ephemeral = crate::host::ephemeral_ports();
    let expected = [
        (6, 0, [one, one, one]),
        (6, 0, [two, two, two]),
        (17, 0, [one, one, one]),
        (17, 0, [two, two, two]),
        (6, DUAL | WEAK | SCAN, [1, ephemeral.first - 1, 1]),
        (
            6,
            DUAL | WEAK | SCAN,
            [ephemeral.last + 1, 65_535, ephemeral.last + 1],
        ),
        (17, DUAL | SCAN, [3000, 3004, 3000]),
        (17, DUAL | SCAN, [3006, 3009, 3006]),
    ];
    let found: Vec<_> = rules.iter().map(ports).collect();
    assert_eq!(found, expected);
    assert_eq!(rules[4].addresses, [0, 0]);
    // The same table changes nothing.
    pesto.set(&rules);
    assert_eq!(pesto.rules(), rules);
    // Without one rule of a value the others stay as they are.
    let rest: Vec<_> = rules
        .iter()
        .copied()
        .filter(|rule| rule.ports[0] != one)
        .collect();
    pesto.set(&rest);
    let mut left = pesto.rules();
    left.sort_by_key(|rule| (rule.protocol, rule.ports));
    let mut expected = rest;
    expected.sort_by_key(|rule| (rule.protocol, rule.ports));
    assert_eq!(left, expected);
    assert!(!is_open(one) && is_open(two));
}

/// Tests that ports which other clients have changed are rules, too.
#[test]
fn changes_by_the_control_socket_are_seen() {
    let mut pesto = Pesto::new(&[]);
    let first = (30_000..32_000)
        .find(|port| !(0..4).any(|next| is_open(port + next)))
        .unwrap();
    let range = |last: u16| Rule {
        ports: [first, last, 80],
        ..rule(first, 80)
    };
    pesto.set(&[range(first + 3)]);
    assert_eq!(pesto.rules(), [range(first + 3)]);
    pesto.change(&format!(r#"{{"remove": ["127.0.0.1:{}:83"]}}"#, first + 3));
    assert_eq!(pesto.rules(), [range(first + 2)]);
    pesto.change(&format!(r#"{{"add": ["[::1]:{first}:90/udp"]}}"#));
    let udp = Rule {
        addresses: [1, 0],
        protocol: 17,
        ..rule(first, 90)
    };
    assert_eq!(pesto.rules(), [range(first + 2), udp]);
}

#[test]
fn invalid_messages_change_nothing() {
    let port = free();
    let mut pesto = Pesto::new(&[&format!("127.0.0.1:{port}:80")]);
    let good = rule(free(), 80);
    let bad = |change: fn(&mut Rule)| {
        let mut bad = good;
        change(&mut bad);
        table(&[bad])
    };
    let count = |count: u32| [&[1][..], &count.to_be_bytes()].concat();
    let twice = [&table(&[])[..5], &table(&[])[..]].concat();
    let messages = [
        ("another table", [&[3][..], &table(&[good])[1..]].concat()),
        ("a table twice", twice),
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("all ones", vec![0xff; 20_000]),
        ("256 rules", count(256)),
        ("4 billion rules", count(u32::MAX)),
        ("port 0", bad(|rule| rule.ports = [0, 0, 80])),
        ("reversed ports", bad(|rule| rule.ports = [81, 80, 80])),
        ("guest port 0", bad(|rule| rule.ports[2] = 0)),
        ("guest ports that wrap", bad(|rule| rule.ports = [80, 81, 65_535])),
        ("flags", bad(|rule| rule.flags = 8)),
        ("two families and an address", bad(|rule| rule.flags = DUAL)),
        ("weak and other ports", bad(|rule| rule.flags = WEAK)),
        ("protocol", bad(|rule| rule.protocol = 132)),
        (
            "interface without an end",
            bad(|rule| rule.interface = [b'a'; 16]),
        ),
        (
            "interface that is a path",
            bad(|rule| rule.interface[..3].copy_from_slice(b"a/b")),
        ),
        ("interface that is not text", bad(|rule| rule.interface[0] = 0xff)),
        (
            "interface that the host lacks",
            bad(|rule| rule.interface[..4].copy_from_slice(b"none")),
        ),
        (
            "multicast target",
            bad(|rule| rule.addresses[1] = 0xffff_e000_0001),
        ),
        (
            "target of another family",
            bad(|rule| rule.addresses[1] = 0xfd << 120),
        ),
        (
            "target of the gateway",
            bad(|rule| rule.addresses[1] = 0xffff_0a00_0202),
        ),
        ("the same rule twice", table(&[good, good])),
        (
            "a port twice",
            table(&[
                good,
                Rule {
                    ports: [good.ports[0], good.ports[1], 81],
                    ..good
                },
            ]),
        ),
    ];
    for (what, message) in messages {
        let (client, ..) = pesto.connect();
        write(&client, &message);
        pesto.0.serve();
        assert_eq!(received_bytes(&client), (vec![], true), "{what}");
        drop(client);
        pesto.0.serve();
        assert_eq!(pesto.rules(), [rule(port, 80)], "{what}");
        assert!(pesto.0.updates.is_empty(), "{what}");
    }
    // A message that ends early.
    for end in [1, 4, 5, 60, 61] {
        let (client, ..) = pesto.connect();
        write(&client, &table(&[good])[..end]);
        client.shutdown(Shutdown::Write).unwrap();
        pesto.0.serve();
        assert_eq!(received_bytes(&client), (vec![], true), "{end}");
        drop(client);
        pesto.0.serve();
        assert_eq!(pesto.rules(), [rule(port, 80)], "{end}");
    }
}

#[test]
fn guest_without_a_namespace_has_no_ports_of_listeners() {
    let mut pesto = Pesto::with(Ports::new(AddressPlan::usual(true)), &[]);
    let (client, capabilities, _) = pesto.connect();
    assert_eq!(capabilities & 1 << 4, 0);
    let scan = Rule {
        flags: SCAN,
        ..rule(80, 80)
    };
    write(&client, &table(&[scan]));
    pesto.0.serve();
    assert_eq!(received_bytes(&client), (vec![], true));
    drop(client);
    pesto.0.serve();
    assert_eq!(pesto.rules(), []);
}

/// Tests that a port that is in use, or that a worker refuses, leaves the earlier rules.
#[test]
fn refused_ports_leave_the_earlier_rules() {
    let port = free();
    let mut pesto = Pesto::new(&[&format!("127.0.0.1:{port}:80")]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let number = taken.local_addr().unwrap().port();
    pesto.set(&[rule(number, 80)]);
    assert_eq!(pesto.rules(), [rule(port, 80)]);
    close_port(taken);
    pesto.0.refused = vec![PortError {
        port: pontoon_engine::config::Published::new(
            pontoon_engine::config::Protocol::Tcp,
            ([127, 0, 0, 1], number).into(),
            80,
        ),
        why: "no descriptor".to_owned(),
    }];
    let (client, ..) = pesto.connect();
    write(&client, &table(&[rule(number, 80)]));
    pesto.0.serve();
    pesto.0.confirm(1);
    drop(client);
    pesto.0.serve();
    pesto.0.updates.clear();
    assert_eq!(pesto.rules(), [rule(port, 80)]);
    assert!(is_open(port) && !is_open(number));
}

/// Tests that a client is served after the one before it, receives its changes, and does not wait for one that is silent.
#[test]
fn one_client_at_a_time_is_served() {
    let port = free();
    let mut pesto = Pesto::new(&[]);
    let (first, ..) = pesto.connect();
    let second = pesto.0.client();
    pesto.0.serve();
    assert_eq!(received_bytes(&second), (vec![], false));
    write(&first, &table(&[rule(port, 80)]));
    drop(first);
    pesto.0.serve();
    pesto.0.confirm(1);
    pesto.0.serve();
    let (bytes, _) = received_bytes(&second);
    assert_eq!(bytes.len(), 158 + 56);
    // The second client is silent, and so is the third one after half a message.
    let third = pesto.0.client();
    pesto.0.serve();
    assert_eq!(received_bytes(&third), (vec![], false));
    assert!(pesto.0.control.deadline().unwrap() <= pesto.0.now + EXCHANGE_GRACE);
    pesto.0.wait(EXCHANGE_GRACE);
    assert_eq!(received_bytes(&second), (vec![], true));
    assert_eq!(received_bytes(&third).0.len(), 158 + 56);
    write(&third, &table(&[])[..3]);
    pesto.0.serve();
    pesto.0.wait(pontoon_control::REQUEST_TIMEOUT);
    assert_eq!(received_bytes(&third), (vec![], true));
    assert_eq!(pesto.rules(), [rule(port, 80)]);
}
