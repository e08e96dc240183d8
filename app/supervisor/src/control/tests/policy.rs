//! Tests of requests that show or replace the egress rules.

use super::*;

#[test]
fn new_rules_are_sent_before_their_hits_are_queried() {
    let mut fixture = Fixture::new(1);
    let (one, two) = (fixture.client(), fixture.client());
    send(&one, STATS);
    fixture.serve();
    send(
        &two,
        &put(r#"{"allow": ["*.Example.org:443/tcp"], "deny": ["10.0.0.0/8"]}"#),
    );
    fixture.serve();
    let rules = ["allow *.example.org:443/tcp", "deny 10.0.0.0/8"].map(|rule| rule.parse().unwrap());
    // The round that was running counted hits of the earlier rules.
    assert_eq!(
        fixture.updates,
        [Update::Ask(1), Update::Rules(rules.to_vec()), Update::Ask(2)]
    );
    fixture.answer(1);
    fixture.answer(1);
    assert_eq!(status(&received(&one).0), "200");
    let (answer, _) = received(&two);
    let policy: reply::Policy = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(
        (policy.rules.len(), policy.rules[1].hits, policy.unlisted),
        (2, 4, 5)
    );
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
