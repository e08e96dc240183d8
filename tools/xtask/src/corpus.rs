//! `cargo xtask corpus`: replaces a target's committed corpus by the inputs that cover most, of it and of `target/fuzz`.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::fuzz::{cargo_fuzz, committed, gathered, path, targets};
use crate::step;

pub(crate) const USAGE: &str = "cargo xtask corpus TARGET...";

/// The number of committed inputs of a target: each is replayed by the ordinary tests.
const MOST: usize = 200;

/// Executes each input once, after a build.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// Minimises the corpora of the targets; returns true if all were minimised.
pub(crate) fn run(names: &[String]) -> Result<bool> {
    let all = targets()?;
    if names.is_empty() || !names.iter().all(|name| all.contains(name)) {
        bail!("usage: {USAGE} (targets: {})", all.join(", "));
    }
    for name in names {
        if !minimise(name)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn minimise(target: &str) -> Result<bool> {
    let scratch = tempfile::tempdir()?;
    let (merged, control) = (scratch.path().join("merged"), scratch.path().join("control"));
    fs::create_dir(&merged)?;
    let (committed, gathered) = (
        committed(target).canonicalize()?,
        gathered(target)?.canonicalize()?,
    );
    let control_file = format!("-merge_control_file={}", path(&control)?);
    let inputs = [target, path(&merged)?, path(&committed)?, path(&gathered)?];
    // Only a set cover merge writes all features of an input to the control file; a plain merge writes new ones.
    let options = ["--", "-set_cover_merge=1", &control_file];
    let mut command = cargo_fuzz("run", &[&inputs[..], &options[..]].concat());
    if !step::run(&format!("corpus: {target}"), &mut command, LIMIT)? {
        return Ok(false);
    }
    let text = fs::read_to_string(&control).context("libFuzzer wrote no control file")?;
    let Pick {
        files,
        edges,
        features,
    } = pick(&text, MOST)?;
    ensure!(!files.is_empty(), "{target}: no input covers anything");
    // All are copied before any is removed, so that a failure leaves the committed corpus complete.
    let copies = scratch.path().join("copies");
    fs::create_dir(&copies)?;
    for file in files.iter().map(Path::new) {
        fs::copy(
            file,
            copies.join(file.file_name().context("an input without a name")?),
        )?;
    }
    for entry in fs::read_dir(&committed)? {
        fs::remove_file(entry?.path())?;
    }
    for entry in fs::read_dir(&copies)? {
        let entry = entry?;
        fs::copy(entry.path(), committed.join(entry.file_name()))?;
    }
    writeln!(
        std::io::stdout(),
        "{target}: {} inputs, {} of {} edges, {} of {} features",
        files.len(),
        edges.covered,
        edges.all,
        features.covered,
        features.all
    )?;
    Ok(true)
}

/// The files that [`pick`] has chosen, and their coverage.
#[derive(Debug, PartialEq, Eq)]
struct Pick {
    files: Vec<String>,
    edges: Coverage,
    features: Coverage,
}

/// The numbers that the chosen files and all files cover.
#[derive(Debug, PartialEq, Eq)]
struct Coverage {
    covered: usize,
    all: usize,
}

/// The edge of a feature: libFuzzer divides the counter of an edge into 8 ranges, each of which is a feature
/// (`CollectFeatures` in FuzzerTracePC.h).
fn edge(feature: u64) -> u64 {
    feature / 8
}

/// Picks at most `most` files of a control file of libFuzzer's merge, each the one with the most edges that the files before
/// it lack, of equal ones the one with the most features, and then the first; libFuzzer lists small inputs first.
///
/// Features alone would leave out many edges of a large target: they count the repetitions of loops as well.
fn pick(control: &str, most: usize) -> Result<Pick> {
    let mut lines = control.lines();
    let count: usize = lines.next().context("an empty control file")?.parse()?;
    lines.next().context("a control file without a second line")?;
    let files: Vec<&str> = lines.by_ref().take(count).collect();
    let mut features: Vec<Vec<u64>> = vec![Vec::new(); count];
    for line in lines {
        let mut words = line.split_whitespace();
        if words.next() != Some("FT") {
            continue;
        }
        let index: usize = words.next().context("FT without a file")?.parse()?;
        let list = features.get_mut(index).context("FT of an unknown file")?;
        for word in words {
            list.push(word.parse()?);
        }
        list.sort_unstable();
        list.dedup();
    }
    let all_features: BTreeSet<u64> = features.iter().flatten().copied().collect();
    let all_edges: BTreeSet<u64> = all_features.iter().copied().map(edge).collect();
    let (mut edges_covered, mut features_covered) = (BTreeSet::new(), BTreeSet::new());
    let mut picked = Vec::new();
    // The numbers of a file can only decrease. So a file whose numbers are still right when it is at the top of the heap is
    // the best one, and the others need no update. `Reverse` puts the first of equal files on top.
    let mut heap: BinaryHeap<_> = (0..count)
        .map(|index| (usize::MAX, usize::MAX, Reverse(index)))
        .collect();
    while picked.len() < most
        && let Some((stored_edges, stored_features, Reverse(index))) = heap.pop()
    {
        let list = &mut features[index];
        list.retain(|feature| !features_covered.contains(feature));
        let new_edges: BTreeSet<u64> = list
            .iter()
            .copied()
            .map(edge)
            .filter(|edge| !edges_covered.contains(edge))
            .collect();
        if list.is_empty() {
            continue;
        }
        if (stored_edges, stored_features) != (new_edges.len(), list.len()) {
            heap.push((new_edges.len(), list.len(), Reverse(index)));
            continue;
        }
        edges_covered.extend(new_edges);
        features_covered.extend(list.drain(..));
        picked.push((*files.get(index).context("a control file without all names")?).to_owned());
    }
    Ok(Pick {
        files: picked,
        edges: Coverage {
            covered: edges_covered.len(),
            all: all_edges.len(),
        },
        features: Coverage {
            covered: features_covered.len(),
            all: all_features.len(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::{Coverage, Pick, pick};

    /// `b` has 2 edges with a feature each; `a` has 1 edge, of `b`'s, with 3 features; `c` has the features of `a`.
    const CONTROL: &str = "4\n0\n/c/a\n/c/b\n/c/c\n/c/d\nSTARTED 0 1\nFT 0 8 9 10\nCOV 0 7\nSTARTED 1 2\nFT 1 8 16\n\
                           STARTED 2 3\nFT 2 8 9 10\nSTARTED 3 4\n";

    fn picked(files: &[&str], edges: usize, features: usize) -> Pick {
        Pick {
            files: files.iter().map(|file| (*file).to_owned()).collect(),
            edges: Coverage {
                covered: edges,
                all: 2,
            },
            features: Coverage {
                covered: features,
                all: 4,
            },
        }
    }

    #[test]
    fn the_input_with_the_most_new_edges_is_picked_first_and_then_features_and_the_smaller_of_equal_ones() {
        let expected = picked(&["/c/b", "/c/a"], 2, 4);
        assert_eq!(pick(CONTROL, 9).expect("a control file"), expected);
    }

    #[test]
    fn no_more_inputs_are_picked_than_allowed() {
        let expected = picked(&["/c/b"], 2, 2);
        assert_eq!(pick(CONTROL, 1).expect("a control file"), expected);
        assert!(pick("", 1).is_err());
    }
}
