//! The user name and password at a proxy: they are used, and appear nowhere else.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::{DIRECTORY, Kind, RunningProxy, servers};
use crate::case::{Case, Context, Family};
use crate::cases::{OBEDIENT, expect, tmpfs};
use crate::network::Network;
use crate::process;

/// The password, and the start of "user:" and the password in Base64.
const PASSWORD: &str = "correct-horse-battery";
const BASE64: &str = "dXNlcjpjb3JyZWN0";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("proxy.credentials", 60, credentials),
        Case::new("proxy.credentials-in-the-url", 20, in_url),
    ]
}

/// Starts squid with the user `user`, and returns the address of the server.
pub(super) fn squid(network: &Network<'_>) -> Result<(RunningProxy, SocketAddr)> {
    tmpfs(Path::new(DIRECTORY))?;
    let hash = process::output(Command::new("openssl").args(["passwd", "-apr1", PASSWORD]))?;
    std::fs::write("/mnt/users", format!("user:{hash}"))?;
    std::fs::write("/mnt/right", format!("user:{PASSWORD}\n"))?;
    std::fs::write("/mnt/wrong", "user:wrong\n")?;
    let server = servers(network, Family::V4)?;
    let proxy = RunningProxy::start_with(
        Kind::Squid,
        "auth_param basic program /usr/lib/squid/basic_ncsa_auth /mnt/users\n\
         acl known proxy_auth REQUIRED\nhttp_access allow known\n",
    )?;
    Ok((proxy, server))
}

fn credentials(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let (proxy, server) = squid(&network)?;
    let url = format!("http://{}/bytes/1/10", server.ip());
    let curl = format!("curl -sS --max-time 10 -o /dev/null -w '%{{http_code}}\\n' {url} || true");
    for (options, why) in [
        (vec![], "the proxy requires credentials"),
        (
            vec!["--proxy-credentials", "/mnt/wrong"],
            "the proxy did not accept the credentials",
        ),
    ] {
        let run = network.run().options(proxy.option(Family::V4)).options(options);
        let text = run.options(["--audit", "/mnt/refused"]).shell(&curl).text()?;
        expect(&text, "000")?;
        let audit = std::fs::read_to_string("/mnt/refused")?;
        ensure!(
            audit.contains("\"reason\":\"proxy-refused\"") && audit.contains(why),
            "{audit}"
        );
    }
    let options = [
        "--proxy-credentials",
        "/mnt/right",
        "--audit",
        "/mnt/audit",
        "--pcap",
        "/mnt/capture",
        "-vv",
    ];
    let run = network.run().options(proxy.option(Family::V4)).options(options);
    let talk = Path::new(DIRECTORY).join("talk");
    let mut guest = run.talk_to(&talk).shell(OBEDIENT).spawn()?.listening()?;
    expect(&guest.ask(&curl)?, "200")?;
    // The guest itself: process 1 is a fork of the supervisor.
    let inside =
        "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c [h]orse; true";
    expect(&guest.ask(inside)?, "0")?;
    // Each process but squid and its helper, which has the file's name only.
    for process in process::running() {
        for file in ["cmdline", "environ"] {
            let path = format!("/proc/{}/{file}", process.id());
            has_no_secret(&path, &std::fs::read(&path).unwrap_or_default())?;
        }
    }
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", context.program.supervisor()?.id()))?;
    let core = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max core file size"));
    ensure!(
        core.is_some_and(|line| line.split_whitespace().take(2).eq(["1", "1"])),
        "{limits}"
    );
    guest.finish_by_end_of_input()?;
    for file in ["/mnt/audit", "/mnt/capture", "/mnt/talk", "/mnt/refused"] {
        let content = std::fs::read(file)?;
        ensure!(!content.is_empty(), "{file} is empty");
        has_no_secret(file, &content)?;
    }
    Ok(())
}

pub(super) fn has_no_secret(file: &str, content: &[u8]) -> Result<()> {
    for secret in [PASSWORD, BASE64] {
        let found = content
            .windows(secret.len())
            .any(|window| window == secret.as_bytes());
        ensure!(!found, "{file} contains the credentials");
    }
    Ok(())
}

/// Tests that a URL with credentials is refused without repeating it.
fn in_url(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    for url in [
        format!("http://user:{PASSWORD}@127.0.0.1:3128"),
        format!("socks5h://user:{PASSWORD}@127.0.0.1:1080"),
    ] {
        let output = network
            .run()
            .options(["--proxy", &url])
            .command(["true"])
            .output()?;
        let text = [output.stdout, output.stderr].concat();
        ensure!(output.status.code() == Some(2), "{}", output.status);
        has_no_secret("standard error", &text)?;
        let text = String::from_utf8_lossy(&text);
        ensure!(text.contains("--proxy-credentials"), "{text}");
    }
    Ok(())
}
