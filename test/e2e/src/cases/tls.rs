//! Cases about rules with `/tls` and `/tls-strict`: usual clients connect to a server of several names.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::{add_address, ip};
use pontoon_vm_peer::tap_bridge::Faults;
use serde_json::Value;

use super::{expect, replace_file, tmpfs, vm};
use crate::carrier::Framing;
use crate::case::{Case, Context, Family};
use crate::machine::TapGuest;
use crate::network::Network;
use crate::process;
use crate::server::tls::{AUTHORITY, HELLO, TlsServer};
use crate::server::{self, dns};

const AUDIT: &str = "/run/audit";

pub(super) fn cases() -> Vec<Case> {
    [
        Case::new("tls.clients", 90, clients),
        Case::new("tls.unproven", 120, unproven),
        Case::new("tls.strict", 60, strict),
        Case::new("tls.rules-replaced", 60, replaced),
        Case::new("tls.unresponsive-address", 60, unresponsive_address).alone(),
    ]
    .into_iter()
    .chain(Framing::ALL.map(|framing| {
        Case::new(&format!("tls.vm.{framing}"), 60, move |context| {
            machine(context, framing)
        })
    }))
    .map(Case::pontoon_only)
    .collect()
}

/// The far end of the network: a TLS server on the addresses that its DNS server returns for all names.
pub(super) struct FarEnd<'a> {
    network: Network<'a>,
    pub(super) server: TlsServer,
}

impl<'a> FarEnd<'a> {
    pub(super) fn new(context: &'a Context, families: &[Family]) -> Result<Self> {
        let network = Network::new(context)?;
        let resolver = network.server_address(Family::V4);
        replace_file("/etc/resolv.conf", &format!("nameserver {resolver}\n"))?;
        let addresses: Vec<IpAddr> = families
            .iter()
            .map(|family| family.pick(dns::A, dns::AAAA))
            .collect();
        network
            .server()
            .enter(|| server::dns::start(SocketAddr::new(resolver, 53)))?;
        let server = start_server(&network, &addresses)?;
        Ok(Self { network, server })
    }

    /// Runs a line of shell in a guest with these rules. Returns its output, with standard error, and the records of its events.
    fn run(&self, rules: &[&str], line: &str) -> Result<(String, Vec<Value>)> {
        self.run_with(&[], rules, line)
    }

    /// As [`Self::run`], with further options.
    pub(super) fn run_with(
        &self,
        further: &[String],
        rules: &[&str],
        line: &str,
    ) -> Result<(String, Vec<Value>)> {
        let _ = std::fs::remove_file(AUDIT);
        let options = rules.iter().flat_map(|rule| ["--allow", rule]);
        let run = self.network.run().options(options).options(["--audit", AUDIT]);
        let run = run.options(further);
        let text = run.shell(&format!("{{ {line} ; }} 2>&1; true")).text()?;
        let records = std::fs::read_to_string(AUDIT)?;
        let records = records.lines().map(serde_json::from_str);
        Ok((text, records.collect::<Result<_, _>>()?))
    }
}

/// Starts a TLS server on these addresses at the far end.
fn start_server(network: &Network<'_>, addresses: &[IpAddr]) -> Result<TlsServer> {
    network.server().enter(|| {
        for address in addresses {
            let width = if address.is_ipv4() { 32 } else { 128 };
            add_address("lo", &format!("{address}/{width}"))?;
        }
        let ports = addresses.iter().map(|address| SocketAddr::new(*address, 443));
        // A certificate for all names and addresses: it is the rule that refuses, not the client.
        let names = format!("DNS:api.test,DNS:other.test,IP:{},IP:{}", dns::A, dns::AAAA);
        TlsServer::start(&ports.collect::<Vec<_>>(), &names)
    })
}

