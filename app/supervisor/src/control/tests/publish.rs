//! Tests of published ports, which are added and removed together or not at all.

use pontoon_control::http::BODY;
use pontoon_worker::messages::PortUpdate;

use super::*;

#[test]
fn ports_are_published_together_or_not_at_all() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let batch = format!(r#"{{"add": ["127.0.0.2:{port}:80", "127.0.0.1:{port}:80"]}}"#);
    send(&client, &post("/v1/publish", &batch));
    fixture.serve();
    assert_eq!((status(&received(&client).0), fixture.updates.len()), ("409", 0));
    send(&client, "GET /v1/publish HTTP/1.1\r\n\r\n");
    fixture.serve();
    assert!(
        received(&client)
            .0
            .ends_with(r#"{"published":[],"auto":[],"found":[]}"#)
    );

    close_port(taken);
    send(&client, &post("/v1/publish", &batch));
    fixture.serve();
    // The workers confirm the update.
    let [Update::Published(port_updates), Update::Confirm(1)] = &fixture.updates[..] else {
        panic!("{:?}", fixture.updates);
    };
    assert_eq!(port_updates.len(), 2);
    assert_eq!(received(&client).0, "");
    fixture.confirm(1);
    let (answer, _) = received(&client);
    let text = format!(r#"{{"added":["127.0.0.1:{port}:80/tcp","127.0.0.2:{port}:80/tcp"],"removed":[]}}"#);
    assert!(status(&answer) == "200" && answer.ends_with(&text), "{answer}");

    // Ports that are published already cause no update.
    send(&client, &post("/v1/publish", &batch));
    fixture.serve();
    assert!(received(&client).0.ends_with(r#"{"added":[],"removed":[]}"#));
    for (body, why) in [
        (r#"{"add": ["80-"]}"#, "'80-': '' is not a port"),
        (r#"{"add": ["auto"]}"#, "cannot be read from the host"),
        (r#"{"add": ["[::1]:1:1"]}"#, "the guest has no IPv6"),
        (r#"{"del": []}"#, "unknown field `del`"),
        ("[]", "not a JSON object"),
    ] {
        send(&client, &post("/v1/publish", body));
        fixture.serve();
        let (answer, _) = received(&client);
        assert!(
            status(&answer) == "400" && answer.contains(why),
            "{body}: {answer}"
        );
    }
    assert_eq!(fixture.updates.len(), 2);
}

#[test]
fn change_that_a_worker_refuses_is_reverted() {
    let mut fixture = Fixture::new(1);
    let (client, other) = (fixture.client(), fixture.client());
    let [old, new] = [free_port(), free_port()];
    let batch = format!(r#"{{"add": ["127.0.0.1:{old}:80"]}}"#);
    send(&client, &post("/v1/publish", &batch));
    fixture.serve();
    fixture.confirm(1);
    assert_eq!(status(&received(&client).0), "200");

    let batch = format!(
        r#"{{"remove": ["127.0.0.1:{old}:80"], "add": ["127.0.0.1:{new}:80", "127.0.0.2:{old}:80"]}}"#
    );
    send(&client, &post("/v1/publish", &batch));
    fixture.serve();
    let batch = format!(r#"{{"add": ["127.0.0.2:{new}:80"]}}"#);
    send(&other, &post("/v1/publish", &batch));
    fixture.serve();
    let Some(Update::Published(port_updates)) = fixture.updates.get(2) else {
        panic!("{:?}", fixture.updates);
    };
    fixture.refused = vec![PortError {
        port: port_updates[0].published(),
        why: "no descriptor".to_owned(),
    }];
    fixture.updates.clear();
    fixture.updates.push(Update::Confirm(2));
    fixture.confirm(1);
    let (answer, _) = received(&client);
    let why = format!("the engine cannot take over 127.0.0.1:{new}/tcp: no descriptor");
    assert!(status(&answer) == "409" && answer.contains(&why), "{answer}");
    let [
        Update::Confirm(2),
        Update::Published(port_updates),
        Update::Confirm(3),
    ] = &fixture.updates[..]
    else {
        panic!("{:?}", fixture.updates);
    };
    assert!(
        matches!(port_updates[..], [PortUpdate::Close(_), PortUpdate::Close(_)]),
        "{port_updates:?}"
    );
    // The change of another client is kept.
    fixture.refused.clear();
    fixture
        .updates
        .retain(|update| matches!(update, Update::Confirm(_)));
    fixture.confirm(1);
    assert_eq!(status(&received(&other).0), "200");
    send(&client, "GET /v1/publish HTTP/1.1\r\n\r\n");
    fixture.serve();
    let (answer, _) = received(&client);
    let left = format!(
        r#"{{"published":["127.0.0.1:{old}:80/tcp","127.0.0.2:{new}:80/tcp"],"auto":[],"found":[]}}"#
    );
    assert!(answer.ends_with(&left), "{answer}");
}

#[test]
fn ports_are_closed_when_the_workers_have_confirmed_others() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    let [old, new] = [free_port(), free_port()];
    for (body, confirmed) in [
        (format!(r#"{{"add": ["127.0.0.1:{old}:80"]}}"#), 1),
        (
            format!(r#"{{"remove": ["127.0.0.1:{old}:80"], "add": ["127.0.0.1:{new}:80"]}}"#),
            2,
        ),
        (format!(r#"{{"remove": ["127.0.0.1:{new}:80"]}}"#), 1),
    ] {
        send(&client, &post("/v1/publish", &body));
        fixture.serve();
        for _ in 0..confirmed {
            assert_eq!(received(&client).0, "");
            fixture.confirm(1);
        }
        let (answer, _) = received(&client);
        assert_eq!(status(&answer), "200", "{answer}");
    }
    let kinds = fixture.updates.iter().map(|update| match update {
        Update::Published(updates) => match updates[..] {
            [PortUpdate::Open(..)] => "open",
            [PortUpdate::Close(_)] => "close",
            _ => panic!("{updates:?}"),
        },
        Update::Confirm(_) => "confirm",
        _ => panic!("{update:?}"),
    });
    let expected = [
        "open", "confirm", "open", "confirm", "close", "confirm", "close", "confirm",
    ];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}

#[test]
fn request_with_more_ports_than_exist_is_refused_before_lookups() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    for list in ["remove", "add"] {
        let ranges = vec![r#""1-65535:1-65535""#; 14_000].join(",");
        let body = format!(r#"{{"{list}":[{ranges}]}}"#);
        assert!(body.len() <= BODY);
        let request = post("/v1/publish", &body);
        let mut rest = request.as_bytes();
        let begun = Instant::now();
        while let Ok(1..) = (&client).write(rest).inspect(|len| rest = &rest[*len..]) {
            fixture.serve();
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        let (answer, _) = received(&client);
        let why = format!("'{list}' names 917490000 ports; the limit is 131070");
        assert!(status(&answer) == "400" && answer.contains(&why), "{answer}");
    }

    // All ports of both protocols in one request.
    let body = r#"{"remove": ["1-65535:1-65535", "1-65535:1-65535/udp"]}"#;
    send(&client, &post("/v1/publish", body));
    fixture.serve();
    assert_eq!(status(&received(&client).0), "200");
}

/// Updates that the engine does not read stay in the supervisor's memory, so their number must be limited.
#[test]
fn changes_are_refused_until_the_engine_replies() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    let publish = |address| {
        let body = format!(r#"{{"add": ["127.0.0.{address}:40123:80"]}}"#);
        post("/v1/publish", &body)
    };
    for address in [3, 4, 5] {
        send(&client, &publish(address));
        fixture.serve();
        fixture.wait(REPORT_TIMEOUT);
        assert_eq!(status(&received(&client).0), "503");
    }
    let is_change = |update: &&Update| matches!(update, Update::Published(_));
    assert_eq!(fixture.updates.iter().filter(is_change).count(), 1);
    // The engine replies to the query of a refused request; then changes are accepted again.
    for expected in ["503", "200"] {
        send(&client, &publish(6));
        fixture.serve();
        fixture.confirm(1);
        assert_eq!(status(&received(&client).0), expected);
    }
    assert_eq!(fixture.updates.iter().filter(is_change).count(), 2);
}

#[test]
fn change_that_a_worker_refuses_after_the_timeout_of_its_client_is_reverted() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    let port = free_port();
    let batch = format!(r#"{{"add": ["127.0.0.1:{port}:80"]}}"#);
    send(&client, &post("/v1/publish", &batch));
    fixture.serve();
    let Some(Update::Published(port_updates)) = fixture.updates.first() else {
        panic!("{:?}", fixture.updates);
    };
    fixture.refused = vec![PortError {
        port: port_updates[0].published(),
        why: "no descriptor".to_owned(),
    }];
    fixture.wait(REPORT_TIMEOUT);
    assert_eq!(status(&received(&client).0), "503");
    // The engine replies to the next request.
    send(&client, &post("/v1/publish", &batch));
    fixture.serve();
    fixture.confirm(1);
    assert_eq!(status(&received(&client).0), "503");
    let Some(Update::Published(port_updates)) = fixture.updates.last() else {
        panic!("{:?}", fixture.updates);
    };
    assert!(
        matches!(port_updates[..], [PortUpdate::Close(_)]),
        "{port_updates:?}"
    );
    send(&client, "GET /v1/publish HTTP/1.1\r\n\r\n");
    fixture.serve();
    assert!(
        received(&client)
            .0
            .ends_with(r#"{"published":[],"auto":[],"found":[]}"#)
    );
}
