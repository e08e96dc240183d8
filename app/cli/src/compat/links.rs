//! Symbolic links by which Pontoon is executed under the names of other programs.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// Creates a link to this program in `directory` for each of `names`: all of them, or none. Existing links to a
/// `pontoon` are replaced. Returns a line for each link.
///
/// # Errors
/// Another file has one of the names, or a link cannot be created.
pub(super) fn install<'a>(directory: &Path, names: impl Iterator<Item = &'a str>) -> Result<String> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    install_to(&program, directory, names)
}

fn install_to<'a>(program: &Path, directory: &Path, names: impl Iterator<Item = &'a str>) -> Result<String> {
    let links: Vec<PathBuf> = names.map(|name| directory.join(name)).collect();
    for link in &links {
        if existing(link)? == Existing::Other {
            bail!(
                "{} exists and is not a link to pontoon (try: another directory)",
                link.display()
            );
        }
    }
    let mut lines = String::new();
    for link in &links {
        let shown = link.display();
        let new = link.with_extension(format!("pontoon-{}", std::process::id()));
        // rename(2) replaces an existing link, so that the name always exists.
        symlink(program, &new)
            .and_then(|()| fs::rename(&new, link).inspect_err(|_| drop(fs::remove_file(&new))))
            .with_context(|| format!("cannot create the link {shown}"))?;
        lines += &format!("{shown} -> {}\n", program.display());
    }
    Ok(lines)
}

/// Removes the links of `names` in `directory` that lead to a `pontoon`, and no other files. Returns a line for each
/// existing file.
///
/// # Errors
/// A link cannot be removed.
pub(super) fn remove<'a>(directory: &Path, names: impl Iterator<Item = &'a str>) -> Result<String> {
    let mut lines = String::new();
    for link in names.map(|name| directory.join(name)) {
        let shown = link.display();
        match existing(&link)? {
            Existing::Absent => {}
            Existing::Other => lines += &format!("{shown} is not a link to pontoon, and was not removed\n"),
            Existing::Ours => {
                fs::remove_file(&link).with_context(|| format!("cannot remove {shown}"))?;
                lines += &format!("{shown} removed\n");
            }
        }
    }
    Ok(lines)
}

/// File at the path of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existing {
    Absent,
    /// A link to a file with the name `pontoon`, which may be missing.
    Ours,
    Other,
}

/// Returns true if a file is a link to a file with the name `pontoon`.
pub(crate) fn is_pontoon(link: &Path) -> bool {
    existing(link).is_ok_and(|existing| existing == Existing::Ours)
}

fn existing(link: &Path) -> Result<Existing> {
    let target = match fs::symlink_metadata(link) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Existing::Absent),
        Err(error) => Err(error),
        Ok(file) if !file.is_symlink() => return Ok(Existing::Other),
        Ok(_) => fs::read_link(link),
    };
    let target = target.with_context(|| format!("cannot inspect {}", link.display()))?;
    Ok(match target.file_name().is_some_and(|name| name == "pontoon") {
        true => Existing::Ours,
        false => Existing::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["one", "two"];

    fn install(program: &str, directory: &Path) -> Result<String> {
        install_to(Path::new(program), directory, NAMES.into_iter())
    }

    #[test]
    fn links_to_pontoon_are_replaced_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for program in ["/missing/pontoon", "/other/pontoon"] {
            install(program, directory.path()).unwrap();
            for name in NAMES {
                assert_eq!(fs::read_link(at(name)).unwrap(), Path::new(program));
            }
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
        remove(directory.path(), NAMES.into_iter()).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        remove(directory.path(), NAMES.into_iter()).unwrap();
    }

    #[test]
    fn other_files_are_neither_replaced_nor_removed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let make: [fn(&Path); 3] = [
            |path| fs::write(path, "precious").unwrap(),
            |path| symlink("/usr/bin/slirp4netns", path).unwrap(),
            |path| fs::create_dir(path).unwrap(),
        ];
        for make in make {
            make(&at("two"));
            let error = install("/x/pontoon", directory.path()).unwrap_err().to_string();
            let expected = format!("{} exists and is not a link to pontoon", at("two").display());
            assert!(error.starts_with(&expected), "{error}");
            // No link was created.
            assert!(!at("one").exists() && fs::symlink_metadata(at("one")).is_err());
            remove(directory.path(), NAMES.into_iter()).unwrap();
            fs::remove_file(at("two"))
                .or_else(|_| fs::remove_dir(at("two")))
                .unwrap();
        }
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let error = install("/x/pontoon", Path::new("/missing/bin")).unwrap_err();
        assert!(
            format!("{error:#}").starts_with("cannot create the link /missing/bin/one: "),
            "{error:#}"
        );
    }
}
