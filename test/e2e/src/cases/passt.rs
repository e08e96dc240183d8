//! Cases about the command line of passt, as libvirt, QEMU and users in a shell use it. A namespace stands for the virtual
//! machine, and the test for the program that starts passt: the command lines and descriptors are replays.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::mount::mount_bind;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process};

use super::lifecycle::nothing_left;
use super::shell::{Shell, wait_for_the_end};
use super::{expect, tcp_server};
use crate::carrier::{Framing, dial};
use crate::case::{Case, Context, Family};
use crate::guest::tcp;
use crate::machine::TapGuest;
use crate::network::Network;
use crate::{process, server};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("compat.passt.libvirt", 40, libvirt),
        Case::new("compat.passt.qemu", 40, qemu),
        Case::new("compat.passt.libkrun", 40, libkrun),
        Case::new("compat.passt.default-sockets", 30, default_sockets),
        Case::new("compat.passt.24-at-once", 60, at_once).alone(),
        hostile("garbage", garbage),
        hostile("short-frames", short_frames),
        hostile("half-a-frame", half_a_frame),
        hostile("frame-of-65536-bytes", large_frame),
        hostile("two-clients", two_clients),
        hostile("1000-connections", thousand_connections),
        Case::new("compat.passt.errors", 30, errors),
    ]
    .into_iter()
    .map(Case::pontoon_only)
    .collect()
}

const SOCKET: &str = "/mnt/socket";
const PID: &str = "/mnt/pid";

/// Lease of a guest with the addresses of the host: address, gateway, DNS forwarder, MTU.
const LEASE: &str = "dhcp4 198.51.100.1/24 198.51.100.2 198.51.100.2 65520";

impl Shell {
    /// Runs passt until it exits, and returns its output and the exit status. The call returns when no process has the
    /// output open, as callers wait for that.
    pub(super) fn passt(&mut self, arguments: &str) -> Result<String> {
        self.ask(&format!("echo $($PASST {arguments} 2>&1; echo status $?)"))
    }
}

/// Reads the process id of a daemon.
fn daemon(path: &str) -> Result<Pid> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    Pid::from_raw(text.trim().parse()?).context("the process id is 0")
}

/// Connects a guest to the socket at `path`.
fn connected(path: &str) -> Result<TapGuest> {
    TapGuest::at(dial(Path::new(path), Framing::Stream)?, Framing::Stream)
}

/// Tests libvirt's command line and its use of the process: the socket and the pid file exist when the program returns, a
/// second client is disconnected, and the process exits with its client.
fn libvirt(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let servers = [
        tcp_server(&network, Family::V4)?,
        tcp_server(&network, Family::V6)?,
    ];
    let mut shell = Shell::start(context)?;
    let line =
        format!("--one-off --socket {SOCKET} --pid {PID} --hostname machine --no-map-gw --tcp-ports 8080:80");
    let text = shell.passt(&line)?;
    ensure!(text.ends_with("status 0"), "{text}");
    let process = daemon(PID)?;
    let guest = connected(SOCKET)?;
    expect(&guest.dhcp4()?, LEASE)?;
    let options = guest.dhcp4_options()?;
    ensure!(options.contains("machine"), "{options}");
    guest.slaac()?;
    for server in servers {
        let words = ["put", "0", "71", "10000000"];
        expect(&guest.namespace.enter(|| tcp::command(server, &words))?, "ok")?;
    }
    let any = SocketAddr::new(Family::V4.unspecified(), 80);
    guest.namespace.enter(|| server::tcp::start(any))?;
    let published = SocketAddr::new(network.host_address(Family::V4), 8080);
    let words = ["fetch", "0", "72", "10000000"];
    expect(&network.server().enter(|| tcp::command(published, &words))?, "ok")?;
    let mut second = UnixStream::from(dial(Path::new(SOCKET), Framing::Stream)?);
    second.set_read_timeout(Some(Duration::from_secs(5)))?;
    ensure!(second.read(&mut [0])? == 0, "a second client was served");
    expect(&guest.dhcp4()?, LEASE)?;
    drop(guest);
    wait_for_the_end(context)?;
    ensure!(!Path::new(SOCKET).exists(), "the socket's file was not removed");
    // libvirt reads it, and removes it itself.
    ensure!(daemon(PID)? == process, "the pid file was changed");
    drop(shell);
    nothing_left()
}

