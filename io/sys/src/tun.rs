//! Creation of tap interfaces with `/dev/net/tun` (Linux `Documentation/networking/tuntap.rst`).

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::disabled::Disabled;

/// Size in bytes of the `virtio_net_hdr` in front of each frame if [`TapOffload::vnet_hdr`] is set: the header of
/// virtio 1, little endian, with `num_buffers` (which vhost-net uses and a tap ignores).
pub const VNET_HDR_LEN: libc::c_int = 12;

/// Offloads of a tap interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapOffload {
    /// `IFF_VNET_HDR`: every frame is preceded by [`VNET_HDR_LEN`] bytes of `virtio_net_hdr`, and its checksum may be
    /// partial.
    pub vnet_hdr: bool,
    /// TCP segmentation offload for IPv4 and IPv6 (`TUN_F_TSO4`, `TUN_F_TSO6`).
    pub tso: bool,
    /// UDP segmentation offload (`TUN_F_USO4`, `TUN_F_USO6`, Linux 6.2).
    pub uso: bool,
}

impl TapOffload {
    /// Offloads of a tap that has none: frames without `virtio_net_hdr`.
    pub const NONE: Self = Self {
        vnet_hdr: false,
        tso: false,
        uso: false,
    };

    /// Returns all offloads except those that `PONTOON_DISABLE` disables.
    #[must_use]
    pub const fn all_but(disabled: &Disabled) -> Self {
        let vnet_hdr = !disabled.vnet_hdr;
        Self {
            vnet_hdr,
            tso: vnet_hdr && !disabled.tso,
            uso: vnet_hdr && !disabled.uso,
        }
    }

    /// Returns the flags of the ioctl TUNSETOFFLOAD.
    fn flags(self) -> libc::c_uint {
        let mut flags = libc::TUN_F_CSUM;
        if self.tso {
            flags |= libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
        }
        if self.uso {
            flags |= libc::TUN_F_USO4 | libc::TUN_F_USO6;
        }
        flags
    }
}

/// A tap interface to which this process is attached. One that this process has created is down, has no addresses, and is
/// deleted when its queues are closed.
#[derive(Debug)]
pub struct Tap {
    /// File descriptors of the queues, non-blocking and close-on-exec.
    pub queues: Vec<OwnedFd>,
    /// Name of the tap interface.
    pub name: String,
    /// Requested offloads that the kernel supports.
    pub offload: TapOffload,
}

/// Attaches to the tap interface `name` in the calling thread's network namespace, with `queues` queues (`IFF_MULTI_QUEUE`
/// for more than one, Linux 3.8). The tap is created if it does not exist; if it exists, only its offloads are changed. The
/// kernel replaces a `%d` in `name` by the first free number.
///
/// # Errors
/// `Unsupported`: the kernel has no multi-queue taps. `NotFound` or `PermissionDenied`: `/dev/net/tun` cannot be
/// opened. EPERM: no CAP_NET_ADMIN in the namespace. EBUSY: another process uses the tap. `InvalidInput`: the name is
/// empty, longer than 15 bytes, or that of another kind of interface or of a tap that was created with or without
/// `IFF_MULTI_QUEUE` contrary to `queues`. The text names the step.
pub fn open(name: &str, requested: TapOffload, queues: u8) -> io::Result<Tap> {
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI;
    if requested.vnet_hdr {
        flags |= libc::IFF_VNET_HDR;
    }
    let first = device()?;
    if queues > 1 {
        if features(first.as_fd())? & libc::IFF_MULTI_QUEUE.cast_unsigned() == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        flags |= libc::IFF_MULTI_QUEUE;
    }
    let attach = |queue: &OwnedFd, name: &str| {
        attach(queue.as_fd(), name, flags)
            .map_err(|error| with_context(&format!("cannot attach to tap {name:?}"), &error))
    };
    let name = attach(&first, name)?;
    // Offloads belong to the interface, and can be set only while it has one queue.
    let offload = if requested.vnet_hdr {
        negotiate(first.as_fd(), requested)
            .map_err(|error| with_context(&format!("cannot set offloads of {name:?}"), &error))?
    } else {
        // A tap that exists keeps the offloads of the program that used it before.
        set_offload(first.as_fd(), TapOffload::NONE)
            .map_err(|error| with_context(&format!("cannot disable offloads of {name:?}"), &error))?
    };
    let mut all = vec![first];
    for _ in 1..queues {
        let queue = device()?;
        attach(&queue, &name)?;
        all.push(queue);
    }
    Ok(Tap {
        queues: all,
        name,
        offload,
    })
}

/// Sets the offloads of a tap's queue that another program has attached, and returns those that apply: the requested ones that
/// the kernel supports if the queue has `IFF_VNET_HDR`, and none otherwise.
///
/// # Errors
/// `InvalidInput`: the queue is not attached to an interface, or not with `IFF_TAP | IFF_NO_PI`. Otherwise the error of ioctl(2).
pub fn adopt(queue: BorrowedFd<'_>, requested: TapOffload) -> io::Result<TapOffload> {
    let wrong = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
    let flags = flags_of(queue).map_err(|_| wrong("the descriptor is not a queue of a tap"))?;
    let needed = libc::IFF_TAP | libc::IFF_NO_PI;
    if flags & needed != needed {
        return Err(wrong("the queue has not the flags IFF_TAP and IFF_NO_PI"));
    }
    if flags & libc::IFF_VNET_HDR == 0 {
        return set_offload(queue, TapOffload::NONE);
    }
    let vnet_hdr = true;
    negotiate(
        queue,
        TapOffload {
            vnet_hdr,
            ..requested
        },
    )
}

