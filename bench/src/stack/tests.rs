use super::*;

fn wanted(name: &str, program: Option<&str>) -> Selection {
    Selection {
        name: name.to_owned(),
        program: program.map(PathBuf::from),
        flags: Vec::new(),
    }
}

#[test]
fn stacks_are_found_in_the_order_of_their_kinds() {
    let candidates = find(&[
        wanted("pasta-b", Some("/nowhere")),
        wanted("veth", None),
        wanted("direct", None),
    ]);
    let names: Vec<_> = candidates
        .iter()
        .map(|candidate| candidate.described.name.as_str())
        .collect();
    assert_eq!(names, ["direct", "veth", "pasta-b"]);
}

#[test]
fn missing_stack_has_a_reason_of_one_line() {
    let candidates = find(&[wanted("pasta-b", Some("/nowhere"))]);
    let missing = candidates[0].described.missing.as_deref().unwrap();
    assert!(
        missing.starts_with("/nowhere does not exist") && !missing.contains('\n'),
        "{missing}"
    );
    assert!(candidates[0].stack.is_none());
}

#[test]
fn names_must_begin_with_a_kind() {
    let is_known = |name| Selection::parse(name, StackPurpose::Network).is_ok();
    assert!(is_known("pasta") && is_known("pasta-debian") && is_known("pontoon-old"));
    assert!(!is_known("pastaz") && !is_known("") && !is_known("passt") && !is_known("socat"));
    let is_relay = |name| Selection::parse(name, StackPurpose::Relay).is_ok();
    assert!(is_relay("smcroute=/sbin/smcrouted") && is_relay("pontoon-old=/tmp/pontoon"));
    assert!(!is_relay("pasta") && !is_relay("veth"));
}

#[test]
fn kinds_of_one_purpose_have_distinct_names() {
    for purpose in [StackPurpose::Network, StackPurpose::Relay] {
        let names: Vec<_> = kinds(purpose).map(|kind| kind.name).collect();
        for (at, name) in names.iter().enumerate() {
            assert!(!names[..at].contains(name), "{name}");
        }
    }
}

#[test]
fn named_relays_are_found_in_order_and_a_missing_one_is_an_error() {
    let program = std::env::current_exe().unwrap();
    let wanted = ["socat", "pontoon-old", "mcr"].map(|name| wanted(name, program.to_str()));
    let missing = Selection::parse("smcroute=/nowhere", StackPurpose::Relay).unwrap();
    assert!(find_relays(&[missing], "").is_err());
    let order: Vec<_> = in_order(&wanted, StackPurpose::Relay)
        .map(|(_, one)| &*one.name)
        .collect();
    assert_eq!(order, ["pontoon-old", "mcr", "socat"]);
}