/// Starts passt with one end of a socket pair as descriptor 3, as QEMU and libkrun do. Returns the process and the other end.
fn start_with_descriptor(context: &Context, arguments: &str) -> Result<(Child, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let binary = context.program.binary.as_deref().context("no program")?;
    let mut command = Command::new("sh");
    if context.program.drop_privileges {
        command = Command::new("unshare");
        command.args(["--user", "--map-user=1000", "--map-group=1000", "--", "sh"]);
    }
    let line = format!("exec \"$0\" compat passt {arguments} --fd 3 3<&0 </dev/null");
    let child = command
        .args(["-c", &line, binary])
        .stdin(theirs)
        .stdout(Stdio::null())
        .spawn()?;
    Ok((child, ours))
}

/// Starts passt as QEMU does, and waits until it has gone to the background. Returns the connected socket.
fn start_as_qemu(context: &Context) -> Result<OwnedFd> {
    let arguments =
        format!("--quiet --mtu 1500 --no-map-gw --no-dhcp-search --tcp-ports 8080:80 --pid {PID}");
    let (child, socket) = start_with_descriptor(context, &arguments)?;
    let status = child.wait_with_output()?.status;
    ensure!(status.success(), "passt: {status}");
    Ok(socket)
}

/// Tests libkrun's use of the process, which stays in the foreground, and its frames: libkrun removes the `virtio_net_hdr`
/// of frames with segmentation offload, so that they have up to 64 KiB and partial checksums.
fn libkrun(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    super::tmpfs(Path::new(crate::machine::DIRECTORY))?;
    let (child, socket) =
        start_with_descriptor(context, "--foreground --mtu 1500 --no-map-gw --tcp-ports 8080:80")?;
    let guest = TapGuest::with_segmentation(socket, Framing::Stream)?;
    expect(&guest.dhcp4()?, &LEASE.replace("65520", "1500"))?;
    let sent = |name: &str| {
        guest.namespace.enter(|| {
            let text = process::output(Command::new("ip").args(["-s", "-j", "link", "show", "eth0"]))?;
            let links: serde_json::Value = serde_json::from_str(&text)?;
            let count = links[0]["stats64"]["tx"][name].as_u64();
            count.context("ip has printed no counter")
        })
    };
    let before = [sent("bytes")?, sent("packets")?];
    let words = ["put", "0", "74", "30000000"];
    expect(&guest.namespace.enter(|| tcp::command(server, &words))?, "ok")?;
    let frames = sent("packets")? - before[1];
    let mean = (sent("bytes")? - before[0]) / frames;
    ensure!(mean > 5_000, "{frames} frames of {mean} bytes on average");
    let words = ["fetch", "0", "75", "10000000"];
    expect(&guest.namespace.enter(|| tcp::command(server, &words))?, "ok")?;
    let any = SocketAddr::new(Family::V4.unspecified(), 80);
    guest.namespace.enter(|| server::tcp::start(any))?;
    let published = SocketAddr::new(network.host_address(Family::V4), 8080);
    let words = ["fetch", "0", "76", "30000000"];
    expect(&network.server().enter(|| tcp::command(published, &words))?, "ok")?;
    drop(guest);
    let status = child.wait_with_output()?.status;
    ensure!(status.success(), "passt: {status}");
    nothing_left()
}

