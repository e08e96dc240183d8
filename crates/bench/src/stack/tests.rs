use super::*;

fn wanted(name: &str, program: Option<&str>) -> Wanted {
    Wanted {
        name: name.to_owned(),
        program: program.map(PathBuf::from),
        flags: Vec::new(),
    }
}

#[test]
fn stacks_come_in_the_order_of_their_kinds() {
    let entries = find(&[
        wanted("pasta-b", Some("/nowhere")),
        wanted("veth", None),
        wanted("direct", None),
    ]);
    let names: Vec<_> = entries
        .iter()
        .map(|entry| entry.described.name.as_str())
        .collect();
    assert_eq!(names, ["direct", "veth", "pasta-b"]);
}

#[test]
fn one_that_is_missing_says_so_in_a_line() {
    let entries = find(&[wanted("pasta-b", Some("/nowhere"))]);
    let missing = entries[0].described.missing.as_deref().unwrap();
    assert!(
        missing.starts_with("/nowhere is not there") && !missing.contains('\n'),
        "{missing}"
    );
    assert!(entries[0].stack.is_none());
}

#[test]
fn names_begin_with_a_kind() {
    assert!(is_known("pasta") && is_known("pasta-debian") && is_known("pontoon-old"));
    assert!(!is_known("pastaz") && !is_known("") && !is_known("passt"));
}
