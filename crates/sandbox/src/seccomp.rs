//! The system calls that the process may make. The list is data: [`common`], and what one architecture has beside it.
//!
//! What is on no list answers EPERM and is counted ([`crate::trap`]), so that a library's new habit costs a counter,
//! not the network. What no library of ours ever calls and an intruder wants first is [`deadly`]: it kills.

use std::collections::BTreeMap;

use libc::{ENOSYS, SYS_clone3};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

#[cfg(target_arch = "aarch64")]
#[path = "seccomp/aarch64.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "seccomp/x86_64.rs"]
mod arch;
mod common;
mod deadly;

use crate::layers::Layer;
use crate::trap;

/// One allowed call.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its number on this architecture.
    pub call: libc::c_long,
    /// Where not every use is allowed: what must hold, all of it.
    pub only: &'static [Only],
    /// Who needs it, and what for.
    pub reason: &'static str,
}

/// What an argument must be: any of `values`, in the bits of `mask`. Arguments are compared as 32 bits, as the kernel
/// reads those that are looked at here.
#[derive(Clone, Copy, Debug)]
pub struct Only {
    /// Which one, from 0.
    pub argument: u8,
    /// The bits that are compared.
    pub mask: u32,
    /// What they may be.
    pub values: &'static [u32],
}

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
pub(crate) fn restrict() -> Layer {
    let programs = match programs() {
        Ok(programs) => programs,
        Err(error) => return Layer::Refused(error.to_string()),
    };
    if let Err(error) = trap::install() {
        return Layer::Refused(error.to_string());
    }
    for program in &programs {
        if let Err(error) = seccompiler::apply_filter(program) {
            return Layer::Refused(error.to_string());
        }
    }
    Layer::Active(format!("{} calls", allowed().count()))
}

/// Every entry of this architecture.
pub fn allowed() -> impl Iterator<Item = &'static Entry> {
    common::ALLOWED.iter().chain(arch::ALLOWED)
}

/// The filters. The kernel asks all of them and takes the sternest answer (seccomp(2)).
fn programs() -> Result<[BpfProgram; 3], BackendError> {
    let deadly = deadly::CALLS.iter().map(|call| (*call, Vec::new()));
    let mut listed = BTreeMap::from([(SYS_clone3, Vec::new())]);
    for entry in allowed() {
        listed.insert(entry.call, rules(entry.only)?);
    }
    // Its flags are in memory, where no filter sees them. glibc then takes clone(2), whose flags are in a register.
    let clone3 = BTreeMap::from([(SYS_clone3, Vec::new())]);
    Ok([
        program(deadly.collect(), SeccompAction::Allow, SeccompAction::KillProcess)?,
        program(
            clone3,
            SeccompAction::Allow,
            SeccompAction::Errno(ENOSYS.unsigned_abs()),
        )?,
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
            let condition = SeccompCondition::new(*argument, SeccompCmpArgLen::Dword, equal, value.into())?;
            longer.push([rule.as_slice(), &[condition]].concat());
        }
        rules = longer;
    }
    let conditional = rules.into_iter().filter(|rule| !rule.is_empty());
    conditional.map(SeccompRule::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_there_once_and_has_a_reason() {
        let mut calls = std::collections::BTreeSet::new();
        for entry in allowed() {
            assert!(calls.insert(entry.call), "twice: {}", entry.call);
            assert!(!entry.reason.is_empty(), "no reason: {}", entry.call);
        }
        for call in deadly::CALLS {
            assert!(!calls.contains(call), "allowed and deadly: {call}");
        }
    }

    #[test]
    fn no_condition_is_empty_or_can_never_hold() {
        for (only, reason) in allowed().flat_map(|entry| entry.only.iter().map(|only| (only, entry.reason))) {
            assert!(!only.values.is_empty(), "{reason}");
            assert!(
                only.values.iter().all(|value| value & !only.mask == 0),
                "{reason}"
            );
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
        let programs = programs().unwrap();
        assert!(programs.iter().all(|program| program.len() > 4));
    }
}
