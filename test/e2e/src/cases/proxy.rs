//! Cases about connections through an upstream proxy on the host's loopback: squid, Dante, and servers that are none.

mod core_files;
mod credentials;
mod names;
mod refusals;
mod ssh;
mod vm;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::{expect, host, replace_file, tcp_server, tmpfs};
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::run::own_path;
use crate::{process, server};

/// Directory for the files of the proxies.
const DIRECTORY: &str = "/mnt";

/// Port of the HTTP server at the far end.
const HTTP: u16 = 80;

/// Port of a server at the far end that sends before it reads.
const GREETING: u16 = 7022;

const MIB: u64 = 1 << 20;

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [
        Case::both("proxy.squid", 60, |context, family| {
            carries(context, family, Kind::Squid)
        }),
        Case::both("proxy.dante", 60, |context, family| {
            carries(context, family, Kind::Dante)
        }),
        Case::both("proxy.squid-resolves-names", 60, |context, family| {
            resolves(context, family, Kind::Squid)
        }),
        Case::both("proxy.dante-resolves-names", 60, |context, family| {
            resolves(context, family, Kind::Dante)
        }),
        Case::both("proxy.rules", 60, rules),
    ]
    .into_iter()
    .flatten()
    .collect();
    cases.push(Case::new("proxy.engine-killed", 60, engine_killed));
    cases.push(
        Case::new("transfer.gib-through-squid", 60, |context| {
            gib(context, Kind::Squid)
        })
        .alone(),
    );
    cases.push(
        Case::new("transfer.gib-through-dante", 60, |context| {
            gib(context, Kind::Dante)
        })
        .alone(),
    );
    cases.extend(core_files::cases());
    cases.extend(credentials::cases());
    cases.extend(names::cases());
    cases.extend(refusals::cases());
    cases.extend(ssh::cases());
    cases.extend(vm::cases());
    cases.into_iter().map(Case::pontoon_only).collect()
}

/// A program that is a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Squid,
    Dante,
}

/// A proxy on the host's loopback, which is killed on drop.
struct RunningProxy {
    child: Child,
    kind: Kind,
}

impl RunningProxy {
    /// Starts a proxy without authentication in a directory of its own.
    fn start(kind: Kind) -> Result<Self> {
        tmpfs(Path::new(DIRECTORY))?;
        Self::start_with(kind, "")
    }

    /// Starts a proxy with these further lines of its configuration, and waits until it listens.
    fn start_with(kind: Kind, further: &str) -> Result<Self> {
        let file = Path::new(DIRECTORY).join("proxy.conf");
        std::fs::write(
            &file,
            format!("{}{further}{}", kind.configuration(), kind.rules(further)),
        )?;
        // Neither program runs as root, and neither can become another user in the user namespace of a case. squid shares
        // memory by names, which cases must not share. The proxy may know names that the host does not.
        let line = "mount -t tmpfs tmpfs -o mode=1777 /dev/shm; [ ! -e /mnt/hosts ] || mount --bind /mnt/hosts /etc/hosts; \
                    exec unshare --user --map-user=1000 --map-group=1000 -- \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--", "sh", "-c", line, "sh"]);
        match kind {
            Kind::Squid => command.args(["squid", "-N", "-f"]).arg(&file),
            Kind::Dante => command.args(["danted", "-f"]).arg(&file).args(["-p", "/mnt/pid"]),
        };
        let child = command.stdin(Stdio::null()).spawn()?;
        let proxy = Self { child, kind };
        for address in [Family::V4, Family::V6].map(|family| proxy.address(family)) {
            process::wait_until("the proxy listens", Duration::from_secs(15), || {
                Ok(TcpStream::connect(address).is_ok())
            })?;
        }
        Ok(proxy)
    }

    fn address(&self, family: Family) -> SocketAddr {
        SocketAddr::new(family.loopback(), self.kind.port())
    }

    /// Returns the option `--proxy` with the address of this family.
    fn option(&self, family: Family) -> [String; 2] {
        let scheme = match self.kind {
            Kind::Squid => "http",
            Kind::Dante => "socks5",
        };
        [
            "--proxy".to_owned(),
            format!("{scheme}://{}", self.address(family)),
        ]
    }

    /// Waits until the proxy's log contains `text`.
    fn logs(&self, text: &str) -> Result<()> {
        let what = format!("the proxy's log contains {text:?}");
        process::wait_until(&what, Duration::from_secs(10), || {
            Ok(std::fs::read_to_string(log()).is_ok_and(|log| log.contains(text)))
        })?;
        Ok(())
    }
}

impl Drop for RunningProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the number of connections in squid's log.
fn connects() -> usize {
    let log = std::fs::read_to_string(log()).unwrap_or_default();
    log.lines().filter(|line| line.contains(" CONNECT ")).count()
}

/// Path of the proxy's log.
fn log() -> PathBuf {
    Path::new(DIRECTORY).join("proxy.log")
}

impl Kind {
    const fn port(self) -> u16 {
        match self {
            Self::Squid => 3128,
            Self::Dante => 1080,
        }
    }