/// Tests QEMU's use of the process: it exits with its connection, is terminated by SIGTERM, and is started again after both.
fn qemu(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    super::tmpfs(Path::new(crate::machine::DIRECTORY))?;
    for end in ["connection", "signal", "connection"] {
        let guest = TapGuest::at(start_as_qemu(context)?, Framing::Stream)?;
        expect(&guest.dhcp4()?, &LEASE.replace("65520", "1500"))?;
        let words = ["fetch", "0", "73", "10000000"];
        expect(&guest.namespace.enter(|| tcp::command(server, &words))?, "ok")?;
        match end {
            "signal" => {
                kill_process(daemon(PID)?, Signal::TERM)?;
                wait_for_the_end(context)?;
                drop(guest);
            }
            _ => drop(guest),
        }
        wait_for_the_end(context)?;
    }
    nothing_left()
}

/// Mounts an empty file system over /tmp, and in it the directory of the program if that is below /tmp.
fn cover_tmp(context: &Context) -> Result<()> {
    let binary = Path::new(context.program.binary.as_deref().context("no program")?);
    let directory = binary.parent().context("the program has no directory")?;
    let tmp = Path::new("/tmp");
    let kept = directory
        .starts_with(tmp)
        .then(|| File::open(directory))
        .transpose()?;
    super::tmpfs(tmp)?;
    if let Some(kept) = kept {
        fs::create_dir_all(directory)?;
        mount_bind(format!("/proc/self/fd/{}", kept.as_raw_fd()), directory)?;
    }
    Ok(())
}

/// Tests the paths of the sockets without an option.
fn default_sockets(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    cover_tmp(context)?;
    let mut shell = Shell::start(context)?;
    let path = |number: u32| format!("/tmp/passt_{number}.socket");
    for number in [1, 2] {
        expect(
            &shell.passt(&format!("--quiet --pid {PID}.{number}"))?,
            "status 0",
        )?;
        expect(&connected(&path(number))?.dhcp4()?, LEASE)?;
    }
    shell.run(&format!("kill -KILL $(cat {PID}.1)"))?;
    process::wait_until("the first program has exited", Duration::from_secs(3), || {
        Ok(UnixStream::connect(path(1)).is_err())
    })?;
    // The file of a killed process is replaced.
    expect(&shell.passt(&format!("--quiet --pid {PID}.3"))?, "status 0")?;
    expect(&connected(&path(1))?.dhcp4()?, LEASE)?;
    shell.run(&format!("kill $(cat {PID}.2 {PID}.3)"))?;
    wait_for_the_end(context)?;
    ensure!(!Path::new(&path(1)).exists() && !Path::new(&path(2)).exists());
    drop(shell);
    nothing_left()
}

/// Tests 24 processes that are started at the same time without a path: each listens at another one of the default paths.
fn at_once(context: &Context) -> Result<()> {
    const STARTED: u32 = 24;
    let _network = Network::new(context)?;
    cover_tmp(context)?;
    let mut shell = Shell::start(context)?;
    for round in 1..=2 {
        let statuses = shell.ask(&format!(
            "echo $(for n in $(seq {STARTED}); do {{ $PASST --quiet --pid {PID}.{round}.$n 2>&1; echo $?; }} & done; wait)"
        ))?;
        expect(&statuses, &vec!["0"; STARTED as usize].join(" "))?;
        for number in 1..=STARTED {
            expect(
                &connected(&format!("/tmp/passt_{number}.socket"))?.dhcp4()?,
                LEASE,
            )?;
        }
        shell.run(&format!("kill $(cat {PID}.{round}.*)"))?;
        wait_for_the_end(context)?;
    }
    let is_left = |number| Path::new(&format!("/tmp/passt_{number}.socket")).exists();
    ensure!(!(1..=STARTED).any(is_left), "a socket's file was not removed");
    drop(shell);
    nothing_left()
}

