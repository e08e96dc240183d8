//! Options of `pontoon` that the documentation names exist.

#![expect(
    clippy::unwrap_used,
    reason = "all of this is tests; clippy knows only the functions marked so"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Verbs whose options are checked in commands.
const VERBS: [&str; 4] = ["run", "vm", "relay", "top"];

/// Other command lines whose options are checked in tables.
const CTL: [&[&str]; 4] = [
    &["ctl"],
    &["ctl", "flows"],
    &["ctl", "policy"],
    &["ctl", "policy", "replace"],
];

/// Returns the options in the help of `verbs`.
fn options(verbs: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_pontoon"))
        .args(verbs)
        .arg("--help")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words = text.split(|character: char| character.is_whitespace() || ",<[=".contains(character));
    let options: BTreeSet<String> = words.filter(|word| is_option(word)).map(str::to_owned).collect();
    assert!(options.contains("--help"), "{verbs:?}: {text}");
    options
}

/// Returns true if `word` is a short or long option.
fn is_option(word: &str) -> bool {
    word.strip_prefix("--")
        .or_else(|| word.strip_prefix('-'))
        .is_some_and(|name| name.starts_with(|first: char| first.is_ascii_alphabetic()))
}

/// Returns the options among `words`, up to `--`, without their values.
fn named<'a>(words: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    words
        .take_while(|word| *word != "--")
        .filter(|word| is_option(word))
        .map(|word| word.split('=').next().unwrap_or(word))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the pages: README.md and the files of docs.
fn pages() -> Vec<(String, String)> {
    let mut files = vec![root().join("README.md")];
    files.extend(
        fs::read_dir(root().join("docs"))
            .unwrap()
            .map(|entry| entry.unwrap().path()),
    );
    files
        .into_iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "md"))
        .map(|file| (file.display().to_string(), fs::read_to_string(file).unwrap()))
        .collect()
}

/// Returns the lines of the blocks of shell commands, each with the lines that continue it.
fn commands(page: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut in_block = false;
    let mut command = String::new();
    for line in page.lines() {
        if line.starts_with("```") {
            in_block = !in_block && line.starts_with("```sh");
        } else if in_block {
            command.push_str(line.trim_end_matches('\\'));
            if !line.ends_with('\\') {
                commands.push(std::mem::take(&mut command));
            }
        }
    }
    commands
}

#[test]
fn options_of_commands_exist() {
    let known: BTreeMap<&str, BTreeSet<String>> =
        VERBS.iter().map(|verb| (*verb, options(&[verb]))).collect();
    let mut checked = 0;
    for (path, text) in pages() {
        for command in commands(&text) {
            let mut words = command.split_whitespace();
            if words.next() != Some("pontoon") {
                continue;
            }
            let Some(known) = words.next().and_then(|verb| known.get(verb)) else {
                continue;
            };
            for option in named(words.take_while(|word| !["#", "&", "|", ">"].contains(word))) {
                checked += 1;
                assert!(known.contains(option), "{path}: no option {option}: {command}");
            }
        }
    }
    assert!(checked > 50, "only {checked} options were found");
}

/// Returns the cells of a row of a table. Bars in code spans do not separate cells.
fn cells(row: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut in_code = false;
    for character in row.trim_matches('|').chars() {
        match character {
            '|' if !in_code => cells.push(String::new()),
            _ => cells.last_mut().unwrap().push(character),
        }
        in_code ^= character == '`';
    }
    cells.iter().map(|cell| cell.trim().to_owned()).collect()
}

#[test]
fn options_in_columns_for_pontoon_exist() {
    let mut known: BTreeSet<String> = VERBS.iter().flat_map(|verb| options(&[verb])).collect();
    known.extend(CTL.iter().flat_map(|verbs| options(verbs)));
    let text = fs::read_to_string(root().join("docs/coming-from.md")).unwrap();
    let mut column = None;
    let mut checked = 0;
    for line in text.lines() {
        if !line.starts_with('|') {
            column = None;
            continue;
        }
        let cells = cells(line);
        match column {
            None => column = cells.iter().position(|cell| cell == "Pontoon"),
            Some(column) => {
                let cell = cells.get(column).unwrap();
                for span in cell.split('`').skip(1).step_by(2) {
                    for option in named(span.split_whitespace()) {
                        checked += 1;
                        assert!(known.contains(option), "no option {option}: {line}");
                    }
                }
            }
        }
    }
    assert!(checked > 80, "only {checked} options were found");
}
