//! Cases about the command line of pasta, as Podman, RootlessKit and users in a shell use it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::ip;

use super::lifecycle::nothing_left;
use super::shell::{Shell, wait_for_the_end};
use super::{expect, tcp_server, udp_server};
use crate::case::{Case, Context, Family};
use crate::guest::{tcp, udp};
use crate::network::Network;
use crate::{process, server};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("compat.pasta.podman", 40, podman),
        Case::new("compat.pasta.rootlesskit", 40, rootlesskit),
        Case::new("compat.pasta.command", 40, command),
        Case::new("compat.pasta.pid", 30, pid),
        Case::new("compat.pasta.foreground", 30, foreground),
        Case::new("compat.pasta.namespace-of-another-user-namespace", 30, nested),
        Case::new("compat.pasta.ports", 40, ports),
        Case::new("compat.pasta.auto-ports", 40, auto_ports),
        Case::new("compat.pasta.gateway-is-the-hosts-loopback", 40, gateway),
        Case::new("compat.pasta.without-default-route", 30, local),
        Case::new("compat.pasta.no-netns-quit", 30, no_netns_quit),
        Case::new("compat.pasta.namespace-file-behind-a-link", 30, link),
        Case::new("compat.pasta.namespace-file-in-a-renamed-directory", 30, renamed),
        Case::new("compat.pasta.fifo-for-a-namespace", 30, fifo),
        Case::new("compat.pasta.files", 30, files),
        Case::new("compat.pasta.errors", 40, errors),
        Case::new("compat.pasta.killed-daemon", 30, killed),
    ]
    .into_iter()
    .map(Case::pontoon_only)
    .collect()
}

/// Network namespace file that the tests remove.
const NETNS: &str = "/mnt/netns";

/// Options that Podman passes for a container without ports.
const PODMAN: &str = "--config-net --dns-forward 169.254.1.1 -t none -u none -T none -U none --no-map-gw --quiet \
                      --netns /mnt/netns --map-guest-addr 169.254.1.2";

impl Shell {
    /// Runs pasta until it exits, and returns its output and the exit status. The call returns when no process has
    /// the output open, as callers wait for that.
    fn pasta(&mut self, arguments: &str) -> Result<String> {
        self.ask(&format!("echo $($PASTA {arguments} 2>&1; echo status $?)"))
    }

    /// Runs pasta, and checks that it goes to the background without a message.
    pub(super) fn daemon(&mut self, arguments: &str) -> Result<()> {
        expect(&self.pasta(arguments)?, "status 0")
    }

    /// Starts servers in the namespace of the last `$holder`.
    pub(super) fn serve(&mut self, servers: &str) -> Result<()> {
        let nsenter = self.nsenter;
        self.run(&format!(
            "coproc nsenter {nsenter} --net --target $holder $E2E guest serve {servers}; read -r -u ${{COPROC[0]}}"
        ))
    }
}

/// Mounts the network namespace of a process at [`NETNS`], as Podman does.
fn mount(holder: &str) -> Result<()> {
    std::fs::write(NETNS, "")?;
    let source = format!("/proc/{holder}/ns/net");
    process::output(Command::new("mount").args(["--bind", &source, NETNS])).map(drop)
}

/// Removes the file of [`mount`].
fn remove() -> Result<()> {
    process::output(Command::new("umount").args(["--lazy", NETNS]))?;
    Ok(std::fs::remove_file(NETNS)?)
}

/// Returns true if a text is a time in microseconds, after which a connection was refused.
fn is_time(text: &str) -> bool {
    text.parse::<u64>().is_ok()
}

