//! Command `pontoon ctl policy replace`: reads rules, one in each line.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, ensure};
use pontoon_control::reply;
use pontoon_engine::egress::{Action, EgressRule, RefusedFlows};
use pontoon_supervisor::policy;
use serde_json::json;

use super::client::Client;

/// Limit on the length of a file in bytes, the same as on a request.
const LONGEST: u64 = pontoon_control::http::BODY as u64;

pub(super) fn replace(client: &Client<'_>, file: &Path, refused: RefusedFlows) -> Result<reply::Policy> {
    let name = file.display().to_string();
    let text = match name.as_str() {
        "-" => read(io::stdin().lock()),
        _ => File::open(file).map_err(Into::into).and_then(read),
    };
    let text = text.with_context(|| format!("cannot read {name}"))?;
    let rules = parse(&name, &text)?;
    policy::check(&rules).map_err(|why| anyhow!("{name}: {why}"))?;
    let of = |action| -> Vec<String> {
        let rules = rules.iter().filter(|rule| rule.action == action);
        rules.map(|rule| rule.to.to_string()).collect()
    };
    let body = json!({
        "allow": of(Action::Allow),
        "deny": of(Action::Deny),
        "flows": refused.to_string(),
    });
    client.put("/v1/policy", &body)
}

fn read(from: impl Read) -> Result<String> {
    let mut text = String::new();
    from.take(LONGEST + 1).read_to_string(&mut text)?;
    ensure!(
        text.len() as u64 <= LONGEST,
        "it exceeds the limit of {LONGEST} bytes"
    );
    Ok(text)
}

/// Parses the lines of the file `name`.
fn parse(name: &str, text: &str) -> Result<Vec<EgressRule>> {
    let mut rules = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words = line.split('#').next().unwrap_or_default().split_whitespace();
        let rule = words.collect::<Vec<_>>().join(" ");
        if !rule.is_empty() {
            let rule = rule.parse();
            rules.push(rule.map_err(|why: String| anyhow!("{name}:{number}: {why}"))?);
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_rule_or_a_comment() {
        let text = "# services\n\n  allow   *.example.org:443/tcp # web\r\ndeny 192.0.2.0/24\n\t#\nallow *";
        let rules: Vec<_> = parse("-", text)
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            rules,
            ["allow *.example.org:443/tcp", "deny 192.0.2.0/24", "allow *"]
        );
        assert!(parse("-", "").unwrap().is_empty());
    }

    #[test]
    fn errors_name_the_line() {
        let error = |text: &str| parse("rules.txt", text).unwrap_err().to_string();
        assert_eq!(
            error("allow *\n# x\ndeny 10.0.0\n"),
            "rules.txt:3: '10.0.0' is neither a network, an address nor a domain"
        );
        assert_eq!(
            error("192.0.2.1"),
            "rules.txt:1: '192.0.2.1' is not a rule (the form is: allow TARGET or deny TARGET)"
        );
    }

    #[test]
    fn long_file_is_an_error() {
        let longest = usize::try_from(LONGEST).unwrap();
        assert!(read(&vec![b'#'; longest][..]).is_ok());
        let error = read(&vec![b'#'; longest + 1][..]).unwrap_err();
        assert_eq!(error.to_string(), "it exceeds the limit of 262144 bytes");
        assert!(read(&[0xff_u8][..]).is_err());
    }
}
