//! Tests of requests that end flows.

use pontoon_worker::messages::{EndFlows, FlowSelection};

use super::*;

fn kill(rule: &str) -> String {
    post("/v1/flows/kill", &serde_json::json!({ "rule": rule }).to_string())
}

fn delete(id: &str) -> String {
    format!("DELETE /v1/flows/{id} HTTP/1.1\r\n\r\n")
}

fn requested(fixture: &Fixture) -> Vec<FlowSelection> {
    let requests = fixture.updates.iter().filter_map(|update| match update {
        Update::EndFlows(EndFlows { which, .. }) => Some(which.clone()),
        _ => None,
    });
    requests.collect()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or(answer, |(_, body)| body)
}

#[test]
fn flows_that_all_workers_have_ended_are_counted() {
    let mut fixture = Fixture::new(2);
    let (client, other) = (fixture.client(), fixture.client());
    send(&client, &kill("192.0.2.0/24:443"));
    fixture.serve();
    send(&other, &delete("100000001"));
    fixture.serve();
    assert_eq!(
        requested(&fixture),
        [
            FlowSelection::To("192.0.2.0/24:443".parse().unwrap()),
            FlowSelection::Id(0x1_0000_0001),
        ]
    );
    let result = |number, count| EndedFlows { number, count };
    // The second request is confirmed by the next round.
    fixture.ended = vec![result(1, 3), result(7, 9)];
    fixture.confirm(2);
    assert_eq!(body(&received(&client).0), r#"{"ended":6}"#);
    assert_eq!(received(&other).0, "");
    fixture.serve();
    fixture.ended = vec![result(2, 1)];
    fixture.confirm(2);
    assert_eq!(body(&received(&other).0), r#"{"ended":2}"#);
}

#[test]
fn unknown_flow_has_status_404() {
    let mut fixture = Fixture::new(2);
    let client = fixture.client();
    for id in [
        "kill",
        "+1",
        "-1",
        "g",
        "12345678901234567",
        "900000000000000",
        "%31",
    ] {
        send(&client, &delete(id));
        fixture.serve();
        let (answer, _) = received(&client);
        assert_eq!(status(&answer), "404", "{id}");
        assert!(answer.contains(&format!("no such flow: {id}")), "{answer}");
    }
    assert_eq!(fixture.updates, []);
    send(&client, &delete("1"));
    fixture.serve();
    fixture.confirm(2);
    assert_eq!(status(&received(&client).0), "404");
    // No flow is an error for an id only.
    send(&client, &kill("*"));
    fixture.serve();
    fixture.confirm(2);
    assert_eq!(body(&received(&client).0), r#"{"ended":0}"#);
}

#[test]
fn invalid_rules_are_errors() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    for (request, why) in [
        (kill("10.0.0"), "'10.0.0' is neither"),
        (kill("*:0"), "'0' is not a port"),
        (
            kill("example.org"),
            "no egress rule names the domain of 'example.org'",
        ),
        (post("/v1/flows/kill", "{}"), "missing field `rule`"),
        (
            post("/v1/flows/kill", r#"{"rules": "*"}"#),
            "unknown field `rules`",
        ),
    ] {
        send(&client, &request);
        fixture.serve();
        let (answer, _) = received(&client);
        assert_eq!(status(&answer), "400", "{request}: {answer}");
        assert!(answer.contains(why), "{request}: {answer}");
    }
    assert_eq!(fixture.updates, []);
    send(&client, &put(r#"{"deny": ["example.org"]}"#));
    fixture.serve();
    fixture.confirm(1);
    assert_eq!(status(&received(&client).0), "200");
    send(&client, &kill("Example.org:443/tcp"));
    fixture.serve();
    let expected = "example.org:443/tcp".parse().unwrap();
    assert_eq!(requested(&fixture), [FlowSelection::To(expected)]);
}

/// Requests are events, which stay in memory until the engine reads them.
#[test]
fn requests_are_refused_until_the_engine_replies() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    send(&client, &kill("*"));
    fixture.serve();
    fixture.wait(REPORT_TIMEOUT);
    assert_eq!(status(&received(&client).0), "503");
    for _ in 0..3 {
        send(&client, &kill("*"));
        fixture.serve();
        fixture.wait(REPORT_TIMEOUT);
        assert_eq!(status(&received(&client).0), "503");
    }
    assert_eq!(requested(&fixture).len(), 1);
    send(&client, &delete("1"));
    fixture.serve();
    fixture.confirm(1);
    assert_eq!(
        status(&received(&client).0),
        "503",
        "the engine replies to this request"
    );
    send(&client, &delete("1"));
    fixture.serve();
    assert_eq!(requested(&fixture).len(), 2);
}
