//! Check of the confinement that Pontoon inherits: security modules, filters of system calls, `no_new_privs`, chroot.

use super::Check;
use crate::guest::userns::confinement::{Confinement, Label};

const NAME: &str = "confinement";

/// Describes the confinement. It is no finding by itself: a step that it denies is one of another check.
pub(super) fn check() -> Check {
    Check::ok(NAME, describe(&Confinement::read()))
}

fn describe(confinement: &Confinement) -> String {
    let mut parts = Vec::new();
    match &confinement.label {
        Some(Label::AppArmor(label)) if label == "unconfined" => {}
        Some(label) => parts.push(label.to_string()),
        None => {}
    }
    if confinement.filter {
        parts.push("a filter of system calls (seccomp)".to_owned());
    }
    if confinement.no_new_privs {
        parts.push("no_new_privs".to_owned());
    }
    if confinement.chroot {
        parts.push("a chroot".to_owned());
    }
    match parts.is_empty() {
        true => "none".to_owned(),
        false => parts.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_described() {
        assert_eq!(describe(&Confinement::default()), "none");
        let container = Confinement {
            label: Label::parse("docker-default (enforce)\n"),
            selinux_enforcing: None,
            filter: true,
            no_new_privs: true,
            chroot: true,
        };
        assert_eq!(
            describe(&container),
            "AppArmor: docker-default (enforce); a filter of system calls (seccomp); no_new_privs; a chroot"
        );
        let free = Confinement {
            label: Label::parse("unconfined\n"),
            ..Confinement::default()
        };
        assert_eq!(describe(&free), "none");
    }
}
