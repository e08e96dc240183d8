//! Cases about the command lines of other programs: `slirp4netns` as RootlessKit, Podman and User Mode Linux use it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use pontoon_netns::{add_address, ip};

use super::lifecycle::nothing_left;
use super::shell::Shell;
use super::{expect, tcp_server, udp_server};
use crate::carrier::{Framing, dial};
use crate::case::{Case, Context, Family};
use crate::guest::tcp;
use crate::machine::{DIRECTORY, TapGuest};
use crate::network::Network;
use crate::process;
use crate::server;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("compat.slirp4netns.existing-tap", 40, existing_tap),
        Case::new("compat.slirp4netns.existing-tap-in-use", 30, tap_in_use),
        Case::new("compat.slirp4netns.configure-by-pid", 30, configure_by_pid),
        Case::new("compat.slirp4netns.configure-by-path", 30, configure_by_path),
        Case::new("compat.slirp4netns.neither-tap-nor-configure", 30, new_tap),
        Case::new("compat.slirp4netns.api-socket", 40, api_socket),
        Case::new("compat.slirp4netns.exit-fd", 30, exit_fd),
        Case::new("compat.slirp4netns.killed", 30, killed),
        Case::new("compat.slirp4netns.destinations", 40, destinations),
        Case::new("compat.slirp4netns.disable-host-loopback", 40, no_loopback),
        Case::new("compat.slirp4netns.user-mode-linux", 30, bess),
        Case::new("compat.slirp4netns.twenty-at-once", 60, twenty),
        Case::new("compat.links", 30, links),
    ]
    .into_iter()
    .map(Case::pontoon_only)
    .collect()
}

impl Shell {
    /// Sends a request to the API socket as a process of the user, and returns the response.
    fn api(&mut self, request: &str) -> Result<String> {
        self.ask(&format!("$E2E guest exchange /mnt/api '{request}'"))
    }

    /// Creates a tap as RootlessKit does, and configures it for the network 10.0.2.0/24.
    fn tap(&mut self) -> Result<()> {
        let text = self.inside(
            "ip tuntap add name tap0 mode tap && ip link set tap0 address 02:11:22:33:44:55 mtu 65520 up && \
             ip address add 10.0.2.100/24 dev tap0 && ip route add default via 10.0.2.2 && ip link set lo up",
        )?;
        expect(&text, "")
    }

    /// Starts the program with these arguments, in which `$holder` may occur, and waits until it is ready; `$slirp` is
    /// its process id.
    fn slirp(&mut self, arguments: &str) -> Result<()> {
        let ready = self.ask(&format!(
            "rm -f /mnt/ready; mkfifo /mnt/ready; $SLIRP -r 3 {arguments} 3>/mnt/ready >/dev/null & slirp=$!; \
             cat /mnt/ready"
        ))?;
        expect(&ready, "1")
    }

    /// Sends a signal to the program, and returns its exit status.
    fn end(&mut self, signal: &str) -> Result<String> {
        self.ask(&format!("kill -{signal} $slirp; wait $slirp; echo $?"))
    }
}

