//! Seccomp filter of the guest's command, which blocks two ways around its network namespace and one into cgroups of the
//! host. The filter is not a sandbox: it permits all other system calls.
//!
//! It refuses the ioctl(2) requests `TIOCSTI` and `TIOCLINUX`, which insert input into the user's terminal; the user's
//! shell would read that after the command has ended. It refuses sockets of `AF_VSOCK` and `AF_QIPCRTR`, which do not
//! belong to a network namespace and reach the hypervisor or a modem without the engine. The refusal of these families
//! is not complete, because a filter does not see the arguments of `socketcall` (i386) and `io_uring`.
//!
//! It refuses clone3(2) with ENOSYS, as an old kernel does, and programs then use clone(2). The flag `CLONE_INTO_CGROUP`,
//! which only clone3 has, places the child into the cgroup of a descriptor, also if its file system is mounted read-only.
//! The flags are in memory, which a filter does not see.

use std::io;

use libc::sock_filter;

/// Numbers of the filtered system calls in one ABI of the architecture.
struct CallNumbers {
    /// Value of `seccomp_data.arch` for this ABI (`AUDIT_ARCH_*`).
    arch: u32,
    /// Bits of the system call's number that are compared.
    mask: u32,
    ioctl: &'static [u32],
    socket: u32,
}

/// ABIs that a process may use on this architecture; it can change the ABI with each system call. The numbers of x32
/// are those of x86-64 with one more bit; kernels before 5.4 accepted x32's own numbers without that bit, too.
#[cfg(target_arch = "x86_64")]
const ABIS: [CallNumbers; 2] = [
    CallNumbers {
        arch: 0xc000_003e,
        mask: !0x4000_0000,
        ioctl: &[16, 514],
        socket: 41,
    },
    CallNumbers {
        arch: 0x4000_0003,
        mask: u32::MAX,
        ioctl: &[54],
        socket: 359,
    },
];

#[cfg(target_arch = "aarch64")]
const ABIS: [CallNumbers; 2] = [
    CallNumbers {
        arch: 0xc000_00b7,
        mask: u32::MAX,
        ioctl: &[29],
        socket: 198,
    },
    CallNumbers {
        arch: 0x4000_0028,
        mask: u32::MAX,
        ioctl: &[54],
        socket: 281,
    },
];

/// Requests of ioctl(2), its argument 1, that the filter refuses.
const REQUESTS: [u32; 2] = [libc::TIOCSTI as u32, libc::TIOCLINUX as u32];

/// Number of clone3(2) in every ABI: numbers from 424 on are the same in all of them.
const CLONE3: u32 = 435;

/// Address families of socket(2), its argument 0, that the filter refuses.
const FAMILIES: [u32; 2] = [libc::AF_VSOCK as u32, AF_QIPCRTR];

/// Address family of Qualcomm's IPC router (`<linux/socket.h>`).
const AF_QIPCRTR: u32 = 42;

/// Offsets of fields in the kernel's `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

/// Installs the filter in the calling thread and in every process that it starts. `no_new_privs` is not set, because
/// set-user-ID programs would not work with it; so the caller needs CAP_SYS_ADMIN in its user namespace.
///
/// # Errors
/// Errors of seccomp(2), for example EACCES without CAP_SYS_ADMIN.
pub fn restrict() -> io::Result<()> {
    let program = program();
    let description = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the program, which outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            // Before Linux 5.16 a process with a filter gets mitigations of speculative store bypass, which make it
            // slower. They protect secrets from code in the same process, and this process has no such code.
            libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            &raw const description,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the filter program. For all system calls but ioctl(2) and socket(2) the number alone decides, so that the
/// kernel need not run the program for them (since Linux 5.11).
fn program() -> Vec<sock_filter> {
    let mut program = vec![load(ARCH)];
    for abi in ABIS {
        let mut block = vec![
            load(NUMBER),
            statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, abi.mask),
        ];
        for number in abi.ioctl {
            block.extend(refuse(*number, 1, REQUESTS, libc::EPERM));
        }
        block.extend(refuse(abi.socket, 0, FAMILIES, libc::EAFNOSUPPORT));
        block.extend([unless_equal(CLONE3, 1), error(libc::ENOSYS)]);
        block.push(allow());
        program.push(unless_equal(abi.arch, block.len()));
        program.extend(block);
    }
    program.push(allow());
    program
}

