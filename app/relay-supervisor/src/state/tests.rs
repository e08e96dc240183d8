use std::time::Duration;

use super::super::links::LinkWatch;
use super::derived::{DERIVE_BURST, DerivePacing, MAX_CHANGES, MIN_DERIVE_INTERVAL};
use super::*;

/// Returns a relay without workers, for interfaces that do not exist.
fn relay() -> Relay {
    let spawn_config = SpawnConfig::for_tests();
    let mut relay = Relay::start(Links::default(), 0, &[], spawn_config, usize::MAX).unwrap();
    relay.inputs = Inputs::new(ReceiveMode::Ring, usize::MAX);
    relay
}

/// Returns rules for `count` ports of a group.
fn many(count: u16, to: &str) -> Vec<Rule> {
    let rule = |port: u16| format!("a 239.1.1.1:{port} -> b {to}:{port}, c *:*").parse();
    (1..=count).map(|port| rule(port).unwrap()).collect()
}

fn rules(of: &[Rule]) -> Rules {
    Rules::default().union(of)
}

#[test]
fn all_rules_can_be_replaced_at_once() {
    let mut relay = relay();
    relay.replace(rules(&many(8000, "239.2.2.2"))).unwrap();
    relay.replace(rules(&many(8000, "239.3.3.3"))).unwrap();
    assert_eq!(relay.rules(), &rules(&many(8000, "239.3.3.3")));
    relay.replace(Rules::default()).unwrap();
    assert_eq!(relay.free_rows.available(), FreeRows::ALL);
    let too_many = relay.replace(rules(&many(12_000, "239.2.2.2")));
    assert!(too_many.is_err());
}

/// New sockets are opened before old ones are closed.
#[test]
fn replaced_membership_makes_room_within_the_limit_on_sockets() {
    let mut relay = relay();
    relay.links = LinkWatch::start().unwrap().1;
    relay.memberships = Memberships::new(1);
    let rule = |group: &str| format!("lo {group}:5001 -> a *:*").parse().unwrap();
    for group in ["239.1.1.1", "239.1.1.2"] {
        relay.replace(rules(&[rule(group)])).unwrap();
        assert_eq!(relay.stats().refused_sockets, 0);
    }
    relay
        .replace(rules(&[rule("239.1.1.2"), rule("239.1.1.3")]))
        .unwrap();
    assert_eq!(relay.stats().refused_sockets, 1);
}

#[test]
fn derived_rules_make_room_for_configured_ones() {
    let mut relay = relay();
    let wanted = many(20_000, "239.2.2.2");
    let fits = counter_rows::fit(&wanted, capacity_beside(&relay.configured));
    assert_eq!(counter_rows::needed(fits), FreeRows::ALL / 4 * 4);
    relay
        .set_derived_rules(fits.to_vec(), 20_000 - fits.len())
        .unwrap();
    assert_eq!(relay.stats().left_out, 20_000 - fits.len() as u64);
    let configured = rules(&many(10, "239.3.3.3"));
    relay.replace(configured.clone()).unwrap();
    assert!(configured.without(relay.rules()).next().is_none());
    relay.set_derived_rules(Vec::new(), 0).unwrap();
    assert_eq!(relay.stats().left_out, 0);
    assert_eq!(relay.rules(), &configured);
}

#[test]
fn derived_rules_are_built_after_a_change_and_at_most_once_in_an_interval() {
    let mut relay = relay();
    let begin = Instant::now();
    relay.update_derived_rules(begin);
    assert_eq!(relay.next_deadline(), None);
    relay.set_kernel_rules(many(1, "239.2.2.2"));
    let due = relay.next_deadline().unwrap();
    assert!(due >= begin + MIN_DERIVE_INTERVAL);
    relay.update_derived_rules(due - Duration::from_millis(1));
    assert_eq!(relay.rules().iter().count(), 0);
    relay.update_derived_rules(due);
    assert_eq!(relay.rules().iter().count(), 1);
    assert_eq!(relay.next_deadline(), None);
    // Without a change the rules are not built again: those that were removed here stay removed.
    relay.set_derived_rules(Vec::new(), 0).unwrap();
    let due = relay.derive_at;
    relay.update_derived_rules(due);
    assert_eq!(relay.rules().iter().count(), 0);
    // A change of the configured rules changes the number of free rows.
    relay.replace(Rules::default()).unwrap();
    relay.update_derived_rules(due);
    assert_eq!(relay.rules().iter().count(), 1);
}

#[test]
fn derivations_pause_for_ten_times_their_cost_after_a_burst() {
    let start = Instant::now();
    let mut pacing = DerivePacing::new(start);
    let long = Duration::from_secs(2);
    let interval = MIN_DERIVE_INTERVAL;
    assert_eq!(pacing.next(start, Duration::from_millis(1)), start + interval);
    assert_eq!(pacing.next(start, long), start + interval);
    let due = pacing.next(start, long);
    assert_eq!(due, start + Duration::from_millis(11 + 2 * 22_000) - DERIVE_BURST);
    // After an idle time, two seconds are free again.
    let later = start + Duration::from_mins(1);
    assert_eq!(pacing.next(later, long), later + interval);
}

#[test]
fn many_derived_rules_are_installed_by_several_derivations() {
    let mut relay = relay();
    let mut now = Instant::now();
    relay.update_derived_rules(now);
    relay.set_kernel_rules(many(2000, "239.2.2.2"));
    now = relay.next_deadline().unwrap();
    let mut derivations = 0;
    relay.update_derived_rules(now);
    while let Some(due) = relay.next_deadline() {
        derivations += 1;
        assert!(relay.rules().iter().count() <= derivations * MAX_CHANGES);
        now = due.max(now);
        relay.update_derived_rules(now);
    }
    assert_eq!(derivations, 2000 / MAX_CHANGES);
    assert_eq!(relay.rules(), &rules(&many(2000, "239.2.2.2")));
}

#[test]
fn derived_rules_cannot_be_removed() {
    let mut relay = relay();
    relay.set_derived_rules(many(1, "239.2.2.2"), 0).unwrap();
    let change = |input| Change::parse(&[input], &[]).unwrap();
    for (input, why) in [
        (
            "a 239.1.1.1:1",
            "'a 239.1.1.1:1' is derived from group memberships or the kernel's routes and cannot be removed",
        ),
        ("a 239.1.1.1:2", "no rule for 'a 239.1.1.1:2'"),
    ] {
        assert_eq!(relay.change(&change(input)).unwrap_err().to_string(), why);
    }
}

/// The name of the output's interface has a character that the syntax of rules uses; the kernel permits such names.
#[test]
fn derived_rule_whose_text_does_not_parse_is_not_installed() {
    let mut relay = relay();
    let mut derived = many(2, "239.2.2.2");
    derived[0].outputs[0].interface = "b,1".to_owned();
    relay.set_derived_rules(derived.clone(), 0).unwrap();
    assert_eq!(relay.rules(), &rules(&derived[1..]));
}

#[test]
fn derived_rule_that_exceeds_a_message_does_not_prevent_others() {
    let mut relay = relay();
    let outputs: Vec<String> = (0..500).map(|number| format!("interface{number} *:*")).collect();
    let long: Rule = format!("a 239.1.1.1:1 -> {}", outputs.join(", "))
        .parse()
        .unwrap();
    let mut derived = many(1, "239.2.2.2");
    derived.push(long);
    derived[1].input = "a 239.1.1.2:1".parse().unwrap();
    relay.set_derived_rules(derived, 0).unwrap();
    assert_eq!(relay.rules(), &rules(&many(1, "239.2.2.2")));
}
