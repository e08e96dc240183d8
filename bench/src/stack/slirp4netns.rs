//! The stack slirp4netns, which enters the network namespace of another process, here that of the client.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pipe::{PipeFlags, pipe_with};

use super::{
    FoundStack, NetworkConfig, Selection, Stack, StackAddresses, StackFinder, StackKind, StackProcesses,
};
use crate::host::Host;
use crate::schema::StackRole;

pub(super) const KIND: StackKind = StackKind {
    name: "slirp4netns",
    role: StackRole::Peer,
    find: StackFinder::Namespace(find),
};

const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 2));
const DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 3));
const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);

/// MTU in bytes at which slirp4netns is fastest; its default is 1500.
const BEST_MTU: u16 = 65520;

/// Time limit for slirp4netns to configure the network.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A shell command that waits for a line on standard input, and then executes its arguments.
const WAITING_COMMAND: &[&str] = &[
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "--",
    "sh",
    "-c",
    "read -r go; exec \"$@\"",
    "sh",
];

/// The installed slirp4netns, and its additional options.
struct Slirp4netns {
    program: PathBuf,
    flags: Vec<String>,
}

fn find(wanted: &Selection) -> Result<FoundStack> {
    let program = super::program(wanted, "slirp4netns", "slirp4netns")?;
    Ok(FoundStack {
        version: super::version(&program)?,
        stack: Box::new(Slirp4netns {
            program,
            flags: wanted.flags.clone(),
        }),
    })
}

impl Stack for Slirp4netns {
    fn addresses(&self) -> StackAddresses {
        StackAddresses {
            server: GATEWAY,
            resolver: DNS,
            published: Ipv4Addr::LOCALHOST.into(),
        }
    }

    fn start(&self, host: &Host, config: &NetworkConfig, program: &[OsString]) -> Result<StackProcesses> {
        let mut waiting = super::unprivileged(WAITING_COMMAND[0]);
        let mut guest = super::spawn(waiting.args(&WAITING_COMMAND[1..]).args(program))?;
        wait_for_namespaces(&guest)?;

        let (ready, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut command = super::unprivileged(&self.program);
        command
            .args([
                "--configure",
                "--mtu",
                &config.mtu.unwrap_or(BEST_MTU).to_string(),
            ])
            .args(["--ready-fd", &theirs.as_raw_fd().to_string()])
            .args(&self.flags);
        let socket = config
            .publish
            .map(|_| host.sandbox_ns.world_writable_path("slirp4netns.sock"))
            .transpose()?;
        if let Some(path) = &socket {
            command.arg("--api-socket").arg(path);
        }
        command.arg(guest.id().to_string()).arg("tap0");
        let inherit = move || fcntl_setfd(&theirs, FdFlags::empty()).map_err(Into::into);
        // SAFETY: between fork and exec the closure makes one system call, on a descriptor that it owns.
        unsafe { command.pre_exec(inherit) };
        let helper = super::spawn(&mut command)?;
        // Drops this process's copy of the write end of the pipe, so that the reader gets the end of file when
        // slirp4netns exits.
        drop(command);

        if let Err(error) = wait_until_ready(&ready) {
            return Err(error.context(format!("slirp4netns: {}", super::kill_helper(helper))));
        }
        if let (Some(path), Some(port)) = (&socket, config.publish) {
            publish(path, port)?;
        }
        guest
            .stdin
            .as_mut()
            .context("the child process has no pipe")?
            .write_all(b"go\n")?;
        Ok(StackProcesses {
            guest,
            helpers: vec![helper],
        })
    }

    fn command(&self) -> String {
        let flags: String = self.flags.iter().map(|flag| format!(" {flag}")).collect();
        format!(
            "unshare --user --map-root-user --net -- CLIENT; \
             slirp4netns --configure --mtu {BEST_MTU}{flags} PID tap0"
        )
    }
}

/// Waits until the process has its own user and network namespaces and is root in them.
fn wait_for_namespaces(waiting: &Child) -> Result<()> {
    let ours = std::fs::read_link("/proc/self/ns/net")?;
    let directory = PathBuf::from(format!("/proc/{}", waiting.id()));
    let begun = Instant::now();
    loop {
        let theirs = std::fs::read_link(directory.join("ns/net")).unwrap_or_else(|_| ours.clone());
        let map = std::fs::read_to_string(directory.join("uid_map")).unwrap_or_default();
        if theirs != ours && map.split_whitespace().next() == Some("0") {
            return Ok(());
        }
        ensure!(begun.elapsed() < TIMEOUT, "unshare made no namespaces");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Waits for the byte by which slirp4netns reports readiness (`--ready-fd`).
fn wait_until_ready(ready: &std::os::fd::OwnedFd) -> Result<()> {
    let timeout = Timespec {
        tv_sec: TIMEOUT.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(ready, PollFlags::IN)], Some(&timeout))?;
    let mut byte = [0];
    match rustix::io::read(ready, &mut byte) {
        Ok(1) => Ok(()),
        _ => bail!("the network was not set up"),
    }
}

/// Requests on the API socket that slirp4netns publishes the port on the host's loopback (`add_hostfwd`).
fn publish(socket: &Path, port: u16) -> Result<()> {
    let mut stream = UnixStream::connect(socket).context("cannot reach slirp4netns's socket")?;
    let request = serde_json::json!({
        "execute": "add_hostfwd",
        "arguments": {
            "proto": "tcp", "host_addr": "127.0.0.1", "host_port": port,
            "guest_addr": GUEST.to_string(), "guest_port": port,
        },
    });
    stream.write_all(request.to_string().as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(
        answer.contains("\"return\""),
        "slirp4netns cannot publish the port: {}",
        answer.trim()
    );
    Ok(())
}