/// Tests a container of Podman: addresses, DNS, a port, the host's own address, and the end with the namespace's file.
fn podman(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let server6 = tcp_server(&network, Family::V6)?;
    let mut shell = Shell::start(context)?;
    let holder = shell.holder()?;
    mount(&holder)?;
    let arguments = PODMAN.replace("-t none", "-t 8080-8080:80-80 -t ::1/8081-8081:80-80");
    shell.daemon(&format!("{arguments} --pid /mnt/pid"))?;
    // Everything is configured when the parent has exited.
    let text = shell.inside("ip -oneline address show; ip link show net0; ip route; ip -6 route")?;
    for part in [
        "lo inet 127.0.0.1/8",
        "net0 inet 198.51.100.1/24",
        "net0 inet6 2001:db8:1::1/64",
        "mtu 65520",
        "default via 198.51.100.2 dev net0",
        "default via 2001:db8:1::2 dev net0",
    ] {
        ensure!(text.contains(part), "no {part}: {text}");
    }
    ensure!(!text.contains("tentative"), "{text}");
    for server in [server, server6] {
        expect(
            &shell.inside(&format!("$E2E guest tcp {server} connects 3"))?,
            "ok",
        )?;
    }
    shell.serve("tcp:0.0.0.0:80 tcp:[2001:db8:1::1]:80")?;
    let published = SocketAddr::new(network.host_address(Family::V4), 8080);
    let peer = network.server().enter(|| tcp::command(published, &["peer"]))?;
    ensure!(
        peer.starts_with("198.51.100.2"),
        "the guest sees the client {peer}"
    );
    for local in ["127.0.0.1:8080", "198.51.100.1:8080", "[::1]:8081"] {
        expect(&tcp::command(local.parse()?, &["connects", "1"])?, "ok")?;
    }
    // The host's own address is the guest's, so another one stands for it.
    let own = server::tcp::start(SocketAddr::new(network.host_address(Family::V4), 0))?;
    let mapped = SocketAddr::new(Ipv4Addr::new(169, 254, 1, 2).into(), own.port());
    expect(
        &shell.inside(&format!("$E2E guest tcp {mapped} connects 1"))?,
        "ok",
    )?;
    let loopback = server::tcp::start(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0))?;
    let refused = SocketAddr::new(mapped.ip(), loopback.port());
    let text = shell.inside(&format!("$E2E guest tcp {refused} refused"))?;
    ensure!(is_time(&text), "{refused}: {text}");
    // The file contains the process in the background, which is no child of the shell.
    let parent = shell.ask("ps -o ppid=,stat= -p $(cat /mnt/pid) | grep -c 's'")?;
    expect(&parent, "1")?;
    shell.run("kill -0 $(cat /mnt/pid); [ -z \"$(jobs -r | grep compat)\" ]")?;
    let pid = shell.ask("cat /mnt/pid")?;
    shell.run("kill ${COPROC_PID}")?;
    remove()?;
    wait_for_the_end(context)?;
    expect(std::fs::read_to_string("/mnt/pid")?.trim(), &pid)?;
    shell.finish()
}

/// Tests RootlessKit's command line: addresses of its own, and ports on which programs listen.
fn rootlesskit(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let udp_server = udp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    for target in [
        "$holder",
        "--userns=/proc/$holder/ns/user --netns=/proc/$holder/ns/net",
    ] {
        shell.holder()?;
        let text = shell.pasta(&format!(
            "--stderr --ns-ifname=tap0 --mtu=65520 --config-net --address=10.0.2.100 --netmask=24 --gateway=10.0.2.2 \
             --dns-forward=10.0.2.3 --no-map-gw --ipv4-only --tcp-ports=none --udp-ports=none --host-lo-to-ns-lo {target}"
        ))?;
        ensure!(text.ends_with("status 0"), "{text}");
        let text = shell.inside("ip -oneline address show; ip route")?;
        ensure!(
            text.contains("tap0 inet 10.0.2.100/24") && text.contains("default via 10.0.2.2 dev tap0"),
            "{text}"
        );
        ensure!(!text.contains("tap0 inet6"), "{text}");
        expect(
            &shell.inside(&format!("$E2E guest tcp {server} connects 3"))?,
            "ok",
        )?;
        expect(&shell.inside(&format!("$E2E guest udp peer {udp_server}"))?, "ok")?;
        shell.run("kill $holder; ! wait $holder")?;
        wait_for_the_end(context)?;
    }
    drop(shell);
    nothing_left()
}

