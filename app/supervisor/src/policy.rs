//! Policy files: egress rules in TOML.
//!
//! ```toml
//! allow = ["*.example.org:443/tcp", "192.0.2.0/24"]
//! deny = ["192.0.2.1"]
//! ```

use std::path::Path;

use pontoon_engine::egress::{Action, EgressRule, Match, RefusedFlows};
use pontoon_process::error::{Context as _, Error};
use pontoon_worker::Update;
use pontoon_worker::messages::RulesUpdate;
use serde::{Deserialize, Serialize};

/// Egress rules as a policy file lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lists {
    /// Rules of allowed destinations. If there are any, all other destinations are denied.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Rules of denied destinations.
    #[serde(default)]
    pub deny: Vec<String>,
}

impl Lists {
    /// Parses the lists into egress rules.
    ///
    /// # Errors
    /// The text of the error names the first invalid rule.
    pub fn rules(self) -> Result<Vec<EgressRule>, String> {
        let rules = |action: Action, texts: Vec<String>| {
            texts.into_iter().map(move |text| {
                let to: Match = text.parse()?;
                EgressRule::new(action, to)
            })
        };
        rules(Action::Allow, self.allow)
            .chain(rules(Action::Deny, self.deny))
            .collect()
    }
}

/// Limit on the number of egress rules. Each new flow is compared with every rule.
pub(crate) const MOST: usize = 1_000;

/// Checks the number of rules and the size of the message in which they are sent to the engine.
///
/// # Errors
/// There are too many rules, or they do not fit into a message.
pub fn check(rules: &[EgressRule]) -> Result<(), String> {
    if rules.len() > MOST {
        return Err(format!("{} rules exceed the limit of {MOST}", rules.len()));
    }
    let message = pontoon_ipc::encode(&Update::Rules(RulesUpdate {
        generation: u64::MAX,
        rules: rules.to_vec(),
        refused: RefusedFlows::Reset,
    }));
    message
        .map(|_| ())
        .map_err(|error| format!("the rules are too long: {error}"))
}

/// Reads the egress rules of a policy file.
///
/// # Errors
/// The file cannot be read, is not TOML, or has an invalid rule; the exit status is 2 for the last two.
pub fn read(path: &Path) -> Result<Vec<EgressRule>, Error> {
    let text = std::fs::read_to_string(path)
        .context(format_args!("cannot read the policy file {}", path.display()))?;
    parse(&text).map_err(|why| Error::new(format!("policy file {}: {why}", path.display())).with_status(2))
}

/// Parses the text of a policy file.
///
/// # Errors
/// The text of the error names the mistake in one line.
pub fn parse(text: &str) -> Result<Vec<EgressRule>, String> {
    let lists: Lists = toml::from_str(text).map_err(|error| explain(text, &error))?;
    let rules = lists.rules()?;
    check(&rules)?;
    Ok(rules)
}

fn explain(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let what = error.message().replace('\n', " ");
    match before {
        Some(before) => format!("line {}: {what}", before.matches('\n').count() + 1),
        None => what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        parse(text).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn allow_and_deny_lists_are_parsed() {
        let text = "# outside\nallow = [\n  \"*.example.org:443/tcp\",\n  \"192.0.2.0/24\",\n]\ndeny = [\"192.0.2.1\"]\n";
        assert_eq!(
            shown(text),
            [
                "allow *.example.org:443/tcp",
                "allow 192.0.2.0/24",
                "deny 192.0.2.1"
            ]
        );
        assert!(shown("").is_empty());
    }

    #[test]
    fn invalid_rules_are_errors_with_the_reason() {
        for (text, why) in [
            (
                "allow = [\"10.0.0\"]",
                "'10.0.0' is neither a network, an address nor a domain",
            ),
            ("deny = [\"a.org:0\"]", "'0' is not a port (1 to 65535)"),
        ] {
            assert_eq!(parse(text), Err(why.to_owned()));
        }
        let unknown = parse("allow = []\nallways = []\n").unwrap_err();
        assert!(
            unknown.starts_with("line 2: unknown field `allways`"),
            "{unknown}"
        );
        let number = parse("allow = [1]").unwrap_err();
        assert!(number.starts_with("line 1: invalid type"), "{number}");
        assert!(parse("allow = [").unwrap_err().starts_with("line 1: "));
        assert!(!parse("allow = [").unwrap_err().contains('\n'));
    }

    #[test]
    fn rules_over_the_limits_are_errors() {
        let many =
            |count: usize, rule: &str| format!("deny = [{}]", vec![format!("\"{rule}\""); count].join(","));
        assert!(parse(&many(1_000, "*")).is_ok());
        assert_eq!(
            parse(&many(1_001, "*")),
            Err("1001 rules exceed the limit of 1000".to_owned())
        );
        let long = format!("{}.test", ["a"; 100].join("."));
        assert!(
            parse(&many(400, &long))
                .unwrap_err()
                .ends_with("bytes exceed the limit of 65536")
        );
    }

    #[test]
    fn missing_file_is_an_error() {
        let error = read(Path::new("/no/such/file")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot read the policy file /no/such/file: no such file or directory"
        );
    }
}
