//! Prometheus' text format, version 0.0.4, which everything takes that takes metrics, made of OpenMetrics' text format.
//!
//! The one knows a counter by the name that its samples have, with `_total`; the other by what is in front of that, and has
//! units on lines of their own.

use std::collections::HashSet;

/// The metrics of `open`, which has each family's `# HELP` and `# TYPE` in front of its samples.
pub(super) fn plain(open: &str) -> String {
    let types = open.lines().filter_map(|line| line.strip_prefix(TYPE));
    let counters: HashSet<&str> = types.filter_map(|text| text.strip_suffix(" counter")).collect();
    let mut plain = String::with_capacity(open.len() * 9 / 8);
    for line in open
        .lines()
        .filter(|line| *line != END && !line.starts_with(UNIT))
    {
        let family = [HELP, TYPE].into_iter().find_map(|start| {
            let (name, rest) = line.strip_prefix(start)?.split_once(' ')?;
            Some((start, name, rest)).filter(|_| counters.contains(name))
        });
        match family {
            Some((start, name, rest)) => plain.extend([start, name, "_total ", rest]),
            None => plain.push_str(line),
        }
        plain.push('\n');
    }
    plain
}

const HELP: &str = "# HELP ";
const TYPE: &str = "# TYPE ";
const UNIT: &str = "# UNIT ";
const END: &str = "# EOF";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_their_samples_name_and_nothing_has_a_unit() {
        let open = "# HELP a Counted.\n# TYPE a counter\na_total{b=\"# HELP a c\"} 1\n\
                    # HELP ab Measured.\n# TYPE ab gauge\n# UNIT ab b\nab 2\n# EOF\n";
        let wanted = "# HELP a_total Counted.\n# TYPE a_total counter\na_total{b=\"# HELP a c\"} 1\n\
                      # HELP ab Measured.\n# TYPE ab gauge\nab 2\n";
        assert_eq!(plain(open), wanted);
    }
}