/// Tests a command in new namespaces: its exit status is that of the program.
fn command(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    let text = shell.pasta(&format!(
        "--config-net --no-map-gw -- sh -c 'id -u; hostname; ip -o -4 address show dev net0; $E2E guest tcp {server} connects 3; exit 7'"
    ))?;
    let host = shell.ask("hostname")?;
    ensure!(
        text.starts_with(&format!("0 pasta-{host} ")) && text.ends_with(" ok status 7"),
        "{text}"
    );
    ensure!(text.contains("inet 198.51.100.1/24"), "{text}");
    expect(&shell.pasta("-H box hostname")?, "box status 0")?;
    expect(&shell.pasta("sh -c 'kill -TERM $$'")?, "status 143")?;
    let text = shell.pasta("/nonexistent/command")?;
    ensure!(
        text.starts_with("error: ") && text.ends_with("status 127"),
        "{text}"
    );
    drop(shell);
    nothing_left()
}

/// Tests that the interface is not configured without `--config-net`, and that the program exits with the process.
fn pid(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.daemon("-q --no-map-gw -t none -u none -I tap7 $holder")?;
    let text = shell.inside("ip -oneline address show dev tap7; ip link show tap7")?;
    ensure!(
        text.contains("tap7: ") && !text.contains("inet") && text.contains("state DOWN"),
        "{text}"
    );
    // The loopback interface is brought up in any case.
    let text = shell.inside("ip -oneline address show dev lo up")?;
    ensure!(text.contains("127.0.0.1"), "{text}");
    let text = shell.inside(
        "ip address add 198.51.100.1/24 dev tap7; ip link set tap7 up; ip route add default via 198.51.100.2",
    )?;
    expect(&text, "")?;
    expect(
        &shell.inside(&format!("$E2E guest tcp {server} connects 3"))?,
        "ok",
    )?;
    shell.run("kill $holder; ! wait $holder")?;
    wait_for_the_end(context)?;
    drop(shell);
    nothing_left()
}

/// Tests `--foreground`, and that the end of a signalled process leaves nothing.
fn foreground(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    for signal in ["TERM", "HUP"] {
        shell.run(
            "rm -f /mnt/pid; $PASTA -f -q --config-net --no-map-gw --pid /mnt/pid $holder & pasta=$!; until [ -s /mnt/pid ]; do sleep 0.01; done",
        )?;
        expect(&shell.ask("echo $(($(cat /mnt/pid) - pasta))")?, "0")?;
        expect(
            &shell.inside(&format!("$E2E guest tcp {server} connects 3"))?,
            "ok",
        )?;
        expect(
            &shell.ask(&format!("kill -{signal} $pasta; wait $pasta; echo $?"))?,
            "0",
        )?;
    }
    shell.finish()
}

/// Tests network namespaces that are owned by a user namespace within that of the user who runs the program.
fn nested(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    // The network namespace belongs to the inner user namespace, or to the outer one of a process in the inner one.
    for line in [
        "unshare --user --map-root-user unshare --user --map-root-user --net sleep 1000",
        "unshare --user --map-root-user --net unshare --user --map-root-user sleep 1000",
    ] {
        for target in ["$holder", "--netns /proc/$holder/ns/net"] {
            shell.run(&format!(
                "{line} >/dev/null & holder=$!; until [ \"$(cat /proc/$holder/comm)\" = sleep ]; do sleep 0.01; done"
            ))?;
            shell.daemon(&format!("-q --config-net --no-map-gw {target}"))?;
            let text = shell.ask(&format!(
                "echo $(nsenter --user --preserve-credentials --net --target $holder $E2E guest tcp {server} connects 3 2>&1)"
            ))?;
            // A process in the inner user namespace may not enter a network namespace of the outer one.
            if line.contains("--net sleep") {
                expect(&text, "ok")?;
            }
            shell.run("kill $holder; ! wait $holder")?;
            wait_for_the_end(context)?;
        }
    }
    drop(shell);
    nothing_left()
}

