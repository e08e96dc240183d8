//! `cargo xtask corpus`: replaces the committed corpus of a fuzz target by the inputs with the largest coverage,
//! chosen from it and from `target/fuzz`.

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

/// Largest number of committed inputs of a target. Ordinary tests replay each of them.
const MOST: usize = 200;

/// Time limit of a build and of one execution of each input.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// Minimises the committed corpora of the named targets. Returns true if all were minimised.
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
    let PickedInputs {
        files,
        edges,
        features,
    } = pick(&text, MOST)?;
    ensure!(!files.is_empty(), "{target}: no input covers anything");
    // All inputs are copied before any is removed, so that a failure leaves the committed corpus complete.
    let copies = scratch.path().join("copies");
    fs::create_dir(&copies)?;
    for file in files.iter().map(Path::new) {
        fs::copy(
            file,
            copies.join(
                file.file_name()
                    .context("the path of an input has no file name")?,
            ),
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

/// Files that [`pick`] has chosen, and their coverage.
#[derive(Debug, PartialEq, Eq)]
struct PickedInputs {
    files: Vec<String>,
    edges: Coverage,
    features: Coverage,
}

/// Number of edges (or features) that the chosen files cover, and that all files together cover.
#[derive(Debug, PartialEq, Eq)]
struct Coverage {
    covered: usize,
    all: usize,
}

/// Returns the edge to which a feature belongs: libFuzzer divides the counter of an edge into 8 ranges, each of which
/// is a feature (`CollectFeatures` in FuzzerTracePC.h).
fn edge(feature: u64) -> u64 {
    feature / 8
}

/// Picks at most `most` files of the control file of a libFuzzer merge: each time the file with the most edges that
/// the files picked before lack, of those the one with the most such features, and of those the first, as libFuzzer
/// lists small inputs first.
///
/// Features alone would omit many edges of a large target, as they also count the repetitions of loops.
fn pick(control: &str, most: usize) -> Result<PickedInputs> {
    let mut lines = control.lines();
    let count: usize = lines
        .next()
        .context("the control file of libFuzzer is empty")?
        .parse()?;
    lines
        .next()
        .context("the control file of libFuzzer has no second line")?;
    let files: Vec<&str> = lines.by_ref().take(count).collect();
    let mut features: Vec<Vec<u64>> = vec![Vec::new(); count];
    for line in lines {
        let mut words = line.split_whitespace();
        if words.next() != Some("FT") {
            continue;
        }
        let index: usize = words
            .next()
            .context("the control file of libFuzzer has a line FT without a file number")?
            .parse()?;
        let list = features
            .get_mut(index)
            .context("the control file of libFuzzer has a line FT with an unknown file number")?;
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
    // The numbers of a file can only decrease. So a file whose numbers are current when it is at the top of the heap
    // is the best one, and the others need no update. `Reverse` puts the first of equal files on top.
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
        picked.push(
            (*files
                .get(index)
                .context("the control file of libFuzzer lacks names of files")?)
            .to_owned(),
        );
    }
    Ok(PickedInputs {
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
    use super::{Coverage, PickedInputs, pick};

    /// A control file: `b` has 2 edges with a feature each; `a` has 1 of these edges with 3 features; `c` has the
    /// features of `a`.
    const CONTROL: &str = "4\n0\n/c/a\n/c/b\n/c/c\n/c/d\nSTARTED 0 1\nFT 0 8 9 10\nCOV 0 7\nSTARTED 1 2\nFT 1 8 16\n\
                           STARTED 2 3\nFT 2 8 9 10\nSTARTED 3 4\n";

    fn picked(files: &[&str], edges: usize, features: usize) -> PickedInputs {
        PickedInputs {
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
    fn input_with_the_most_new_edges_is_picked_first() {
        let expected = picked(&["/c/b", "/c/a"], 2, 4);
        assert_eq!(pick(CONTROL, 9).expect("a control file"), expected);
    }

    #[test]
    fn number_of_picked_inputs_is_limited() {
        let expected = picked(&["/c/b"], 2, 2);
        assert_eq!(pick(CONTROL, 1).expect("a control file"), expected);
        assert!(pick("", 1).is_err());
    }
}
