//! Bandwidth that is limited: data waits, and none is lost.

use core::num::NonZeroU64;

use pontoon_engine::Bandwidth;

use super::*;

/// At 8 Mbit/s a byte takes a microsecond.
fn limited(mut scenario: Scenario) -> Run {
    scenario.world.config.bandwidth = NonZeroU64::new(8_000_000).map(Bandwidth::new);
    check(scenario.run(true))
}

#[test]
fn a_download_takes_its_time() {
    for scenario in everywhere(&dial(Script::SINK, Script::source(2_000_000))) {
        let free = check(scenario.run(true));
        let run = limited(scenario);
        let longer = run.virtual_time - free.virtual_time;
        assert!(
            (SECOND * 18 / 10..SECOND * 22 / 10).contains(&longer),
            "{longer:?}"
        );
        assert_eq!((free.counters.held_back, run.counters.tcp_retransmits), (0, 0));
        assert!(run.counters.held_back > 20);
    }
}

/// Each has its share, and both come to an end.
#[test]
fn two_downloads_share_it() {
    for mut scenario in everywhere(&dial(Script::SINK, Script::source(1_000_000))) {
        let mut other = scenario.connections[0].clone();
        other.port += 1;
        scenario.connections.push(other);
        let free = check(scenario.run(true));
        let run = limited(scenario);
        let longer = run.virtual_time - free.virtual_time;
        assert!(
            (SECOND * 18 / 10..SECOND * 22 / 10).contains(&longer),
            "{longer:?}"
        );
        assert_eq!(run.counters.tcp_retransmits, 0);
    }
}