/// Tests port specifications in the syntax of pasta.
fn ports(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.daemon(
        "-q --config-net -t 8000-8002,~8001 -t 127.0.0.1/9000:8000 -t %net0/9100:8000 -u ::1/5300:53 -u 5301:53 \
         -t ::/8003:2001:db8:1::1/8002 $holder",
    )?;
    shell.serve(
        "tcp:0.0.0.0:8000 tcp:[2001:db8:1::1]:8000 tcp:[2001:db8:1::1]:8002 udp:0.0.0.0:53 \
         udp:[2001:db8:1::1]:53",
    )?;
    let host = network.host_address(Family::V4);
    for open in ["127.0.0.1:8000", "[::1]:8000", "127.0.0.1:9000", "[::1]:8003"] {
        expect(&tcp::command(open.parse()?, &["connects", "1"])?, "ok")
            .with_context(|| format!("port {open}"))?;
    }
    for closed in ["127.0.0.1:8001", "[::1]:9000", "127.0.0.1:9100", "127.0.0.1:8003"] {
        let address: SocketAddr = closed.parse()?;
        ensure!(TcpStream::connect(address).is_err(), "{closed} is open");
    }
    for open in [SocketAddr::new(host, 8000), SocketAddr::new(host, 9100)] {
        let answer = network
            .server()
            .enter(|| tcp::command(open, &["connects", "1"]))?;
        expect(&answer, "ok")?;
    }
    for open in ["[::1]:5300", "127.0.0.1:5301"] {
        expect(&udp::command(&["peer", open])?, "ok")?;
    }
    shell.run("kill ${COPROC_PID}; kill $holder; ! wait $holder")?;
    wait_for_the_end(context)?;
    drop(shell);
    nothing_left()
}

/// Tests that the ports on which programs in the namespace listen are published by default.
fn auto_ports(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.daemon("-q --config-net $holder")?;
    shell.serve("tcp:0.0.0.0:7000 udp:0.0.0.0:7001")?;
    let published = SocketAddr::new(network.host_address(Family::V4), 7000);
    let is_open = || {
        let connect = || Ok(TcpStream::connect(published).is_ok());
        network.server().enter(connect)
    };
    process::wait_until("port 7000 is open", Duration::from_secs(5), is_open)?;
    let datagrams = SocketAddr::new(published.ip(), 7001);
    let echo = || udp::command(&["peer", &datagrams.to_string()]);
    expect(&network.server().enter(echo)?, "ok")?;
    shell.run("kill ${COPROC_PID}; kill $holder; ! wait $holder")?;
    wait_for_the_end(context)?;
    drop(shell);
    nothing_left()
}

