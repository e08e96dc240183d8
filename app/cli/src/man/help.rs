//! Parts of a verb's help text that become sections of its manual page.

/// The text of a help template around its placeholders.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Help {
    /// Sentences before the examples.
    pub(super) description: Vec<&'static str>,
    /// Lines with commands.
    pub(super) examples: Vec<&'static str>,
    /// Lines after the options.
    pub(super) notes: Vec<&'static str>,
    /// The statuses with which the verb exits.
    pub(super) exit_status: Vec<&'static str>,
}

/// Beginning of the line with the exit statuses.
const EXIT_STATUS: &str = "Exit status: ";

/// Beginning of the line that is about the help text itself.
const ABOUT_HELP: &str = "The usual options are listed by -h";

impl Help {
    /// Splits a help template of clap. Lines with a command are indented; placeholders are in braces.
    pub(super) fn parse(template: &'static str) -> Self {
        let mut help = Self::default();
        let (before, after) = template.split_once("{options}").unwrap_or((template, ""));
        for line in before
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('{'))
        {
            match line.starts_with("  ") {
                true => help.examples.push(line.trim_start()),
                false => help.description.push(line),
            }
        }
        for line in after.lines().filter(|line| !line.is_empty()) {
            match line.strip_prefix(EXIT_STATUS) {
                Some(statuses) => help.exit_status.push(statuses),
                None if line.starts_with(ABOUT_HELP) => {}
                None => help.notes.push(line),
            }
        }
        help
    }
}
