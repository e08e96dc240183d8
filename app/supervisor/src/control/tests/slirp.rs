//! Tests of the API socket of slirp4netns.

use std::net::{Shutdown, TcpListener, UdpSocket};

use pontoon_control::EXCHANGE_GRACE;
use pontoon_worker::messages::PortUpdate;

use super::*;

/// Control with an API socket only, for a guest with both families.
struct Slirp(Fixture);

impl Slirp {
    fn new() -> Self {
        let mut fixture = Fixture::new(1);
        fixture.path = fixture.path.with_file_name("api");
        let served = ControlSetup {
            ports: Ports::new(AddressPlan::usual(true)),
            ..served()
        };
        fixture.control = Control::open(None, None, served).unwrap();
        fixture.control.open_slirp_api(&fixture.path).unwrap();
        Self(fixture)
    }

    /// Sends a request, has the workers confirm changes, and returns the response.
    fn ask(&mut self, request: &str) -> String {
        let client = self.0.client();
        send(&client, request);
        client.shutdown(Shutdown::Write).unwrap();
        self.0.serve();
        if self.0.control.is_asking() {
            assert_eq!(received(&client), (String::new(), false));
            self.0.confirm(1);
        }
        let (answer, ended) = received(&client);
        assert!(ended, "{answer}");
        answer
    }

    fn add(&mut self, arguments: &str) -> String {
        self.ask(&format!(
            r#"{{"execute": "add_hostfwd", "arguments": {{{arguments}}}}}"#
        ))
    }
}

/// Returns a port that is free on the IPv4 loopback address.
fn free() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    close_port(socket);
    port
}

