//! Tests of the rows and tables of `pontoon bench shm`. `tests/program.rs` runs the measurements.

use super::*;

fn case(task: GuestTask, link: FrameLink) -> ShmCase {
    ShmCase {
        task,
        link,
        endpoint: LinkPeer::Nothing,
    }
}

fn through(link: FrameLink, pacing: Pacing) -> ShmCase {
    ShmCase {
        task: GuestTask::Echo,
        link,
        endpoint: LinkPeer::Engine(pacing, SendMode::Segmented),
    }
}

fn summary(rate: f64) -> ShmSummary {
    ShmSummary::of(&[ShmSample {
        rate,
        kicks: 0.012_34,
        guest: 0.984,
        device: 0.5,
        source: 0.25,
        lost: 0.02,
        ..ShmSample::default()
    }])
}

#[test]
fn cases_are_distinct_and_in_order() {
    let all = cases(true);
    let alone = all
        .iter()
        .filter(|case| case.endpoint == LinkPeer::Nothing)
        .count();
    assert_eq!((alone, all.len()), (4 + 4 + 4 + 3 + 2, 17 + 15 + 2));
    assert_eq!(all[0], case(GuestTask::Receive, FrameLink::Packet));
    assert_eq!(all[16], case(GuestTask::Idle, FrameLink::Memory(Pacing::Hybrid)));
    for (at, one) in all.iter().enumerate() {
        assert!(!all[..at].contains(one), "{one:?}");
        if let (FrameLink::Memory(guest), LinkPeer::Engine(engine, _)) = (one.link, one.endpoint) {
            assert_eq!(guest, engine, "both sides have one pacing");
        }
    }
    assert_eq!(cases(false), all[..32]);
}

#[test]
fn summary_has_the_median_of_each_figure() {
    let sample = |rate, guest| ShmSample {
        rate,
        guest,
        device: 1.0,
        ..ShmSample::default()
    };
    let summary = ShmSummary::of(&[sample(1.0, 0.5), sample(3.0, 0.1), sample(2.0, 0.9)]);
    let median = summary.median;
    assert_eq!((median.rate, median.guest, median.device), (2.0, 0.5, 1.0));
    assert_eq!(summary.rates, [1.0, 3.0]);
}

#[test]
fn table_and_json_have_a_row_for_each_case() {
    let rows = [
        (case(GuestTask::Send(1), FrameLink::Packet), summary(500_000.0)),
        (
            case(GuestTask::Send(32), FrameLink::Memory(Pacing::Event)),
            summary(2_000_000.0),
        ),
        (
            case(GuestTask::Idle, FrameLink::Memory(Pacing::Hybrid)),
            summary(0.0),
        ),
        (through(FrameLink::Packet, Pacing::Hybrid), summary(100_000.0)),
        (through(FrameLink::Packet, Pacing::Poll), summary(200_000.0)),
        (
            through(FrameLink::Memory(Pacing::Poll), Pacing::Poll),
            summary(300_000.0),
        ),
    ];
    let table = table::markdown("CPUs", &rows);
    let seen: Vec<_> = table.lines().filter(|line| line.ends_with("% |")).collect();
    let expected = [
        "| send 64 B, each by itself | packet socket | 500,000 (500,000-500,000) | - | a call each | a call each | 98 % | 50 % |",
        "| send 64 B, flushed by 32 | memory, event | 2,000,000 (2,000,000-2,000,000) | 4.00 | 0.0123 | 0 | 98 % | 50 % |",
        "| idle | memory, hybrid | - | - | - | - | 98 % | 50 % |",
        "| echo 64 B, UDP_SEGMENT | packet socket, hybrid engine | 100,000 (100,000-100,000) | - | a call each | a call each | 98 % | 50 % | 25 % | 2.0 % |",
        "| echo 64 B, UDP_SEGMENT | packet socket, poll engine | 200,000 (200,000-200,000) | - | a call each | a call each | 98 % | 50 % | 25 % | 2.0 % |",
        "| echo 64 B, UDP_SEGMENT | memory, poll | 300,000 (300,000-300,000) | 1.50 | 0.0123 | 0 | 98 % | 50 % | 25 % | 2.0 % |",
    ];
    assert_eq!(seen[..expected.len()], expected);
    let arguments = Shm {
        rounds: 1,
        duration: 0.5,
        solo5: None,
        output: None,
    };
    let json = table::json(&arguments, &rows);
    let objects = json["rows"].as_array().unwrap();
    assert_eq!(objects.len(), rows.len());
    assert_eq!(objects[0]["task"], "send 64 B, each by itself");
    assert_eq!(
        (&objects[5]["per_s"], &objects[5]["loss"]),
        (&300_000.0.into(), &0.02.into())
    );
    assert_eq!(objects[5]["has_engine"], true);
}