/// Checks that `/dev/net/tun` can be opened.
///
/// # Errors
/// `NotFound`: there is no such file. `PermissionDenied`: the user may not open it. ENODEV and ENXIO: the driver is missing.
pub fn probe() -> io::Result<()> {
    device().map(drop)
}

/// Returns the Ethernet address of the tap to which a queue is attached (ioctl SIOCGIFHWADDR).
///
/// # Errors
/// The interface was removed.
pub fn ethernet_address(queue: BorrowedFd<'_>) -> io::Result<[u8; 6]> {
    // SAFETY: `ifreq` is plain C data for which all-zero bytes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: SIOCGIFHWADDR writes one `ifreq`, which `request` is, live and exclusively borrowed.
    check(unsafe {
        libc::ioctl(
            queue.as_raw_fd(),
            libc::SIOCGIFHWADDR as libc::Ioctl,
            &raw mut request,
        )
    })?;
    // SAFETY: the union consists of integers and arrays of them, and the call has written this member.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut octets = [0; 6];
    for (to, from) in octets.iter_mut().zip(address.sa_data) {
        [*to] = from.to_ne_bytes();
    }
    Ok(octets)
}

fn device() -> io::Result<OwnedFd> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .map_err(|error| with_context("cannot open /dev/net/tun", &error))?;
    Ok(device.into())
}

fn with_context(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Returns the flags of TUNSETIFF that the kernel supports (ioctl TUNGETFEATURES).
fn features(fd: BorrowedFd<'_>) -> io::Result<libc::c_uint> {
    let mut features: libc::c_uint = 0;
    // SAFETY: TUNGETFEATURES writes one unsigned int, which `features` is.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETFEATURES, &raw mut features) })?;
    Ok(features)
}

/// Returns the flags with which a queue is attached to its interface (ioctl TUNGETIFF).
fn flags_of(fd: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    // SAFETY: `ifreq` is plain C data for which all-zero bytes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: TUNGETIFF writes one `ifreq`, which `request` is, live and exclusively borrowed.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNGETIFF, &raw mut request) })?;
    // SAFETY: the union consists of integers and arrays of them, and the call has written this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(u16::from_ne_bytes(flags.to_ne_bytes()).into())
}

/// Attaches a queue to the tap `name` (ioctl TUNSETIFF) and returns the name that the kernel has chosen.
fn attach(fd: BorrowedFd<'_>, name: &str, flags: libc::c_int) -> io::Result<String> {
    // SAFETY: `ifreq` is plain C data for which all-zero bytes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    #[expect(clippy::cast_possible_truncation, reason = "the flags fit 16 bits")]
    {
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
    }
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which `request` is, live and exclusively borrowed.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    let chosen = request.ifr_name.iter().map(|byte| byte.to_ne_bytes()[0]);
    Ok(String::from_utf8_lossy(&chosen.take_while(|byte| *byte != 0).collect::<Vec<_>>()).into_owned())
}

/// Sets size and byte order of the `virtio_net_hdr`, then the largest subset of the requested offloads that the kernel
/// supports.
fn negotiate(fd: BorrowedFd<'_>, requested: TapOffload) -> io::Result<TapOffload> {
    let size = VNET_HDR_LEN;
    // SAFETY: TUNSETVNETHDRSZ reads one int, which `size` is.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const size) })?;
    let yes: libc::c_int = 1;
    // SAFETY: TUNSETVNETLE reads one int, which `yes` is.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETLE, &raw const yes) })?;

    let without_uso = TapOffload {
        uso: false,
        ..requested
    };
    let checksums_only = TapOffload {
        tso: false,
        ..without_uso
    };
    match set_offload(fd, requested).or_else(|error| retry(fd, error, without_uso)) {
        Ok(offload) => Ok(offload),
        Err(error) => retry(fd, error, checksums_only),
    }
}

/// Sets the smaller set of offloads `less` if the kernel has refused a flag as unknown (EINVAL; USO before Linux 6.2).
fn retry(fd: BorrowedFd<'_>, error: io::Error, less: TapOffload) -> io::Result<TapOffload> {
    if error.raw_os_error() == Some(libc::EINVAL) {
        set_offload(fd, less)
    } else {
        Err(error)
    }
}

fn set_offload(fd: BorrowedFd<'_>, offload: TapOffload) -> io::Result<TapOffload> {
    let flags = libc::c_ulong::from(offload.flags());
    // SAFETY: TUNSETOFFLOAD takes its flags as the argument itself and accesses no memory.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, flags) })?;
    Ok(offload)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segmentation_offloads_need_vnet_hdr() {
        let disabled = Disabled {
            vnet_hdr: true,
            ..Disabled::default()
        };
        assert_eq!(TapOffload::all_but(&disabled), TapOffload::NONE);
        let disabled = Disabled {
            uso: true,
            ..Disabled::default()
        };
        let expected = TapOffload {
            vnet_hdr: true,
            tso: true,
            uso: false,
        };
        assert_eq!(TapOffload::all_but(&disabled), expected);
    }

    #[test]
    fn open_refuses_invalid_names() {
        let fd = std::fs::File::open("/dev/null").unwrap();
        for name in ["", "sixteen-bytes-ab", "nul\0"] {
            let error = attach(fd.as_fd(), name, libc::IFF_TAP).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name:?}");
        }
    }
}
