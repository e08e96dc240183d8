//! Tests of the Markdown and HTML reports of a fictitious run.

mod fixture;

use std::fs;
use std::path::Path;

use pontoon_bench::report::{self, Completeness};
use pontoon_bench::schema::{BenchmarkReport, SampleOutcome, StackRole};
use scraper::{Html, Selector};

use fixture::Fixture;

const FEW: &[&str] = &["tcp-down", "rr", "publish-crr", "idle"];

#[test]
fn markdown_of_a_run() {
    insta::assert_snapshot!(report::markdown(&Fixture::default().scenarios(FEW).build()));
}

#[test]
fn comparison_of_two_runs() {
    let left = Fixture::default().scenarios(FEW).build();
    let mut right = Fixture::default().scenarios(FEW).seed(2).build();
    right.machine.kernel = "6.12.1".to_owned();
    right
        .machine
        .sysctls
        .insert("net.core.rmem_max".to_owned(), "212992".to_owned());
    right.stacks[2].version = "0.2.0".to_owned();
    for sample in &mut right.samples {
        if sample.stack == "pontoon" {
            sample.conditions.mtu = Some(1500);
            sample
                .values
                .entry("mbps".to_owned())
                .and_modify(|rate| *rate *= 4.0);
        }
        if sample.cell == "rr" {
            sample
                .values
                .entry("p50_us".to_owned())
                .and_modify(|time| *time *= 3.0);
        }
    }
    insta::assert_snapshot!(report::compare(&left, &right));
}

#[test]
fn run_compared_with_itself_has_no_differences() {
    let of = Fixture::default().build();
    let text = report::compare(&of, &of);
    assert!(text.contains("no significant difference"));
    for word in ["faster", "slower", "| better", "| worse", "differs"] {
        assert!(!text.contains(word), "{word}");
    }
}

#[test]
fn interleaved_runs_are_compared_round_by_round() {
    let left = Fixture::default().scenarios(&["rr"]).build();
    let mut right = left.clone();
    right.began += 1;
    right.ended += 1;
    for sample in &mut right.samples {
        // The changed factor is much smaller than the differences between rounds.
        sample
            .values
            .entry("p50_us".to_owned())
            .and_modify(|time| *time *= 0.99);
    }
    let text = report::compare(&left, &right);
    assert!(text.contains("compared round by round"));
    assert!(
        text.contains("0.99 (0.99-0.99)") && text.contains("faster"),
        "{text}"
    );
    right.began += 86_400;
    right.ended += 86_400;
    assert!(!report::compare(&left, &right).contains("faster"));
}

#[test]
fn page_is_well_formed_and_self_contained() {
    let mut of = Fixture::default().build();
    of.stacks[4].version = "<i>2026</i> & \"more\"".to_owned();
    let text = report::html(&of);
    // Keeps the page for inspection in a browser.
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.html"), &text).unwrap();
    let page = Html::parse_document(&text);
    assert_eq!(page.errors, Vec::<String>::new());
    for reference in [
        "http:", "https:", "@import", "url(", "src=", "<script", "<link", "<i>2026",
    ] {
        assert!(!text.contains(reference), "{reference}");
    }
    for link in page.select(&select("[href]")) {
        let to = link
            .attr("href")
            .unwrap()
            .strip_prefix('#')
            .expect("a link inside the page");
        assert!(
            page.select(&select(&format!("[id=\"{to}\"]"))).next().is_some(),
            "{to}"
        );
    }
}

#[test]
fn page_contains_plots() {
    let page = Html::parse_document(&report::html(&Fixture::default().build()));
    let count = |selector: &str| page.select(&select(selector)).count();
    assert_eq!(count("table.headline tbody tr"), 13);
    assert_eq!(count("#rr .plots figure"), 3, "bars, distribution, CPU");
    assert_eq!(count("#rr figure:nth-child(1) rect"), 7, "a bar for each stack");
    assert_eq!(
        count("#rr figure:nth-child(2) .legend li"),
        7,
        "a curve for each stack"
    );
    assert_eq!(
        count("#rr figure:nth-child(3) rect"),
        14,
        "CPU of the stack and of the machine"
    );
    assert_eq!(count("#udp-rate .legend li"), 14, "of two sizes");
    assert!(count("#udp-rate circle") > 70);
    assert_eq!(
        count("#publish-crr figure:nth-child(1) rect"),
        6,
        "direct has none"
    );
    let text = |selector: &str| -> String {
        page.select(&select(selector))
            .flat_map(|node| node.text())
            .collect()
    };
    assert!(text("#rr figure:nth-child(1) svg").contains(" × veth"));
    assert!(text("#rr figure:nth-child(2) svg").contains("99.9 %"));
    assert!(text("#udp-rate svg").contains("none"));
}

