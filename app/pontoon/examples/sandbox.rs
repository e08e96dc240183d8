//! Runs a program in namespaces with a list of permitted destinations, and prints a record of each of its flows:
//!
//! ```text
//! sandbox [--allow DESTINATION]... -- PROGRAM [ARGUMENT]...
//! ```
//!
//! unshare(1) starts this example again in a user and a network namespace. There it opens a tap, sends the tap's descriptor over
//! its standard input, configures the tap by ip(8), and executes the program. The first process runs the network.

use std::error::Error;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use pontoon::{Addresses, Guest, Network, NetworkBuilder};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// First argument of the process in the namespaces.
const INSIDE: &str = "--inside";

/// MTU of the tap in bytes.
const MTU: &str = "65520";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.split_first() {
        Some((first, rest)) if first == INSIDE => inside(rest),
        _ => outside(&arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("sandbox: {error}");
        ExitCode::FAILURE
    })
}

/// Starts the process in the namespaces, and runs its network until it has exited.
fn outside(arguments: &[String]) -> Result<ExitCode> {
    let mut builder = Network::builder().mtu(MTU.parse()?);
    let mut words = arguments.iter();
    let program: Vec<&String> = loop {
        match words.next().map(String::as_str) {
            Some("--allow") => builder = builder.allow(words.next().ok_or("--allow needs a destination")?)?,
            Some("--") => break words.collect(),
            _ => return Err("usage: sandbox [--allow DESTINATION]... -- PROGRAM [ARGUMENT]...".into()),
        }
    };
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut child = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--net",
            "--mount",
            "--kill-child",
            "--",
        ])
        .arg(std::env::current_exe()?)
        .arg(INSIDE)
        .args(program)
        .stdin(theirs)
        .spawn()?;
    let tap = receive(&ours)?;
    let network = start(builder, tap)?;
    // The program begins when the network is ready.
    let addresses = encode(network.addresses())?;
    sendmsg(
        &ours,
        &[IoSlice::new(addresses.as_bytes())],
        &mut SendAncillaryBuffer::default(),
        SendFlags::NOSIGNAL,
    )?;
    let status = child.wait()?;
    network.stop()?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

fn start(builder: NetworkBuilder, tap: OwnedFd) -> Result<Network> {
    let builder = builder.on_event(|event| {
        let _ = writeln!(std::io::stderr(), "{}", event.json);
    });
    Ok(builder.attach(Guest::tap(tap)?)?)
}

/// Returns the guest's IPv4 address with its prefix, the gateway and the resolver.
fn encode(addresses: &Addresses) -> Result<String> {
    let own = addresses.ipv4.ok_or("the guest has no IPv4")?;
    let dns = own.dns.unwrap_or(own.gateway);
    Ok(format!("{}/{} {} {dns}", own.guest, own.prefix_len, own.gateway))
}

/// Configures the namespaces, and executes the program.
fn inside(program: &[String]) -> Result<ExitCode> {
    let (program, arguments) = program.split_first().ok_or("there is no program")?;
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    // The interface exists as long as the descriptor, which the other process keeps.
    send(&socket, &Guest::open_tap("tap0")?)?;
    let mut text = [0; 256];
    let (len, _) = rustix::net::recv(&socket, &mut text[..], RecvFlags::empty())?;
    let text = String::from_utf8_lossy(&text[..len]).into_owned();
    let mut words = text.split_whitespace();
    let (Some(address), Some(gateway), Some(dns)) = (words.next(), words.next(), words.next()) else {
        return Err("the network has not started".into());
    };
    ip("link set lo up")?;
    ip(&format!("link set tap0 up mtu {MTU}"))?;
    ip(&format!("addr add {address} dev tap0"))?;
    ip(&format!("route add default via {gateway}"))?;
    use_resolver(dns)?;
    let error = Command::new(program)
        .args(arguments)
        .stdin(File::open("/dev/null")?)
        .exec();
    Err(format!("cannot run {program}: {error}").into())
}

/// Mounts a file with this resolver over the resolv.conf(5) of the namespace.
fn use_resolver(address: &str) -> Result<()> {
    let path = std::env::temp_dir().join(format!("sandbox-resolv.{}", std::process::id()));
    std::fs::write(&path, format!("nameserver {address}\n"))?;
    let mounted = run("mount", &format!("--bind {} /etc/resolv.conf", path.display()));
    std::fs::remove_file(&path)?;
    mounted
}

fn ip(arguments: &str) -> Result<()> {
    run("ip", arguments)
}

fn run(program: &str, arguments: &str) -> Result<()> {
    match Command::new(program)
        .args(arguments.split_whitespace())
        .status()?
    {
        status if status.success() => Ok(()),
        status => Err(format!("{program} {arguments}: {status}").into()),
    }
}

/// Sends a descriptor.
fn send(socket: &OwnedFd, descriptor: &OwnedFd) -> Result<()> {
    let descriptors = [descriptor.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(socket, &[IoSlice::new(b"t")], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a descriptor.
fn receive(socket: &OwnedFd) -> Result<OwnedFd> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut [0])],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptors.next().ok_or("the namespaces were not created")?)
}
