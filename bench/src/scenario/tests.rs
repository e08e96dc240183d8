use std::collections::BTreeSet;

use super::*;
use crate::schema::METRICS;

fn all(profile: Profile) -> Vec<CellSpec> {
    SCENARIOS
        .iter()
        .flat_map(|scenario| (scenario.cells)(profile))
        .collect()
}

#[test]
fn cells_have_distinct_names_and_known_figures() {
    for profile in [Profile::Quick, Profile::Full] {
        let cells: Vec<_> = all(profile).into_iter().map(|spec| spec.cell).collect();
        let names: BTreeSet<_> = cells.iter().map(|cell| &cell.name).collect();
        assert_eq!(names.len(), cells.len());
        for cell in &cells {
            assert!(
                METRICS.iter().any(|metric| metric.name == cell.figure),
                "{}",
                cell.figure
            );
        }
    }
    assert!(
        all(Profile::Full)
            .iter()
            .any(|spec| spec.cell.name == "tcp-up/1/cubic/best")
    );
}

#[test]
fn quick_profile_is_a_subset_of_the_full_one() {
    let names = |profile| {
        all(profile)
            .into_iter()
            .map(|spec| spec.cell.name)
            .collect::<BTreeSet<_>>()
    };
    assert!(names(Profile::Quick).is_subset(&names(Profile::Full)));
}

#[test]
fn computes_amount_of_work_from_figures() {
    let values = BTreeMap::from([("mbps".to_owned(), 4000.0), ("per_s".to_owned(), 10.0)]);
    assert_eq!(Unit::Gbit.done(&values, 0.5), Some(2.0));
    assert_eq!(Unit::Transaction.done(&values, 0.5), Some(5.0));
    assert_eq!(Unit::Nothing.done(&values, 0.5), None);
}

#[test]
fn labels_of_metrics_are_distinct() {
    let mut labels: Vec<_> = METRICS.iter().map(|metric| metric.label).collect();
    labels.sort_unstable();
    labels.dedup();
    assert_eq!(labels.len(), METRICS.len());
}
