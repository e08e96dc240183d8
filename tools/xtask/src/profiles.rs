//! `cargo xtask profiles`: generates the AppArmor profiles in `dist/apparmor` from one source, and compiles them and the
//! SELinux module in `dist/selinux` with programs of Debian, which are not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::debian::{DEBIAN_12, DEBIAN_13, Debian};
use crate::{step, target, workspace};

const COMPILE: Duration = Duration::from_secs(60);

/// Source of the AppArmor profiles. A line that begins with `@4.0@` is part of that form only.
const SOURCE: &str = "dist/apparmor/pontoon.in";

/// A form of the AppArmor profile.
pub(crate) struct Form {
    /// Version of the policy's ABI.
    abi: &'static str,
    /// Path in the workspace.
    pub(crate) file: &'static str,
    /// Releases for which the form is, in the profile's first line.
    releases: &'static str,
    /// Debian's release with the parser that compiles it.
    debian: Debian,
    /// Name of the directory in the build directory with that parser.
    parser: &'static str,
}

/// Form for AppArmor 3.0.
pub(crate) const ABI_3: Form = Form {
    abi: "3.0",
    file: "dist/apparmor/pontoon.abi-3.0",
    releases: "for AppArmor 3.0 (Debian 12, Ubuntu 22.04)",
    debian: DEBIAN_12,
    parser: "apparmor-3",
};

/// Form for AppArmor 4.0, which permits user namespaces where other programs may not have them.
pub(crate) const ABI_4: Form = Form {
    abi: "4.0",
    file: "dist/apparmor/pontoon",
    releases: "for AppArmor 4.0 and later (Debian 13, Ubuntu 24.04)",
    debian: DEBIAN_13,
    parser: "apparmor-4",
};

const FORMS: [&Form; 2] = [&ABI_3, &ABI_4];

/// Writes the profiles, and compiles them and the SELinux module. Returns true if all compile.
pub(crate) fn run() -> Result<bool> {
    let source = source()?;
    for form in FORMS {
        fs::write(workspace().join(form.file), form.of(&source))?;
    }
    let mut sound = true;
    for (name, mut command) in steps()? {
        sound &= step::run(&name, &mut command, COMPILE)?;
    }
    Ok(sound)
}

/// Compares the profiles with their source, and prints a line for each that differs. Returns true if there is none.
pub(crate) fn check() -> Result<bool> {
    let source = source()?;
    let mut sound = true;
    for form in FORMS {
        let file = form.file;
        let text =
            fs::read_to_string(workspace().join(file)).with_context(|| format!("cannot read {file}"))?;
        if text != form.of(&source) {
            eprintln!("{file}: differs from {SOURCE} (try: cargo xtask profiles)");
            sound = false;
        }
    }
    Ok(sound)
}

/// Returns the steps that compile everything: name and command. The programs for them are downloaded first.
pub(crate) fn steps() -> Result<Vec<(String, Command)>> {
    let mut steps = Vec::new();
    for form in FORMS {
        let mut command = form.parser()?;
        command
            .args([
                "--skip-kernel-load",
                "--skip-cache",
                "--warn=all",
                "--Werror=all",
                "--kernel-features",
            ])
            .arg(form.root()?.join("etc/apparmor.d/abi").join(form.abi))
            .arg(workspace().join(form.file));
        steps.push((format!("compile the AppArmor profile, ABI {}", form.abi), command));
    }
    steps.push(("compile the SELinux module".to_owned(), selinux()?));
    Ok(steps)
}

fn source() -> Result<String> {
    fs::read_to_string(workspace().join(SOURCE)).with_context(|| format!("cannot read {SOURCE}"))
}

impl Form {
    /// Returns this form of the source.
    fn of(&self, source: &str) -> String {
        let mut text = String::new();
        for line in source.lines() {
            let own = format!("@{}@", self.abi);
            let line = match line.strip_prefix(&own) {
                Some(line) => line,
                None if line.starts_with('@') => continue,
                None => line,
            };
            text.push_str(line);
            text.push('\n');
        }
        let name = Path::new(self.file).file_name().unwrap_or_default();
        text.replace("@ABI@", self.abi)
            .replace("@FILE@", &name.to_string_lossy())
            .replace("@RELEASES@", self.releases)
    }

    /// Returns a command of the parser, with its abstractions. It can be executed in a machine with this machine's files.
    pub(crate) fn parser(&self) -> Result<Command> {
        let root = self.root()?;
        // The parser of a newer release needs that release's C library.
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        command
            .arg("--library-path")
            .arg(libraries)
            .arg(root.join("usr/sbin/apparmor_parser"))
            .arg("--base")
            .arg(root.join("etc/apparmor.d"))
            .args(["--config-file", "/dev/null"]);
        Ok(command)
    }

    /// Returns the directory with the parser's files.
    pub(crate) fn root(&self) -> Result<PathBuf> {
        let root = target().join(self.parser);
        self.debian.unpack(&root, &["apparmor"])?;
        Ok(root.canonicalize()?)
    }
}

/// Returns the command that compiles the SELinux module in the build directory.
fn selinux() -> Result<Command> {
    let root = target().join("selinux");
    DEBIAN_12.unpack(
        &root,
        &[
            "checkpolicy",
            "gawk",
            "m4",
            "make",
            "selinux-policy-dev",
            "semodule-utils",
        ],
    )?;
    let root = root.canonicalize()?;
    let scratch = target().join("selinux-module");
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch)?;
    for name in ["pontoon.te", "pontoon.fc", "pontoon.if"] {
        fs::copy(workspace().join("dist/selinux").join(name), scratch.join(name))?;
    }
    let programs = root.join("usr/bin");
    let mut command = Command::new("make");
    command
        .args(["-s", "-f"])
        .arg(root.join("usr/share/selinux/devel/Makefile"))
        .arg(format!("SHAREDIR={}", root.join("usr/share/selinux").display()))
        .arg(format!("BINDIR={}", programs.display()))
        .arg(format!("M4={}", programs.join("m4").display()))
        .arg(format!("AWK={}", programs.join("gawk").display()))
        .args(["NAME=default", "pontoon.pp"])
        .current_dir(scratch);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_another_form_are_omitted() {
        let source = "abi <abi/@ABI@>,\n@4.0@  userns,\n  # @FILE@ @RELEASES@\n";
        assert_eq!(
            ABI_4.of(source),
            format!("abi <abi/4.0>,\n  userns,\n  # pontoon {}\n", ABI_4.releases)
        );
        assert_eq!(
            ABI_3.of(source),
            format!("abi <abi/3.0>,\n  # pontoon.abi-3.0 {}\n", ABI_3.releases)
        );
    }

    #[test]
    fn profiles_are_those_of_their_source() {
        assert!(check().unwrap());
    }

    #[test]
    fn only_the_newer_form_has_rules_for_user_namespaces() {
        let source = source().unwrap();
        let has_rule = |form: &Form| form.of(&source).lines().any(|line| line.trim() == "userns,");
        assert!(has_rule(&ABI_4) && !has_rule(&ABI_3));
    }
}
