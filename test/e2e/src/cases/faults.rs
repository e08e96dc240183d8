//! Cases about a failing host: system calls that fail, exhausted descriptors and ports, interfaces that go down, and
//! stopped processes.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::{ip, sysctl};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

use super::{expect, tcp_server, udp_server};
use crate::case::{Case, Context, Family};
use crate::guest::tcp;
use crate::network::Network;
use crate::process::{self, Process};
use crate::run::{RunningProgram, own_path};
use crate::strace::{self, Strace};

/// The traffic during a case in which system calls of the engine fail.
#[derive(Clone, Copy)]
enum Traffic {
    /// TCP connections that the guest opens.
    Connections,
    /// TCP connections to a published port.
    Published,
    /// UDP datagrams of the guest, each from another port.
    Datagrams,
}

use Traffic::{Connections, Datagrams, Published};

/// System calls of the packet path, errors that a kernel may return for them, and traffic that makes these calls.
/// EAGAIN and EINTR are injected only where the kernel may return them, as an engine would otherwise wait for a
/// readiness that is never reported.
const CALLS: [(&str, &[&str], Traffic); 17] = [
    ("socket", &["EMFILE", "ENFILE", "ENOBUFS", "EACCES"], Connections),
    (
        "connect",
        &["ENETUNREACH", "EADDRNOTAVAIL", "EPERM", "ENOBUFS"],
        Connections,
    ),
    ("setsockopt", &["EINVAL", "ENOPROTOOPT", "ENOMEM"], Connections),
    ("getsockopt", &["EINVAL", "ENOPROTOOPT"], Connections),
    ("epoll_ctl", &["ENOMEM", "ENOSPC"], Connections),
    ("epoll_wait,epoll_pwait,epoll_pwait2", &["EINTR"], Connections),
    ("sendmsg", &["ENOBUFS", "ENOMEM", "EPERM", "EPIPE"], Connections),
    ("recvmsg", &["ENOMEM", "ECONNRESET"], Connections),
    ("recvfrom", &["ENOMEM"], Connections),
    ("shutdown", &["ENOTCONN", "ENOBUFS"], Connections),
    ("read,readv", &["EAGAIN", "EINTR", "EIO"], Connections),
    (
        "write,writev",
        &["EAGAIN", "EINTR", "EIO", "ENOBUFS"],
        Connections,
    ),
    (
        "accept4",
        &["EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "ECONNABORTED", "EPERM"],
        Published,
    ),
    ("socket", &["EMFILE", "ENOBUFS", "EACCES"], Datagrams),
    (
        "connect,bind",
        &["EADDRINUSE", "ENETUNREACH", "ENOBUFS"],
        Datagrams,
    ),
    (
        "sendmsg",
        &["ENOBUFS", "EPERM", "ENETUNREACH", "EMSGSIZE"],
        Datagrams,
    ),
    ("recvmmsg,recvmsg", &["ENOMEM", "ECONNREFUSED"], Datagrams),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = CALLS
        .into_iter()
        .map(|(calls, errors, traffic)| {
            let name = calls.split(',').next().unwrap_or(calls);
            let of = match traffic {
                Connections => "",
                Published => "published-",
                Datagrams => "udp-",
            };
            let mut case = Case::new(&format!("faults.{of}{name}-fails"), 120, move |context| {
                call_fails(context, calls, errors, traffic)
            });
            case.environment = strace::OPEN.to_vec();
            case
        })
        .collect();
    cases.extend([
        Case::new("faults.engine-stopped-10-s", 60, stopped),
        Case::new("faults.out-of-descriptors", 60, out_of_descriptors),
        Case::new("faults.out-of-ports", 60, out_of_ports),
        Case::new("faults.out-of-memory", 60, out_of_memory),
        Case::new("faults.guest-interface-down-and-up", 30, guest_interface),
        Case::new("faults.host-interface-down-and-up", 30, host_interface),
    ]);
    cases.into_iter().map(Case::pontoon_only).collect()
}

/// A running guest with a shell, its engine, and a server at the far end.
struct FaultScene {
    guest: RunningProgram,
    engine: Process,
    server: SocketAddr,
}

impl FaultScene {
    fn new(context: &Context, network: &Network<'_>, options: &[&str]) -> Result<Self> {
        let server = tcp_server(network, Family::V4)?;
        let mut guest = network.run().options(options).command(["sh"]).spawn()?;
        expect(&guest.ask("echo ready")?, "ready")?;
        let engine = context.program.engine()?;
        let mut setting = Self {
            guest,
            engine,
            server,
        };
        setting.works("before")?;
        Ok(setting)
    }

    /// Runs the TCP client command `words` in the guest, and returns its output.
    fn ask(&mut self, words: &str) -> Result<String> {
        let line = format!("{} guest tcp {} {words} || echo failed", own_path(), self.server);
        self.guest.ask(&line)
    }

    /// Checks that new connections succeed, that their content is correct, and that the engine was not restarted.
    fn works(&mut self, when: &str) -> Result<()> {
        expect(&self.ask("connects 5")?, "ok").with_context(|| when.to_owned())?;
        expect(&self.ask("put 0 8 4194304")?, "ok").with_context(|| when.to_owned())?;
        expect(&self.ask("fetch 0 9 4194304")?, "ok").with_context(|| when.to_owned())
    }
}

/// Tests system calls of which every seventh fails: connections may be reset and datagrams lost, but the other
/// connections lose no byte, the engine is not restarted, and no descriptor is leaked.
fn call_fails(context: &Context, calls: &str, errors: &[&str], traffic: Traffic) -> Result<()> {
    let network = Network::new(context)?;
    let datagrams = udp_server(&network, Family::V4)?;
    let mut setting = FaultScene::new(context, &network, &["--io", "event", "--publish", "8080:80"])?;
    let serve = format!("{} guest serve tcp:0.0.0.0:80 &", own_path());
    expect(&setting.guest.ask(&serve)?, "listening")?;
    let published = SocketAddr::new(network.host_address(Family::V4), 8080);
    super::tmpfs(Path::new("/mnt"))?;
    let before = setting.engine.descriptors()?;
    for error in errors {
        let trace = format!("trace={calls}");
        // The first calls succeed, as the first may be the wait of the loop; then every seventh fails.
        let inject = format!("inject={calls}:error={error}:when=3+7");
        let options = ["-e", trace.as_str(), "-e", inject.as_str()];
        let strace = Strace::attach(setting.engine, &options, Path::new("/mnt/calls"))?;
        let survived = match traffic {
            Connections => setting.ask("survive 60 65536")?,
            Published => {
                let survive = ["survive", "60", "65536"];
                network.server().enter(|| tcp::command(published, &survive))?
            }
            Datagrams => setting.guest.ask(&format!(
                "{} guest udp survive {datagrams} 60 || echo failed",
                own_path()
            ))?,
        };
        let written = strace.finish()?;
        let injected = written.matches("(INJECTED)").count();
        eprintln!("{calls}: {error}, {injected} times: {survived}");
        ensure!(injected > 0, "{calls} was not called");
        ensure!(survived.starts_with("whole "), "{survived}");
        setting.works(error)?;
        ensure!(
            context.program.engine()? == setting.engine,
            "the engine exited at {error}"
        );
    }
    // UDP endpoints exist for two minutes after their last datagram.
    let endpoints = match traffic {
        Datagrams => 60 * errors.len(),
        Connections | Published => 0,
    };
    process::wait_until(
        "the engine has closed the descriptors of all flows",
        Duration::from_secs(10),
        || Ok(setting.engine.descriptors()? <= before + endpoints),
    )?;
    Ok(())
}

/// Tests a stop of the engine for ten seconds, as when a machine is suspended or a process gets no CPU.
fn stopped(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut setting = FaultScene::new(context, &network, &[])?;
    let engine = setting.engine;
    let stopping = std::thread::spawn(move || -> Result<()> {
        // The stop may begin at any time before the transfer has ended.
        std::thread::sleep(Duration::from_millis(100));
        engine.signal(Signal::STOP)?;
        // The duration of the stop is the condition of the test.
        std::thread::sleep(Duration::from_secs(10));
        engine.signal(Signal::CONT)
    });
    // The transfer is longer than any machine needs until the stop.
    let start = Instant::now();
    expect(&setting.ask("put 0 5 1073741824")?, "ok")?;
    let took = start.elapsed();
    process::join(stopping)?;
    ensure!(
        took >= Duration::from_secs(10),
        "the transfer ended after {took:?}, before the stop had"
    );
    setting.works("afterwards")
}

/// Tests that connects without a free descriptor are refused, that existing connections are not affected, and that
/// connects succeed again when descriptors are free.
fn out_of_descriptors(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut setting = FaultScene::new(context, &network, &["--io", "event"])?;
    let pid =
        Pid::from_raw(setting.engine.id().cast_signed()).context("the program has no engine process")?;
    let few = setting.engine.descriptors()? as u64 + 8;
    let own = getrlimit(Resource::Nofile);
    let limit = |current| Rlimit {
        current,
        maximum: own.maximum,
    };
    prlimit(Some(pid), Resource::Nofile, limit(Some(few)))?;
    let counts = setting.ask("crowd 40")?;
    eprintln!("40 at once with 8 descriptors: {counts}");
    let (stood, refused) = counts
        .split_once(' ')
        .context("the client did not print two numbers")?;
    let (stood, refused): (u32, u32) = (stood.parse()?, refused.parse()?);
    ensure!(stood > 0 && refused > 0 && stood + refused == 40, "{counts}");
    prlimit(Some(pid), Resource::Nofile, limit(own.maximum))?;
    setting.works("with descriptors")?;
    ensure!(context.program.engine()? == setting.engine, "the engine crashed");
    Ok(())
}

/// Tests that connects without a free port are refused, that existing connections are not affected, and that connects
/// succeed again when ports are free.
fn out_of_ports(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    sysctl("net/ipv4/ip_local_port_range", "40000 40019")?;
    let mut setting = FaultScene::new(context, &network, &["--io", "event"])?;
    let counts = setting.ask("crowd 40")?;
    eprintln!("40 at once with 20 ports: {counts}");
    let (stood, refused) = counts
        .split_once(' ')
        .context("the client did not print two numbers")?;
    let (stood, refused): (u32, u32) = (stood.parse()?, refused.parse()?);
    ensure!(stood > 0 && refused > 0 && stood + refused == 40, "{counts}");
    // The engine uses its share of the port range at its start. The test waits until the kernel may reuse ports in
    // TIME-WAIT, which is after one second (ip-sysctl, `tcp_tw_reuse`).
    sysctl("net/ipv4/tcp_tw_reuse", "1")?;
    std::thread::sleep(Duration::from_millis(1500));
    setting.works("with ports")
}

/// Tests that an engine whose allocation fails, which aborts, is restarted: the handler of a fault has to end the process
/// although the sandbox permits few system calls.
fn out_of_memory(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut setting = FaultScene::new(context, &network, &["--io", "event"])?;
    let engine = setting.engine;
    let pid = Pid::from_raw(engine.id().cast_signed()).context("the program has no engine process")?;
    let used = Some(engine.number("status", "VmData")? << 10);
    let limit = Rlimit {
        current: used,
        maximum: used,
    };
    prlimit(Some(pid), Resource::Data, limit)?;
    let load = format!(
        "for i in 1 2 3 4; do {} guest tcp {} crowd 900 >/dev/null 2>&1 & done; echo loading",
        own_path(),
        setting.server
    );
    expect(&setting.guest.ask(&load)?, "loading")?;
    process::wait_until("the engine is restarted", Duration::from_secs(15), || {
        Ok(context.program.engine().is_ok_and(|running| running != engine))
    })?;
    setting.engine = context.program.engine()?;
    setting.works("after the restart")?;
    ensure!(
        context.program.engine()? == setting.engine,
        "the engine crashed again"
    );
    Ok(())
}

fn guest_interface(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut setting = FaultScene::new(context, &network, &[])?;
    let line = "ip route show default >/tmp/route.$$; ip link set tap0 down && sleep 1 && ip link set tap0 up && \
                ip route add $(cat /tmp/route.$$); rm /tmp/route.$$; echo up";
    expect(&setting.guest.ask(line)?, "up")?;
    setting.works("up again")?;
    ensure!(context.program.engine()? == setting.engine, "the engine crashed");
    Ok(())
}

fn host_interface(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut setting = FaultScene::new(context, &network, &[])?;
    ip("link set net0 down")?;
    let millis: u64 = setting.ask("unreachable")?.parse()?;
    ensure!(millis < 1000, "unreachable after {millis} ms");
    ip("link set net0 up")?;
    ip("route add default via 198.51.100.2")?;
    setting.works("up again")?;
    ensure!(context.program.engine()? == setting.engine, "the engine crashed");
    Ok(())
}