    fn configuration(self) -> &'static str {
        match self {
            Self::Squid => {
                "http_port 127.0.0.1:3128\nhttp_port [::1]:3128\npid_filename none\ncache deny all\n\
                 access_log stdio:/mnt/proxy.log\ncache_log /mnt/cache.log\ncoredump_dir /tmp\n\
                 shutdown_lifetime 0 seconds\nvisible_hostname proxy.test\nnetdb_filename none\npinger_enable off\n\
                 max_filedescriptors 1024\npositive_dns_ttl 1 second\nhalf_closed_clients on\n"
            }
            Self::Dante => {
                "logoutput: /mnt/proxy.log\ninternal: 127.0.0.1 port = 1080\ninternal: ::1 port = 1080\n\
                 external: net0\nclientmethod: none\nsocksmethod: none\n"
            }
        }
    }

    /// Returns the rules of the configuration, which are behind everything that they refer to.
    fn rules(self, further: &str) -> &'static str {
        match self {
            Self::Squid if further.contains("auth_param") => "",
            Self::Squid => "http_access allow all\n",
            Self::Dante => {
                "client pass { from: 0/0 to: 0/0 }\nsocks pass { from: 0/0 to: 0/0 log: connect disconnect error }\n"
            }
        }
    }
}

/// Starts the servers of these cases at the far end, and returns the address of the HTTP server.
fn servers(network: &Network<'_>, family: Family) -> Result<SocketAddr> {
    let address = SocketAddr::new(network.server_address(family), HTTP);
    let greeting = SocketAddr::new(address.ip(), GREETING);
    tcp_server(network, family)?;
    network.server().enter(|| {
        let listener = TcpListener::bind(greeting)?;
        std::thread::spawn(move || {
            for mut stream in listener.incoming().filter_map(Result::ok) {
                std::thread::spawn(move || -> Result<()> {
                    stream.write_all(b"SSH-2.0-test\r\n")?;
                    let mut rest = Vec::new();
                    stream.read_to_end(&mut rest)?;
                    Ok(())
                });
            }
        });
        server::http::start(address, None)
    })
}

/// Returns the hash that `openssl dgst -sha256 -r` prints for the content of `/bytes/SEED/LEN`.
fn hash(seed: u64, len: u64) -> Result<String> {
    let line = format!(
        "{} guest generate {seed} {len} | openssl dgst -sha256 -r",
        own_path()
    );
    Ok(process::output(Command::new("sh").args(["-c", &line]))?
        .trim_end()
        .to_owned())
}

/// Program of the guest that sends `ping`, closes its direction, and prints what it receives until the end.
const HALF_CLOSE: &str = "import socket,sys
s=socket.create_connection((sys.argv[1],int(sys.argv[2])),10)
s.sendall(b'echo\\nping'); s.shutdown(socket.SHUT_WR)
print(b''.join(iter(lambda: s.recv(4096), b'')).decode())";

/// Program of the guest that prints the first line that a server sends.
const FIRST_LINE: &str = "import socket,sys
s=socket.create_connection((sys.argv[1],int(sys.argv[2])),10)
print(s.makefile().readline().strip())";

/// Tests a large download, a server that sends first, a half-closed connection and a refused destination. All connections
/// use the proxy.
fn carries(context: &Context, family: Family, kind: Kind) -> Result<()> {
    let network = Network::new(context)?;
    let proxy = RunningProxy::start(kind)?;
    let server = servers(&network, family)?;
    let run = || network.run().options(proxy.option(family));
    let url = format!("http://{}", host(server.ip()));
    let line = format!(
        "curl -sSg --fail {url}/bytes/3/{0} | openssl dgst -sha256 -r",
        64 * MIB
    );
    expect(&run().shell(&line).text()?, &hash(3, 64 * MIB)?)?;
    let python = |program: &str, port: u16| {
        run()
            .command([
                "python3",
                "-c",
                program,
                &server.ip().to_string(),
                &port.to_string(),
            ])
            .text()
    };
    expect(&python(FIRST_LINE, GREETING)?, "SSH-2.0-test")?;
    // squid closes both directions when the client closes one.
    if kind == Kind::Dante {
        expect(&python(HALF_CLOSE, 7000)?, "ping")?;
    }
    // The server sees the proxy's address, which is the host's here; so only the proxy's log shows the way.
    proxy.logs(&match kind {
        Kind::Squid => format!("CONNECT {}", SocketAddr::new(server.ip(), GREETING)),
        Kind::Dante => format!("{}.{GREETING}", server.ip()),
    })?;
    let line = format!("curl -sSg --max-time 10 {url}:81/ 2>&1 || true");
    let text = run().shell(&line).text()?;
    ensure!(
        text.contains("Failed to connect") || text.contains("refused"),
        "{text}"
    );
    // Datagrams do not use the proxy.
    let line = format!("ping -c1 -W3 {} || true", server.ip());
    let text = run().shell(&line).text()?;
    ensure!(
        text.contains(" 0 received") && text.contains("filtered") || text.contains("prohibited"),
        "{text}"
    );
    Ok(())
}

