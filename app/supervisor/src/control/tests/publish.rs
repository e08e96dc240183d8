//! Published ports, together or not at all.

use pontoon_worker::messages::Door;

use super::*;
use crate::control::http::BODY;

#[test]
fn ports_are_published_together_or_not_at_all() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let batch = format!(r#"{{"add": ["127.0.0.2:{port}:80", "127.0.0.1:{port}:80"]}}"#);
    say(&client, &post("/v1/publish", &batch));
    desk.serve();
    assert_eq!((status(&heard(&client).0), desk.told.len()), ("409", 0));
    say(&client, "GET /v1/publish HTTP/1.1\r\n\r\n");
    desk.serve();
    assert!(heard(&client).0.ends_with(r#"{"published":[]}"#));

    drop(taken);
    say(&client, &post("/v1/publish", &batch));
    desk.serve();
    // The workers are asked once they have been told: then it holds.
    let [Update::Published(doors), Update::Ask(1)] = &desk.told[..] else {
        panic!("{:?}", desk.told);
    };
    assert_eq!(doors.len(), 2);
    assert_eq!(heard(&client).0, "");
    desk.answer(1);
    let (answer, _) = heard(&client);
    let text = format!(r#"{{"added":["127.0.0.1:{port}:80/tcp","127.0.0.2:{port}:80/tcp"],"removed":[]}}"#);
    assert!(status(&answer) == "200" && answer.ends_with(&text), "{answer}");

    // Nothing is to be done for what is there.
    say(&client, &post("/v1/publish", &batch));
    desk.serve();
    assert!(heard(&client).0.ends_with(r#"{"added":[],"removed":[]}"#));
    for (body, why) in [
        (r#"{"add": ["80"]}"#, "'80': no guest port"),
        (r#"{"add": ["[::1]:1:1"]}"#, "the guest has no IPv6"),
        (r#"{"del": []}"#, "unknown field `del`"),
        ("[]", "not a JSON object"),
    ] {
        say(&client, &post("/v1/publish", body));
        desk.serve();
        let (answer, _) = heard(&client);
        assert!(
            status(&answer) == "400" && answer.contains(why),
            "{body}: {answer}"
        );
    }
    assert_eq!(desk.told.len(), 2);
}

#[test]
fn what_the_engine_cannot_take_over_is_taken_back() {
    let mut desk = Desk::new(1);
    let (client, other) = (desk.client(), desk.client());
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let [old, new] = [free(), free()].map(|address| address.unwrap().port());
    let batch = format!(r#"{{"add": ["127.0.0.1:{old}:80"]}}"#);
    say(&client, &post("/v1/publish", &batch));
    desk.serve();
    desk.answer(1);
    assert_eq!(status(&heard(&client).0), "200");

    let batch = format!(
        r#"{{"remove": ["127.0.0.1:{old}:80"], "add": ["127.0.0.1:{new}:80", "127.0.0.2:{old}:80"]}}"#
    );
    say(&client, &post("/v1/publish", &batch));
    desk.serve();
    let batch = format!(r#"{{"add": ["127.0.0.2:{new}:80"]}}"#);
    say(&other, &post("/v1/publish", &batch));
    desk.serve();
    let Some(Update::Published(doors)) = desk.told.get(2) else {
        panic!("{:?}", desk.told);
    };
    desk.refused = vec![Refused {
        port: doors[1].published(),
        why: "no descriptor".to_owned(),
    }];
    desk.told.clear();
    desk.told.push(Update::Ask(2));
    desk.answer(1);
    let (answer, _) = heard(&client);
    let why = format!("the engine cannot take over 127.0.0.1:{new}/tcp: no descriptor");
    assert!(status(&answer) == "409" && answer.contains(&why), "{answer}");
    let [Update::Ask(2), Update::Published(doors), Update::Ask(3)] = &desk.told[..] else {
        panic!("{:?}", desk.told);
    };
    assert!(
        matches!(doors[..], [Door::Close(_), Door::Close(_), Door::Open(..)]),
        "{doors:?}"
    );
    // Somebody else's change stays.
    desk.refused.clear();
    desk.told.retain(|update| matches!(update, Update::Ask(_)));
    desk.answer(1);
    assert_eq!(status(&heard(&other).0), "200");
    say(&client, "GET /v1/publish HTTP/1.1\r\n\r\n");
    desk.serve();
    let (answer, _) = heard(&client);
    let left = format!(r#"{{"published":["127.0.0.1:{old}:80/tcp","127.0.0.2:{new}:80/tcp"]}}"#);
    assert!(answer.ends_with(&left), "{answer}");
}

#[test]
fn a_batch_of_more_ports_than_there_are_is_refused_before_it_is_looked_at() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    for list in ["remove", "add"] {
        let ranges = vec![r#""1-65535:1-65535""#; 14_000].join(",");
        let body = format!(r#"{{"{list}":[{ranges}]}}"#);
        assert!(body.len() <= BODY);
        let request = post("/v1/publish", &body);
        let mut rest = request.as_bytes();
        let begun = Instant::now();
        while let Ok(1..) = (&client).write(rest).inspect(|len| rest = &rest[*len..]) {
            desk.serve();
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        let (answer, _) = heard(&client);
        let why = format!("'{list}' names 917490000 ports; the limit is 131070");
        assert!(status(&answer) == "400" && answer.contains(&why), "{answer}");
    }

    // All of either protocol at once.
    let body = r#"{"remove": ["1-65535:1-65535", "1-65535:1-65535/udp"]}"#;
    say(&client, &post("/v1/publish", body));
    desk.serve();
    assert_eq!(status(&heard(&client).0), "200");
}
