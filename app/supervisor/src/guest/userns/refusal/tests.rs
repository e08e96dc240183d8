//! Reasons of refusals from constructed circumstances.

use super::*;

/// Returns the reason of an error with this number in these circumstances.
fn of(circumstances: &Circumstances, step: Step, number: i32) -> Reason {
    circumstances.reason(step, &io::Error::from_raw_os_error(number))
}

fn confined(label: &str) -> Circumstances {
    Circumstances {
        confinement: Confinement {
            label: Label::parse(label),
            ..Confinement::default()
        },
        ..Circumstances::default()
    }
}

#[test]
fn each_sysctl_is_found() {
    let none = Circumstances::default();
    let disabled = Circumstances {
        most: Some(0),
        ..none.clone()
    };
    assert_eq!(of(&disabled, Step::Creation, libc::ENOSPC), Reason::Disabled);
    let few = Circumstances {
        most: Some(3),
        ..none.clone()
    };
    assert_eq!(of(&few, Step::Creation, libc::ENOSPC), Reason::Limit(Some(3)));
    assert_eq!(of(&none, Step::Creation, libc::EUSERS), Reason::Limit(None));
    let users = Circumstances {
        unprivileged: Some(0),
        ..none.clone()
    };
    assert_eq!(of(&users, Step::Creation, libc::EPERM), Reason::DisabledForUsers);
    let apparmor = Circumstances {
        apparmor: Some(1),
        ..none
    };
    assert_eq!(of(&apparmor, Step::Use, libc::EPERM), Reason::AppArmorRestriction);
}

#[test]
fn restriction_of_apparmor_is_distinguished_from_other_profiles() {
    let permitted = Circumstances {
        apparmor: Some(1),
        ..confined("unprivileged_userns (enforce)\n")
    };
    for number in [libc::EPERM, libc::EACCES] {
        assert_eq!(of(&permitted, Step::Use, number), Reason::AppArmorRestriction);
    }
    // A host without that profile refuses the creation.
    let refused = Circumstances {
        apparmor: Some(1),
        ..confined("unconfined\n")
    };
    assert_eq!(
        of(&refused, Step::Creation, libc::EACCES),
        Reason::AppArmorRestriction
    );
    let docker = Circumstances {
        apparmor: Some(1),
        ..confined("docker-default (enforce)\n")
    };
    let expected = Reason::AppArmorProfile("docker-default (enforce)".to_owned());
    assert_eq!(of(&docker, Step::Use, libc::EACCES), expected);
}

#[test]
fn filters_are_found_before_other_reasons() {
    let filtered = Circumstances {
        filtered: true,
        apparmor: Some(1),
        unprivileged: Some(0),
        ..confined("docker-default (enforce)\n")
    };
    for number in [libc::EPERM, libc::ENOSYS, libc::EACCES] {
        assert_eq!(of(&filtered, Step::Creation, number), Reason::Filter);
    }
    // The limit is checked by the kernel, which the filter has let pass.
    assert_eq!(of(&filtered, Step::Creation, libc::ENOSPC), Reason::Limit(None));
}

#[test]
fn selinux_denies_if_it_enforces() {
    let label = "user_u:user_r:user_t:s0";
    let mut circumstances = confined(label);
    for enforcing in [Some(true), None] {
        circumstances.confinement.selinux_enforcing = enforcing;
        let expected = Reason::SeLinux(label.to_owned());
        assert_eq!(of(&circumstances, Step::Creation, libc::EACCES), expected);
    }
    circumstances.confinement.selinux_enforcing = Some(false);
    let other = of(&circumstances, Step::Creation, libc::EACCES);
    assert!(matches!(other, Reason::Other { denied: true, .. }));
}

#[test]
fn chroot_and_unmapped_users_are_found() {
    let mut circumstances = Circumstances::default();
    circumstances.confinement.chroot = true;
    assert_eq!(of(&circumstances, Step::Creation, libc::EPERM), Reason::Chroot);
    circumstances.unmapped = true;
    assert_eq!(
        of(&circumstances, Step::Creation, libc::EPERM),
        Reason::UnmappedUser
    );
    assert!(maps("         0       1000          1\n", 0));
    assert!(!maps("         0       1000          1\n", 65_534));
    assert!(!maps("", 0));
}

#[test]
fn each_reason_is_an_error_in_one_line_with_a_remedy() {
    let reasons = [
        Reason::Disabled,
        Reason::DisabledForUsers,
        Reason::Limit(Some(7)),
        Reason::AppArmorRestriction,
        Reason::AppArmorProfile("docker-default (enforce)".to_owned()),
        Reason::SeLinux("user_u:user_r:user_t:s0".to_owned()),
        Reason::Filter,
        Reason::Chroot,
        Reason::UnmappedUser,
        Reason::Other {
            text: "operation not permitted".to_owned(),
            denied: true,
        },
    ];
    for reason in reasons {
        let text = reason.error().to_string();
        assert!(text.contains(" (try: ") && !text.contains('\n'), "{text}");
    }
    let text = Reason::Disabled.error().to_string();
    assert_eq!(
        text,
        "user namespaces are disabled: user.max_user_namespaces is 0 (try: as root: sysctl -w user.max_user_namespaces=15000)"
    );
    let short = of(&Circumstances::default(), Step::Creation, libc::EMFILE);
    assert_eq!(
        short.error().to_string(),
        "cannot make a user namespace: too many open files"
    );
}