/// Tests that the gateway is the host's loopback, and is not with `--no-map-gw` or with another address.
fn gateway(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let v4 = server::tcp::start(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0))?;
    let v6 = server::tcp::start(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 0))?;
    let mut shell = Shell::start(context)?;
    let gateways: [IpAddr; 2] = ["198.51.100.2".parse()?, "2001:db8:1::2".parse()?];
    let other: IpAddr = "192.0.2.77".parse()?;
    let mut attempt = |options: &str, answers: [&str; 3]| -> Result<()> {
        shell.holder()?;
        shell.daemon(&format!("-q --config-net {options} $holder"))?;
        let ports = [v4.port(), v6.port(), v4.port()];
        let addresses = [gateways[0], gateways[1], other];
        for ((address, port), answer) in addresses.into_iter().zip(ports).zip(answers) {
            let to = SocketAddr::new(address, port);
            let words = if answer == "refused" {
                "refused"
            } else {
                "connects 1"
            };
            if answer.is_empty() {
                continue;
            }
            let text = shell.inside(&format!("$E2E guest tcp {to} {words}"))?;
            let is_expected = if answer == "refused" {
                is_time(&text)
            } else {
                text == "ok"
            };
            ensure!(is_expected, "{options}: {to}: {text}");
        }
        shell.run("kill $holder; ! wait $holder")?;
        wait_for_the_end(context)
    };
    attempt("", ["open", "open", ""])?;
    attempt("--no-map-gw", ["refused", "refused", ""])?;
    attempt("--map-host-loopback 192.0.2.77", ["refused", "", "open"])?;
    drop(shell);
    drop(network);
    nothing_left()
}

/// Tests that the namespace has private addresses on a host without a default route.
fn local(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    ip("route del default")?;
    ip("route del default via 2001:db8:1::2")?;
    let mut shell = Shell::start(context)?;
    let holder = shell.holder()?;
    mount(&holder)?;
    shell.daemon(&PODMAN.replace("--no-map-gw", ""))?;
    let text = shell.inside("ip -4 -oneline address show; ip route")?;
    ensure!(
        text.contains("tap0 inet 10.0.2.15/24") && text.contains("default via 10.0.2.2 dev tap0"),
        "{text}"
    );
    let loopback = server::tcp::start(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0))?;
    let text = shell.inside(&format!("$E2E guest tcp 10.0.2.2:{} connects 1", loopback.port()))?;
    expect(&text, "ok")?;
    remove()?;
    wait_for_the_end(context)?;
    shell.finish()
}

/// Tests that the program continues without the process of its namespace, until a signal ends it.
fn no_netns_quit(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    let holder = shell.holder()?;
    mount(&holder)?;
    for (target, remove_first) in [("--netns /mnt/netns", true), ("$holder", false)] {
        shell.daemon(&format!("-q --config-net --no-netns-quit -P /mnt/pid {target}"))?;
        match remove_first {
            true => remove()?,
            false => shell.run("kill $holder; ! wait $holder")?,
        }
        std::thread::sleep(Duration::from_millis(1500));
        shell.run("kill -0 $(cat /mnt/pid); kill $(cat /mnt/pid)")?;
        wait_for_the_end(context)?;
    }
    drop(shell);
    nothing_left()
}

/// Tests that a daemon ends with the namespace's file, although it was started with a symbolic link to it.
fn link(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    mount(&shell.holder()?)?;
    std::os::unix::fs::symlink(NETNS, "/mnt/link")?;
    shell.daemon("-q --config-net --netns /mnt/link")?;
    remove()?;
    wait_for_the_end(context)?;
    shell.finish()
}

/// Tests that a daemon ends when the directory of the namespace's file is renamed: no process finds it by its path then.
fn renamed(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    mount(&shell.holder()?)?;
    shell.run("mkdir /mnt/old && ln -s /mnt/netns /mnt/old/link")?;
    shell.daemon("-q --config-net --netns /mnt/old/link")?;
    shell.run("mv /mnt/old /mnt/new")?;
    wait_for_the_end(context)?;
    remove()?;
    shell.finish()
}

/// Tests that a FIFO in place of a namespace's file is an error, and does not block the program.
fn fifo(context: &Context) -> Result<()> {
    let mut shell = Shell::start(context)?;
    shell.run("mkfifo /mnt/fifo")?;
    let text = shell.pasta("-q --config-net --netns /mnt/fifo")?;
    ensure!(
        text.contains("is not a network namespace") && !text.ends_with("status 0"),
        "{text}"
    );
    drop(shell);
    nothing_left()
}

