//! Tests of the report file and its documentation.

#[expect(dead_code, reason = "other tests use all of it")]
mod fixture;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use pontoon_bench::report::{self, VOID_BOX_FIELDS};
use pontoon_bench::schema::{Better, METRICS};
use pontoon_bench::stats;
use serde_json::Value;

use fixture::Fixture;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/bench-schema.md");

#[test]
fn written_report_is_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.json");
    let mut of = Fixture::default().build();
    fs::write(&path, "something older").unwrap();
    report::write_json(&of, &path).unwrap();
    let read = report::read_json(&path).unwrap();
    of.backends = report::void_box(&of);
    assert!(read == of);
    let left: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["report.json"]);
    let other = directory.path().join("other");
    fs::write(&other, "").unwrap();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&other));
}

#[test]
fn failed_write_leaves_the_old_report() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.json");
    fs::create_dir(&path).unwrap();
    let error = report::write_json(&Fixture::default().rounds(1).build(), &path).unwrap_err();
    assert!(error.to_string().contains("report.json"), "{error:#}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    let nowhere = directory.path().join("nowhere/report.json");
    assert!(report::write_json(&Fixture::default().rounds(1).build(), &nowhere).is_err());
}

#[test]
fn other_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("report.json");
    for (content, why) in [
        (
            "{\"version\": 2}",
            "the report has version 2, and this program reads version 1",
        ),
        (
            "{\"backend\": \"pasta\"}",
            "the file is not a report of pontoon bench",
        ),
        ("{\"version\": 1}", "missing field"),
        ("", "EOF"),
    ] {
        fs::write(&path, content).unwrap();
        let error = format!("{:#}", report::read_json(&path).unwrap_err());
        assert!(error.contains(why) && error.contains("report.json"), "{error}");
    }
}

#[test]
fn medians_are_written_under_names_of_void_box() {
    let of = Fixture::default().build();
    let backends = report::void_box(&of);
    let names: Vec<_> = backends
        .iter()
        .map(|backend| backend["backend"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "direct",
            "veth",
            "pontoon",
            "pontoon-event",
            "pasta",
            "pasta-debian",
            "slirp4netns"
        ]
    );
    for field in VOID_BOX_FIELDS {
        for backend in &backends {
            let values: Vec<_> = field.source.map_or_else(Vec::new, |(cell, metric)| {
                let samples = of.samples.iter();
                let samples =
                    samples.filter(|sample| sample.cell == cell && backend["backend"] == *sample.stack);
                samples
                    .filter_map(|sample| sample.values.get(metric).copied())
                    .collect()
            });
            assert_eq!(
                backend[field.name].as_f64(),
                stats::median(&values),
                "{}",
                field.name
            );
        }
    }
    let null = |index: usize| {
        let null = backends[index].iter().filter(|(_, value)| value.is_null());
        null.map(|(name, _)| &**name).collect::<Vec<_>>()
    };
    assert_eq!(null(2), ["tcp_bulk_throughput_g2h_mbps"]);
    assert_eq!(
        null(0),
        ["tcp_bulk_throughput_g2h_mbps", "tcp_rx_latency_us_p50"],
        "direct publishes nothing"
    );
}

#[test]
fn first_level_has_fields_of_void_box() {
    let of = written();
    assert_eq!(of["backend"], "pontoon");
    assert!(
        VOID_BOX_FIELDS
            .iter()
            .all(|field| of[field.name] == of["backends"][2][field.name])
    );
}

#[test]
fn documentation_lists_exactly_the_fields() {
    let document = fs::read_to_string(DOCUMENT).unwrap();
    let fields = document
        .split("\n## ")
        .find(|section| section.starts_with("Fields"))
        .unwrap();
    let rows = fields
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let documented: BTreeSet<_> = rows.map(|(path, _)| path.to_owned()).collect();
    let mut present = BTreeSet::new();
    paths(&written(), "", &mut present);
    for field in VOID_BOX_FIELDS {
        present.remove(field.name);
    }
    assert_eq!(documented, present);
}

#[test]
fn documentation_lists_metrics_and_names_of_void_box() {
    let document = fs::read_to_string(DOCUMENT).unwrap();
    let better = |better| match better {
        Some(Better::Higher) => "more",
        Some(Better::Lower) => "less",
        None => "",
    };
    let metrics: Vec<_> = METRICS
        .iter()
        .map(|of| {
            format!(
                "| `{}` | {} | {} | {} |\n",
                of.name,
                of.unit,
                better(of.better),
                of.meaning
            )
        })
        .collect();
    let names: Vec<_> = VOID_BOX_FIELDS
        .iter()
        .map(|of| {
            let [cell, metric] = of.source.map_or_else(Default::default, |(cell, metric)| {
                [cell, metric].map(|name| format!("`{name}`"))
            });
            format!("| `{}` | {cell} | {metric} | {} |\n", of.name, of.meaning)
        })
        .collect();
    for table in [metrics.concat(), names.concat()] {
        assert!(
            document.contains(&table),
            "docs/bench-schema.md should have:\n{table}"
        );
    }
}

fn written() -> Value {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("report.json");
    report::write_json(&Fixture::default().build(), &path).expect("room for a report");
    let content = fs::read(&path).expect("the report just written");
    serde_json::from_slice(&content).expect("JSON")
}

/// Collects the paths of all fields, such as `a.b[].c`, into `into`. A map with names as keys, such as metrics, ends
/// a path, except histograms.
fn paths(of: &Value, path: &str, into: &mut BTreeSet<String>) {
    const MAPS: &[&str] = &["values", "parameters", "sysctls", "backends"];
    let name = path.rsplit('.').next().unwrap_or_default();
    match of {
        _ if MAPS.contains(&name) => _ = into.insert(path.to_owned()),
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = if path.ends_with("histograms") { "*" } else { name };
                let path = if path.is_empty() {
                    name.to_owned()
                } else {
                    format!("{path}.{name}")
                };
                paths(value, &path, into);
            }
        }
        Value::Array(values) if values.iter().any(Value::is_object) => {
            values
                .iter()
                .for_each(|value| paths(value, &format!("{path}[]"), into));
        }
        _ => _ = into.insert(path.to_owned()),
    }
}