/// Lines of shell that connect to `name` and print the file of the server.
pub(super) fn lines(name: &str) -> Vec<(&'static str, String)> {
    let python = format!(
        "import socket, ssl\n\
         context = ssl.create_default_context(cafile=\"{AUTHORITY}\")\n\
         stream = socket.create_connection((\"{name}\", 443), 10)\n\
         stream = context.wrap_socket(stream, server_hostname=\"{name}\")\n\
         stream.sendall(b\"GET /hello HTTP/1.0\\r\\n\\r\\n\")\n\
         data = b\"\"\n\
         while part := stream.recv(4096):\n    data += part\n\
         print(data.decode())\n"
    );
    let request = "printf 'GET /hello HTTP/1.0\\r\\n\\r\\n'";
    vec![
        ("curl -4", curl("-4", &format!("https://{name}/hello"))),
        ("curl -6", curl("-6", &format!("https://{name}/hello"))),
        (
            "wget",
            format!(
                "wget -q -O - --no-proxy --tries=1 --timeout=10 --ca-certificate={AUTHORITY} https://{name}/hello"
            ),
        ),
        ("python3", format!("python3 -c '{python}'")),
        (
            "openssl",
            format!("{request} | timeout 10 openssl s_client -quiet -CAfile {AUTHORITY} -connect {name}:443"),
        ),
        (
            "git",
            format!("GIT_SSL_CAINFO={AUTHORITY} timeout 20 git ls-remote https://{name}/repo"),
        ),
    ]
}

pub(super) fn curl(options: &str, url: &str) -> String {
    format!("curl -sS {options} --noproxy '*' --max-time 10 --cacert {AUTHORITY} {url}")
}

/// The content that the client prints if it has reached the server.
pub(super) fn content(client: &str) -> &'static str {
    if client == "git" { "refs/heads/main" } else { HELLO }
}

/// The records about proofs, as `proof`, `name` and `rule`.
pub(super) fn proofs(records: &[Value]) -> Vec<(&str, &str, &str)> {
    let proofs = records.iter().filter(|record| record["proof"].is_string());
    proofs
        .map(|record| {
            let field = |name: &str| record[name].as_str().unwrap_or_default();
            (field("proof"), field("name"), field("rule"))
        })
        .collect()
}

/// Tests that usual clients reach an allowed name, and not another one with the same address.
fn clients(context: &Context) -> Result<()> {
    let far = FarEnd::new(context, &[Family::V4, Family::V6])?;
    let rule = "allow api.test:443/tls";
    for (client, line) in lines("api.test") {
        let (text, records) = far.run(&["api.test:443/tls"], &line)?;
        ensure!(text.contains(content(client)), "{client}: {text}");
        let proofs = proofs(&records);
        ensure!(
            !proofs.is_empty() && proofs.iter().all(|proof| *proof == ("proven", "api.test", rule)),
            "{client}: {proofs:?}"
        );
    }
    let before = far.server.received();
    ensure!(before.iter().all(|bytes| *bytes > 0), "{before:?}");
    for (client, line) in lines("other.test") {
        let line = format!("dig +short api.test A api.test AAAA >/dev/null; {line}");
        let (text, records) = far.run(&["api.test:443/tls"], &line)?;
        ensure!(!text.contains(content(client)), "{client}: {text}");
        let proofs = proofs(&records);
        ensure!(
            !proofs.is_empty()
                && proofs
                    .iter()
                    .all(|proof| *proof == ("other-name", "other.test", rule)),
            "{client}: {proofs:?}"
        );
    }
    no_byte_since(&far, before.len())
}

/// Checks that the server has received connections after the first `before`, and no byte on them.
pub(super) fn no_byte_since(far: &FarEnd<'_>, before: usize) -> Result<()> {
    let received = far.server.received();
    let since = received.get(before..).unwrap_or_default();
    ensure!(
        !since.is_empty() && since.iter().all(|bytes| *bytes == 0),
        "the server has received {since:?}"
    );
    Ok(())
}

