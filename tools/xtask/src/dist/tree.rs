//! The files of the packages. Each target has a directory `package`, to which the metadata in `app/cli/Cargo.toml` refers:
//! `pontoon`, the program; `zsh`, whose place differs between distributions; and `root`, all other files by their paths.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::build::Build;
use super::{Target, output_of};

/// Files of the source tree and their paths in a package.
const FILES: &[(&str, &str)] = &[
    ("dist/apparmor/pontoon", "usr/share/pontoon/apparmor/pontoon"),
    (
        "dist/apparmor/pontoon.abi-3.0",
        "usr/share/pontoon/apparmor/pontoon.abi-3.0",
    ),
    ("dist/selinux/pontoon.fc", "usr/share/pontoon/selinux/pontoon.fc"),
    ("dist/selinux/pontoon.if", "usr/share/pontoon/selinux/pontoon.if"),
    ("dist/selinux/pontoon.te", "usr/share/pontoon/selinux/pontoon.te"),
    (
        "dist/systemd/pontoon-relay.service",
        "usr/lib/systemd/system/pontoon-relay.service",
    ),
    (
        "dist/systemd/pontoon-netns@.service",
        "usr/lib/systemd/system/pontoon-netns@.service",
    ),
    (
        "dist/systemd/pontoon-vm@.service",
        "usr/lib/systemd/user/pontoon-vm@.service",
    ),
    ("CHANGELOG.md", "usr/share/doc/pontoon/CHANGELOG.md"),
    ("LICENSE-APACHE", "usr/share/doc/pontoon/LICENSE-APACHE"),
    ("LICENSE-MIT", "usr/share/doc/pontoon/LICENSE-MIT"),
    ("README.md", "usr/share/doc/pontoon/README.md"),
    ("SECURITY.md", "usr/share/doc/pontoon/SECURITY.md"),
];

const MANUALS: &str = "usr/share/man/man1";
const DOCUMENTS: &str = "usr/share/doc/pontoon/docs";

/// The directory of the files for one target.
pub(super) struct Tree {
    directory: PathBuf,
}

impl Tree {
    /// Returns the directory for `target`, which is created empty.
    pub(super) fn create(build: &Build, target: &Target) -> Result<Self> {
        let directory = build.directory(target).join("package");
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Self { directory })
    }

    /// Returns the path of the program.
    pub(super) fn program(&self) -> PathBuf {
        self.directory.join("pontoon")
    }

    /// Adds all files except the program. Manual pages and completion scripts are printed by `generator`, a program that
    /// runs on this machine.
    pub(super) fn fill(&self, build: &Build, generator: &Path, licences: &str) -> Result<()> {
        for (from, to) in FILES {
            self.copy(&build.source.join(from), to)?;
        }
        for document in sorted(&build.source.join("docs"))? {
            if let Some(name) = document.file_name().filter(|_| document.is_file()) {
                self.copy(&document, &format!("{DOCUMENTS}/{}", name.to_string_lossy()))?;
            }
        }
        self.write("usr/share/doc/pontoon/THIRD-PARTY-LICENCES", licences)?;
        let printed = |arguments: &[&str]| {
            let mut command = Command::new(generator);
            command.args(arguments);
            // The last newline is part of the script.
            output_of(command).map(|text| text + "\n")
        };
        self.write(
            "usr/share/bash-completion/completions/pontoon",
            &printed(&["completions", "bash"])?,
        )?;
        self.write(
            "usr/share/fish/vendor_completions.d/pontoon.fish",
            &printed(&["completions", "fish"])?,
        )?;
        let zsh = self.directory.join("zsh");
        fs::create_dir_all(&zsh)?;
        fs::write(zsh.join("_pontoon"), printed(&["completions", "zsh"])?)?;
        let manuals = self.root().join(MANUALS);
        printed(&["man", "--output", &manuals.to_string_lossy()])?;
        let mut gzip = Command::new("gzip");
        gzip.args(["-9", "--no-name"]).args(sorted(&manuals)?);
        output_of(gzip)?;
        Ok(())
    }

    /// Writes a tarball whose only entry, `name`, is a directory for `/usr/local` or a directory of a user.
    pub(super) fn tarball(&self, build: &Build, name: &str, output: &Path) -> Result<()> {
        let scratch = self.directory.join("tar");
        let top = scratch.join(name);
        copy_all(&self.root().join("usr"), &top)?;
        for (from, to) in [
            (self.program(), "bin/pontoon"),
            (
                self.directory.join("zsh/_pontoon"),
                "share/zsh/site-functions/_pontoon",
            ),
        ] {
            copy(&from, &top.join(to))?;
        }
        let mut tar = tar(build, output);
        tar.arg("--directory").arg(&scratch).arg(name);
        output_of(tar)?;
        Ok(())
    }

    fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    fn copy(&self, from: &Path, to: &str) -> Result<()> {
        copy(from, &self.root().join(to))
    }

    fn write(&self, to: &str, text: &str) -> Result<()> {
        let to = self.root().join(to);
        make_parent(&to)?;
        fs::write(&to, text).with_context(|| format!("cannot write {}", to.display()))
    }
}

/// Returns the command that writes a compressed tarball, without the names of its entries.
pub(super) fn tar(build: &Build, output: &Path) -> Command {
    let mut tar = build.command("tar");
    tar.args([
        "--create",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
    ])
    .args([
        "--format=ustar",
        "--mode=u=rwX,go=rX",
        "--use-compress-program=gzip -9n",
    ])
    .arg(format!("--mtime=@{}", build.epoch))
    .arg("--file")
    .arg(output);
    tar
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    make_parent(to)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

/// Copies all files below a directory.
fn copy_all(from: &Path, to: &Path) -> Result<()> {
    for entry in sorted(from)? {
        let to = to.join(entry.file_name().map_or_else(OsString::new, OsString::from));
        match entry.is_dir() {
            true => copy_all(&entry, &to)?,
            false => copy(&entry, &to)?,
        }
    }
    Ok(())
}

fn make_parent(of: &Path) -> Result<()> {
    let parent = of.parent().context("a file without a directory")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))
}

/// Returns the paths of the entries of a directory, sorted.
fn sorted(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}