/// Tests the log file, the capture and the pid file of a daemon.
fn files(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    let text = shell.pasta(
        "--config-net --no-map-gw --trace -l /mnt/log --log-size 50000 -p /mnt/pcap -P /mnt/pid -t none -u none $holder",
    )?;
    ensure!(text.ends_with("status 0"), "{text}");
    for _ in 0..20 {
        expect(
            &shell.inside(&format!("$E2E guest tcp {server} connects 20"))?,
            "ok",
        )?;
    }
    let pid = shell.ask("cat /mnt/pid")?;
    shell.run("kill $holder; ! wait $holder")?;
    wait_for_the_end(context)?;
    let log = std::fs::read_to_string("/mnt/log")?;
    let first = log.lines().next().unwrap_or_default();
    ensure!(
        first.starts_with("pasta ") && first.contains(&format!(" ({pid})")),
        "{first}"
    );
    ensure!(log.len() <= 50_000, "{} bytes", log.len());
    let has_time = |line: &str| {
        line.split_once(": ")
            .is_some_and(|(time, _)| time.parse::<f64>().is_ok())
    };
    ensure!(log.lines().skip(1).all(has_time), "{log}");
    ensure!(log.lines().count() > 3, "{log}");
    ensure!(
        std::fs::metadata("/mnt/pcap")?.len() > 10_000,
        "the capture is short"
    );
    expect(std::fs::read_to_string("/mnt/pid")?.trim(), &pid)?;
    drop(shell);
    nothing_left()
}

/// Tests that an error before the network is ready is one line on standard error, and that nothing is left.
fn errors(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let taken = server::tcp::start(SocketAddr::new(network.host_address(Family::V4), 0))?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    for (arguments, expected) in [
        (
            format!("-q --config-net -t 198.51.100.1/{}:80 $holder", taken.port()),
            format!("error: cannot publish 198.51.100.1:{}", taken.port()),
        ),
        (
            "-q --netns /mnt/missing".to_owned(),
            "error: cannot open network namespace /mnt/missing: no such file or directory (try: ".to_owned(),
        ),
        (
            "-q --config-net -i missing0 $holder".to_owned(),
            "error: the host has no interface missing0 (try: ".to_owned(),
        ),
        (
            "-q --config-net -P /mnt/none/pid $holder".to_owned(),
            "error: the directory /mnt/none of the pid file does not exist".to_owned(),
        ),
        (
            "-q --config-net -l /mnt/none/log $holder".to_owned(),
            "error: cannot write log file /mnt/none/log: no such file or directory".to_owned(),
        ),
        (
            "-q --config-net -t 1:2:3 $holder".to_owned(),
            "Invalid port specifier '1:2:3'".to_owned(),
        ),
        (
            "-q --config-net -m 68 $holder".to_owned(),
            "pasta: invalid value '68' for '--mtu <N>': ".to_owned(),
        ),
    ] {
        let text = shell.pasta(&arguments)?;
        ensure!(
            text.starts_with(&expected) && text.ends_with(" status 1"),
            "{arguments}: {text}"
        );
        ensure!(
            context.program.processes().is_empty(),
            "{arguments}: a process is left"
        );
    }
    let text = shell.pasta("--map-guest-adr=x")?;
    ensure!(
        text.starts_with("pasta: unrecognized option '--map-guest-adr=x' Usage: pasta ")
            && text.ends_with(" status 1"),
        "{text}"
    );
    expect(&shell.inside("ip -oneline link show | wc -l")?, "1")?;
    shell.finish()
}

/// Tests that nothing is left after SIGKILL of the daemon.
fn killed(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    for _ in 0..2 {
        shell.daemon("-q --config-net -P /mnt/pid $holder")?;
        shell.run("kill -KILL $(cat /mnt/pid)")?;
        wait_for_the_end(context)?;
        process::wait_until("the tap is removed", Duration::from_secs(3), || {
            Ok(shell.inside("ip -oneline link show | wc -l")? == "1")
        })?;
    }
    shell.finish()
}
