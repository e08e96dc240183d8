//! The crates that a program contains: a list in the format of CycloneDX, and the texts of their licences.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::build::Build;
use super::{Target, output_of};

/// Stem of the files that cargo-cyclonedx writes beside each manifest of the workspace.
const STEM: &str = "pontoon-components";

/// Notices of the libraries that the toolchain links: musl, and Rust's standard library.
const TOOLCHAIN: &str = "dist/licences/toolchain.txt";

/// A package of the workspace from which something is built, and its directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Built {
    pub(super) package: &'static str,
    pub(super) directory: &'static str,
}

/// The program.
pub(super) const PROGRAM: Built = Built {
    package: "pontoon-cli",
    directory: "app/cli",
};

/// The library for C.
pub(super) const LIBRARY: Built = Built {
    package: "pontoon-c",
    directory: "app/c",
};

/// Returns the list of components in JSON. Paths of this machine are replaced.
pub(super) fn list(build: &Build, target: &Target, built: Built) -> Result<String> {
    let directory = built.directory;
    let mut command = build.cargo();
    command
        .args(["cyclonedx", "-qq", "--format", "json", "--spec-version", "1.5"])
        .args(["--target", target.triple, "--override-filename", STEM])
        .args(["--manifest-path", &format!("{directory}/Cargo.toml")]);
    output_of(command)?;
    let written = build.source.join(format!("{directory}/{STEM}.json"));
    let list = fs::read_to_string(&written).with_context(|| format!("cannot read {}", written.display()));
    // It also writes lists of the other packages of the workspace.
    for manifest in members(build)? {
        let _ = fs::remove_file(manifest.with_file_name(format!("{STEM}.json")));
    }
    Ok(list?.replace(&*build.source.to_string_lossy(), "/pontoon"))
}

/// Returns the manifests of the workspace.
fn members(build: &Build) -> Result<Vec<PathBuf>> {
    let metadata = metadata(build, &["--no-deps"])?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    Ok(packages
        .filter_map(|package| package["manifest_path"].as_str())
        .map(PathBuf::from)
        .collect())
}

fn metadata(build: &Build, arguments: &[&str]) -> Result<Value> {
    let mut command = build.cargo();
    command
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(arguments);
    serde_json::from_str(&output_of(command)?).context("cargo metadata printed invalid JSON")
}

/// Returns the texts of the licences of all crates in what is built, each with the crates to which it applies.
pub(super) fn licences(build: &Build, target: &Target, built: Built) -> Result<String> {
    let metadata = metadata(build, &["--filter-platform", target.triple])?;
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut all = String::from("Components of the program that are not part of Pontoon:\n\n");
    for package in linked(&metadata, built.package) {
        let field = |name: &str| package[name].as_str().unwrap_or_default();
        let (name, licence) = (
            format!("{} {}", field("name"), field("version")),
            field("license"),
        );
        all += &format!("{name}: {licence}\n");
        let directory = Path::new(field("manifest_path")).parent();
        for text in texts_in(directory.context("a manifest without a directory")?)? {
            texts.entry(text).or_default().insert(name.clone());
        }
    }
    let toolchain = fs::read_to_string(build.source.join(TOOLCHAIN))
        .with_context(|| format!("cannot read {TOOLCHAIN}"))?;
    texts.insert(toolchain, BTreeSet::from(["musl, Rust".to_owned()]));
    for (text, crates) in texts {
        let crates: Vec<_> = crates.into_iter().collect();
        all += &format!(
            "\n{}\n{}\n\n{}\n",
            "-".repeat(72),
            crates.join(", "),
            text.trim_end()
        );
    }
    Ok(all)
}

/// Returns the packages of other projects whose code is linked: dependencies of `package` that are neither for tests nor for the
/// build.
fn linked<'m>(metadata: &'m Value, package: &str) -> Vec<&'m Value> {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let mut dependencies: HashMap<String, Vec<String>> = HashMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let linked = list(&node["deps"])
            .into_iter()
            .filter(|dependency| {
                list(&dependency["dep_kinds"])
                    .iter()
                    .any(|kind| kind["kind"].is_null())
            })
            .filter_map(|dependency| dependency["pkg"].as_str().map(str::to_owned))
            .collect();
        dependencies.insert(node["id"].as_str().unwrap_or_default().to_owned(), linked);
    }
    let packages: Vec<&Value> = metadata["packages"].as_array().into_iter().flatten().collect();
    let start = packages.iter().find(|one| one["name"] == package);
    let mut waiting: Vec<String> = start
        .and_then(|package| package["id"].as_str())
        .map(str::to_owned)
        .into_iter()
        .collect();
    let mut found = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if found.insert(id.clone()) {
            waiting.extend(dependencies.get(&id).cloned().unwrap_or_default());
        }
    }
    packages
        .into_iter()
        .filter(|package| package["id"].as_str().is_some_and(|id| found.contains(id)))
        .filter(|package| !package["source"].is_null())
        .collect()
}

/// Returns the licences and notices in the directory of a crate. Of a crate with a choice of licences, MIT is chosen.
fn texts_in(directory: &Path) -> Result<Vec<String>> {
    let is_licence = |name: &str| {
        let name = name.to_uppercase();
        [
            "LICENSE",
            "LICENCE",
            "COPYING",
            "COPYRIGHT",
            "NOTICE",
            "UNLICENSE",
        ]
        .iter()
        .any(|prefix| name.starts_with(prefix))
    };
    let mut names: Vec<String> = fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_licence(name) && directory.join(name).is_file())
        .collect();
    names.sort();
    if names.iter().any(|name| name.to_uppercase().contains("MIT")) {
        names.retain(|name| !name.to_uppercase().contains("APACHE"));
    }
    names
        .iter()
        .map(|name| {
            let path = directory.join(name);
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(String::from_utf8_lossy(&bytes).replace('\r', ""))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_in_the_program_are_found_without_those_of_tests_and_builds() {
        let metadata = serde_json::json!({
            "packages": [
                {"id": "a", "name": "pontoon-cli", "source": null},
                {"id": "b", "name": "linked", "source": "registry"},
                {"id": "c", "name": "below", "source": "registry"},
                {"id": "d", "name": "tested", "source": "registry"},
            ],
            "resolve": {"nodes": [
                {"id": "a", "deps": [
                    {"pkg": "b", "dep_kinds": [{"kind": null}, {"kind": "dev"}]},
                    {"pkg": "d", "dep_kinds": [{"kind": "dev"}, {"kind": "build"}]},
                ]},
                {"id": "b", "deps": [{"pkg": "c", "dep_kinds": [{"kind": null}]}]},
            ]},
        });
        let names: Vec<_> = linked(&metadata, "pontoon-cli")
            .iter()
            .map(|package| package["name"].clone())
            .collect();
        assert_eq!(names, ["linked", "below"]);
    }

    #[test]
    fn mit_is_chosen_where_there_is_a_choice() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["LICENSE-APACHE", "LICENSE-MIT", "NOTICE", "README.md"] {
            fs::write(directory.path().join(name), name).unwrap();
        }
        assert_eq!(texts_in(directory.path()).unwrap(), ["LICENSE-MIT", "NOTICE"]);
        fs::remove_file(directory.path().join("LICENSE-MIT")).unwrap();
        assert_eq!(texts_in(directory.path()).unwrap(), ["LICENSE-APACHE", "NOTICE"]);
    }
}
