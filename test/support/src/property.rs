//! The number of cases of property tests (proptest).

use proptest::test_runner::Config;

/// Returns a configuration with `cases` cases; fewer under Miri, which is a thousand times slower and cannot access
/// files.
pub fn cases(cases: u32) -> Config {
    if cfg!(miri) {
        Config {
            cases: 1.max(cases / 64),
            failure_persistence: None,
            ..Config::default()
        }
    } else {
        Config::with_cases(cases)
    }
}
