//! Checks references in Markdown files: a file, folder, module or test that a code span names must exist.

use std::path::Path;

use anyhow::{Context, Result};

use crate::words::sources;
use crate::workspace;

/// Folders at the root of the workspace with which a path in a document may begin.
const FOLDERS: &[&str] = &[
    "core/",
    "virtio/",
    "io/",
    "app/",
    "test/",
    "bench/",
    "tools/",
    "docs/",
    "examples/",
    "dist/",
];

/// Checks all Markdown files, and prints one line for each reference without a target. Returns true if there is none.
pub(crate) fn check() -> Result<bool> {
    let root = workspace();
    let mut code = String::new();
    let mut documents = Vec::new();
    for file in sources()? {
        let text =
            std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        if file.extension().is_some_and(|extension| extension == "rs") {
            code.push_str(&text);
        } else {
            documents.push((file, text));
        }
    }
    let mut sound = true;
    for (file, text) in documents {
        // Entries about earlier releases may name files that were removed since.
        if file.ends_with("CHANGELOG.md") {
            continue;
        }
        for (line, span) in spans(&text) {
            if !exists(span, root, &code) {
                sound = false;
                let path = file.strip_prefix(root).unwrap_or(&file).display();
                eprintln!("{path}:{line}: '{span}' does not exist");
            }
        }
    }
    Ok(sound)
}

/// Returns the code spans of a document outside of code blocks, with their line numbers from 1.
fn spans(text: &str) -> Vec<(usize, &str)> {
    let mut spans = Vec::new();
    let mut in_block = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            let odd = line.split('`').skip(1).step_by(2);
            spans.extend(odd.map(|span| (at + 1, span)));
        }
    }
    spans
}

/// Returns false if the span is a path of the workspace or of a test, and its target does not exist.
fn exists(span: &str, root: &Path, code: &str) -> bool {
    // `*` and `NAME` are placeholders for several files.
    let is_plain = |text: &str| {
        !text.contains("NAME")
            && text
                .chars()
                .all(|character| character.is_ascii_alphanumeric() || "_-./".contains(character))
    };
    if FOLDERS.iter().any(|folder| span.starts_with(folder)) && is_plain(span) {
        return root.join(span).exists() || root.join(format!("{span}.rs")).exists();
    }
    let Some((module, name)) = span.rsplit_once("::") else {
        return true;
    };
    // Paths of tests are in snake case: `timers::syn_sent` is a part of a test's name. Paths of Rust types are not.
    let is_snake = |text: &str| {
        !text.is_empty()
            && text.chars().all(|character| {
                character.is_ascii_lowercase() || character.is_ascii_digit() || "_:".contains(character)
            })
    };
    if !is_snake(module) || !is_snake(name) || module.starts_with("pontoon_") {
        return true;
    }
    let module = module.rsplit("::").next().unwrap_or(module);
    ["fn ", "mod "]
        .iter()
        .any(|keyword| code.contains(&format!("{keyword}{name}")))
        && code.contains(&format!("mod {module}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_spans_in_code_blocks_are_skipped() {
        let text = "`a` and `b`\n```\n`c`\n```\n`d`";
        assert_eq!(spans(text), [(1, "a"), (1, "b"), (5, "d")]);
    }

    #[test]
    fn paths_and_tests_must_exist() {
        let code = "mod timers; fn syn_sent_lasts_25_seconds() {}";
        for (span, expected) in [
            ("tools/xtask/src/references.rs", true),
            ("tools/xtask/src/references", true),
            ("tools/xtask/src/nothing.rs", false),
            ("timers::syn_sent", true),
            ("timers::nothing", false),
            ("nothing::syn_sent", false),
            ("Ctx::survives", true),
            ("docs/*.md", true),
            ("io/link/src/NAME.rs", true),
            ("pontoon_ring::device", true),
            ("cargo test", true),
        ] {
            assert_eq!(exists(span, workspace(), code), expected, "{span}");
        }
    }
}
