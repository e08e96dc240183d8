//! Results of checks, and their text.

use std::fmt;

use pontoon_process::error::{Error, one_line};
use pontoon_process::{Fix, descriptor};
use serde::Serialize;

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Name of the check.
    pub name: &'static str,
    /// Severity of the result.
    pub status: Status,
    /// Description of what was found, in one line.
    pub found: String,
    /// Effect on Pontoon; `None` without a finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consequence: Option<String>,
    /// Remedy; `None` without a finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Fix>,
}

/// Severity of the result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// There is nothing to change.
    Ok,
    /// The check was not tried, because another one has failed.
    Skipped,
    /// A feature is missing that is not used by default.
    Note,
    /// Pontoon works, and lacks something.
    Loss,
    /// `pontoon run` does not start, or gives the guest no network.
    Failure,
}

/// Returns the remedy for an error with this text and advice of the command line `arguments`. Without a known remedy it is
/// the command that shows the failed step.
pub(super) fn remedy(text: &str, advice: Option<&str>, arguments: &str) -> Fix {
    let error = Error::new(text);
    let error = match advice {
        Some(advice) => error.advise(advice),
        None => descriptor::explain_exhaustion(error),
    };
    match error.parts().1 {
        Some(advice) => Fix::of_advice(advice),
        None => Fix::user(format!("strace -f pontoon {arguments}")).or("a report of the error"),
    }
}

/// Results of all checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Version of the format, see docs/doctor.md.
    schema: u32,
    /// Version of Pontoon.
    version: &'static str,
    /// Exit status.
    status: u8,
    checks: Vec<Check>,
}

/// Version of the format of [`Report`].
const SCHEMA: u32 = 1;

impl Check {
    /// Creates a result without a finding.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Ok,
            found: found.into(),
            consequence: None,
            fix: None,
        }
    }

    /// Creates a finding.
    pub fn finding(
        status: Status,
        name: &'static str,
        found: impl Into<String>,
        consequence: impl Into<String>,
        fix: Fix,
    ) -> Self {
        Self {
            name,
            status,
            found: found.into(),
            consequence: Some(consequence.into()),
            fix: Some(fix),
        }
    }

    /// Creates the result of a check that was not tried because the check `cause` has failed.
    pub(super) fn skipped(name: &'static str, cause: &str) -> Self {
        Self {
            status: Status::Skipped,
            ..Self::ok(name, format!("not tried because of {cause}"))
        }
    }

    /// Creates the result of a check that could not be completed.
    pub(super) fn incomplete(name: &'static str, error: &str) -> Self {
        Self::finding(
            Status::Loss,
            name,
            format!("the check failed: {error}"),
            "the result is not known",
            remedy(error, None, "doctor"),
        )
    }
}

impl Report {
    /// Creates a report of the program with the version `version`.
    #[must_use]
    pub fn new(version: &'static str, checks: Vec<Check>) -> Self {
        let status = checks.iter().map(|check| check.status).max();
        let status = match status {
            Some(Status::Failure) => 2,
            Some(Status::Loss) => 1,
            _ => 0,
        };
        Self {
            schema: SCHEMA,
            version,
            status,
            checks,
        }
    }

    /// Returns the exit status: 0 if there is no loss, 1 if Pontoon works with losses, and 2 if it does not work.
    #[must_use]
    pub fn status(&self) -> u8 {
        self.status
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Note => "note",
            Self::Loss => "loss",
            Self::Failure => "failure",
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.checks.iter().map(|check| check.name.len()).max();
        let width = width.unwrap_or_default();
        for check in &self.checks {
            let found = one_line(&check.found);
            writeln!(f, "{:width$}  {:7}  {found}", check.name, check.status)?;
            if let Some(consequence) = &check.consequence {
                writeln!(f, "  consequence: {}", one_line(consequence))?;
            }
            if let Some(fix) = &check.fix {
                writeln!(f, "  fix: {}", one_line(&fix.to_string()))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks() -> Vec<Check> {
        vec![
            Check::ok("pipes", "64 KiB"),
            Check::finding(
                Status::Loss,
                "ping-sockets",
                "refused:\npermission denied",
                "no reply",
                Fix::root("sysctl -w x=1"),
            ),
        ]
    }

    #[test]
    fn text_is_aligned_with_one_line_for_each_check() {
        let text = Report::new("0.1.0", checks()).to_string();
        let expected = "\
pipes         ok       64 KiB
ping-sockets  loss     refused: permission denied
  consequence: no reply
  fix: as root: sysctl -w x=1
";
        assert_eq!(text, expected);
    }

    #[test]
    fn json_has_the_documented_fields() {
        let report = serde_json::to_value(Report::new("0.1.0", checks())).unwrap();
        let expected = serde_json::json!({
            "schema": 1,
            "version": "0.1.0",
            "status": 1,
            "checks": [
                {"name": "pipes", "status": "ok", "found": "64 KiB"},
                {
                    "name": "ping-sockets",
                    "status": "loss",
                    "found": "refused:\npermission denied",
                    "consequence": "no reply",
                    "fix": {"command": "sysctl -w x=1", "as_root": true, "alternative": null},
                },
            ],
        });
        assert_eq!(report, expected);
    }

    #[test]
    fn exhausted_descriptors_have_a_remedy() {
        let remedy = |text: &str, advice| remedy(text, advice, "doctor").command;
        let more = remedy("cannot make a pipe: too many open files", None);
        assert!(more.starts_with("prlimit --pid "), "{more}");
        assert_eq!(remedy("no result within 10 s", None), "strace -f pontoon doctor");
        assert_eq!(remedy("x", Some("as root: modprobe tun")), "modprobe tun");
    }

    #[test]
    fn exit_status_is_that_of_the_worst_result() {
        let status = |list: &[Status]| {
            let check = |status: &Status| Check {
                status: *status,
                ..Check::ok("x", "")
            };
            Report::new("", list.iter().map(check).collect()).status()
        };
        assert_eq!(status(&[Status::Ok, Status::Note]), 0);
        assert_eq!(status(&[Status::Loss, Status::Note]), 1);
        assert_eq!(status(&[Status::Failure, Status::Skipped, Status::Loss]), 2);
        assert_eq!(status(&[]), 0);
    }
}
