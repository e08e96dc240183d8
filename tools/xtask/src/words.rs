//! Checks for retired words: metaphors that docs/glossary.md replaces by the terms of RFCs, the virtio specification
//! and the kernel.
//!
//! The comments, identifiers and string literals of Rust files are searched, and Markdown files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::workspace;

/// Retired words, in lower case. In identifiers they are matched as parts of names, such as `CrewMember` or
/// `is_born`. A longer word, such as `deadline`, is not matched.
const RETIRED: &[&str] = &[
    "alive", "autopsy", "birth", "births", "born", "buried", "buries", "bury", "census", "crew", "crews",
    "dead", "deaths", "die", "died", "dies", "door", "doors", "ear", "ears", "feed", "feeds", "hear",
    "heard", "hears", "hunger", "hungry", "mourn", "mourned", "mourns", "nobody", "said", "say", "saying",
    "says", "seat", "seats", "somebody", "starve", "starved", "starves", "tell", "telling", "tells", "told",
    "voice", "voices", "whoever", "wish", "wishes",
];

/// Retired sequences of two words, in identifiers such as `last_words` and `LastWords`.
const RETIRED_PAIRS: &[[&str; 2]] = &[["last", "words"], ["turn", "away"], ["turned", "away"]];

/// Sequences of two words that are technical terms although one of them is retired.
const TERMS: &[[&str; 2]] = &[
    // The lint `dead_code` of rustc.
    ["dead", "code"],
    // The option `--die-with-parent` of bwrap(1).
    ["die", "with"],
    ["form", "feed"],
    // The header of HTTP, and the option of tcp(7).
    ["keep", "alive"],
    ["line", "feed"],
];

/// Words with which a documentation comment must not begin: it begins with a noun phrase or a third-person verb.
const NOT_FIRST: &[&str] = &["what", "who", "whoever", "whether", "how", "where"];

/// Files that may contain retired words, as they list them.
const EXEMPT: &[&str] = &["docs/glossary.md", "tools/xtask/src/words.rs"];

/// Names of folders that contain no sources of the project.
const SKIPPED: &[&str] = &["artifacts", "corpus", "target"];

/// Checks all Rust and Markdown files, and prints one line for each problem. Returns true if there is none.
pub(crate) fn check() -> Result<bool> {
    let mut sound = true;
    for file in sources()? {
        let path = file
            .strip_prefix(workspace())
            .unwrap_or(&file)
            .display()
            .to_string();
        if EXEMPT.contains(&path.as_str()) {
            continue;
        }
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {path}"))?;
        for (line, problem) in hits(&path, &text) {
            sound = false;
            eprintln!("{path}:{line}: {problem}");
        }
    }
    Ok(sound)
}

/// Returns the Rust and Markdown files of the project, sorted by path.
pub(crate) fn sources() -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(workspace(), &mut files)?;
    files.sort();
    Ok(files)
}

/// Adds the Rust and Markdown files below `directory` to `files`, except those in hidden folders and in [`SKIPPED`].
fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        let kind = entry.file_type()?;
        if kind.is_dir() && !name.starts_with('.') && !SKIPPED.contains(&name.as_ref()) {
            collect(&path, files)?;
        } else if kind.is_file() && (name.ends_with(".rs") || name.ends_with(".md")) {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns the problems of a file: line number from 1, and description.
fn hits(path: &str, text: &str) -> Vec<(usize, String)> {
    let mut hits = Vec::new();
    let pieces = if path.ends_with(".rs") {
        rust(text)
    } else {
        let lines = text.lines().enumerate();
        lines.map(|(at, line)| (at + 1, TokenKind::Text, line)).collect()
    };
    let mut last_doc = None;
    for (first, kind, piece) in pieces {
        if kind == TokenKind::Doc {
            let continues = last_doc == Some(first - 1);
            last_doc = Some(first);
            let word = words(piece).into_iter().next().unwrap_or_default();
            if !continues && NOT_FIRST.contains(&word.as_str()) {
                hits.push((first, format!("documentation begins with '{word}'")));
            }
        }
        for (offset, line) in piece.lines().enumerate() {
            hits.extend(
                retired(line)
                    .into_iter()
                    .map(|word| (first + offset, format!("retired word '{word}'"))),
            );
        }
    }
    hits
}

/// Returns the retired words in a line.
fn retired(line: &str) -> Vec<String> {
    let words = words(line);
    let pair = |first: usize, pairs: &[[&str; 2]]| {
        let pair = words.get(first..first + 2);
        pair.is_some_and(|pair| pairs.iter().any(|term| pair == term))
    };
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let is_term = pair(at, TERMS) || (at > 0 && pair(at - 1, TERMS));
        if RETIRED.contains(&word.as_str()) && !is_term {
            found.push(word.clone());
        }
        if pair(at, RETIRED_PAIRS) {
            found.push(format!("{word}_{}", words[at + 1]));
        }
    }
    found
}

/// Splits text and identifiers into words in lower case: `CrewMember` and `crew_member` are two words each.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut after_lower = false;
    for character in text.chars() {
        if !character.is_alphabetic() || (character.is_uppercase() && after_lower) {
            words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
        }
        if character.is_alphabetic() {
            word.extend(character.to_lowercase());
        }
        after_lower = character.is_lowercase();
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

/// The kind of a checked token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    /// One line of a documentation comment, or a whole `/** */` comment.
    Doc,
    /// An identifier, a string literal, another comment, or a line of a Markdown file.
    Text,
}