/// Tests connections to the address of an allowed name that do not prove the name.
fn unproven(context: &Context) -> Result<()> {
    let far = FarEnd::new(context, &[Family::V4, Family::V6])?;
    let s_client = |options: &str| {
        format!("echo | timeout 10 openssl s_client -CAfile {AUTHORITY} -connect api.test:443 {options}")
    };
    let v4 = dns::A;
    let v6 = dns::AAAA;
    let table = [
        (s_client("-servername other.test"), "other-name", "other.test"),
        (s_client("-noservername"), "no-name", ""),
        (curl("", &format!("https://{v4}/hello")), "no-name", ""),
        (curl("", &format!("https://[{v6}]/hello")), "no-name", ""),
        (curl("", "https://other.test/hello"), "other-name", "other.test"),
        (curl("-4", "http://api.test:443/hello"), "not-tls", ""),
        (
            "timeout 9 bash -c 'exec 3<>/dev/tcp/api.test/443; cat <&3'".to_owned(),
            "timeout",
            "",
        ),
    ];
    for (line, proof, name) in table {
        let asked = format!("dig +short api.test A api.test AAAA >/dev/null; {line}");
        let (text, records) = far.run(&["api.test:443/tls"], &asked)?;
        ensure!(
            !text.contains(HELLO) && !text.contains("CERTIFICATE"),
            "{line}: {text}"
        );
        let proofs = proofs(&records);
        let expected = (proof, name, "allow api.test:443/tls");
        ensure!(
            !proofs.is_empty() && proofs.iter().all(|found| *found == expected),
            "{line}: {proofs:?} instead of {expected:?}"
        );
        let closed: Vec<_> = records
            .iter()
            .filter(|record| record["type"] == "closed")
            .collect();
        ensure!(
            closed
                .iter()
                .all(|record| record["reason"] == "unproven" && record["bytes_down"] == 0),
            "{line}: {closed:?}"
        );
    }
    no_byte_since(&far, 0)?;
    let before = far.server.received().len();
    // The guest has not resolved the name, and then only another one.
    for asked in ["true", "dig +short other.test A >/dev/null"] {
        let line = format!(
            "{asked}; {}",
            curl(&format!("--resolve api.test:443:{v4}"), "https://api.test/hello")
        );
        let (text, records) = far.run(&["api.test:443/tls"], &line)?;
        ensure!(text.contains("curl: (7)"), "{line}: {text}");
        let refused = records.iter().find(|record| record["type"] == "refused");
        let reason = refused.map(|record| &record["reason"]);
        ensure!(reason == Some(&Value::from("unlisted")), "{line}: {records:?}");
    }
    // QUIC.
    let python = format!(
        "import socket\n\
         stream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         stream.settimeout(5)\n\
         stream.connect((\"{v4}\", 443))\n\
         stream.send(bytes(1200))\n\
         stream.recv(1)\n"
    );
    let line = format!("dig +short api.test A >/dev/null; python3 -c '{python}'");
    let (text, records) = far.run(&["api.test:443/tls"], &line)?;
    ensure!(text.contains("ConnectionRefusedError"), "{text}");
    let refused = records.iter().find(|record| record["type"] == "refused");
    let refused = refused.context("no refusal")?;
    ensure!(
        refused["reason"] == "tls-only" && refused["rule"] == "allow api.test:443/tls",
        "{refused}"
    );
    ensure!(
        far.server.received().len() == before,
        "the server has got a connection"
    );
    Ok(())
}

/// Tests that a strict rule permits clients without Encrypted Client Hello.
fn strict(context: &Context) -> Result<()> {
    let far = FarEnd::new(context, &[Family::V4])?;
    let rules = ["*.test:443/tls-strict"];
    let (text, records) = far.run(&rules, &curl("-4", "https://api.test/hello"))?;
    ensure!(text.contains(HELLO), "{text}");
    let proofs = proofs(&records);
    ensure!(
        proofs == [("proven", "api.test", "allow *.test:443/tls-strict")],
        "{proofs:?}"
    );
    Ok(())
}