/// Tests that a download of 1 GiB through the proxy has the hash of the content that the server sends.
fn gib(context: &Context, kind: Kind) -> Result<()> {
    const GIB: u64 = 1 << 30;
    let network = Network::new(context)?;
    let proxy = RunningProxy::start(kind)?;
    let server = servers(&network, Family::V4)?;
    let wanted = std::thread::spawn(|| hash(3, GIB));
    let line = format!(
        "curl -sSg --fail http://{}/bytes/3/{GIB} | openssl dgst -sha256 -r",
        server.ip()
    );
    let run = network.run().options(proxy.option(Family::V4));
    expect(&run.shell(&line).text()?, &process::join(wanted)?)
}

/// Tests that names are resolved by the proxy, on a host whose resolver answers nothing.
fn resolves(context: &Context, family: Family, kind: Kind) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(Path::new(DIRECTORY))?;
    let server = servers(&network, family)?;
    let hosts = format!("{} far.test\n::1 localhost\n127.0.0.1 localhost\n", server.ip());
    let nowhere = family.pick([203, 0, 113, 1].into(), "2001:db8:ffff::1".parse()?);
    std::fs::write("/mnt/hosts", hosts)?;
    replace_file(
        "/etc/resolv.conf",
        &format!("nameserver {nowhere}\noptions timeout:1 attempts:1\n"),
    )?;
    let proxy = RunningProxy::start_with(kind, "")?;
    let line = format!(
        "curl -sS --max-time 20 --fail http://far.test/bytes/3/{MIB} | openssl dgst -sha256 -r; \
         dig +short +tries=1 +time=10 far.test A; dig +short +tries=1 +time=10 far.test AAAA; \
         dig +short +tries=1 +time=10 far.test HTTPS"
    );
    let run = network
        .run()
        .options(proxy.option(family))
        .options(["--proxy-dns"]);
    let text = run.shell(&line).text()?;
    let [got, v4, v6] = text.lines().collect::<Vec<_>>()[..] else {
        bail!("{text}");
    };
    expect(got, &hash(3, MIB)?)?;
    ensure!(v4.starts_with("198.18.") || v4.starts_with("198.19."), "{v4}");
    ensure!(v6.starts_with("fd70:6f6e:746f:7078::"), "{v6}");
    match kind {
        Kind::Squid => proxy.logs("CONNECT far.test:80"),
        // Dante logs the address to which it connects.
        Kind::Dante => proxy.logs(&format!("{}.{HTTP}", server.ip())),
    }
}

/// Tests that a rule selects the destinations that use the proxy, by address and by the name that the guest has resolved.
fn rules(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let proxy = RunningProxy::start(Kind::Squid)?;
    let server = servers(&network, family)?;
    let other = network.add_server_address(family, 3)?;
    let named: IpAddr = family.pick(server::dns::A, server::dns::AAAA);
    replace_file("/etc/resolv.conf", &format!("nameserver {}\n", server.ip()))?;
    network.server().enter(|| {
        let width = if family == Family::V4 { 32 } else { 128 };
        pontoon_netns::add_address("lo", &format!("{named}/{width}"))?;
        server::http::start(SocketAddr::new(other, HTTP), None)?;
        server::http::start(SocketAddr::new(named, HTTP), None)?;
        server::dns::start(SocketAddr::new(server.ip(), 53))
    })?;
    let fetch = |options: &[&str], to: &str| {
        let line = format!(
            "curl -sSg {} --max-time 10 --fail http://{to}/bytes/1/1",
            family.flag()
        );
        let run = network.run().options(proxy.option(family)).options(options);
        run.shell(&line).text().map(drop)
    };
    let [server, other] = [host(server.ip()), host(other)];
    for (options, to, uses) in [
        (vec!["--proxy-for", "some.test"], "some.test", true),
        (vec!["--proxy-for", "some.test"], &*server, false),
        (vec!["--proxy-for", "*:80"], &*server, true),
        (vec!["--no-proxy", "some.test"], "some.test", false),
        (vec!["--no-proxy", "some.test"], &*other, true),
    ] {
        let expected = connects() + usize::from(uses);
        fetch(&options, to)?;
        // squid writes its log when the connection has ended.
        process::wait_until(&format!("{options:?}, {to}"), Duration::from_secs(10), || {
            Ok(connects() == expected)
        })?;
    }
    Ok(())
}

/// Tests that a restarted engine uses the proxy with the same options.
fn engine_killed(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let proxy = RunningProxy::start(Kind::Squid)?;
    let server = servers(&network, Family::V4)?;
    let run = network
        .run()
        .options(proxy.option(Family::V4))
        .shell(super::OBEDIENT);
    let mut guest = run.spawn()?.listening()?;
    let line = format!(
        "curl -sS --max-time 10 --fail -o /dev/null -w '%{{http_code}}\\n' http://{}/bytes/1/10",
        server.ip()
    );
    for place in 1..=2 {
        expect(&guest.ask(&line)?, "200")?;
        process::wait_until("squid has logged the connection", Duration::from_secs(10), || {
            Ok(connects() == place)
        })?;
        if place == 1 {
            context.program.kill_engine()?;
        }
    }
    Ok(())
}
