//! The commands of the documentation, as they stand: `documents.PAGE` executes the blocks of a page in their order in one
//! shell, as an unprivileged user, and `documents.PAGE.root` those for root.
//!
//! The host has the interfaces `eth0`, `eth1` and `eth2`, and one neighbour, which is its router and name server and has a web
//! server (HTTP and HTTPS) at the addresses of every name.

use std::fs;
use std::net::{Ipv6Addr, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use pontoon_netns::{Namespace, add_address, ip, prepare, sysctl, veth};
use rustix::mount::mount_bind;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::case::{Caller, Case, Context};
use crate::page::{Executor, PAGES, Page};
use crate::process::{output, wait_until};
use crate::server;

/// Seconds for all commands of a page.
const PAGE_SECONDS: u64 = 150;

/// Deadline of each line: a command, or a loop.
const LINE: Duration = Duration::from_secs(30);

/// Directory of the program, of the shell's files and of the home directory.
const DIRECTORY: &str = "/mnt";

/// The shell's preparation, which records each command.
const PRELUDE: &str = include_str!("documents/prelude.sh");

/// The certificates that clients of HTTPS accept.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Interface, the host's addresses, and the neighbour's addresses.
const LINKS: [(&str, [&str; 2], [&str; 2]); 3] = [
    (
        "eth0",
        ["198.51.100.1/24", "2001:db8:1::1/64"],
        ["198.51.100.2/24", "2001:db8:1::2/64"],
    ),
    (
        "eth1",
        ["10.1.1.1/24", "2001:db8:2::1/64"],
        ["10.1.1.2/24", "2001:db8:2::2/64"],
    ),
    (
        "eth2",
        ["10.1.2.1/24", "2001:db8:3::1/64"],
        ["10.1.2.3/24", "2001:db8:3::2/64"],
    ),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for page in PAGES {
        let name = name(page);
        // A page that cannot be parsed has a case, which fails.
        let has = |executor| !matches!(page.script(executor), Ok(None));
        if has(Executor::User) {
            let run = |context: &Context| execute(context, page, Executor::User);
            let case = Case::new(&format!("documents.{name}"), PAGE_SECONDS, run);
            cases.push(case.caller(Caller::User("it executes commands of an unprivileged user")));
        }
        if has(Executor::Root) {
            let run = |context: &Context| execute(context, page, Executor::Root);
            cases.push(Case::new(&format!("documents.{name}.root"), PAGE_SECONDS, run));
        }
    }
    cases.into_iter().map(Case::pontoon_only).collect()
}

/// Returns the name of a page in names of cases: `control` for docs/control.md.
fn name(page: &Page) -> String {
    let path = page.path.trim_end_matches(".md");
    let path = path.strip_prefix("docs/").unwrap_or(path);
    path.replace('/', "-").to_lowercase()
}

fn execute(context: &Context, page: &Page, executor: Executor) -> Result<()> {
    let script = page.script(executor)?.context("the page has no commands")?;
    let binary = context.program.binary.as_deref();
    install(binary.context("there is no program under test")?, &script)?;
    let neighbour = host()?;
    super::replace_file("/etc/resolv.conf", "nameserver 198.51.100.2\n")?;
    neighbour.enter(serve)?;
    mount_bind(at("certificate"), CERTIFICATES)?;
    super::tmpfs(Path::new("/tmp"))?;

    let mut command = match executor {
        Executor::Root => Command::new("bash"),
        Executor::User | Executor::Other => {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-user=1000", "--map-group=1000", "--", "bash"]);
            command
        }
    };
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    command
        .arg(at("script"))
        .current_dir(at("home"))
        .env_clear()
        .env("PATH", format!("{DIRECTORY}/bin:{path}"))
        .env("HOME", at("home"))
        .env("LC_ALL", "C.UTF-8")
        .env("TERM", "dumb")
        .env("BASH_ENV", at("prelude"))
        .env("PROGRESS", at("progress"))
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(std::io::stderr().as_fd().try_clone_to_owned()?);
    let status = follow(&mut command)?;
    let text = fs::read_to_string(at("progress"))?;
    let (line, last) = last_command(&text);
    match status {
        None => bail!(
            "{}:{line}: not finished within {} s: {last}",
            page.path,
            LINE.as_secs()
        ),
        Some(status) => ensure!(status.success(), "{}:{line}: {status}: {last}", page.path),
    }
    eprintln!("{}: {} commands", page.path, count(&text));
    Ok(())
}

/// Runs the shell until it exits; returns `None` if it was killed because a line exceeded its deadline.
fn follow(command: &mut Command) -> Result<Option<ExitStatus>> {
    let mut child = command.spawn().context("cannot run bash")?;
    let (mut lines, mut since) = (0, Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let now = count(&fs::read_to_string(at("progress"))?);
        if now != lines {
            (lines, since) = (now, Instant::now());
        }
        if since.elapsed() > LINE {
            let group = Pid::from_raw(child.id().cast_signed()).context("the shell has no process id")?;
            kill_process_group(group, Signal::KILL)?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the line and the text of the last command that the shell has recorded.
fn last_command(progress: &str) -> (&str, &str) {
    let line = progress.lines().next_back().unwrap_or_default();
    line.split_once(' ').unwrap_or((line, ""))
}

/// Returns the number of lines with commands that the shell has recorded.
fn count(progress: &str) -> usize {
    let lines = progress.lines().filter(|line| !line.ends_with(" end"));
    let mut lines: Vec<&str> = lines.map(|line| last_command(line).0).collect();
    lines.sort_unstable();
    lines.dedup();
    lines.len()
}

fn at(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

/// Creates [`DIRECTORY`] with the program, the script and an empty home directory.
fn install(binary: &str, script: &str) -> Result<()> {
    super::tmpfs(Path::new(DIRECTORY))?;
    for name in ["bin", "home", "web"] {
        fs::create_dir(at(name))?;
    }
    fs::set_permissions(at("home"), PermissionsExt::from_mode(0o777))?;
    fs::copy(binary, at("bin/pontoon"))?;
    fs::write(at("script"), script)?;
    fs::write(at("prelude"), PRELUDE)?;
    fs::write(at("progress"), "")?;
    fs::set_permissions(at("progress"), PermissionsExt::from_mode(0o666))?;
    Ok(fs::write(at("web/index.html"), "example\n")?)
}

/// Configures the host's network, and returns the neighbour's namespace.
fn host() -> Result<Namespace> {
    prepare()?;
    // Users may ping, as most distributions configure it. Only a group that the namespace maps can be written.
    sysctl("net/ipv4/ping_group_range", "0 0")?;
    let neighbour = Namespace::new()?;
    for (interface, ours, theirs) in LINKS {
        veth(interface, &neighbour, interface)?;
        ours.iter()
            .try_for_each(|address| add_address(interface, address))?;
        neighbour.enter(|| {
            theirs
                .iter()
                .try_for_each(|address| add_address(interface, address))
        })?;
    }
    ip("route add default via 198.51.100.2")?;
    ip("route add default via 2001:db8:1::2")?;
    neighbour.enter(|| {
        add_address("lo", &format!("{}/32", server::dns::A))?;
        add_address("lo", &format!("{}/128", server::dns::AAAA))
    })?;
    Ok(neighbour)
}

/// Starts the servers in the caller's network namespace.
fn serve() -> Result<()> {
    server::dns::start((Ipv6Addr::UNSPECIFIED, 53).into())?;
    output(
        Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
            ])
            .args(["-nodes", "-days", "1", "-subj", "/CN=example.org"])
            .args(["-addext", "subjectAltName=DNS:example.org,DNS:*.example.org"])
            .arg("-keyout")
            .arg(at("key"))
            .arg("-out")
            .arg(at("certificate")),
    )?;
    let mut web = Command::new("busybox");
    web.args(["httpd", "-f", "-p", "80", "-h"]).arg(at("web"));
    let mut secure = Command::new("openssl");
    secure
        .args(["s_server", "-quiet", "-www", "-accept", "443", "-cert"])
        .arg(at("certificate"))
        .arg("-key")
        .arg(at("key"));
    for (server, port) in [(&mut web, 80), (&mut secure, 443)] {
        server.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        wait_until("a web server listens", Duration::from_secs(10), || {
            Ok(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).is_ok())
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_counted_by_line() {
        let progress = "3 true\n4 [ -e /tmp ]\n4 sleep 1\n4 [ -e /tmp ]\n9 false\n9 end\n";
        assert_eq!(count(progress), 3);
        assert_eq!(last_command("3 a b\n"), ("3", "a b"));
    }

    #[test]
    fn pages_have_short_names() {
        let names: Vec<String> = PAGES.iter().map(name).collect();
        assert!(names.contains(&"control".to_string()) && names.contains(&"readme".to_string()));
    }
}
