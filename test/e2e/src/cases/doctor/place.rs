//! A shell in which `pontoon doctor` is executed, as a user and in the environment of a case.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::case::Context;
use crate::cases::{OBEDIENT, tmpfs};
use crate::machine::DIRECTORY;
use crate::process;
use crate::run::RunningProgram;

/// Shell that executes the program.
pub(crate) struct DoctorPlace {
    shell: RunningProgram,
}

/// Report of the program in JSON, and its exit status.
pub(crate) struct Report {
    json: Value,
    pub(crate) status: i64,
}

/// Runs a fix as root of the case.
pub(super) fn as_root(line: &str) -> Result<()> {
    eprintln!("# {line}");
    process::output(Command::new("sh").args(["-c", line])).map(drop)
}

impl DoctorPlace {
    /// Starts a shell of the user of the case.
    pub(crate) fn of_user(context: &Context) -> Result<Self> {
        let user = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--"];
        match context.program.drop_privileges {
            true => Self::new(context, &user),
            false => Self::new(context, &["env"]),
        }
    }

    /// Starts a shell by the command line `wrapper`.
    pub(crate) fn new(context: &Context, wrapper: &[&str]) -> Result<Self> {
        let binary = context.program.binary.as_deref();
        let binary = binary.context("there is no program under test")?;
        if !Path::new(DIRECTORY).join("x").exists() {
            tmpfs(Path::new(DIRECTORY))?;
        }
        let (program, arguments) = wrapper.split_first().context("no program")?;
        let child = Command::new(program)
            .args(arguments)
            .args(["bash", "-c", OBEDIENT])
            .env("PONTOON", binary)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let shell = RunningProgram::of(child)?.listening()?;
        Ok(Self { shell })
    }

    /// Runs a line, which must succeed.
    pub(crate) fn shell(&mut self, line: &str) -> Result<()> {
        let status = self.shell.ask(&format!("{{ {line}; }} >/dev/null; echo $?"))?;
        ensure!(status == "0", "{line}: exit status {status}");
        Ok(())
    }

    /// Runs the program with the options `--json`.
    pub(crate) fn examine(&mut self) -> Result<Report> {
        let line = self
            .shell
            .ask("$PONTOON doctor --json | tr -d '\\n'; echo \" ${PIPESTATUS[0]}\"")?;
        let (json, status) = line.rsplit_once(' ').context("no status")?;
        let json: Value = serde_json::from_str(json).with_context(|| line.clone())?;
        let status = status.parse()?;
        let report = Report { json, status };
        eprintln!("{}", report.summary());
        ensure!(
            report.json["schema"] == 1 && report.json["status"] == status,
            "{line}"
        );
        Ok(report)
    }

    /// Runs the program, and returns its text.
    pub(crate) fn text(&mut self) -> Result<String> {
        let text = self.shell.ask("$PONTOON doctor 2>&1 | tr '\\n' '\\f'; echo")?;
        Ok(text.replace('\u{c}', "\n"))
    }

    /// Runs the program with a command line that fails, and returns its only line on standard error.
    pub(crate) fn failure(&mut self, arguments: &str) -> Result<String> {
        let line =
            format!("$PONTOON {arguments} 2>&1 >/dev/null | tr '\\n' '\\f'; echo \" ${{PIPESTATUS[0]}}\"");
        let text = self.shell.ask(&line)?;
        let (text, status) = text.rsplit_once(' ').context("no status")?;
        ensure!(status != "0", "{arguments} succeeded");
        let lines = text
            .split_terminator('\u{c}')
            .filter(|line| !line.starts_with("info: "));
        let lines: Vec<&str> = lines.collect();
        let [line] = lines.as_slice() else {
            bail!("the error is not one line: {lines:?}");
        };
        ensure!(line.starts_with("error: "), "{line}");
        Ok((*line).to_owned())
    }

    /// Checks that `pontoon run` starts if and only if the report has no failure.
    pub(crate) fn agrees(&mut self, report: &Report) -> Result<()> {
        let status = self.shell.ask("$PONTOON run -- true; echo $?")?;
        let starts = status == "0";
        ensure!(
            starts == (report.status < 2),
            "the report has the status {}, and run {status}",
            report.status
        );
        Ok(())
    }

    /// Checks that a `pontoon run` that fails prints what the check `name` has found, and its fix.
    pub(crate) fn explains(&mut self, report: &Report, name: &str) -> Result<()> {
        let line = self.failure("run -- true")?;
        let (found, fix) = (report.field(name, "found")?, report.fix(name)?);
        ensure!(line.contains(&found) && line.contains(&fix), "{line}");
        Ok(())
    }
}

impl Report {
    fn check(&self, name: &str) -> Result<&Value> {
        let mut checks = self.json["checks"].as_array().context("no checks")?.iter();
        checks
            .find(|check| check["name"] == name)
            .with_context(|| format!("no check {name}"))
    }

    /// Returns the names of the checks in their order.
    pub(crate) fn names(&self) -> Vec<String> {
        let checks = self.json["checks"].as_array().into_iter().flatten();
        checks
            .filter_map(|check| Some(check["name"].as_str()?.to_owned()))
            .collect()
    }

    /// Returns a text of the check `name`.
    pub(crate) fn field(&self, name: &str, field: &str) -> Result<String> {
        let value = self.check(name)?[field].as_str();
        value
            .map(str::to_owned)
            .with_context(|| format!("{name} has no {field}"))
    }

    /// Returns the command of the fix of the check `name`.
    pub(crate) fn fix(&self, name: &str) -> Result<String> {
        let command = self.check(name)?["fix"]["command"].as_str();
        command
            .map(str::to_owned)
            .with_context(|| format!("{name} has no fix"))
    }

    /// Checks the status of the check `name`.
    pub(crate) fn expect(&self, name: &str, status: &str) -> Result<()> {
        let check = self.check(name)?;
        ensure!(check["status"] == status, "{name} is not {status}: {check}");
        Ok(())
    }

    /// Returns the findings, one in each line.
    fn summary(&self) -> String {
        let checks = self.json["checks"].as_array().into_iter().flatten();
        let findings = checks.filter(|check| check["status"] != "ok");
        let lines =
            findings.map(|check| format!("  {}: {} {}", check["name"], check["status"], check["found"]));
        format!("status {}\n{}", self.status, lines.collect::<Vec<_>>().join("\n"))
    }
}
