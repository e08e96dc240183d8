//! The filter on the system calls of a guest's command. It closes two ways past the network namespace, and leaves
//! everything else alone: it is no sandbox.
//!
//! `TIOCSTI` and `TIOCLINUX` put input into the user's terminal, which the user's shell reads after the command has ended.
//! Sockets of `AF_VSOCK` and `AF_QIPCRTR` do not belong to a network namespace: they reach the hypervisor, or a modem,
//! without the engine. A filter does not see the arguments of i386's `socketcall` or those of `io_uring`, so the
//! refusal of these families is not complete.

use std::io;

use libc::sock_filter;

/// The numbers of the filtered system calls in one ABI.
struct Abi {
    /// `AUDIT_ARCH_*`.
    arch: u32,
    /// The bits of a system call's number that count.
    mask: u32,
    ioctl: &'static [u32],
    socket: u32,
}

/// The ABIs that a process may use, and change with each system call. A number of x32 has a bit more than that of x86-64;
/// kernels before 5.4 took x32's own numbers without that bit, too.
#[cfg(target_arch = "x86_64")]
const ABIS: [Abi; 2] = [
    Abi {
        arch: 0xc000_003e,
        mask: !0x4000_0000,
        ioctl: &[16, 514],
        socket: 41,
    },
    Abi {
        arch: 0x4000_0003,
        mask: u32::MAX,
        ioctl: &[54],
        socket: 359,
    },
];

#[cfg(target_arch = "aarch64")]
const ABIS: [Abi; 2] = [
    Abi {
        arch: 0xc000_00b7,
        mask: u32::MAX,
        ioctl: &[29],
        socket: 198,
    },
    Abi {
        arch: 0x4000_0028,
        mask: u32::MAX,
        ioctl: &[54],
        socket: 281,
    },
];

/// The refused requests of ioctl(2), by its argument 1.
const REQUESTS: [u32; 2] = [libc::TIOCSTI as u32, libc::TIOCLINUX as u32];

/// The refused address families of socket(2), by its argument 0.
const FAMILIES: [u32; 2] = [libc::AF_VSOCK as u32, AF_QIPCRTR];

/// Qualcomm's IPC router, in `<linux/socket.h>`.
const AF_QIPCRTR: u32 = 42;

/// Offsets in the kernel's `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: u32 = 16;

/// Installs the filter in the calling thread and every process that it starts. Without `no_new_privs`, with which
/// set-user-ID programs would not work: the caller needs `CAP_SYS_ADMIN` in its user namespace.
///
/// # Errors
/// The kernel's.
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
            // Before Linux 5.16 a filtered process would be slower otherwise: this one's code is not what is kept apart.
            libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            &raw const description,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Decides by the number alone for all other system calls, so that the kernel need not run it for them (since 5.11).
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
        block.push(allow());
        program.push(unless_equal(abi.arch, block.len()));
        program.extend(block);
    }
    program.push(allow());
    program
}

/// Refuses a system call with `values` in an argument. The kernel reads 32 bits of these arguments, so that the upper ones do
/// not count.
fn refuse(number: u32, argument: u32, values: [u32; 2], errno: libc::c_int) -> [sock_filter; 6] {
    [
        unless_equal(number, 5),
        load(argument_at(argument)),
        jump(values[0], 2, 0),
        jump(values[1], 1, 0),
        allow(),
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(),
        ),
    ]
}

/// The offset of the lower half of an argument; both architectures are little-endian.
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
        // Every code is one byte.
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the filter's action, as the kernel computes it; only the instructions of this program are implemented.
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
    fn refuses_requests_and_families_in_every_abi() {
        let refused = |errno: libc::c_int| libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
        for abi in ABIS {
            let variants = |number| [number, number | !abi.mask];
            for number in abi.ioctl.iter().flat_map(|number| variants(*number)) {
                for request in [0x5412, 0x541c, 0x1_0000_5412, 0xffff_ffff_0000_541c] {
                    assert_eq!(answer(abi.arch, number, [0, request]), refused(libc::EPERM));
                }
                // TIOCGWINSZ; the request's number in another argument.
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
            for number in [0, 1, 59, 221, 0x1000] {
                assert_eq!(answer(abi.arch, number, [40, 0x5412]), libc::SECCOMP_RET_ALLOW);
            }
        }
    }
}
