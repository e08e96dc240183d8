//! The system calls that the process may make. The list is data: `common`, what each role needs beside it (`engine`,
//! `relay`, `helper`), what one architecture has, and which options of sockets may be set ([`options`]).
//!
//! A call that is on no list returns EPERM and is counted ([`crate::trap`]), so that a library's new habit costs a counter,
//! not the network. For calls that no library here makes and that an intruder needs first (`kill_process`), the kernel kills the
//! process.

use std::collections::BTreeMap;
use std::io;

use libc::{ENOSYS, SYS_clone3, SYS_setsockopt};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod common;
mod engine;
mod helper;
mod kill_process;
pub mod options;
mod relay;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

use crate::layers::Layer;
use crate::trap;

/// Task of a sandboxed process, which selects its list of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The engine process, which opens sockets.
    Engine,
    /// The engine process with `--outbound INTERFACE`, which also binds its sockets to an interface.
    EngineOnInterface,
    /// A worker process of the relay, which receives all descriptors from its supervisor.
    Relay,
    /// The process that opens sockets in the guest's network namespace for the engine.
    SocketHelper,
}

/// A permitted system call, with conditions on its arguments.
#[derive(Clone, Copy, Debug)]
pub struct PermittedCall {
    /// Number of the system call on this architecture.
    pub call: libc::c_long,
    /// Conditions on the arguments, all of which must hold. If there is none, the call is permitted with all arguments.
    pub only: &'static [ArgumentCondition],
    /// Component that makes the call, and its purpose.
    pub reason: &'static str,
}

/// A condition on an argument of a system call: the argument equals one of `values` in the bits of `mask`. Arguments
/// are compared as 32-bit values, because the kernel reads these arguments as such.
#[derive(Clone, Copy, Debug)]
pub struct ArgumentCondition {
    /// Index of the system call's argument, from 0.
    pub argument: u8,
    /// Bits of the argument that are compared.
    pub mask: u32,
    /// Permitted values of the compared bits.
    pub values: &'static [u32],
}

/// Mask with all bits of an argument.
const WHOLE: u32 = u32::MAX;

/// Condition on mmap(2) and mprotect(2) that forbids executable memory, which the process does not need after its
/// start.
const NOT_EXECUTABLE: ArgumentCondition = ArgumentCondition {
    argument: 2,
    mask: libc::PROT_EXEC as u32,
    values: &[0],
};

/// Condition on socket(2) that permits sockets of IPv4 and IPv6 only.
const INTERNET: ArgumentCondition = ArgumentCondition {
    argument: 0,
    mask: WHOLE,
    values: &[libc::AF_INET as u32, libc::AF_INET6 as u32],
};

/// Bits of the socket type in an argument, without SOCK_NONBLOCK and SOCK_CLOEXEC.
const SOCKET_TYPE: u32 = 0xf;

const fn call(call: libc::c_long, reason: &'static str) -> PermittedCall {
    PermittedCall {
        call,
        only: &[],
        reason,
    }
}

const fn only(call: libc::c_long, only: &'static [ArgumentCondition], reason: &'static str) -> PermittedCall {
    PermittedCall { call, only, reason }
}

#[cfg(target_arch = "x86_64")]
const ARCH: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: TargetArch = TargetArch::aarch64;

/// Installs the filters in the calling thread, for this thread and those that it starts later.
///
/// # Errors
/// Too little memory.
pub(crate) fn restrict(role: Role) -> io::Result<Layer> {
    let programs = match programs(role) {
        Ok(programs) => programs,
        Err(error) => return Layer::refused(&error),
    };
    if let Err(error) = trap::install() {
        return Layer::refused(&error);
    }
    for program in &programs {
        if let Err(error) = seccompiler::apply_filter(program) {
            return Layer::refused(&error);
        }
    }
    let (calls, options) = (allowed(role).count(), options::settable(role).count());
    Ok(Layer::Active(format!("{calls} calls, {options} socket options")))
}

/// Returns all permitted system calls of a role on this architecture.
pub fn allowed(role: Role) -> impl Iterator<Item = &'static PermittedCall> {
    let lists = match role {
        Role::Engine | Role::EngineOnInterface => [common::ALLOWED, engine::ALLOWED, arch::ALLOWED],
        Role::Relay => [common::ALLOWED, relay::ALLOWED, arch::ALLOWED],
        // The helper has no event loop and receives no payload.
        Role::SocketHelper => [helper::ALLOWED, &[], &[]],
    };
    lists.into_iter().flatten()
}

