//! Tests of requests that show or replace the egress rules.

use pontoon_engine::egress::RefusedFlows;
use pontoon_worker::messages::RulesUpdate;

use super::*;

fn policy(answer: &str) -> reply::Policy {
    assert_eq!(status(answer), "200", "{answer}");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn new_rules_are_shown_with_their_own_hits() {
    let mut fixture = Fixture::new(2);
    let client = fixture.client();
    fixture.publish(1, &[3, 4, 5]);
    send(&client, "GET /v1/policy HTTP/1.1\r\n\r\n");
    fixture.serve();
    let before = policy(&received(&client).0);
    assert_eq!(
        (before.rules[0].hits, before.unlisted, before.resolvers),
        (6, 8, 10)
    );
    assert_eq!(fixture.updates, [], "the engine is not asked");

    send(
        &client,
        &put(r#"{"allow": ["*.Example.org:443/tcp"], "deny": ["10.0.0.0/8"]}"#),
    );
    fixture.serve();
    let rules = ["allow *.example.org:443/tcp", "deny 10.0.0.0/8"].map(|rule| rule.parse().unwrap());
    let update = RulesUpdate {
        generation: 2,
        rules: rules.to_vec(),
        refused: RefusedFlows::Reset,
    };
    assert_eq!(fixture.updates, [Update::Rules(update), Update::Confirm(1)]);
    assert_eq!(received(&client).0, "", "before every worker has confirmed");
    fixture.publish(2, &[0, 7, 4, 6]);
    fixture.confirm(2);
    let after = policy(&received(&client).0);
    assert_eq!(
        (
            after.rules.len(),
            after.rules[1].hits,
            after.unlisted,
            after.resolvers
        ),
        (2, 14, 8, 12)
    );
}

#[test]
fn flows_that_the_rules_refuse_are_reset_or_kept() {
    for (body, expected) in [
        ("{}", RefusedFlows::Reset),
        (r#"{"deny": ["*"], "flows": "reset"}"#, RefusedFlows::Reset),
        (r#"{"flows": "keep", "deny": ["*"]}"#, RefusedFlows::Keep),
    ] {
        let mut fixture = Fixture::new(1);
        let client = fixture.client();
        send(&client, &put(body));
        fixture.serve();
        let Update::Rules(update) = &fixture.updates[0] else {
            panic!("{:?}", fixture.updates);
        };
        assert_eq!(update.refused, expected, "{body}");
    }
}

#[test]
fn invalid_rules_change_nothing() {
    let mut fixture = Fixture::new(1);
    let client = fixture.client();
    for (body, why) in [
        ("", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("{", "EOF while parsing"),
        (r#"{"alow": []}"#, "unknown field `alow`"),
        (r#"{"allow": ["10.0.0"]}"#, "'10.0.0' is neither"),
        (r#"{"deny": ["*:0"]}"#, "'0' is not a port"),
        (r#"{"flows": "close"}"#, "'close' is neither 'reset' nor 'keep'"),
        (r#"{"flows": 1}"#, "invalid type"),
        (r#"{"deny": ["a\n\u001bb"]}"#, "'a  b' is neither"),
    ] {
        send(&client, &put(body));
        fixture.serve();
        let (answer, _) = received(&client);
        assert_eq!(status(&answer), "400", "{body}: {answer}");
        assert!(answer.contains(why), "{body}: {answer}");
    }
    assert_eq!(fixture.updates, []);
}

#[test]
fn without_a_forwarder_rules_with_domains_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let served = ControlSetup {
        forwarder: false,
        ..served()
    };
    let mut control = Control::open(Some(&path), None, served).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    send(&client, &put(r#"{"deny": ["ads.example"]}"#));
    control.serve(&mut |update| panic!("{update:?}"), Instant::now());
    client.set_nonblocking(true).unwrap();
    assert_eq!(status(&received(&client).0), "400");
}
