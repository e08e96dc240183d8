use super::{Outcome, Results, opens, worse};

#[test]
fn lines_of_a_script_become_checks() {
    let text = "check tcp pass\nvalue mtu 1500 \ncheck udp fail no reply\ncheck ipv6 skip needs sudo\nnote 80 ms each\n";
    let results = Results::parse(text);
    assert_eq!(results.checks["tcp"], Outcome::Passed);
    assert_eq!(results.checks["mtu"], Outcome::Value("1500".to_owned()));
    assert_eq!(results.checks["udp"], Outcome::Failed("no reply".to_owned()));
    assert_eq!(results.checks["ipv6"], Outcome::Skipped("needs sudo".to_owned()));
    assert_eq!(results.notes, ["80 ms each"]);
    assert_eq!(results.count(), (2, 3));
}

#[test]
fn repeated_check_has_failed_if_one_of_its_lines_has() {
    for text in [
        "check end pass\ncheck end fail late\n",
        "check end fail late\ncheck end pass\n",
    ] {
        assert_eq!(
            Results::parse(text).checks["end"],
            Outcome::Failed("late".to_owned())
        );
    }
}

#[test]
fn unknown_line_is_a_failure() {
    assert_eq!(Results::parse("chek tcp pass\n").count(), (0, 1));
}

#[test]
fn only_a_check_that_passes_with_the_original_can_be_worse() {
    let passed = Outcome::Passed;
    let failed = Outcome::Failed("no reply".to_owned());
    let skipped = Outcome::Skipped("no tap".to_owned());
    let value = |text: &str| Outcome::Value(text.to_owned());
    assert_eq!(worse(Some(&passed), Some(&passed)), None);
    assert_eq!(worse(Some(&failed), Some(&failed)), None);
    assert_eq!(worse(Some(&failed), Some(&passed)), None);
    assert_eq!(worse(Some(&failed), None), None);
    assert_eq!(worse(Some(&passed), Some(&failed)).as_deref(), Some("no reply"));
    assert_eq!(worse(Some(&passed), Some(&skipped)).as_deref(), Some("no tap"));
    assert_eq!(worse(Some(&passed), None).as_deref(), Some("not reached"));
    assert_eq!(worse(None, Some(&failed)).as_deref(), Some("no reply"));
    assert_eq!(worse(Some(&value("1500")), Some(&value("1500"))), None);
    assert_eq!(
        worse(Some(&value("1500")), Some(&value("1400"))).as_deref(),
        Some("'1400' instead of '1500'")
    );
}

#[test]
fn class_that_is_open_with_the_second_program_only_is_found() {
    let value = |text: &str| Some(Outcome::Value(text.to_owned()));
    let (open, closed) = (value("open"), value("closed"));
    assert!(opens(closed.as_ref(), open.as_ref()));
    assert!(!opens(open.as_ref(), closed.as_ref()));
    assert!(!opens(open.as_ref(), open.as_ref()));
    assert!(!opens(None, open.as_ref()));
}
