//! Rules, which hold as soon as they are told.

use super::*;

#[test]
fn other_rules_are_told_before_they_are_counted() {
    let mut desk = Desk::new(1);
    let (one, two) = (desk.client(), desk.client());
    say(&one, STATS);
    desk.serve();
    say(
        &two,
        &put(r#"{"allow": ["*.Example.org:443/tcp"], "deny": ["10.0.0.0/8"]}"#),
    );
    desk.serve();
    let rules = ["allow *.example.org:443/tcp", "deny 10.0.0.0/8"].map(|rule| rule.parse().unwrap());
    // The round that ran was about the rules before.
    assert_eq!(
        desk.told,
        [Update::Ask(1), Update::Rules(rules.to_vec()), Update::Ask(2)]
    );
    desk.answer(1);
    desk.answer(1);
    assert_eq!(status(&heard(&one).0), "200");
    let (answer, _) = heard(&two);
    let policy: reply::Policy = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(
        (policy.rules.len(), policy.rules[1].hits, policy.unlisted),
        (2, 4, 5)
    );
}

#[test]
fn rules_that_are_none_change_nothing() {
    let mut desk = Desk::new(1);
    let client = desk.client();
    for (body, why) in [
        ("", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("{", "EOF while parsing"),
        (r#"{"alow": []}"#, "unknown field `alow`"),
        (r#"{"allow": ["10.0.0"]}"#, "'10.0.0' is neither"),
        (r#"{"deny": ["*:0"]}"#, "'0' is not a port"),
        (r#"{"deny": ["a\n\u001bb"]}"#, "'a  b' is neither"),
    ] {
        say(&client, &put(body));
        desk.serve();
        let (answer, _) = heard(&client);
        assert_eq!(status(&answer), "400", "{body}: {answer}");
        assert!(answer.contains(why), "{body}: {answer}");
    }
    assert_eq!(desk.told, []);
}

#[test]
fn without_a_forwarder_no_rule_names_a_domain() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let served = Served {
        forwarder: false,
        ..served()
    };
    let mut control = Control::open(Some(&path), None, served).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    say(&client, &put(r#"{"deny": ["ads.example"]}"#));
    control.serve(&mut |update| panic!("{update:?}"), Instant::now());
    client.set_nonblocking(true).unwrap();
    assert_eq!(status(&heard(&client).0), "400");
}