/// Tests connections that wait for their ClientHello while the rules are replaced.
fn replaced(context: &Context) -> Result<()> {
    let far = FarEnd::new(context, &[Family::V4])?;
    let line = "dig +short api.test A >/dev/null; echo listening; \
                exec 3<>/dev/tcp/api.test/443; read -r _; printf 'plain text\\n' >&3; \
                timeout 3 cat <&3 >/dev/null; echo end";
    for (rules, bytes) in [("allow *:443/tcp\n", 11), ("allow other.test:443/tls\n", 0)] {
        let before = far.server.received().len();
        let run = far
            .network
            .run()
            .options(["--allow", "api.test:443/tls", "--control", "/run/control"]);
        let mut guest = run.command(["bash", "-c", line]).spawn()?.listening()?;
        while far.server.received().len() == before {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::fs::write("/run/rules", rules)?;
        let arguments = [
            "ctl",
            "--control",
            "/run/control",
            "policy",
            "replace",
            "/run/rules",
        ];
        let output = context.program.command()?.args(arguments).output()?;
        process::checked("ctl", output.status, &output.stdout, &output.stderr)?;
        guest.send_line("continue")?;
        expect(&guest.line()?, "end")?;
        let received = far.server.received();
        ensure!(received[before..] == [bytes], "{rules}: {received:?}");
    }
    Ok(())
}

/// Tests that an address of an allowed name that does not answer delays a client as it does without rules.
fn unresponsive_address(context: &Context) -> Result<()> {
    let far = FarEnd::new(context, &[Family::V4])?;
    far.network
        .server()
        .enter(|| ip(&format!("route add blackhole {}/128", dns::AAAA)))?;
    // The resolver's order of addresses may prefer IPv4 (RFC 6724).
    let options = format!(
        "-w ' %{{time_connect}}' -o /dev/null --resolve 'api.test:443:[{}],{}'",
        dns::AAAA,
        dns::A
    );
    let request = curl(&options, "https://api.test/hello");
    let line = format!("dig +short api.test A api.test AAAA >/dev/null; {request}");
    let seconds = |rules: &[&str]| -> Result<f64> {
        let (text, _) = far.run(rules, &line)?;
        text.trim().parse().with_context(|| format!("curl prints {text}"))
    };
    // The least of several times: a busy machine only adds to each.
    let (mut without, mut with) = (f64::MAX, f64::MAX);
    for _ in 0..3 {
        without = without.min(seconds(&[])?);
        with = with.min(seconds(&["api.test:443/tls"])?);
    }
    ensure!(
        without > 0.15,
        "without rules, curl connects after {without} s: the address answers"
    );
    ensure!(with < without + 0.2, "{with} s with a rule, {without} s without");
    Ok(())
}

/// Tests the rule with a virtual machine as the guest.
fn machine(context: &Context, framing: Framing) -> Result<()> {
    tmpfs(Path::new("/run"))?;
    let (network, machine) = vm::start(context, framing, &["--allow", "api.test:443/tls"])?;
    let server = start_server(&network, &[dns::A.into()])?;
    let guest = TapGuest::of(&machine, Faults::NONE)?;
    guest.dhcp4()?;
    let shell = |line: &str| {
        let line = format!("{{ {line} ; }} 2>&1; true");
        guest
            .namespace
            .enter(|| process::output(Command::new("sh").args(["-c", &line])))
    };
    let get = |name: &str| {
        let resolved = format!("--resolve {name}:443:{}", dns::A);
        shell(&curl(&resolved, &format!("https://{name}/hello")))
    };
    let before = get("api.test")?;
    ensure!(before.contains("curl: (7)"), "without a response: {before}");
    shell("dig +short @10.0.2.3 api.test A")?;
    let allowed = get("api.test")?;
    ensure!(allowed.contains(HELLO), "{allowed}");
    let other = get("other.test")?;
    ensure!(!other.contains(HELLO), "{other}");
    let received = server.received();
    ensure!(
        matches!(received[..], [first, 0] if first > 0),
        "the server has received {received:?}"
    );
    Ok(())
}
