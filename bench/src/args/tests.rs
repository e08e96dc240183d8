use super::*;

fn parse(line: &str) -> Result<Bench, clap::Error> {
    Bench::try_parse_from(line.split(' '))
}

fn names(line: &str) -> Vec<String> {
    let bench = parse(line).unwrap();
    bench
        .measure
        .stacks
        .wanted()
        .into_iter()
        .map(|one| one.name)
        .collect()
}

#[test]
fn adds_pontoon_unless_it_is_named() {
    assert_eq!(names("bench --against veth,pasta"), ["veth", "pasta", "pontoon"]);
    assert_eq!(names("bench --against pontoon=/x,veth"), ["pontoon", "veth"]);
    assert!(names("bench").contains(&"slirp4netns".to_owned()));
}

#[test]
fn compares_machines_only_if_named() {
    assert!(!names("bench").iter().any(|name| name.starts_with("qemu")));
    assert_eq!(
        names("bench --against qemu-passt,qemu-pontoon"),
        ["qemu-passt", "qemu-pontoon"]
    );
    assert_eq!(
        names("bench --against veth,qemu-passt"),
        ["veth", "qemu-passt", "pontoon"]
    );
}

#[test]
fn variants_have_the_prefix_pontoon() {
    assert_eq!(
        names("bench --against veth --variant poll=--io=poll"),
        ["veth", "pontoon", "pontoon-poll"]
    );
    assert_eq!(
        names("bench --against veth --profile full"),
        ["veth", "pontoon", "pontoon-event", "pontoon-poll"]
    );
}

#[test]
fn refuses_wrong_arguments_with_advice() {
    for line in [
        "bench nonsense",
        "bench --against passt",
        "bench --variant poll",
        "bench --duration 0",
        "bench --rounds 0",
        "bench --resume",
        "bench compare a.json",
        "bench rr list",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
    let error = parse("bench nonsense").unwrap_err().to_string();
    assert!(error.contains("try: pontoon bench list"), "{error}");
}

#[test]
fn parses_scenarios_and_subcommands() {
    assert_eq!(
        parse("bench rr tcp-up").unwrap().measure.scenarios,
        ["rr", "tcp-up"]
    );
    assert!(matches!(parse("bench list").unwrap().verb, Some(Verb::List(_))));
    assert!(matches!(
        parse("bench compare a b --output c").unwrap().verb,
        Some(Verb::Compare(_))
    ));
}