/// Returns the comments, identifiers and string literals of Rust source: line number of the first character, from 1,
/// kind and text.
fn rust(text: &str) -> Vec<(usize, TokenKind, &str)> {
    let mut pieces = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let (length, kind) = token(rest, first);
        let piece = &rest[..length];
        if let Some(kind) = kind {
            let content = if kind == TokenKind::Doc {
                piece.trim_start_matches(['/', '!', '*'])
            } else {
                piece
            };
            pieces.push((line, kind, content));
        }
        line += piece.matches('\n').count();
        rest = &rest[length..];
    }
    pieces
}

/// Returns the length in bytes of the token at the start of `rest`, and its kind if it is checked.
fn token(rest: &str, first: char) -> (usize, Option<TokenKind>) {
    if rest.starts_with("//") {
        let length = rest.find('\n').unwrap_or(rest.len());
        // A comment with four slashes is an ordinary comment.
        let doc = rest.starts_with("//!") || (rest.starts_with("///") && !rest.starts_with("////"));
        return (length, Some(if doc { TokenKind::Doc } else { TokenKind::Text }));
    }
    if rest.starts_with("/*") {
        let length = rest.find("*/").map_or(rest.len(), |end| end + 2);
        let doc = rest.starts_with("/*!") || (rest.starts_with("/**") && length > 4);
        return (length, Some(if doc { TokenKind::Doc } else { TokenKind::Text }));
    }
    if let Some(length) = raw_string(rest) {
        return (length, Some(TokenKind::Text));
    }
    if first == '"' {
        return (quoted(rest, '"'), Some(TokenKind::Text));
    }
    if first == '\'' {
        // A lifetime has no closing quote after one character or escape sequence.
        let mut characters = rest.chars().skip(1);
        let (one, two) = (characters.next(), characters.next());
        let literal = one == Some('\\') || two == Some('\'');
        return (if literal { quoted(rest, '\'') } else { 1 }, None);
    }
    if first.is_alphabetic() || first == '_' {
        let length = rest
            .find(|character: char| !character.is_alphanumeric() && character != '_')
            .unwrap_or(rest.len());
        return (length, Some(TokenKind::Text));
    }
    (first.len_utf8(), None)
}

/// Returns the length in bytes of a raw string literal at the start of `rest`, with its prefix.
fn raw_string(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r"]
        .into_iter()
        .find(|prefix| rest.starts_with(prefix))?;
    let after = &rest[prefix.len()..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    let content = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = content.find(&end).map_or(content.len(), |at| at + end.len());
    Some(prefix.len() + hashes + 1 + length)
}

/// Returns the length in bytes of a literal between two `quote` characters.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in rest.char_indices().skip(1) {
        if !escaped && character == quote {
            return at + 1;
        }
        escaped = character == '\\' && !escaped;
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::{hits, words};

    /// Returns the lines of Rust source with a problem.
    fn lines(source: &str) -> Vec<usize> {
        hits("a.rs", source).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn retired_words_in_docs_identifiers_and_strings_are_hits() {
        assert_eq!(
            lines("/// The crew.\nstruct Ear;\nfn last_words() {}\n"),
            [1, 2, 3]
        );
        assert_eq!(
            lines("let text = \"one\n whoever\";\nlet raw = r#\"a \" voice\"#;"),
            [2, 3]
        );
        assert_eq!(lines("type A = CrewMember; const LAST_WORDS: u8 = 0;"), [1, 1]);
    }

    #[test]
    fn retired_words_in_ordinary_comments_are_hits() {
        assert_eq!(
            lines("// a crew\n//// a crew\n/* a\n crew */ // What is it?\n"),
            [1, 2, 4]
        );
        assert_eq!(lines("fn f() { g(); // turned away\n}"), [1]);
    }

    #[test]
    fn longer_words_and_terms_are_not_hits() {
        assert!(lines("// a deadline\nfn years() { line_feed('\\'', 'c') }").is_empty());
        assert!(lines("fn f<'a>(text: &'a str) -> &'a str { \"feedback, screw\" }").is_empty());
        assert!(lines("const ARGS: &str = \"--die-with-parent\"; fn keep_alive() {}").is_empty());
    }

    #[test]
    fn only_the_first_line_of_a_documentation_comment_is_checked_for_its_first_word() {
        assert_eq!(
            lines("/// The number of ports\n/// where it is set.\n"),
            Vec::<usize>::new()
        );
        assert_eq!(
            lines("//! What is here.\n\n/// Whether it is.\nfn f() {}\n    /// `How` it is.\n"),
            [1, 3, 5]
        );
    }

    #[test]
    fn retired_word_in_markdown_is_reported_with_its_line() {
        let found = hits("docs/a.md", "Text.\n\nWhoever reads.\n");
        assert_eq!(found, [(3, "retired word 'whoever'".to_owned())]);
    }

    #[test]
    fn identifiers_are_split_into_words() {
        assert_eq!(
            words("is_CrewMember HTTPServer2x"),
            ["is", "crew", "member", "httpserver", "x"]
        );
    }
}
