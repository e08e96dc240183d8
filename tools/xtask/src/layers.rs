//! Checks the direction of dependencies between the folders of the workspace: core <- virtio <- io <- app. `test` and
//! `bench` are leaves: no product crate depends on them, except that tests may use `test`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{cargo, workspace};

/// Checks the workspace, and prints one line for each violation. Returns true if there is none.
pub(crate) fn check() -> Result<bool> {
    let output = cargo(&["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed");
    let metadata = serde_json::from_slice(&output.stdout).context("cargo metadata printed invalid JSON")?;
    let packages = packages(&metadata, &workspace().canonicalize()?)?;
    let violations = violations(&packages);
    for violation in &violations {
        eprintln!("{violation}");
    }
    Ok(violations.is_empty())
}

/// A package of the workspace and its dependencies within the workspace.
struct WorkspacePackage {
    name: String,
    /// First component of the package's path: `core`, `app`, ...
    layer: String,
    dependencies: Vec<Dependency>,
}

/// A dependency of a package on another package of the workspace.
struct Dependency {
    name: String,
    /// True for an entry of `dev-dependencies`.
    dev: bool,
}

/// Reads packages from the output of `cargo metadata`.
fn packages(metadata: &Value, root: &Path) -> Result<Vec<WorkspacePackage>> {
    let list = metadata["packages"]
        .as_array()
        .context("cargo metadata printed no packages")?;
    list.iter().map(|package| read(package, root)).collect()
}

fn read(package: &Value, root: &Path) -> Result<WorkspacePackage> {
    let manifest = package["manifest_path"]
        .as_str()
        .context("cargo metadata printed a package without manifest_path")?;
    let layer = Path::new(manifest)
        .strip_prefix(root)?
        .components()
        .next()
        .context("a manifest without a folder")?;
    let dependencies = package["dependencies"]
        .as_array()
        .context("cargo metadata printed a package without dependencies")?;
    Ok(WorkspacePackage {
        name: package["name"].as_str().context("no name")?.to_owned(),
        layer: layer.as_os_str().to_string_lossy().into_owned(),
        dependencies: dependencies
            .iter()
            .filter_map(|dependency| {
                Some(Dependency {
                    name: dependency["name"].as_str()?.to_owned(),
                    dev: dependency["kind"] == "dev",
                })
            })
            .collect(),
    })
}

/// Returns one line for each dependency that is not allowed.
fn violations(packages: &[WorkspacePackage]) -> Vec<String> {
    let layers: BTreeMap<&str, &str> = packages
        .iter()
        .map(|package| (package.name.as_str(), package.layer.as_str()))
        .collect();
    let mut lines = Vec::new();
    for package in packages {
        for dependency in &package.dependencies {
            // A package that is not in the map is a third-party crate.
            let Some(&to) = layers.get(dependency.name.as_str()) else {
                continue;
            };
            if !is_allowed(&package.layer, to, dependency) {
                lines.push(format!(
                    "{} ({}) must not depend on {} ({to}){}",
                    package.name,
                    package.layer,
                    dependency.name,
                    if dependency.dev {
                        " in dev-dependencies"
                    } else {
                        ""
                    },
                ));
            }
        }
    }
    lines
}

/// Returns true if a package in the folder `from` may have a dependency in the folder `to`.
fn is_allowed(from: &str, to: &str, dependency: &Dependency) -> bool {
    let below: &[&str] = match from {
        "core" => &["core"],
        "virtio" => &["core", "virtio"],
        "io" => &["core", "virtio", "io"],
        "app" => &["core", "virtio", "io", "app"],
        "examples" => &["core", "virtio", "io", "app", "examples"],
        "bench" => return !(to == "app" && dependency.name == "pontoon-cli"),
        "test" | "tools" => return true,
        // A new folder needs a rule here.
        _ => &[],
    };
    below.contains(&to) || (dependency.dev && to == "test")
}

#[cfg(test)]
mod tests {
    use super::{Dependency, WorkspacePackage, packages, violations};

    const FOLDERS: [(&str, &str); 7] = [
        ("pontoon-wire", "core"),
        ("pontoon-ring", "virtio"),
        ("pontoon-sys", "io"),
        ("pontoon-cli", "app"),
        ("pontoon-simnet", "test"),
        ("pontoon-bench", "bench"),
        ("pontoon-microvm", "examples"),
    ];

    /// Returns the violations of a workspace in which a package in folder `from` has one dependency, on a package in
    /// `to`.
    fn judge(from: &str, to: &str, dev: bool) -> Vec<String> {
        let package = |&(name, layer): &(&str, &str)| WorkspacePackage {
            name: name.to_owned(),
            layer: layer.to_owned(),
            dependencies: if name == from {
                let name = to.to_owned();
                vec![Dependency { name, dev }]
            } else {
                Vec::new()
            },
        };
        violations(&FOLDERS.iter().map(package).collect::<Vec<_>>())
    }

    #[test]
    fn dependencies_on_lower_folders_are_allowed() {
        for (index, (from, _)) in FOLDERS.iter().enumerate().take(4) {
            for (to, _) in &FOLDERS[..=index] {
                assert!(judge(from, to, false).is_empty(), "{from} -> {to}");
            }
        }
        assert!(judge("pontoon-wire", "serde", false).is_empty());
        assert!(judge("pontoon-bench", "pontoon-simnet", false).is_empty());
        assert!(judge("pontoon-simnet", "pontoon-cli", false).is_empty());
    }

    #[test]
    fn dependency_on_a_higher_folder_is_reported_in_one_line() {
        let line = "pontoon-wire (core) must not depend on pontoon-sys (io)";
        assert_eq!(judge("pontoon-wire", "pontoon-sys", false), [line]);
        assert_eq!(judge("pontoon-ring", "pontoon-sys", false).len(), 1);
        assert_eq!(judge("pontoon-sys", "pontoon-cli", false).len(), 1);
        assert_eq!(judge("pontoon-bench", "pontoon-cli", false).len(), 1);
    }

    #[test]
    fn only_dev_dependencies_may_name_test_and_none_may_name_bench() {
        assert_eq!(judge("pontoon-cli", "pontoon-simnet", false).len(), 1);
        assert!(judge("pontoon-cli", "pontoon-simnet", true).is_empty());
        let line = "pontoon-cli (app) must not depend on pontoon-bench (bench) in dev-dependencies";
        assert_eq!(judge("pontoon-cli", "pontoon-bench", true), [line]);
        assert_eq!(judge("pontoon-microvm", "pontoon-bench", false).len(), 1);
    }

    #[test]
    fn folder_is_the_first_component_of_the_manifest_path() {
        let metadata = serde_json::json!({"packages": [{
            "name": "pontoon-engine",
            "manifest_path": "/w/core/engine/Cargo.toml",
            "dependencies": [
                {"name": "pontoon-wire", "kind": null},
                {"name": "proptest", "kind": "dev"},
            ],
        }]});
        let read = packages(&metadata, "/w".as_ref()).expect("packages");
        assert_eq!(read[0].layer, "core");
        let dev: Vec<bool> = read[0]
            .dependencies
            .iter()
            .map(|dependency| dependency.dev)
            .collect();
        assert_eq!(dev, [false, true]);
    }
}
