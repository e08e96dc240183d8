//! The system calls that the process may make. The list is data: [`common`], what each role needs beside it ([`engine`],
//! [`relay`]), what one architecture has, and which options of sockets may be set ([`options`]).
//!
//! A call that is on no list returns EPERM and is counted ([`crate::trap`]), so that a library's new habit costs a counter,
//! not the network. What no library of ours ever calls and an intruder wants first is [`deadly`]: it kills.

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
mod deadly;
mod engine;
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

/// Whose list it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The engine's, which opens sockets.
    Engine,
    /// The same where it ties them to an interface (`--outbound`).
    EngineOnInterface,
    /// A relay's worker's, which is given everything.
    Relay,
}

/// One allowed call.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its number on this architecture.
    pub call: libc::c_long,
    /// Conditions on the arguments, all of which must hold. Empty: every use is allowed.
    pub only: &'static [Only],
    /// The code that needs it, and the purpose.
    pub reason: &'static str,
}

/// A condition on an argument: it equals one of `values` in the bits of `mask`. Arguments are compared as 32 bits, which is
/// the width at which the kernel reads them.
#[derive(Clone, Copy, Debug)]
pub struct Only {
    /// Which one, from 0.
    pub argument: u8,
    /// The bits that are compared.
    pub mask: u32,
    /// The permitted values.
    pub values: &'static [u32],
}

/// All bits of an argument.
const WHOLE: u32 = u32::MAX;

/// Memory that code runs in is not made after the start.
const NOT_EXECUTABLE: Only = Only {
    argument: 2,
    mask: libc::PROT_EXEC as u32,
    values: &[0],
};

const fn call(call: libc::c_long, reason: &'static str) -> Entry {
    Entry {
        call,
        only: &[],
        reason,
    }
}

const fn only(call: libc::c_long, only: &'static [Only], reason: &'static str) -> Entry {
    Entry { call, only, reason }
}

#[cfg(target_arch = "x86_64")]
const ARCH: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: TargetArch = TargetArch::aarch64;

/// Applies it to the calling thread and those that it will start.
///
/// # Errors
/// Memory is short.
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

/// Every entry of a role, on this architecture.
pub fn allowed(role: Role) -> impl Iterator<Item = &'static Entry> {
    let own = match role {
        Role::Engine | Role::EngineOnInterface => engine::ALLOWED,
        Role::Relay => relay::ALLOWED,
    };
    common::ALLOWED.iter().chain(own).chain(arch::ALLOWED)
}

/// The filters. The kernel runs all of them and applies the action with the highest precedence (seccomp(2)).
fn programs(role: Role) -> Result<[BpfProgram; 4], BackendError> {
    let deadly = deadly::CALLS.iter().map(|call| (*call, Vec::new()));
    let mut listed = BTreeMap::from([(SYS_clone3, Vec::new())]);
    for entry in allowed(role) {
        listed.insert(entry.call, rules(entry.only)?);
    }
    // Its flags are in memory, where no filter sees them. glibc then takes clone(2), whose flags are in a register.
    let clone3 = BTreeMap::from([(SYS_clone3, Vec::new())]);
    let refused = BTreeMap::from([(SYS_setsockopt, all_but(options::settable(role))?)]);
    Ok([
        program(deadly.collect(), SeccompAction::Allow, SeccompAction::KillProcess)?,
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

/// A rule for each combination of values that is allowed; none at all allows everything.
fn rules(only: &[Only]) -> Result<Vec<SeccompRule>, BackendError> {
    let mut rules: Vec<Vec<SeccompCondition>> = vec![Vec::new()];
    for Only {
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

/// Conditions that match options that are not on the list: a level that none of them has, or a level on the list with none
/// of its names. A rule for each option would have a flow's options compared with all of them; these skip every level but one.
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
const ROLES: [Role; 3] = [Role::Engine, Role::EngineOnInterface, Role::Relay];

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
            for call in deadly::CALLS {
                assert!(!calls.contains(call), "allowed and deadly: {call}");
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
    fn conditions_are_neither_empty_nor_contradictory() {
        for entry in ROLES.into_iter().flat_map(allowed) {
            for only in entry.only {
                assert!(!only.values.is_empty(), "{}", entry.reason);
                let inside = only.values.iter().all(|value| value & !only.mask == 0);
                assert!(inside, "{}", entry.reason);
            }
        }
    }

    #[test]
    fn conditions_multiply() {
        let two = Only {
            argument: 0,
            mask: 0xff,
            values: &[1, 2],
        };
        assert_eq!(rules(&[]).unwrap().len(), 0);
        assert_eq!(rules(&[two]).unwrap().len(), 2);
        assert_eq!(rules(&[two, two, two]).unwrap().len(), 8);
    }

    #[test]
    fn compiles() {
        for programs in ROLES.map(|role| programs(role).unwrap()) {
            assert!(programs.iter().all(|program| program.len() > 4));
        }
    }
}