/// Tests an existing tap with addresses, as RootlessKit creates it; the program does not change it.
fn existing_tap(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let tcp = tcp_server(&network, Family::V4)?;
    let udp = udp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.tap()?;
    let show = "ip -oneline address show dev tap0 scope global; ip link show tap0 | grep link/; ip route show default";
    let before = shell.inside(show)?;
    ensure!(
        before.contains("10.0.2.100/24") && before.contains("02:11:22:33:44:55"),
        "{before}"
    );
    shell.slirp(
        "--mtu 65520 --disable-host-loopback --api-socket /mnt/api --enable-sandbox --enable-seccomp $holder tap0",
    )?;
    // The guest has sent nothing yet, so the engine knows its Ethernet address from the tap.
    let nsenter = shell.nsenter;
    shell.run(&format!(
        "coproc nsenter {nsenter} --net --target $holder $E2E guest serve tcp:0.0.0.0:80; read -r -u ${{COPROC[0]}}"
    ))?;
    let add = r#"{"execute":"add_hostfwd","arguments":{"proto":"tcp","host_port":8080,"guest_addr":"10.0.2.100","guest_port":80}}"#;
    expect(&shell.api(add)?, r#"{"return":{"id":1}}"#)?;
    let published = SocketAddr::new(network.host_address(Family::V4), 8080);
    let peer = network.server().enter(|| tcp::command(published, &["peer"]))?;
    ensure!(
        peer.starts_with("198.51.100.2"),
        "the guest sees the client {peer}"
    );

    let peer = shell.inside(&format!("$E2E guest tcp {tcp} peer"))?;
    ensure!(
        peer.starts_with("198.51.100.1"),
        "the server sees the client {peer}"
    );
    expect(
        &shell.inside(&format!("$E2E guest tcp {tcp} put 0 7 1000000"))?,
        "ok",
    )?;
    let text = shell.inside(&format!("$E2E guest udp peer {udp}"))?;
    expect(&text, "ok")?;

    expect(&shell.end("TERM")?, "0")?;
    // The tap is as it was.
    let after = shell.inside(show)?;
    ensure!(after == before, "before: {before}\n after: {after}");
    // Another instance attaches to the tap.
    shell.slirp("$holder tap0")?;
    expect(&shell.inside(&format!("$E2E guest tcp {tcp} connects 3"))?, "ok")?;
    shell.run("kill ${COPROC_PID}")?;
    // The program exits when the process of the namespace exits.
    shell.run("kill $holder; wait $slirp")?;
    drop(shell);
    nothing_left()
}

/// Tests that a second instance at one tap fails with one error line.
fn tap_in_use(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.tap()?;
    shell.slirp("$holder tap0")?;
    let second = "$SLIRP $holder tap0 2>&1 >/dev/null; echo status $?";
    let text = shell.ask(&format!("echo $({second})"))?;
    ensure!(
        text.matches("error: ").count() == 1
            && text.contains("cannot attach to tap \"tap0\": device or resource busy (try: ")
            && text.ends_with(" status 1"),
        "{text}"
    );
    // Another kind of interface has the name.
    expect(&shell.inside("ip tuntap add name tap1 mode tun")?, "")?;
    let text = shell.ask(&format!("echo $({})", second.replace("tap0", "tap1")))?;
    ensure!(
        text.contains("cannot attach to tap \"tap1\": invalid") && text.ends_with(" status 1"),
        "{text}"
    );
    expect(&shell.end("TERM")?, "0")?;
    shell.finish()
}

fn configure_by_pid(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.slirp("-c --macaddress 0e:d4:18:d9:38:fb $holder tap11")?;
    let text = shell.inside("ip -4 -oneline address show; ip link show tap11; ip route")?;
    for part in [
        "lo inet 127.0.0.1/8",
        "tap11 inet 10.0.2.100/24",
        "link/ether 0e:d4:18:d9:38:fb",
        "mtu 1500",
        "default via 10.0.2.2 dev tap11",
    ] {
        ensure!(text.contains(part), "no {part}: {text}");
    }
    expect(
        &shell.inside(&format!("$E2E guest tcp {server} connects 3"))?,
        "ok",
    )?;
    // Without --enable-ipv6 there is no IPv6 on the link.
    expect(&shell.inside("ip -6 address show dev tap11")?, "")?;
    expect(&shell.end("TERM")?, "0")?;
    expect(&shell.inside("ip link show tap11 2>/dev/null")?, "")?;
    shell.finish()
}

fn configure_by_path(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let servers = [Family::V4, Family::V6].map(|family| tcp_server(&network, family));
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.slirp(
        "--cidr=10.0.135.128/25 --enable-ipv6 --mtu=65520 -c --userns-path=/proc/$holder/ns/user --netns-type=path \
         /proc/$holder/ns/net tap11",
    )?;
    let text =
        shell.inside("ip -oneline address show dev tap11; ip link show tap11; ip route; ip -6 route")?;
    for part in [
        "inet 10.0.135.228/25",
        "inet6 fd00::100/64",
        "mtu 65520",
        "default via 10.0.135.130 dev tap11",
        "default via fd00::2 dev tap11",
    ] {
        ensure!(text.contains(part), "no {part}: {text}");
    }
    for server in servers {
        expect(
            &shell.inside(&format!("$E2E guest tcp {} connects 3", server?))?,
            "ok",
        )?;
    }
    expect(&shell.end("TERM")?, "0")?;
    shell.finish()
}

/// Tests that a missing tap is created, and is not configured without `-c`.
fn new_tap(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.slirp("$holder tap0")?;
    let text = shell.inside("ip -oneline address show; ip link show tap0")?;
    ensure!(text.contains("tap0: ") && !text.contains("inet"), "{text}");
    ensure!(text.contains("state DOWN") && !text.contains(",UP"), "{text}");
    // The owner of the namespace configures it later.
    let text = shell.inside(
        "ip address add 10.0.2.100/24 dev tap0; ip link set tap0 up; ip route add default via 10.0.2.2",
    )?;
    expect(&text, "")?;
    expect(
        &shell.inside(&format!("$E2E guest tcp {server} connects 3"))?,
        "ok",
    )?;
    expect(&shell.end("TERM")?, "0")?;
    shell.finish()
}

/// Tests ports of TCP and UDP, IPv4 and IPv6, which clients can use as soon as the response has arrived.
fn api_socket(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.slirp("-c -6 -a /mnt/api $holder tap0")?;
    let nsenter = shell.nsenter;
    shell.run(&format!(
        "coproc nsenter {nsenter} --net --target $holder $E2E guest serve tcp:0.0.0.0:80 tcp:[::]:81 udp:0.0.0.0:53 udp:[::]:54; \
         read -r -u ${{COPROC[0]}}"
    ))?;
    let add = |proto: &str, host: &str, guest: u16| {
        format!(
            r#"{{"execute":"add_hostfwd","arguments":{{"proto":"{proto}","host_addr":"{host}","host_port":{},"guest_port":{guest}}}}}"#,
            8000 + guest
        )
    };
    let rows = [
        ("tcp", "0.0.0.0", 80, Family::V4),
        ("tcp", "::", 81, Family::V6),
        ("udp", "0.0.0.0", 53, Family::V4),
        ("udp", "::", 54, Family::V6),
    ];
    for ((proto, host, guest, family), id) in rows.into_iter().zip(1..) {
        expect(
            &shell.api(&add(proto, host, guest))?,
            &format!(r#"{{"return":{{"id":{id}}}}}"#),
        )?;
        let published = SocketAddr::new(network.host_address(family), 8000 + guest);
        let answer = network.server().enter(|| match proto {
            "tcp" => tcp::command(published, &["connects", "1"]),
            _ => crate::guest::udp::command(&["peer", &published.to_string()]).map(|_| "ok".to_owned()),
        })?;
        expect(&answer, "ok")?;
        // From the host itself, too.
        if proto == "tcp" {
            let local = SocketAddr::new(family.loopback(), 8000 + guest);
            expect(&tcp::command(local, &["connects", "1"])?, "ok")?;
        }
    }
    let list = shell.api(r#"{"execute":"list_hostfwd"}"#)?;
    for part in [
        r#""guest_addr":"10.0.2.100","guest_port":80,"host_addr":"0.0.0.0","host_port":8080,"id":1,"proto":"tcp""#,
        r#""guest_addr":"fd00::100","guest_port":54,"host_addr":"::","host_port":8054,"id":4,"proto":"udp""#,
    ] {
        ensure!(list.contains(part), "no {part}: {list}");
    }
    for id in 1..=4 {
        let request = format!(r#"{{"execute":"remove_hostfwd","arguments":{{"id":{id}}}}}"#);
        expect(&shell.api(&request)?, r#"{"return":{}}"#)?;
    }
    expect(&shell.api(r#"{"execute":"list_hostfwd"}"#)?, r#"{"entries":[]}"#)?;
    let closed = SocketAddr::new(network.host_address(Family::V4), 8080);
    let refused = network
        .server()
        .enter(|| Ok(std::net::TcpStream::connect(closed).is_err()))?;
    ensure!(refused, "the removed port is open");

    // Clients that send no request delay other clients for a limited time only.
    let slow: Vec<_> = (0..20)
        .map(|_| UnixStream::connect("/mnt/api"))
        .collect::<Result<_, _>>()?;
    expect(
        &shell.api(r#"{"execute":"bad"}"#)?,
        r#"{"error":{"desc":"bad request: unknown execute"}}"#,
    )?;
    drop(slow);
    shell.run("kill ${COPROC_PID}")?;
    expect(&shell.end("TERM")?, "0")?;
    ensure!(!Path::new("/mnt/api").exists(), "the socket is left");
    shell.finish()
}

/// Tests that the program exits with status 0 when the other end of the exit descriptor is closed.
fn exit_fd(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.run("mkfifo /mnt/exit; { sleep 1000 >/mnt/exit & }; keeper=$!")?;
    shell.slirp("-c -e 4 -a /mnt/api $holder tap0 4</mnt/exit")?;
    expect(
        &shell.inside(&format!("$E2E guest tcp {server} connects 3"))?,
        "ok",
    )?;
    expect(&shell.ask("kill $keeper; wait $slirp; echo $?")?, "0")?;
    ensure!(!Path::new("/mnt/api").exists(), "the socket is left");
    shell.finish()
}

/// Tests that only the file of the socket is left after SIGKILL, which RootlessKit sends when it ends.
fn killed(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.tap()?;
    for _ in 0..2 {
        // The second instance replaces the socket file of the first.
        shell.slirp("-a /mnt/api $holder tap0")?;
        expect(&shell.api(r#"{"execute":"list_hostfwd"}"#)?, r#"{"entries":[]}"#)?;
        let request =
            r#"{"execute":"add_hostfwd","arguments":{"proto":"tcp","host_port":8080,"guest_port":80}}"#;
        expect(&shell.api(request)?, r#"{"return":{"id":1}}"#)?;
        shell.end("KILL")?;
        process::wait_until(
            "no process of the program is left",
            Duration::from_secs(2),
            || Ok(context.program.processes().is_empty()),
        )?;
        ensure!(Path::new("/mnt/api").exists(), "the socket's file is gone");
        ensure!(
            UnixStream::connect("/mnt/api").is_err(),
            "a process listens at the socket"
        );
        drop(std::net::TcpListener::bind("0.0.0.0:8080")?);
    }
    shell.finish()
}

/// Port of the servers of [`reached`].
const PORT: u16 = 7000;

/// Addresses by which a guest might reach the host's loopback, except the gateway's. `127.0.0.1` is 7f00:1.
const LOOPBACK: [&str; 15] = [
    "127.0.0.1",
    "127.1.2.3",
    "0.0.0.0",
    "10.0.2.3",
    "10.0.2.255",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:7f00:1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "ff02::1",
    "fe80::2",
    "fd00::3",
];

/// Returns the probes over TCP and UDP to which a guest that builds its own frames receives a response. Servers listen
/// on all addresses of the host, one of which is that of a metadata service.
fn reached(context: &Context, options: &str) -> Result<Vec<String>> {
    let network = Network::new(context)?;
    // The sockets accept IPv4, too.
    let everywhere = SocketAddr::new(Family::V6.unspecified(), PORT);
    server::tcp::start(everywhere)?;
    server::udp::start(everywhere)?;
    let metadata = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));
    network.server().enter(|| {
        add_address("left", &format!("{metadata}/32"))?;
        server::tcp::start(SocketAddr::new(metadata, PORT))
    })?;
    ip(&format!(
        "route add {metadata} via {}",
        network.server_address(Family::V4)
    ))?;
    let mut shell = Shell::start(context)?;
    shell.holder()?;
    shell.slirp(&format!("-c -6 {options} $holder tap0"))?;
    let mut answered = Vec::new();
    for family in [Family::V4, Family::V6] {
        let own = network.host_address(family).to_string();
        let is_of_family = |text: &&str| text.parse::<Ipv6Addr>().is_ok() == (family == Family::V6);
        let targets: Vec<_> = LOOPBACK.into_iter().filter(is_of_family).collect();
        let metadata = metadata.to_string();
        let metadata = if family == Family::V4 {
            metadata.as_str()
        } else {
            ""
        };
        let text = shell.inside(&format!(
            "$E2E guest raw reach {} {PORT} gateway {own} {metadata} {} | tr \"\\n\" ,",
            family.suffix(),
            targets.join(" ")
        ))?;
        let lines = text
            .trim_end_matches(',')
            .split(',')
            .map(|line| line.replace("gateway", &format!("gateway-{}", family.suffix())));
        // The engine answers echo requests itself, and the case's namespaces permit no others.
        answered.extend(lines.filter(|line| line != "end" && !line.ends_with(" icmp")));
    }
    expect(&shell.end("TERM")?, "0")?;
    shell.finish()?;
    Ok(answered)
}

/// Tests the destinations that are reached by default: the host's loopback at the gateway's address, the host's own
/// addresses and metadata services.
fn destinations(context: &Context) -> Result<()> {
    let answered = reached(context, "")?;
    let wanted = [
        "gateway-v4 tcp",
        "gateway-v4 udp",
        "198.51.100.1 tcp",
        "198.51.100.1 udp",
        "169.254.169.254 tcp",
        "gateway-v6 tcp",
        "gateway-v6 udp",
        "2001:db8:1::1 tcp",
        "2001:db8:1::1 udp",
    ];
    ensure!(answered == wanted, "answered: {answered:?}\n  wanted: {wanted:?}");
    Ok(())
}

fn no_loopback(context: &Context) -> Result<()> {
    let answered = reached(context, "--disable-host-loopback")?;
    let wanted = [
        "198.51.100.1 tcp",
        "198.51.100.1 udp",
        "169.254.169.254 tcp",
        "2001:db8:1::1 tcp",
        "2001:db8:1::1 udp",
    ];
    ensure!(answered == wanted, "answered: {answered:?}\n  wanted: {wanted:?}");
    Ok(())
}

/// Tests `--target-type=bess`: the program is ready before User Mode Linux connects, and ends when it disconnects.
fn bess(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    shell.slirp("--target-type=bess /mnt/bess")?;
    let guest = TapGuest::at(dial(Path::new("/mnt/bess"), Framing::Packet)?, Framing::Packet)?;
    expect(&guest.dhcp4()?, "dhcp4 10.0.2.100/24 10.0.2.2 10.0.2.3 1500")?;
    let text = guest
        .namespace
        .enter(|| tcp::command(server, &["connects", "3"]))?;
    expect(&text, "ok")?;
    drop(guest);
    expect(&shell.ask("wait $slirp; echo $?")?, "0")?;
    drop(shell);
    nothing_left()
}

/// Tests that twenty instances can start at the same time, and that they leave neither processes nor socket files.
fn twenty(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    let mut shell = Shell::start(context)?;
    for _ in 0..20 {
        shell.holder()?;
        shell.run("holders=\"$holders $holder\"")?;
    }
    shell.run("mkfifo /mnt/ready; exec 8<>/mnt/ready")?;
    shell.run(
        "for holder in $holders; do $SLIRP -c -r 3 -a /mnt/api$holder $holder tap0 3>&8 >/dev/null & done",
    )?;
    for _ in 0..20 {
        expect(&shell.ask("read -r -u 8; echo $REPLY")?, "1")?;
    }
    for place in 1..=20 {
        shell.run(&format!("set -- $holders; holder=${{{place}}}"))?;
        expect(
            &shell.inside(&format!("$E2E guest tcp {server} connects 1"))?,
            "ok",
        )?;
    }
    // Each instance exits when its namespace is removed.
    shell.run("kill $holders; wait")?;
    let left = std::fs::read_dir(DIRECTORY)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let sockets: Vec<_> = left.filter(|name| name.starts_with("api")).collect();
    ensure!(sockets.is_empty(), "left: {sockets:?}");
    drop(shell);
    nothing_left()
}

/// Tests the links by which other programs execute Pontoon, and the parts of the help and the version that they search
/// for.
fn links(context: &Context) -> Result<()> {
    let mut shell = Shell::start(context)?;
    expect(&shell.ask("echo $($PONTOON compat)")?, "pasta slirp4netns")?;
    shell.run("mkdir /mnt/bin; $PONTOON compat install /mnt/bin >/dev/null")?;
    shell.run("$PONTOON compat install /mnt/bin >/dev/null")?;
    expect(
        &shell.ask("/mnt/bin/slirp4netns --version | head -1")?,
        "slirp4netns version 1.3.2",
    )?;
    let text = shell.ask("/mnt/bin/pasta --version | head -1")?;
    ensure!(text.starts_with("pasta 20"), "{text}");
    for word in [
        "--netns-type",
        "--enable-ipv6",
        "--cidr",
        "--disable-host-loopback",
        "--api-socket",
        "--enable-sandbox",
        "--enable-seccomp",
    ] {
        shell.run(&format!("/mnt/bin/slirp4netns --help | grep -q -e {word}"))?;
    }
    let text = shell.ask("echo $(PATH=/mnt/bin:$PATH slirp4netns --foo 2>&1 >/dev/null; echo $?)")?;
    expect(&text, "slirp4netns: unrecognized option '--foo' 1")?;
    let text = shell.ask("echo $(/mnt/bin/slirp4netns 99999999 tap0 2>&1; echo $?)")?;
    ensure!(
        text.starts_with("error: cannot open network namespace /proc/99999999/ns/net: ")
            && text.ends_with(" 1"),
        "{text}"
    );
    shell.run("ln -s /bin/true /mnt/other; ! $PONTOON compat install /mnt/missing 2>/dev/null")?;
    shell.run("$PONTOON compat remove /mnt/bin >/dev/null; [ -z \"$(ls /mnt/bin)\" ]")?;
    shell.run("ln -s /bin/true /mnt/bin/slirp4netns; ! $PONTOON compat install /mnt/bin 2>/dev/null")?;
    shell.run("$PONTOON compat remove /mnt/bin >/dev/null; [ -L /mnt/bin/slirp4netns ]")?;
    drop(shell);
    nothing_left()
}
