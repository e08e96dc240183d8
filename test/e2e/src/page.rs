//! The pages of the documentation, and the shell commands in them.
//!
//! A fenced block with the info string `sh` is executed as it stands by an unprivileged user, one with `sh root` by root. The
//! line before a block with `sh no-run` is a comment, `<!-- not run: REASON -->` or `<!-- run by CASE -->`.

use anyhow::{Context, Result, bail};

/// A page of the documentation.
#[derive(Clone, Copy)]
pub(crate) struct Page {
    /// Path in the repository.
    pub(crate) path: &'static str,
    pub(crate) text: &'static str,
}

macro_rules! pages {
    ($($path:literal),* $(,)?) => {
        &[$(Page { path: $path, text: include_str!(concat!("../../../", $path)) }),*]
    };
}

/// The pages with shell commands, but for those that other tests execute.
pub(crate) const PAGES: &[Page] = pages![
    "CONTRIBUTING.md",
    "README.md",
    "docs/clients.md",
    "docs/compat.md",
    "docs/control.md",
    "docs/cookbook.md",
    "docs/decider.md",
    "docs/decisions/0012-static-programs.md",
    "docs/doctor.md",
    "docs/embed.md",
    "docs/events.md",
    "docs/kernels.md",
    "docs/operate.md",
    "docs/packages.md",
    "docs/performance.md",
    "docs/policy.md",
    "docs/ports.md",
    "docs/profiles.md",
    "docs/proxy.md",
    "docs/relay.md",
    "docs/run.md",
    "docs/sandbox.md",
    "docs/troubleshooting.md",
    "docs/unikernel.md",
    "docs/vm.md",
    "tools/fuzz/README.md",
];

/// Pages with blocks `sh` that other tests execute: `cargo xtask clients podman.document`.
#[cfg(test)]
const ELSEWHERE: &[&str] = &["docs/containers.md"];

/// The user who executes a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executor {
    User,
    Root,
    /// None, or the case of the comment.
    Other,
}

/// A fenced block of shell commands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    pub(crate) executor: Executor,
    /// The number of lines before the first command.
    before: usize,
    lines: Vec<&'a str>,
    /// The line before the block.
    comment: &'a str,
}

impl Page {
    /// Returns the blocks of shell commands.
    ///
    /// # Errors
    /// A block has an unknown info string or no end, or lacks the comment that it needs.
    pub(crate) fn blocks(&self) -> Result<Vec<Block<'static>>> {
        let mut blocks = Vec::new();
        let mut lines = self.text.lines().enumerate();
        let mut comment = "";
        while let Some((at, line)) = lines.next() {
            if let Some(info) = line.trim_start().strip_prefix("```") {
                let place = || format!("{}:{}", self.path, at + 1);
                let body: Vec<&str> = lines
                    .by_ref()
                    .map(|(_, line)| line)
                    .take_while(|line| !line.trim_start().starts_with("```"))
                    .collect();
                if let Some(executor) = executor(info).with_context(place)? {
                    let block = Block {
                        executor,
                        before: at + 1,
                        lines: body,
                        comment,
                    };
                    if line.starts_with(' ') {
                        bail!("{}: the block is indented", place());
                    }
                    if executor == Executor::Other && block.reason().is_none() {
                        bail!(
                            "{}: the line before is neither `<!-- not run: REASON -->` nor `<!-- run by CASE -->`",
                            place()
                        );
                    }
                    blocks.push(block);
                }
            }
            comment = line;
        }
        Ok(blocks)
    }

    /// Returns a script of the blocks for `executor`, whose lines have the numbers that they have on the page; `None` if there
    /// is no such block.
    pub(crate) fn script(&self, executor: Executor) -> Result<Option<String>> {
        let blocks = self.blocks()?;
        let mut lines: Vec<&str> = Vec::new();
        for block in blocks.iter().filter(|block| block.executor == executor) {
            lines.resize(block.before, "");
            lines.extend(&block.lines);
        }
        Ok((!lines.is_empty()).then(|| lines.join("\n") + "\n"))
    }
}