fn error(why: &str) -> String {
    format!(r#"{{"error":{{"desc":"bad request: {why}"}}}}"#)
}

#[test]
fn ports_are_added_listed_and_removed() {
    let mut slirp = Slirp::new();
    let list = r#"{"execute": "list_hostfwd"}"#;
    assert_eq!(slirp.ask(list), r#"{"entries":[]}"#);
    let [tcp, udp] = [free(), free()];
    let added = slirp.add(&format!(
        r#""proto": "tcp", "host_addr": "127.0.0.1", "host_port": {tcp}, "guest_addr": "10.0.2.15", "guest_port": 80"#
    ));
    assert_eq!(added, r#"{"return":{"id":1}}"#);
    let [Update::Published(updates), Update::Confirm(1)] = &slirp.0.updates[..] else {
        panic!("{:?}", slirp.0.updates);
    };
    assert!(matches!(updates[..], [PortUpdate::Open(..)]), "{updates:?}");
    let added = slirp.add(&format!(
        r#""proto": "udp", "host_addr": "::1", "host_port": {udp}.0, "guest_port": 53"#
    ));
    assert_eq!(added, r#"{"return":{"id":2}}"#);
    let first = format!(
        r#"{{"guest_addr":"10.0.2.15","guest_port":80,"host_addr":"127.0.0.1","host_port":{tcp},"id":1,"proto":"tcp"}}"#
    );
    let second = format!(
        r#"{{"guest_addr":"fd70:6f6e:746f::15","guest_port":53,"host_addr":"::1","host_port":{udp},"id":2,"proto":"udp"}}"#
    );
    assert_eq!(slirp.ask(list), format!(r#"{{"entries":[{first},{second}]}}"#));
    assert!(TcpListener::bind(("127.0.0.1", tcp)).is_err());

    let remove = |id: &str| format!(r#"{{"execute": "remove_hostfwd", "arguments": {{"id": {id}}}}}"#);
    assert_eq!(slirp.ask(&remove("1")), r#"{"return":{}}"#);
    slirp.0.updates.clear();
    TcpListener::bind(("127.0.0.1", tcp)).unwrap();
    assert_eq!(slirp.ask(list), format!(r#"{{"entries":[{second}]}}"#));
    for id in ["1", "7", "\"2\"", "-2", "null"] {
        assert_eq!(
            slirp.ask(&remove(id)),
            error("remove_hostfwd: bad arguments.id"),
            "{id}"
        );
    }
    // A port may lead to another address behind the guest's link.
    let other = free();
    let added = slirp.add(&format!(
        r#""proto": "tcp", "host_addr": "127.0.0.1", "host_port": {other}, "guest_addr": "10.0.2.16", "guest_port": 80"#
    ));
    assert_eq!(added, r#"{"return":{"id":3}}"#);
    let text = format!(
        r#""guest_addr":"10.0.2.16","guest_port":80,"host_addr":"127.0.0.1","host_port":{other},"id":3"#
    );
    assert!(slirp.ask(list).contains(&text));
    assert_eq!(slirp.ask(&remove("3")), r#"{"return":{}}"#);
    // No id is assigned twice. The defaults are all host addresses and the guest's own address.
    let added = slirp.add(&format!(
        r#""proto": "tcp", "host_port": {tcp}, "guest_port": 81"#
    ));
    assert_eq!(added, r#"{"return":{"id":4}}"#);
    let list = slirp.ask(list);
    let third = format!(
        r#"{{"guest_addr":"10.0.2.15","guest_port":81,"host_addr":"0.0.0.0","host_port":{tcp},"id":4,"proto":"tcp"}}"#
    );
    assert_eq!(list, format!(r#"{{"entries":[{second},{third}]}}"#));
}

#[test]
fn wrong_requests_have_the_texts_of_slirp4netns() {
    let mut slirp = Slirp::new();
    for (request, why) in [
        ("", "cannot parse JSON"),
        ("badjson", "cannot parse JSON"),
        ("{\"execute\": ", "cannot parse JSON"),
        ("[]", "json_object() failed"),
        (r#"{"unexpectedjson": 42}"#, "no execute found"),
        (r#"{"execute": 42}"#, "no execute found"),
        (r#"{"execute": "bad"}"#, "unknown execute"),
        (
            r#"{"execute": "add_hostfwd"}"#,
            "add_hostfwd: bad arguments.proto",
        ),
        (
            r#"{"execute": "remove_hostfwd"}"#,
            "remove_hostfwd: bad arguments.id",
        ),
    ] {
        assert_eq!(slirp.ask(request), error(why), "{request}");
    }
    for (arguments, what) in [
        (r#""proto": "bad""#, "proto"),
        (r#""proto": 6"#, "proto"),
        (r#""proto": "tcp", "host_addr": "host""#, "host_addr"),
        (r#""proto": "tcp""#, "host_port"),
        (r#""proto": "tcp", "host_port": 0"#, "host_port"),
        (r#""proto": "tcp", "host_port": 65536"#, "host_port"),
        (r#""proto": "tcp", "host_port": "80""#, "host_port"),
        (
            r#""proto": "tcp", "host_port": 80, "guest_addr": "x""#,
            "guest_addr",
        ),
        // An address of the other family.
        (
            r#""proto": "tcp", "host_port": 80, "guest_addr": "fd00::1", "guest_port": 80"#,
            "guest_addr",
        ),
        (
            r#""proto": "tcp", "host_port": 80, "guest_addr": "::", "guest_port": 80"#,
            "guest_addr",
        ),
        (
            r#""proto": "tcp", "host_port": 80, "guest_addr": "0.0.0.0""#,
            "guest_port",
        ),
    ] {
        assert_eq!(
            slirp.add(arguments),
            error(&format!("add_hostfwd: bad arguments.{what}")),
            "{arguments}"
        );
    }
    assert!(slirp.0.updates.is_empty());
}

#[test]
fn ports_that_cannot_be_published_are_errors() {
    let mut slirp = Slirp::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let arguments =
        format!(r#""proto": "tcp", "host_addr": "127.0.0.1", "host_port": {port}, "guest_port": 80"#);
    let failed = "add_hostfwd: slirp_add_hostfwd failed: ";
    let answer = slirp.add(&arguments);
    let begin = format!(
        r#"{{"error":{{"desc":"bad request: {failed}cannot publish 127.0.0.1:{port}/tcp: address already in use"#
    );
    assert!(answer.starts_with(&begin), "{answer}");
    close_port(taken);
    assert_eq!(slirp.add(&arguments), r#"{"return":{"id":1}}"#);
    let answer = slirp.add(&arguments);
    assert_eq!(
        answer,
        error(&format!("{failed}127.0.0.1:{port}:80/tcp is published already"))
    );

    // A worker refuses the port.
    slirp.0.updates.clear();
    let other = free();
    slirp.0.refused = vec![PortError {
        port: pontoon_engine::config::Published::new(
            pontoon_engine::config::Protocol::Tcp,
            ([127, 0, 0, 1], other).into(),
            80,
        ),
        why: "no descriptor".to_owned(),
    }];
    let arguments = arguments.replace(&port.to_string(), &other.to_string());
    let answer = slirp.add(&arguments);
    let why = format!("{failed}the engine cannot take over 127.0.0.1:{other}/tcp: no descriptor");
    assert_eq!(answer, error(&why));
    slirp.0.updates.clear();
    assert_eq!(
        slirp
            .ask(r#"{"execute": "list_hostfwd"}"#)
            .matches("\"id\"")
            .count(),
        1
    );
    TcpListener::bind(("127.0.0.1", other)).unwrap();
}

#[test]
fn a_request_ends_with_its_object() {
    let mut slirp = Slirp::new();
    let client = slirp.0.client();
    for part in ["{\"execute\"", ": \"list_", "hostfwd\"} \n"] {
        slirp.0.serve();
        assert_eq!(received(&client), (String::new(), false));
        send(&client, part);
    }
    slirp.0.serve();
    assert_eq!(received(&client), (r#"{"entries":[]}"#.to_owned(), true));
    drop(client);
    // The server reads the rest of the client's data, so that no reset discards the response.
    let client = slirp.0.client();
    send(&client, &" ".repeat(4096));
    slirp.0.serve();
    send(&client, &" ".repeat(100_000));
    slirp.0.serve();
    assert_eq!(received(&client), (error("too large message"), true));
    client.shutdown(Shutdown::Write).unwrap();
    slirp.0.serve();
    assert_eq!(slirp.0.control.servers[0].clients(), 0);
}

#[test]
fn slow_clients_delay_others_for_a_limited_time() {
    let mut slirp = Slirp::new();
    let slow: Vec<_> = (0..CLIENTS).map(|_| slirp.0.client()).collect();
    slirp.0.serve();
    let client = slirp.0.client();
    send(&client, r#"{"execute": "list_hostfwd"}"#);
    slirp.0.serve();
    // No client of a burst is disconnected before it can send its request.
    assert_eq!(received(&client), (String::new(), false));
    assert!(slow.iter().all(|slow| !received(slow).1));
    assert!(slirp.0.control.deadline().unwrap() <= slirp.0.now + EXCHANGE_GRACE);
    slirp.0.wait(EXCHANGE_GRACE);
    assert_eq!(received(&client).0, r#"{"entries":[]}"#);
    assert_eq!(slow.iter().filter(|slow| received(slow).1).count(), 1);
    // The place of a client that is served is free for the next one at once.
    let clients: Vec<_> = (0..2 * CLIENTS).map(|_| slirp.0.client()).collect();
    for client in &clients {
        send(client, r#"{"execute": "list_hostfwd"}"#);
        client.shutdown(Shutdown::Write).unwrap();
    }
    drop(slow);
    for _ in 0..4 {
        slirp.0.serve();
    }
    for client in &clients {
        assert_eq!(received(client), (r#"{"entries":[]}"#.to_owned(), true));
    }
}

/// Tests that a client which waits for the engine receives an error response of slirp4netns' protocol.
#[test]
fn changes_that_are_not_confirmed_are_errors() {
    let mut slirp = Slirp::new();
    let client = slirp.0.client();
    let arguments = format!(
        r#""proto": "udp", "host_addr": "127.0.0.1", "host_port": {}, "guest_port": 80"#,
        free()
    );
    let request = format!(r#"{{"execute": "add_hostfwd", "arguments": {{{arguments}}}}}"#);
    send(&client, &request);
    slirp.0.serve();
    slirp.0.wait(REPORT_TIMEOUT);
    let (answer, ended) = received(&client);
    let why = "the engine has not confirmed the change yet; it takes effect when it does";
    assert_eq!(
        (answer, ended),
        (
            error(&format!("add_hostfwd: slirp_add_hostfwd failed: {why}")),
            true
        )
    );
    // A repeated request finds the port published, and receives its id once the engine replies.
    let why = "the engine has not replied; nothing was changed";
    assert_eq!(
        slirp.ask(&request),
        error(&format!("add_hostfwd: slirp_add_hostfwd failed: {why}"))
    );
    slirp.0.updates.clear();
    assert_eq!(slirp.ask(&request), r#"{"return":{"id":1}}"#);
}

/// Two clients that add the same port at the same time do not both receive an id for it.
#[test]
fn port_that_another_client_is_adding_is_an_error() {
    let mut slirp = Slirp::new();
    let port = free();
    let arguments =
        format!(r#""proto": "udp", "host_addr": "127.0.0.1", "host_port": {port}, "guest_port": 80"#);
    let request = format!(r#"{{"execute": "add_hostfwd", "arguments": {{{arguments}}}}}"#);
    let clients: Vec<_> = (0..3).map(|_| slirp.0.client()).collect();
    for client in &clients {
        send(client, &request);
    }
    slirp.0.serve();
    slirp.0.confirm(1);
    let published = format!("127.0.0.1:{port}:80/udp is published already");
    let answers: Vec<_> = clients.iter().map(|client| received(client).0).collect();
    let refused = error(&format!("add_hostfwd: slirp_add_hostfwd failed: {published}"));
    assert_eq!(
        answers,
        [r#"{"return":{"id":1}}"#.to_owned(), refused.clone(), refused]
    );
}
