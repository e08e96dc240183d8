//! Tests of `--max-bandwidth` in the simulated network: data is delayed, and none is lost.

use core::num::NonZeroU64;

use pontoon_engine::Bandwidth;

use super::*;

/// Runs a scenario that transfers 2 MB, without a limit and with a limit of 8 Mbit/s (one byte in a microsecond).
fn free_and_limited(mut scenario: Scenario) -> [ScenarioResult; 2] {
    let free = check(scenario.run(true));
    scenario.world.config.bandwidth = NonZeroU64::new(8_000_000).map(Bandwidth::new);
    let limited = check(scenario.run(true));
    let longer = limited.virtual_time - free.virtual_time;
    assert!(
        (SECOND * 18 / 10..SECOND * 22 / 10).contains(&longer),
        "{longer:?}"
    );
    assert_eq!(limited.counters.tcp_retransmits, 0);
    [free, limited]
}

#[test]
fn download_is_limited_to_the_rate() {
    for scenario in everywhere(&dial(Script::SINK, Script::source(2_000_000))) {
        let [free, limited] = free_and_limited(scenario);
        assert_eq!(free.counters.held_back, 0);
        assert!(limited.counters.held_back > 20);
    }
}

/// Tests that each of two downloads receives its share of the limit, and that both end.
#[test]
fn two_downloads_share_the_rate() {
    for mut scenario in everywhere(&dial(Script::SINK, Script::source(1_000_000))) {
        let mut other = scenario.connections[0].clone();
        other.port += 1;
        scenario.connections.push(other);
        free_and_limited(scenario);
    }
}
