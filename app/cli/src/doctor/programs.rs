//! Check of the search path for programs with the names of compatible command lines.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use pontoon_process::Fix;
use pontoon_supervisor::doctor::{Check, Status};

use crate::compat::is_pontoon;

const NAME: &str = "program-names";

/// Program that precedes a link to Pontoon of the same name.
struct Shadowed<'a> {
    name: &'static str,
    /// Path of the program.
    by: PathBuf,
    /// Directory of the link.
    link: &'a Path,
}

/// Checks that no program in the search path precedes a link of the same name to Pontoon.
pub(super) fn check(directories: &[PathBuf], names: impl Iterator<Item = &'static str>) -> Check {
    let mut linked = Vec::new();
    let mut shadowed = Vec::new();
    for name in names {
        let mut programs = directories
            .iter()
            .filter(|directory| is_program(&directory.join(name)));
        let first = programs.next();
        let is_link = |directory: &&PathBuf| is_pontoon(&directory.join(name));
        match (first, first.into_iter().chain(programs).find(is_link)) {
            (Some(first), Some(link)) if first == link => linked.push(name),
            (Some(first), Some(link)) => shadowed.push(Shadowed {
                name,
                by: first.join(name),
                link,
            }),
            _ => {}
        }
    }
    let Some(first) = shadowed.first() else {
        return Check::ok(
            NAME,
            match linked.is_empty() {
                true => "no link to pontoon has the name of another program".to_owned(),
                false => format!("executed as {}", linked.join(", ")),
            },
        );
    };
    let list = shadowed.iter().map(|shadowed| {
        let link = shadowed.link.join(shadowed.name);
        format!("{} precedes {} in PATH", shadowed.by.display(), link.display())
    });
    let names = shadowed
        .iter()
        .map(|shadowed| shadowed.name)
        .collect::<Vec<_>>()
        .join(" and ");
    Check::finding(
        Status::Loss,
        NAME,
        list.collect::<Vec<_>>().join("; "),
        format!("programs that execute {names} do not execute Pontoon"),
        Fix::user(format!("export PATH={}:$PATH", quoted(first.link.as_os_str()))),
    )
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Returns a path as a word of a shell.
fn quoted(path: &OsStr) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    match text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Creates a directory with programs and, for names with an asterisk, links to a program `pontoon`.
    fn directory(at: &Path, place: &str, names: &[&str]) -> PathBuf {
        let directory = at.join(place);
        fs::create_dir(&directory).unwrap();
        for name in names {
            match name.strip_suffix('*') {
                Some(name) => symlink(at.join("pontoon"), directory.join(name)).unwrap(),
                None => executable(&directory.join(name)),
            }
        }
        directory
    }

    fn executable(path: &Path) {
        fs::write(path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn judge(directories: &[PathBuf]) -> Check {
        check(directories, ["pasta", "slirp4netns"].into_iter())
    }

    #[test]
    fn program_before_a_link_is_a_loss() {
        let at = tempfile::tempdir().unwrap();
        executable(&at.path().join("pontoon"));
        let system = directory(at.path(), "system", &["pasta", "slirp4netns"]);
        let own = directory(at.path(), "own", &["pasta*", "slirp4netns*"]);
        let ours = directory(at.path(), "one of ours", &["pasta*"]);
        let found = judge(&[system.clone(), own.clone()]);
        assert_eq!(found.status, Status::Loss);
        let (system_pasta, own_pasta) = (system.join("pasta"), own.join("pasta"));
        let begin = format!(
            "{} precedes {} in PATH; ",
            system_pasta.display(),
            own_pasta.display()
        );
        assert!(found.found.starts_with(&begin), "{}", found.found);
        let command = format!("export PATH={}:$PATH", own.display());
        assert_eq!(found.fix, Some(Fix::user(command)));
        assert_eq!(
            judge(&[own.clone(), system.clone()]).found,
            "executed as pasta, slirp4netns"
        );
        let found = judge(&[system.clone(), ours.clone()]);
        assert!(found.fix.unwrap().command.contains("/one of ours':$PATH"));
        assert_eq!(judge(&[ours, system]).found, "executed as pasta");
    }

    #[test]
    fn programs_without_links_are_no_finding() {
        let at = tempfile::tempdir().unwrap();
        let system = directory(at.path(), "system", &["pasta"]);
        // A link without a target is not executed.
        let broken = directory(at.path(), "broken", &["pasta*"]);
        for directories in [vec![], vec![system.clone()], vec![system, broken]] {
            let found = judge(&directories);
            assert_eq!(found.status, Status::Ok);
            assert_eq!(found.found, "no link to pontoon has the name of another program");
        }
    }
}
