//! `pontoon vm` as the tests start it, and a network namespace in place of a virtual machine.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::{Namespace, ip, sysctl};
use rustix::process::{Pid, Signal, kill_process};

use crate::carrier::{Carrier, Framing};
use crate::case::Family;
use crate::counters;
use crate::guest::routes;
use crate::process::{self, Program};
use crate::sys;
use pontoon_vm_peer::tap_bridge::Faults;

/// Directory for the files of a case, on a file system of its own.
pub(crate) const DIRECTORY: &str = "/mnt";

/// Returns the path of the log of `pontoon vm`, which contains its counters.
pub(crate) fn talk() -> PathBuf {
    Path::new(DIRECTORY).join("talk")
}

/// Returns the contents of the log of `pontoon vm`.
pub(crate) fn talked() -> String {
    std::fs::read_to_string(talk()).unwrap_or_default()
}

/// Script for busybox's DHCP client, which prints the received configuration.
pub(crate) const UDHCPC: &str = include_str!("machine/udhcpc.sh");
/// Script for ISC's DHCP client, which prints the received configuration.
pub(crate) const DHCLIENT: &str = include_str!("machine/dhclient.sh");

/// A running `pontoon vm`, which is killed on drop.
pub(crate) struct RunningVm {
    child: Child,
    /// Path of its socket, if it listens on one.
    pub(crate) socket: PathBuf,
    pub(crate) framing: Framing,
}

impl RunningVm {
    /// Starts `pontoon vm`, and waits until it is ready.
    pub(crate) fn start(program: &Program, framing: Framing, options: &[String]) -> Result<Self> {
        let socket = Path::new(DIRECTORY).join("socket");
        let mut command = program.command()?;
        command.args(["vm", "--socket"]).arg(&socket).stdin(Stdio::null());
        Self::spawn(command, socket, framing, options)
    }

    /// Starts `pontoon vm` with a socket that is open already (`--fd`), and waits until it is ready.
    pub(crate) fn start_with(
        program: &Program,
        socket: OwnedFd,
        framing: Framing,
        options: &[String],
    ) -> Result<Self> {
        let binary = program.command()?;
        let mut command = Command::new("sh");
        command
            .args(["-c", "exec \"$@\" 3<&0 </dev/null", "sh"])
            .arg(binary.get_program())
            .args(binary.get_args())
            .args(["vm", "--fd", "3"])
            .stdin(socket);
        Self::spawn(command, PathBuf::new(), framing, options)
    }

    fn spawn(mut command: Command, socket: PathBuf, framing: Framing, options: &[String]) -> Result<Self> {
        let ready = Path::new(DIRECTORY).join("pid");
        let _ = std::fs::remove_file(&ready);
        command
            .args(["--protocol", &framing.to_string(), "--pid-file"])
            .arg(&ready)
            .args(options);
        if options.iter().any(|option| option == counters::LOGGED) {
            command.stderr(std::fs::File::create(talk())?);
        }
        eprintln!("+ {command:?}");
        let child = command.spawn().context("cannot run pontoon vm")?;
        let mut vm = Self {
            child,
            socket,
            framing,
        };
        process::wait_until("pontoon vm serves", Duration::from_secs(10), || {
            let ended = vm.child.try_wait()?;
            ensure!(ended.is_none(), "pontoon vm ended: {ended:?}");
            Ok(ready.exists())
        })?;
        Ok(vm)
    }

    /// Waits until `pontoon vm` has exited, and returns its exit status.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        let mut status = None;
        process::wait_until("pontoon vm ends", Duration::from_secs(10), || {
            status = self.child.try_wait()?;
            Ok(status.is_some())
        })?;
        status.context("pontoon vm has no exit status")
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).context("pontoon vm has no process id")?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for RunningVm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A network namespace whose interface `eth0` is connected to a `pontoon vm`.
pub(crate) struct TapGuest {
    pub(crate) namespace: Namespace,
    _carrier: Carrier,
}

