//! Checks metrics in Prometheus' text format, as `promtool check metrics` does.

use std::collections::HashMap;

use anyhow::{Context as _, Result, bail, ensure};

/// Parts of metric names that are units other than the base units, or their abbreviations.
const UNITS: [&str; 22] = [
    "milliseconds",
    "microseconds",
    "nanoseconds",
    "minutes",
    "hours",
    "days",
    "weeks",
    "bits",
    "kilobytes",
    "kibibytes",
    "megabytes",
    "mebibytes",
    "gigabytes",
    "percent",
    "s",
    "ms",
    "us",
    "ns",
    "sec",
    "b",
    "kb",
    "mb",
];

const TYPES: [&str; 4] = ["counter", "gauge", "histogram", "summary"];

/// The type of a metric family, and whether its help text and a sample were read.
#[derive(Default)]
struct FamilyState<'a> {
    kind: Option<&'a str>,
    helped: bool,
    sampled: bool,
}

/// Fails with the first violation of the conventions.
pub(crate) fn check(metrics: &str) -> Result<()> {
    let mut families: HashMap<&str, FamilyState<'_>> = HashMap::new();
    let mut series = HashMap::new();
    ensure!(metrics.ends_with('\n'), "the last line has no line feed");
    for line in metrics.lines() {
        check_line(line, &mut families).with_context(|| line.to_owned())?;
        if let Some((of, value)) = line.rsplit_once(' ').filter(|_| !line.starts_with('#')) {
            ensure!(value.parse::<f64>().is_ok(), "{line}: the value is not a number");
            ensure!(series.insert(of, value).is_none(), "the series {of} occurs twice");
        }
    }
    ensure!(
        families.values().any(|family| family.sampled),
        "there is no sample"
    );
    Ok(())
}

fn check_line<'a>(line: &'a str, families: &mut HashMap<&'a str, FamilyState<'a>>) -> Result<()> {
    if let Some(help) = line.strip_prefix("# HELP ") {
        let (name, help) = help.split_once(' ').context("no help text")?;
        let family = families.entry(name).or_default();
        ensure!(!help.is_empty(), "no help text");
        ensure!(
            !family.helped && !family.sampled,
            "it is too late for a help text"
        );
        family.helped = true;
        return Ok(());
    }
    if let Some(kind) = line.strip_prefix("# TYPE ") {
        let (name, kind) = kind.split_once(' ').context("no type")?;
        let family = families.entry(name).or_default();
        ensure!(
            family.kind.is_none() && !family.sampled,
            "it is too late for a type"
        );
        ensure!(family.helped, "no help text");
        family.kind = Some(kind);
        return check_name(name, kind);
    }
    ensure!(!line.starts_with('#'), "it has no help text");
    let end = line.find(['{', ' ']).context("no value")?;
    let name = &line[..end];
    let of_histogram = ["_bucket", "_sum", "_count"]
        .iter()
        .find_map(|part| name.strip_suffix(part))
        .filter(|name| {
            families
                .get(name)
                .is_some_and(|family| family.kind == Some("histogram"))
        });
    let Some(family) = families.get_mut(of_histogram.unwrap_or(name)) else {
        bail!("neither help text nor type");
    };
    ensure!(family.kind.is_some(), "no type");
    family.sampled = true;
    let is_bucket = of_histogram.is_some() && name.ends_with("_bucket");
    let has_bound = ["{le=\"", ",le=\""].iter().any(|label| line.contains(label));
    ensure!(has_bound == is_bucket, "the label of a bucket");
    Ok(())
}

fn check_name(name: &str, kind: &str) -> Result<()> {
    ensure!(TYPES.contains(&kind), "an unknown type");
    let plain = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'_';
    ensure!(name.bytes().all(plain), "the name is not snake_case");
    ensure!(
        (kind == "counter") == name.ends_with("_total"),
        "a counter's name ends in _total, and no other"
    );
    let reserved = ["_bucket", "_sum", "_count"];
    ensure!(
        !reserved.iter().any(|end| name.ends_with(end)),
        "the name is that of a histogram's part"
    );
    for part in name.split('_').skip(1) {
        ensure!(!TYPES.contains(&part), "the name has a type in it");
        ensure!(!UNITS.contains(&part), "{part} is no base unit");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    const FINE: &str = "# HELP a_total Counted.\n# TYPE a_total counter\na_total{b=\"c d\"} 1\na_total{b=\"e\"} 2\n\
                        # HELP a_seconds Measured.\n# TYPE a_seconds histogram\n\
                        a_seconds_bucket{le=\"+Inf\"} 3\na_seconds_sum 1.5\na_seconds_count 3\n";

    #[test]
    fn violations_are_found() {
        check(FINE).unwrap();
        for (part, other) in [
            ("# HELP a_total Counted.\n", ""),
            ("# TYPE a_total counter\n", ""),
            (" counter", " gauge"),
            ("a_total", "a"),
            ("a_total", "a_bits_total"),
            ("a_total", "aB_total"),
            ("a_total", "a_ms_total"),
            ("a_total", "a_gauge_total"),
            ("b=\"e\"", "b=\"c d\""),
            (" 2\n", " two\n"),
            ("b=\"e\"", "le=\"1\""),
            (" histogram", " gauge"),
            ("a_seconds", "a_milliseconds"),
            ("# TYPE a_seconds", "# a_seconds"),
        ] {
            let wrong = FINE.replace(part, other);
            check(&wrong).expect_err(&wrong);
        }
        check(FINE.trim_end()).unwrap_err();
        check("").unwrap_err();
    }
}