/// Returns a case of clients that violate the protocol. Afterwards the same process serves a guest.
fn hostile(name: &str, attack: fn() -> Result<()>) -> Case {
    Case::new(&format!("compat.passt.{name}"), 60, move |context| {
        let _network = Network::new(context)?;
        let mut shell = Shell::start(context)?;
        expect(
            &shell.passt(&format!("--quiet --socket {SOCKET} --pid {PID}"))?,
            "status 0",
        )?;
        let process = daemon(PID)?;
        attack()?;
        expect(&connected(SOCKET)?.dhcp4()?, LEASE)?;
        ensure!(daemon(PID)? == process, "the process was replaced");
        kill_process(process, Signal::TERM)?;
        wait_for_the_end(context)?;
        drop(shell);
        nothing_left()
    })
}

/// Connects a client that reads for at most 5 s.
fn client() -> Result<UnixStream> {
    let client = UnixStream::from(dial(Path::new(SOCKET), Framing::Stream)?);
    client.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(client)
}

/// Sends bytes, and checks that the client is disconnected, which may be before everything is sent.
fn disconnects(sent: &[u8]) -> Result<()> {
    let mut client = client()?;
    let _ = client.write_all(sent);
    let mut rest = Vec::new();
    match client.read_to_end(&mut rest) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => bail!("the client is still connected"),
        _ => Ok(()),
    }
}

fn garbage() -> Result<()> {
    disconnects(&vec![0xff; 100_000])?;
    disconnects(b"GET / HTTP/1.0\r\n\r\n")
}

/// Sends a frame, and checks that the client stays connected and gets its lease.
fn stays(frame: &[u8]) -> Result<()> {
    let mut client = client()?;
    client.write_all(frame)?;
    let guest = TapGuest::at(client.into(), Framing::Stream)?;
    expect(&guest.dhcp4()?, LEASE)
}

/// Tests frames that are shorter than an Ethernet header, which are dropped.
fn short_frames() -> Result<()> {
    for length in [0_u8, 1, 13] {
        stays(&[&u32::from(length).to_be_bytes()[..], &vec![0; length.into()]].concat())?;
    }
    Ok(())
}

/// Tests a client that sends a part of a frame or of its length and waits: it does not occupy the process after it has
/// disconnected.
fn half_a_frame() -> Result<()> {
    for sent in [
        [&100_u32.to_be_bytes()[..], &[0xff; 50]].concat(),
        14_u32.to_be_bytes().to_vec(),
        vec![0, 0],
    ] {
        let mut client = client()?;
        client.write_all(&sent)?;
        drop(client);
        expect(&connected(SOCKET)?.dhcp4()?, LEASE)?;
    }
    Ok(())
}

/// Tests a frame that is longer than the largest IP packet, which is dropped.
fn large_frame() -> Result<()> {
    let mut frame = 65_536_u32.to_be_bytes().to_vec();
    frame.resize(4 + 65_536, 0);
    stays(&frame)
}

/// Tests a second client, which is disconnected, while the first one is served.
fn two_clients() -> Result<()> {
    let first = connected(SOCKET)?;
    expect(&first.dhcp4()?, LEASE)?;
    for _ in 0..100 {
        disconnects(&[0xff; 100])?;
    }
    expect(&first.dhcp4()?, LEASE)
}

fn thousand_connections() -> Result<()> {
    for _ in 0..1000 {
        drop(dial(Path::new(SOCKET), Framing::Stream)?);
    }
    Ok(())
}

/// Tests errors: one line, and the exit status 1.
fn errors(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    for (arguments, text) in [
        ("-T auto", "-T is for pasta mode only status 1"),
        (
            "--fd 77",
            "cannot use descriptor 77 for --fd: bad file descriptor",
        ),
        ("--socket /none/socket", "(try: an existing directory) status 1"),
        ("--socket /mnt/s sh", "Extra non-option argument: sh status 1"),
        ("--socket /mnt/s --address 300.1.1.1", "status 1"),
    ] {
        let printed = shell.passt(arguments)?;
        ensure!(printed.contains(text), "{arguments}: {printed}");
    }
    drop(shell);
    nothing_left()
}
