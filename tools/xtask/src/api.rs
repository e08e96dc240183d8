//! The list of the public interface of the crate `pontoon`, `app/pontoon/api.txt`: items and signatures, as rustdoc shows them. A
//! change of the list is a change of the interface. (cargo-semver-checks compares with a published version, and there is none.)

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{cargo, step, target, workspace};

/// Time limit of rustdoc and the compilation before it.
const BUILD: Duration = Duration::from_secs(10 * 60);

/// Sections after the items of a page: traits that each type implements.
const OTHERS: [&str; 2] = [
    r#"id="synthetic-implementations""#,
    r#"id="blanket-implementations""#,
];

/// Kinds of pages with a declaration.
const KINDS: [&str; 6] = ["constant.", "enum.", "fn.", "struct.", "trait.", "type."];

/// Writes the list.
pub(crate) fn write() -> Result<bool> {
    let list = list()?;
    fs::write(path(), list).context("cannot write the list of the interface")?;
    Ok(true)
}

/// Checks that the committed list is current.
pub(crate) fn check() -> Result<bool> {
    let list = list()?;
    let committed = fs::read_to_string(path()).context("cannot read the list of the interface")?;
    if list == committed {
        return Ok(true);
    }
    let (new, old): (Vec<_>, Vec<_>) = (list.lines().collect(), committed.lines().collect());
    for line in new.iter().filter(|line| !old.contains(line)) {
        eprintln!("new in the interface of pontoon: {}", line.trim());
    }
    for line in old.iter().filter(|line| !new.contains(line)) {
        eprintln!("missing in the interface of pontoon: {}", line.trim());
    }
    eprintln!("app/pontoon/api.txt is not current (try: cargo xtask library --api)");
    Ok(false)
}

fn path() -> PathBuf {
    workspace().join("app/pontoon/api.txt")
}

/// Generates the documentation, without private items, and returns the list.
fn list() -> Result<String> {
    let documentation = target().join("doc/pontoon");
    // The pages of private items, which another step generates.
    let _ = fs::remove_dir_all(&documentation);
    let mut command = cargo(&["doc", "--package", "pontoon", "--no-deps"]);
    ensure!(
        step::run("document the interface", &mut command, BUILD)?,
        "cannot document the library"
    );
    let mut pages = pages(&documentation)?;
    pages.sort();
    let mut list = String::new();
    for page in pages {
        let text = fs::read_to_string(&page).with_context(|| format!("cannot read {}", page.display()))?;
        list.push_str(&items(&text));
    }
    Ok(list)
}

fn pages(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let paths: std::io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
    let is_item = |path: &PathBuf| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        KINDS.iter().any(|kind| name.starts_with(kind)) && name.ends_with(".html")
    };
    Ok(paths?.into_iter().filter(is_item).collect())
}

/// Returns a line for the declaration of a page, and one for each item on it.
fn items(page: &str) -> String {
    let mut page = page;
    for others in OTHERS {
        page = page.split_once(others).map_or(page, |(before, _)| before);
    }
    let declaration = between(page, "item-decl\"><code>", "</code>").next();
    let mut lines = declaration
        .map(|code| format!("{}\n", plain(code)))
        .unwrap_or_default();
    for code in between(page, "class=\"code-header\">", "</h") {
        let line = plain(code);
        // Items of traits of the standard library have the signatures of these traits.
        if line.starts_with("pub ") || line.starts_with("impl") {
            lines.push_str(&format!("    {line}\n"));
        }
    }
    lines
}

/// Returns the parts of `text` that are enclosed in `begin` and `end`.
fn between<'a>(text: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(begin)
        .skip(1)
        .filter_map(move |rest| rest.split_once(end).map(|(inside, _)| inside))
}

/// Returns code without markup, on one line.
fn plain(code: &str) -> String {
    let mut text = String::new();
    let mut depth = 0_u32;
    for letter in code.chars() {
        match letter {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            letter if depth == 0 => text.push(letter),
            _ => {}
        }
    }
    let text = text
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#39;", "'");
    let text = text.replace("&amp;", "&");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_have_no_markup() {
        let page = r#"<pre class="rust item-decl"><code>pub struct <b>A</b>&lt;T&gt;;</code></pre>
            <h4 class="code-header">pub fn <a href="x">b</a>(&amp;self)
               -&gt; u8</h4><h4 class="code-header">fn fmt()</h4>
            <h3 class="code-header">impl Clone for A</h3>
            <h2 id="synthetic-implementations"></h2><h3 class="code-header">impl Send for A</h3>"#;
        assert_eq!(
            items(page),
            "pub struct A<T>;\n    pub fn b(&self) -> u8\n    impl Clone for A\n"
        );
    }
}
