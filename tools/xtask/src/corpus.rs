//! `cargo xtask corpus`: replaces a target's committed corpus by the inputs that cover most, of it and of `target/fuzz`.

use std::collections::BTreeSet;
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
    let picked = pick(&text, MOST)?;
    ensure!(!picked.is_empty(), "{target}: no input covers anything");
    // All are copied before any is removed, so that a failure leaves the committed corpus complete.
    let copies = scratch.path().join("copies");
    fs::create_dir(&copies)?;
    for file in picked.iter().map(Path::new) {
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
    writeln!(std::io::stdout(), "{target}: {} inputs", picked.len())?;
    Ok(true)
}

/// Picks at most `most` files of a control file of libFuzzer's merge, each the one with the most features that the
/// files before it lack; of equal ones the first, and libFuzzer lists small inputs first.
fn pick(control: &str, most: usize) -> Result<Vec<String>> {
    let mut lines = control.lines();
    let count: usize = lines.next().context("an empty control file")?.parse()?;
    lines.next().context("a control file without a second line")?;
    let files: Vec<&str> = lines.by_ref().take(count).collect();
    let mut features = vec![BTreeSet::new(); count];
    for line in lines {
        let mut words = line.split_whitespace();
        if words.next() != Some("FT") {
            continue;
        }
        let index: usize = words.next().context("FT without a file")?.parse()?;
        let set = features.get_mut(index).context("FT of an unknown file")?;
        for word in words {
            set.insert(word.parse::<u64>()?);
        }
    }
    let mut picked = Vec::new();
    while picked.len() < most {
        // `max_by_key` returns the last of equal ones.
        let Some(best) = (0..count).rev().max_by_key(|index| features[*index].len()) else {
            break;
        };
        let covered = std::mem::take(&mut features[best]);
        if covered.is_empty() {
            break;
        }
        // The sets contain what is not covered yet.
        for set in &mut features {
            set.retain(|feature| !covered.contains(feature));
        }
        picked.push((*files.get(best).context("a control file without all names")?).to_owned());
    }
    Ok(picked)
}

#[cfg(test)]
mod tests {
    use super::pick;

    const CONTROL: &str = "4\n0\n/c/a\n/c/b\n/c/c\n/c/d\nSTARTED 0 1\nFT 0 1 2\nCOV 0 7\nSTARTED 1 2\nFT 1 2 3 4\n\
                           STARTED 2 3\nFT 2 1 2\nSTARTED 3 4\n";

    #[test]
    fn the_input_with_the_most_new_features_is_picked_first_and_the_smaller_of_equal_ones() {
        assert_eq!(pick(CONTROL, 9).expect("a control file"), ["/c/b", "/c/a"]);
    }

    #[test]
    fn no_more_inputs_are_picked_than_allowed() {
        assert_eq!(pick(CONTROL, 1).expect("a control file"), ["/c/b"]);
        assert!(pick("", 1).is_err());
    }
}