#[test]
fn unusual_reports_are_rendered() {
    let some = || Fixture::default().scenarios(&["tcp-down", "rr", "udp-rate", "idle"]);
    let whole = || some().build();
    let failed = SampleOutcome::Failed {
        why: "wrong byte".to_owned(),
    };
    let odd = [
        some().without_peers().build(),
        some().rounds(1).build(),
        some().rounds(2).build(),
        with(whole(), |of| {
            of.samples
                .iter_mut()
                .for_each(|sample| sample.outcome = failed.clone())
        }),
        with(whole(), |of| of.samples.clear()),
        with(whole(), |of| of.samples.truncate(11)),
        with(whole(), |of| of.cells.clear()),
        with(whole(), |of| {
            of.stacks
                .iter_mut()
                .for_each(|stack| stack.missing = Some("gone".to_owned()))
        }),
        with(whole(), |of| of.stacks.clear()),
        with(whole(), |of| {
            of.stacks.retain(|stack| stack.role == StackRole::Peer)
        }),
        with(whole(), |of| {
            of.cells
                .iter_mut()
                .for_each(|cell| cell.figure = "furlongs".to_owned())
        }),
        with(whole(), |of| {
            let values = of
                .samples
                .iter_mut()
                .flat_map(|sample| sample.values.values_mut());
            values.for_each(|value| *value = 0.0);
        }),
    ];
    for of in &odd {
        assert_eq!(
            Html::parse_document(&report::html(of)).errors,
            Vec::<String>::new()
        );
        for text in [
            report::markdown(of),
            report::html(of),
            report::compare(of, of),
            report::compare(&whole(), of),
        ] {
            assert!(!text.contains("NaN") && !text.contains("inf "), "{text}");
        }
        assert_eq!(
            report::void_box(of).len(),
            of.stacks.iter().filter(|stack| stack.missing.is_none()).count()
        );
    }
}

#[test]
fn warnings_are_shown() {
    let of = with(Fixture::default().build(), |of| {
        of.samples.pop();
        for sample in &mut of.samples {
            if sample.stack == "pasta" && sample.cell.starts_with("tcp-up") {
                sample.conditions.congestion_control = Some(["cubic".to_owned(), "bbr".to_owned()]);
            }
        }
        of.samples[10].conditions.clock_drift_us = -5000.0;
    });
    for text in [report::markdown(&of), report::html(&of)] {
        for words in [
            "passt is not part of this run: no ",
            "The run is not complete: ",
            "2 stalled, 28 were not possible and 1 failed",
            "At worst, other processes used 0.600 CPUs before the sample (",
            "At worst, the hypervisor took 4.0 % of the CPU time (",
            "drifted apart by 5,000 µs (",
            "pasta: stalled in 2 of 7 rounds (at byte 81,788,929; at byte 81,788,932)",
            "pasta-debian: not possible in 7 of 7 rounds (it may open 4,096 descriptors)",
            "slirp4netns: failed in 1 of 7 rounds (connect: ECONNREFUSED)",
            "no significant difference from veth: direct (",
            "too few rounds for a comparison with veth: pasta",
            "congestion control (client, server) differs: cubic, bbr for pasta; ",
            "the guest's MTU differs: ",
            "of a CPU, both ends together (",
            "of a transaction (",
        ] {
            assert!(text.contains(words), "{words}");
        }
    }
    let slow = with(of, |of| of.calibration.stamp_ns_per_mib *= 4.0);
    assert!(report::markdown(&slow).contains("It limits the fastest stacks"));
    let few = report::markdown(&Fixture::default().rounds(5).build());
    assert!(few.contains("Too few rounds: with 5 rounds"));
    assert!(!few.contains("too few rounds for a comparison"));
    assert!(!few.contains(", better") && !few.contains(", worse"));
}

#[test]
fn completeness_counts_planned_samples() {
    let of = Fixture::default().build();
    let cells = of.cells.len();
    let expected = Completeness {
        planned: ((cells - 1) * 7 + 1) * 7,
        measured: ((cells - 1) * 7 + 1) * 7 - 2 - 28 - 1,
        stalled: 2,
        unreachable: 28,
        failed: 1,
    };
    assert_eq!(Completeness::of(&of), expected);
    assert!(!expected.is_complete());
    let measured = with(of, |of| {
        of.samples
            .iter_mut()
            .for_each(|sample| sample.outcome = SampleOutcome::Measured)
    });
    assert!(Completeness::of(&measured).is_complete());
    assert!(!Completeness::of(&with(measured, |of| _ = of.samples.pop())).is_complete());
}

fn with(mut of: BenchmarkReport, change: impl FnOnce(&mut BenchmarkReport)) -> BenchmarkReport {
    change(&mut of);
    of
}

fn select(selector: &str) -> Selector {
    Selector::parse(selector).expect("a selector")
}
