//! Cases in which an attacker controls the engine: system calls that a test makes inside of the engine by ptrace.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::sandbox::idle;
use super::{expect, talk, tcp_server};
use crate::case::{Case, Context, Family};
use crate::counters::Counters;
use crate::inject::{CallResult, TracedProcess};
use crate::network::Network;
use crate::process;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("escapes.refused", 30, escapes),
        Case::new("escapes.killed", 60, forbidden_calls),
    ]
    .into_iter()
    .map(Case::pontoon_only)
    .collect()
}

/// A system call that the sandbox must refuse: description, number, arguments, and a text whose address may be an
/// argument.
type RefusedCall = (&'static str, libc::c_long, Vec<u64>, &'static str);

const EPERM: CallResult = CallResult::Result(-(libc::EPERM as i64));

/// Socket options that flows do not need and the sandbox must refuse: purpose, level, option name.
const OPTIONS: [(&str, libc::c_int, libc::c_int); 13] = [
    ("option: IP headers of its own", libc::SOL_IP, libc::IP_HDRINCL),
    (
        "option: IPv6 headers of its own",
        libc::SOL_IPV6,
        libc::IPV6_HDRINCL,
    ),
    (
        "option: source addresses of others",
        libc::SOL_IP,
        libc::IP_TRANSPARENT,
    ),
    ("option: join a group", libc::SOL_IP, libc::IP_ADD_MEMBERSHIP),
    ("option: other echo types", libc::SOL_RAW, 1),
    ("option: a filter", libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
    (
        "option: a program for a port's group",
        libc::SOL_SOCKET,
        libc::SO_ATTACH_REUSEPORT_CBPF,
    ),
    ("option: share a port", libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (
        "option: another interface",
        libc::SOL_SOCKET,
        libc::SO_BINDTODEVICE,
    ),
    ("option: a mark for routing", libc::SOL_SOCKET, libc::SO_MARK),
    ("option: encapsulation", libc::SOL_UDP, libc::UDP_ENCAP),
    ("option: another protocol over TCP", libc::SOL_TCP, libc::TCP_ULP),
    (
        "option: listen to all frames",
        libc::SOL_PACKET,
        libc::PACKET_ADD_MEMBERSHIP,
    ),
];

/// Returns the arguments of a setsockopt on an invalid descriptor. The filter refuses the option before the kernel
/// checks the descriptor.
fn option_of(level: libc::c_int, name: libc::c_int) -> Vec<u64> {
    vec![u64::MAX, level.unsigned_abs().into(), name.unsigned_abs().into()]
}

fn escapes(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let talk = talk()?;
    let (mut running, engine) = idle(&network, context, &talk)?;
    let mut traced = TracedProcess::take(engine)?;
    let text = traced.text();
    let here = i64::from(libc::AT_FDCWD).cast_unsigned();
    let socket = |family: libc::c_int| vec![family.unsigned_abs().into(), libc::SOCK_DGRAM as u64, 0];
    let signal = libc::SIGTERM as u64;
    let attempts: Vec<RefusedCall> = vec![
        (
            "open the root",
            libc::SYS_openat,
            vec![here, text, libc::O_DIRECTORY as u64],
            "/",
        ),
        (
            "open a file",
            libc::SYS_openat,
            vec![here, text, 0],
            "/etc/passwd",
        ),
        (
            "open its own status",
            libc::SYS_openat,
            vec![here, text, 0],
            "/proc/self/status",
        ),
        (
            "open, as it once was",
            libc::SYS_open,
            vec![text, 0],
            "/etc/passwd",
        ),
        (
            "make a directory",
            libc::SYS_mkdirat,
            vec![here, text, 0o777],
            "/here",
        ),
        (
            "look at a file",
            libc::SYS_newfstatat,
            vec![here, text, text, 0],
            "/etc/passwd",
        ),
        ("socket: unix", libc::SYS_socket, socket(libc::AF_UNIX), ""),
        ("socket: netlink", libc::SYS_socket, socket(libc::AF_NETLINK), ""),
        ("socket: packet", libc::SYS_socket, socket(libc::AF_PACKET), ""),
        ("socket: vsock", libc::SYS_socket, socket(libc::AF_VSOCK), ""),
        ("socket: alg", libc::SYS_socket, socket(libc::AF_ALG), ""),
        (
            "socket: raw",
            libc::SYS_socket,
            vec![
                libc::AF_INET as u64,
                libc::SOCK_RAW as u64,
                libc::IPPROTO_ICMP as u64,
            ],
            "",
        ),
        (
            "socket: sctp",
            libc::SYS_socket,
            vec![
                libc::AF_INET as u64,
                libc::SOCK_STREAM as u64,
                libc::IPPROTO_SCTP as u64,
            ],
            "",
        ),
        (
            "socket pair",
            libc::SYS_socketpair,
            vec![libc::AF_UNIX as u64, libc::SOCK_STREAM as u64, 0, text],
            "",
        ),
        ("kill everybody", libc::SYS_kill, vec![u64::MAX, signal], ""),
        ("kill process 2", libc::SYS_kill, vec![2, signal], ""),
        ("signal a thread", libc::SYS_tgkill, vec![2, 2, signal], ""),
        ("open a process", libc::SYS_pidfd_open, vec![1, 0], ""),
        ("fork", libc::SYS_fork, vec![], ""),
        ("clone a process", libc::SYS_clone, vec![libc::SIGCHLD as u64], ""),
        (
            "clone into a user namespace",
            libc::SYS_clone,
            vec![(libc::CLONE_NEWUSER | libc::CLONE_THREAD) as u64],
            "",
        ),
        (
            "executable memory",
            libc::SYS_mmap,
            vec![0, 4096, 7, 0x22, u64::MAX, 0],
            "",
        ),
        (
            "become dumpable",
            libc::SYS_prctl,
            vec![libc::PR_SET_DUMPABLE as u64, 1],
            "",
        ),
        (
            "another filter",
            libc::SYS_seccomp,
            vec![libc::SECCOMP_SET_MODE_FILTER.into(), 0, text],
            "",
        ),
        ("set capabilities", libc::SYS_capset, vec![text, text], ""),
        ("become root", libc::SYS_setuid, vec![0], ""),
        (
            "more memory",
            libc::SYS_prlimit64,
            vec![0, libc::RLIMIT_DATA.into(), text],
            "",
        ),
        (
            "more memory, as it once was",
            libc::SYS_setrlimit,
            vec![libc::RLIMIT_DATA.into(), text],
            "",
        ),
        ("a call that is none", 9999, vec![], ""),
    ]
    .into_iter()
    .chain(OPTIONS.map(|(name, level, option)| (name, libc::SYS_setsockopt, option_of(level, option), "")))
    .collect();
    for (name, number, arguments, text) in &attempts {
        let answer = traced.call(*number, arguments, text)?;
        eprintln!("{name}: {answer:?}");
        ensure!(answer == EPERM, "{name}: {answer:?}");
    }
    let answer = traced.call(
        libc::SYS_setsockopt,
        &option_of(libc::SOL_SOCKET, libc::SO_OOBINLINE),
        "",
    )?;
    ensure!(
        answer == CallResult::Result(-i64::from(libc::EBADF)),
        "an option that flows need: {answer:?}"
    );
    let answer = traced.call(libc::SYS_clone3, &[text, 64], "")?;
    ensure!(
        answer == CallResult::Result(-i64::from(libc::ENOSYS)),
        "clone3: {answer:?}"
    );
    traced.release()?;
    // The engine has continued to run, and has counted the refused calls.
    let server = tcp_server(&network, Family::V4)?;
    let round = format!("{} guest tcp {server} connects 1", crate::run::own_path());
    expect(&running.ask(&round)?, "ok")?;
    running.send_line("exit")?;
    running.finish()?;
    Counters::read(&talk)?.expect("sandbox_refused", attempts.len() as u64)
}

/// Tests system calls that end the engine (SIGSYS), after which another engine is started.
fn forbidden_calls(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let attempts: [RefusedCall; 9] = [
        ("execve", libc::SYS_execve, vec![], "/bin/sh"),
        ("ptrace", libc::SYS_ptrace, vec![], ""),
        ("setns", libc::SYS_setns, vec![3, 0], ""),
        ("unshare", libc::SYS_unshare, vec![libc::CLONE_NEWUSER as u64], ""),
        ("mount", libc::SYS_mount, vec![], "tmpfs"),
        ("chroot", libc::SYS_chroot, vec![], "/"),
        ("process_vm_readv", libc::SYS_process_vm_readv, vec![1], ""),
        ("io_uring_setup", libc::SYS_io_uring_setup, vec![1], ""),
        ("bpf", libc::SYS_bpf, vec![], ""),
    ];
    for (name, number, arguments, text) in attempts {
        let (mut running, engine) = idle(&network, context, &talk()?)?;
        let mut traced = TracedProcess::take(engine)?;
        let answer = traced.call(number, &arguments, text)?;
        eprintln!("{name}: {answer:?}");
        ensure!(answer == CallResult::Killed(libc::SIGSYS), "{name}: {answer:?}");
        process::wait_until("another engine is there", Duration::from_secs(1), || {
            Ok(context.program.engine().is_ok_and(|other| other != engine))
        })?;
        running.send_line("exit")?;
        running.finish()?;
    }
    Ok(())
}