/// Returns the four filter programs of a role. The kernel runs all of them and applies the action with the highest
/// precedence (seccomp(2)).
fn programs(role: Role) -> Result<[BpfProgram; 4], BackendError> {
    let killing = kill_process::CALLS.iter().map(|call| (*call, Vec::new()));
    let mut listed = BTreeMap::from([(SYS_clone3, Vec::new())]);
    for entry in allowed(role) {
        listed.insert(entry.call, rules(entry.only)?);
    }
    // The flags of clone3(2) are in memory, which a filter cannot read. After ENOSYS glibc uses clone(2), whose flags
    // are in a register.
    let clone3 = BTreeMap::from([(SYS_clone3, Vec::new())]);
    let refused = BTreeMap::from([(SYS_setsockopt, all_but(options::settable(role))?)]);
    Ok([
        program(
            killing.collect(),
            SeccompAction::Allow,
            SeccompAction::KillProcess,
        )?,
        program(
            clone3,
            SeccompAction::Allow,
            SeccompAction::Errno(ENOSYS.unsigned_abs()),
        )?,
        program(refused, SeccompAction::Allow, SeccompAction::Trap)?,
        program(listed, SeccompAction::Trap, SeccompAction::Allow)?,
    ])
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(rules, otherwise, matched, ARCH)?.try_into()
}

/// Returns one rule for each combination of permitted values; no rule, which permits all arguments, if there is no
/// condition.
fn rules(only: &[ArgumentCondition]) -> Result<Vec<SeccompRule>, BackendError> {
    let mut rules: Vec<Vec<SeccompCondition>> = vec![Vec::new()];
    for ArgumentCondition {
        argument,
        mask,
        values,
    } in only
    {
        let mut longer = Vec::new();
        for (rule, value) in rules
            .iter()
            .flat_map(|rule| values.iter().map(move |value| (rule, *value)))
        {
            let equal = SeccompCmpOp::MaskedEq((*mask).into());
            longer.push([rule.as_slice(), &[condition(*argument, equal, value)?]].concat());
        }
        rules = longer;
    }
    let conditional = rules.into_iter().filter(|rule| !rule.is_empty());
    conditional.map(SeccompRule::new).collect()
}

fn condition(argument: u8, is: SeccompCmpOp, value: u32) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value.into())
}

/// Returns rules that match socket options that are not on the list: a level that does not occur in the list, or a
/// level of the list with a name that does not occur at that level. The usual form, one rule for each permitted option,
/// would compare an option with all entries; these rules skip all levels but one.
fn all_but<'a>(
    settable: impl Iterator<Item = &'a options::SettableOption>,
) -> Result<Vec<SeccompRule>, BackendError> {
    let (level, name) = (1, 2);
    let other = |argument, value: i32| condition(argument, SeccompCmpOp::Ne, value.cast_unsigned());
    let mut levels: BTreeMap<i32, Vec<SeccompCondition>> = BTreeMap::new();
    for option in settable {
        let names = levels.entry(option.level).or_default();
        names.push(other(name, option.name)?);
    }
    let no_level: Result<_, _> = levels.keys().map(|known| other(level, *known)).collect();
    let mut rules = vec![SeccompRule::new(no_level?)?];
    for (known, no_name) in levels {
        let this = condition(level, SeccompCmpOp::Eq, known.cast_unsigned())?;
        rules.push(SeccompRule::new([vec![this], no_name].concat())?);
    }
    Ok(rules)
}

#[cfg(test)]
const ROLES: [Role; 4] = [
    Role::Engine,
    Role::EngineOnInterface,
    Role::Relay,
    Role::SocketHelper,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_occur_once_and_have_a_reason() {
        for role in ROLES {
            let mut calls = std::collections::BTreeSet::new();
            for entry in allowed(role) {
                assert!(calls.insert(entry.call), "twice: {}", entry.call);
                assert!(!entry.reason.is_empty(), "no reason: {}", entry.call);
            }
            for call in kill_process::CALLS {
                assert!(!calls.contains(call), "allowed and killed for: {call}");
            }
        }
    }

    #[test]
    fn relay_filter_permits_no_call_that_opens_a_socket() {
        let opening = [
            libc::SYS_socket,
            libc::SYS_bind,
            libc::SYS_connect,
            libc::SYS_accept4,
        ];
        assert!(!allowed(Role::Relay).any(|entry| opening.contains(&entry.call)));
    }

    #[test]
    fn conditions_have_values_within_their_masks() {
        for entry in ROLES.into_iter().flat_map(allowed) {
            for only in entry.only {
                assert!(!only.values.is_empty(), "{}", entry.reason);
                let inside = only.values.iter().all(|value| value & !only.mask == 0);
                assert!(inside, "{}", entry.reason);
            }
        }
    }

    #[test]
    fn rules_are_all_combinations_of_permitted_values() {
        let two = ArgumentCondition {
            argument: 0,
            mask: 0xff,
            values: &[1, 2],
        };
        assert_eq!(rules(&[]).unwrap().len(), 0);
        assert_eq!(rules(&[two]).unwrap().len(), 2);
        assert_eq!(rules(&[two, two, two]).unwrap().len(), 8);
    }

    #[test]
    fn filters_of_all_roles_compile() {
        for programs in ROLES.map(|role| programs(role).unwrap()) {
            assert!(programs.iter().all(|program| program.len() > 4));
        }
    }
}