impl TapGuest {
    pub(crate) fn of(vm: &RunningVm, faults: Faults) -> Result<Self> {
        let carry = |tap| Carrier::to_path(tap, vm.socket.clone(), vm.framing, faults);
        Self::new(libc::TUN_F_CSUM, carry)
    }

    /// Creates a guest that uses `socket`, which is connected to a `pontoon vm`.
    pub(crate) fn at(socket: OwnedFd, framing: Framing) -> Result<Self> {
        Self::new(libc::TUN_F_CSUM, |tap| Carrier::to_socket(tap, socket, framing))
    }

    /// Creates a guest that uses `socket` as [`Self::at`] does, and sends TCP segments of up to 64 KiB in one frame over
    /// IPv4, with partial checksums.
    pub(crate) fn with_segmentation(socket: OwnedFd, framing: Framing) -> Result<Self> {
        let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4;
        Self::new(offloads, |tap| Carrier::to_socket(tap, socket, framing))
    }

    fn new(offloads: libc::c_uint, carry: impl FnOnce(OwnedFd) -> Carrier) -> Result<Self> {
        let namespace = Namespace::new()?;
        let tap = namespace.enter(|| {
            sysctl("net/ipv6/conf/default/router_solicitation_delay", "0")?;
            let tap = sys::tap_with("eth0", offloads).context("cannot make a tap")?;
            ip("link set eth0 address 52:54:00:12:34:56 up")?;
            Ok(tap)
        })?;
        Ok(Self {
            namespace,
            _carrier: carry(tap),
        })
    }

    /// Configures an IPv4 address by busybox's DHCP client. Returns the output of its script.
    pub(crate) fn dhcp4(&self) -> Result<String> {
        let text = self.udhcpc(&[])?;
        let line = text.lines().find(|line| line.starts_with("dhcp4 "));
        Ok(line.context("the DHCP client has printed no lease")?.to_string())
    }

    /// Configures an IPv4 address likewise. Returns the host name, search list and classless routes that busybox's DHCP
    /// client receives.
    pub(crate) fn dhcp4_options(&self) -> Result<String> {
        let text = self.udhcpc(&["-O", "hostname", "-O", "search", "-O", "staticroutes"])?;
        let line = text.lines().find_map(|line| line.strip_prefix("options4 "));
        Ok(line
            .context("the DHCP client has printed no options")?
            .to_string())
    }

    fn udhcpc(&self, options: &[&str]) -> Result<String> {
        let script = script("udhcpc", UDHCPC)?;
        self.namespace.enter(|| {
            let client = [
                "udhcpc", "-i", "eth0", "-n", "-q", "-f", "-t", "10", "-T", "1", "-O", "mtu", "-s",
            ];
            process::output(Command::new("busybox").args(client).arg(&script).args(options))
        })
    }

    /// Waits for an IPv6 address from a router advertisement.
    pub(crate) fn slaac(&self) -> Result<std::net::IpAddr> {
        self.namespace.enter(|| {
            process::wait_until("an IPv6 default route", Duration::from_secs(10), || {
                Ok(routes::default(Family::V6).is_ok() && routes::address(Family::V6, "eth0").is_ok())
            })?;
            routes::address(Family::V6, "eth0")
        })
    }

    /// Configures an IPv6 address by ISC's DHCP client. Returns the output of its script.
    pub(crate) fn dhcp6(&self) -> Result<String> {
        let script = script("dhclient", DHCLIENT)?;
        let printed = Path::new(DIRECTORY).join("dhcp6");
        let line = format!(
            "dhclient -6 -1 -lf {0}/leases6 -pf {0}/dhclient6 -sf {1} -e OUTPUT={2} eth0 </dev/null >/dev/null",
            DIRECTORY,
            script.display(),
            printed.display()
        );
        self.namespace
            .enter(|| process::output(Command::new("sh").args(["-c", &line])))?;
        Ok(std::fs::read_to_string(printed)?.trim_end().to_string())
    }
}

/// Writes an executable script, and returns its path.
fn script(name: &str, text: &str) -> Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let path = Path::new(DIRECTORY).join(name);
    std::fs::write(&path, text)?;
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
    Ok(path)
}
