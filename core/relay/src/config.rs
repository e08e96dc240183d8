//! Parses the configuration file of a relay, a TOML file with one list of rules:
//!
//! ```toml
//! rules = [
//!     "eth0 239.1.1.1:5001 -> eth1 239.2.2.2:5002 ttl 8",
//!     "eth0 [ff3e::1]:5001 from 2001:db8::1 -> eth1 *:*",
//! ]
//! ```

use serde::Deserialize;
use toml::Spanned;

use crate::rule::{Rule, RuleError};
use crate::rules::{Conflict, Rules};

/// The first error in a relay's configuration file. A file with an error is refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct ConfigError {
    /// Line of the configuration file that contains the error, counted from 1.
    pub line: usize,
    /// The kind of error in that line.
    pub reason: ConfigErrorKind,
}

/// The kinds of errors in a relay's configuration file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigErrorKind {
    /// The text is not valid TOML, or has unexpected fields or types.
    #[error("{0}")]
    Syntax(String),
    /// The text of a rule is invalid.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// An earlier rule in the file has the same input.
    #[error(transparent)]
    Conflict(#[from] Conflict),
}

/// The content of a configuration file as TOML.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    rules: Vec<Spanned<String>>,
}

/// Parses the text of a configuration file. One invalid line makes the whole file invalid.
///
/// # Errors
/// The first invalid line and the kind of error.
pub fn parse(text: &str) -> Result<Rules, ConfigError> {
    let line = |at: usize| {
        1 + text
            .as_bytes()
            .iter()
            .take(at)
            .filter(|byte| **byte == b'\n')
            .count()
    };
    let file: ConfigFile = toml::from_str(text).map_err(|error| ConfigError {
        line: line(error.span().map_or(0, |span| span.start)),
        reason: ConfigErrorKind::Syntax(error.message().lines().next().unwrap_or_default().to_owned()),
    })?;
    let mut rules = Rules::default();
    for entry in file.rules {
        let error = |reason| ConfigError {
            line: line(entry.span().start),
            reason,
        };
        let rule: Rule = entry
            .get_ref()
            .parse()
            .map_err(|wrong| error(ConfigErrorKind::Rule(wrong)))?;
        rules
            .add(rule)
            .map_err(|conflict| error(ConfigErrorKind::Conflict(conflict)))?;
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_parsed_in_order() {
        let text = "# two\nrules = [\n  \"a 239.1.1.1:1 -> b 239.1.1.1:1\", # one\n  'a 239.1.1.2:1 -> b 239.1.1.1:1',\n]\n";
        let rules = parse(text).unwrap();
        let shown: Vec<_> = rules.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            ["a 239.1.1.1:1 -> b 239.1.1.1:1", "a 239.1.1.2:1 -> b 239.1.1.1:1"]
        );
        assert_eq!(parse("").unwrap().iter().count(), 0);
    }

    #[test]
    fn error_names_line_and_reason() {
        let good = "  \"a 239.1.1.1:1 -> b 239.1.1.1:1\",\n";
        for (text, line) in [
            (
                format!("rules = [\n{good}  \"a 239.1.1.1:1 b\",\n]\n"),
                "line 3: no '->' (the form is: eth0 239.1.1.1:5001 -> eth1 239.2.2.2:5002)",
            ),
            (
                format!("rules = [\n{good}\n{good}]\n"),
                "line 4: 'a 239.1.1.1:1' is in another rule: a 239.1.1.1:1 -> b 239.1.1.1:1",
            ),
            (
                format!("rule = [\n{good}]\n"),
                "line 1: unknown field `rule`, expected `rules`",
            ),
            (
                "\n\nrules = 5\n".into(),
                "line 3: invalid type: integer `5`, expected a sequence",
            ),
            ("rules = [\n".into(), "line 1: unclosed array, expected `]`"),
        ] {
            assert_eq!(parse(&text).unwrap_err().to_string(), line);
        }
    }
}
