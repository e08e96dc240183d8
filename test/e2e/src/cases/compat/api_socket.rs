//! The case about the API socket of `slirp4netns`.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::case::{Context, Family};
use crate::cases::expect;
use crate::cases::shell::Shell;
use crate::guest::tcp;
use crate::network::Network;

/// Tests ports of TCP and UDP, IPv4 and IPv6, which clients can use as soon as the response has arrived.
pub(super) fn api_socket(context: &Context) -> Result<()> {
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
