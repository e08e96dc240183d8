//! Tries system calls that the seccomp filter of a guest's command refuses, in each ABI of the machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// System call numbers besides the native one that the kernel treats as ioctl(2): those of the x32 ABI, with and
/// without its bit.
#[cfg(target_arch = "x86_64")]
const OTHER_IOCTLS: &[libc::c_long] = &[0x4000_0000 | 514, 0x4000_0000 | 16, 514];
#[cfg(not(target_arch = "x86_64"))]
const OTHER_IOCTLS: &[libc::c_long] = &[];

/// Returns a report of the native and x32 calls. An error other than EBADF (descriptor not open) and ENOSYS (kernel
/// without the ABI) is from the filter.
pub(super) fn command() -> Result<String> {
    let mut text = String::new();
    let not_open = -1_i64;
    for request in [libc::TIOCSTI as u32, libc::TIOCLINUX as u32].map(u64::from) {
        for high in [0, 1 << 32, 0xffff_ffff << 32] {
            let errno = native(libc::SYS_ioctl, not_open, request | high);
            write!(text, "{} ", name(errno))?;
        }
        for number in OTHER_IOCTLS {
            write!(text, "{} ", name(native(*number, not_open, request)))?;
        }
    }
    for family in [libc::AF_VSOCK, 42] {
        let errno = native(
            libc::SYS_socket,
            family.into(),
            libc::SOCK_DGRAM.cast_unsigned().into(),
        );
        write!(text, "{} ", name(errno))?;
    }
    write!(
        text,
        "{}",
        name(native(
            libc::SYS_ioctl,
            not_open,
            u64::from(libc::TIOCGWINSZ as u32)
        ))
    )?;
    Ok(text)
}

/// Returns a report of calls by the 32-bit ABI. A kernel without that ABI kills the process by SIGSEGV.
#[cfg(target_arch = "x86_64")]
pub(super) fn command_of_32_bits() -> Result<String> {
    let (ioctl, socket, not_open) = (54, 359, u64::from(u32::MAX));
    let mut text = String::new();
    for request in [libc::TIOCSTI, libc::TIOCLINUX] {
        write!(text, "{} ", name(i386(ioctl, not_open, request)))?;
    }
    for family in [40, 42] {
        write!(text, "{} ", name(i386(socket, family, 2)))?;
    }
    write!(
        text,
        "{}",
        name(i386(ioctl, not_open, u64::from(libc::TIOCGWINSZ as u32)))
    )?;
    Ok(text)
}

/// Inserts a character into the terminal that is standard input (TIOCSTI), and returns the result.
pub(super) fn insert() -> String {
    // SAFETY: the kernel reads one byte, from a constant.
    let result = unsafe { libc::ioctl(0, libc::TIOCSTI, &raw const *b"X") };
    match result {
        -1 => name(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        _ => name(0),
    }
}

fn native(number: libc::c_long, first: i64, second: u64) -> i32 {
    // SAFETY: an ioctl of a descriptor that is not open, or the creation of a socket; neither accesses memory.
    let result = unsafe { libc::syscall(number, first, second, 0) };
    match result {
        -1 => std::io::Error::last_os_error().raw_os_error().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(target_arch = "x86_64")]
fn i386(number: u64, first: u64, second: u64) -> i32 {
    let result: u64;
    // SAFETY: the same calls as above. The kernel changes no register except those that are named; rbx is reserved by
    // LLVM, so it is saved.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {first}",
            "int 0x80",
            "xchg rbx, {first}",
            first = inout(reg) first => _,
            inlateout("rax") number => result,
            in("rcx") second,
            in("rdx") 0_u64,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    // The result has 32 bits: a negated error number if it is negative.
    match result as u32 as i32 {
        error @ -4095..=-1 => -error,
        _ => 0,
    }
}

fn name(errno: i32) -> String {
    match errno {
        0 => "done".to_owned(),
        libc::EPERM => "EPERM".to_owned(),
        libc::EBADF => "EBADF".to_owned(),
        libc::EAFNOSUPPORT => "EAFNOSUPPORT".to_owned(),
        other => other.to_string(),
    }
}

/// Replaces this process by the program of the command line `words`, with a filter of system calls that refuses new user
/// namespaces with EPERM, as those of containers do.
pub(super) fn without_user_namespaces(words: &[&str]) -> Result<()> {
    let (program, arguments) = words.split_first().context("no program")?;
    let is_requested = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Qword,
        SeccompCmpOp::MaskedEq(libc::CLONE_NEWUSER as u64),
        libc::CLONE_NEWUSER as u64,
    )?;
    let rules = |condition: &SeccompCondition| {
        Ok::<_, BackendError>(vec![SeccompRule::new(vec![condition.clone()])?])
    };
    let refuse = |calls: BTreeMap<i64, Vec<SeccompRule>>, error: i32| -> Result<()> {
        let action = SeccompAction::Errno(error.cast_unsigned());
        let arch = std::env::consts::ARCH.try_into()?;
        let filter = SeccompFilter::new(calls, SeccompAction::Allow, action, arch)?;
        let program: BpfProgram = filter.try_into()?;
        Ok(seccompiler::apply_filter(&program)?)
    };
    let calls = [libc::SYS_clone, libc::SYS_unshare];
    let calls = calls.into_iter().map(|call| Ok((call, rules(&is_requested)?)));
    refuse(calls.collect::<Result<_, BackendError>>()?, libc::EPERM)?;
    refuse(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS)?;
    Err(Command::new(program).args(arguments).exec().into())
}