impl Block<'_> {
    /// Returns the reason for which the block is not executed, or the case that executes it.
    fn reason(&self) -> Option<&str> {
        let text = self.comment.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
        text.strip_prefix("not run: ")
            .or_else(|| text.strip_prefix("run by "))
    }

    /// Returns true if the case `name` executes the block.
    pub(crate) fn is_run_by(&self, name: &str) -> bool {
        self.comment == format!("<!-- run by {name} -->")
    }

    pub(crate) fn script(&self) -> String {
        self.lines.join("\n")
    }
}

/// Returns the executor of a block with this info string; `None` if it has no shell commands.
fn executor(info: &str) -> Result<Option<Executor>> {
    let mut words = info.split_whitespace();
    let language = words.next().unwrap_or_default();
    match (language, words.next(), words.next()) {
        ("sh", None, None) => Ok(Some(Executor::User)),
        ("sh", Some("root"), None) => Ok(Some(Executor::Root)),
        ("sh", Some("no-run"), None) => Ok(Some(Executor::Other)),
        ("sh" | "bash" | "shell" | "console" | "shell-session", ..) => {
            bail!("the info string is not `sh`, `sh root` or `sh no-run`: {info}")
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn page(text: &'static str) -> Page {
        Page { path: "page", text }
    }

    #[test]
    fn lines_of_a_script_have_the_numbers_of_the_page() {
        let text = "# Page\n```sh\na\n\nb\n```\n```sh root\nc\n```\n```text\nd\n```\n```sh\ne\n```\n";
        let script = |executor| page(text).script(executor).unwrap();
        assert_eq!(
            script(Executor::User).as_deref(),
            Some("\n\na\n\nb\n\n\n\n\n\n\n\n\ne\n")
        );
        assert_eq!(script(Executor::Root).as_deref(), Some("\n\n\n\n\n\n\nc\n"));
        assert_eq!(script(Executor::Other), None);
    }

    #[test]
    fn block_that_is_not_executed_needs_a_reason() {
        let with = |text| page(text).blocks().is_ok();
        assert!(with("<!-- not run: it needs KVM -->\n```sh no-run\na\n```\n"));
        assert!(with("<!-- run by a.case -->\n```sh no-run\na\n```\n"));
        assert!(!with("Text.\n\n```sh no-run\na\n```\n"));
    }

    #[test]
    fn other_info_strings_of_shells_are_refused() {
        for text in [
            "```bash\na\n```\n",
            "```sh user\na\n```\n",
            "- Item\n  ```sh\n  a\n  ```\n",
        ] {
            assert!(page(text).blocks().is_err(), "{text}");
        }
    }

    #[test]
    fn every_page_with_shell_commands_is_listed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut files = Vec::new();
        collect(&root, &mut files);
        for file in files {
            let path = file.strip_prefix(&root).unwrap().to_str().unwrap();
            let has_commands = fs::read_to_string(&file).unwrap().contains("```sh");
            let is_listed = PAGES.iter().any(|page| page.path == path) || ELSEWHERE.contains(&path);
            assert!(is_listed || !has_commands, "{path} is missing in PAGES");
        }
    }

    /// Adds the Markdown files below `directory`, except those in hidden folders and of builds.
    fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                collect(&path, files);
            } else if name.ends_with(".md") {
                files.push(path);
            }
        }
    }

    #[test]
    fn cases_that_execute_blocks_exist() {
        let cases = crate::cases::all();
        for page in PAGES {
            for block in page.blocks().unwrap() {
                if let Some(name) = block.comment.strip_prefix("<!-- run by ") {
                    let name = name.trim_end_matches(" -->");
                    assert!(
                        cases.iter().any(|case| case.name == name),
                        "{}: no case {name}",
                        page.path
                    );
                }
            }
        }
    }
}