/// Returns instructions that refuse system call `number` with `errno` if its argument `argument` is one of `values`.
/// The kernel reads 32 bits of these arguments, so the upper bits are ignored.
fn refuse(number: u32, argument: u32, values: [u32; 2], errno: libc::c_int) -> [sock_filter; 6] {
    [
        unless_equal(number, 5),
        load(argument_at(argument)),
        jump(values[0], 2, 0),
        jump(values[1], 1, 0),
        allow(),
        error(errno),
    ]
}

fn error(errno: libc::c_int) -> sock_filter {
    let action = libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
    statement(libc::BPF_RET | libc::BPF_K, action)
}

/// Returns the offset of the lower half of an argument in `struct seccomp_data`; both architectures are little-endian.
const fn argument_at(argument: u32) -> u32 {
    ARGUMENTS + 8 * argument
}

fn allow() -> sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW)
}

fn load(offset: u32) -> sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn unless_equal(value: u32, skip: usize) -> sock_filter {
    jump(value, 0, u8::try_from(skip).unwrap_or(u8::MAX))
}

fn jump(value: u32, equal: u8, other: u8) -> sock_filter {
    sock_filter {
        jt: equal,
        jf: other,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value)
    }
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter {
        // The codes of all instructions that are used fit into one byte.
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the action that the filter selects. Only the BPF instructions that this program contains are
    /// implemented.
    fn answer(arch: u32, number: u32, arguments: [u64; 2]) -> u32 {
        let program = program();
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let instruction = program[at];
            at += 1;
            match u32::from(instruction.code) {
                0x20 => {
                    accumulator = match instruction.k {
                        0 => number,
                        4 => arch,
                        16 => arguments[0] as u32,
                        24 => arguments[1] as u32,
                        other => panic!("loads from {other}"),
                    }
                }
                0x54 => accumulator &= instruction.k,
                0x15 if accumulator == instruction.k => at += usize::from(instruction.jt),
                0x15 => at += usize::from(instruction.jf),
                0x06 => return instruction.k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn filter_refuses_requests_and_families_in_every_abi() {
        let refused = |errno: libc::c_int| libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
        for abi in ABIS {
            let variants = |number| [number, number | !abi.mask];
            for number in abi.ioctl.iter().flat_map(|number| variants(*number)) {
                for request in [0x5412, 0x541c, 0x1_0000_5412, 0xffff_ffff_0000_541c] {
                    assert_eq!(answer(abi.arch, number, [0, request]), refused(libc::EPERM));
                }
                // Permitted: the request TIOCGWINSZ, a refused request in another argument, and the number of a refused
                // family.
                for arguments in [[0, 0x5413], [0x5412, 0x5413], [40, 0]] {
                    assert_eq!(answer(abi.arch, number, arguments), libc::SECCOMP_RET_ALLOW);
                }
            }
            for number in variants(abi.socket) {
                for family in [40, 42, 0x1_0000_0028] {
                    assert_eq!(answer(abi.arch, number, [family, 1]), refused(libc::EAFNOSUPPORT));
                }
                for family in [1, 2, 10, 16, 17, 38] {
                    assert_eq!(answer(abi.arch, number, [family, 40]), libc::SECCOMP_RET_ALLOW);
                }
            }
            for number in variants(CLONE3) {
                assert_eq!(answer(abi.arch, number, [0, 88]), refused(libc::ENOSYS));
            }
            for number in [0, 1, 56, 59, 120, 220, 221, 434, 436, 0x1000] {
                assert_eq!(answer(abi.arch, number, [40, 0x5412]), libc::SECCOMP_RET_ALLOW);
            }
        }
    }
}
