//! Rules with `/tls` together with a proxy.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{Kind, RunningProxy, connects};
use crate::case::{Case, Context, Family};
use crate::cases::tls::{FarEnd, content, curl, lines, no_byte_since, proofs};
use crate::process;
use crate::server::dns;
use crate::server::tls::{AUTHORITY, HELLO};

pub(super) fn cases() -> Vec<Case> {
    [
        Case::both("proxy.tls-through-squid", 90, |context, family| {
            proven(context, family, Kind::Squid)
        }),
        Case::both("proxy.tls-through-dante", 90, |context, family| {
            proven(context, family, Kind::Dante)
        }),
        Case::both("proxy.names-with-one-address", 60, |context, family| {
            one_address(context, family)
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns a line of shell that resolves the names and then runs `line`.
fn resolved(family: Family, line: &str) -> String {
    let kind = if family == Family::V4 { "A" } else { "AAAA" };
    format!("dig +short api.test {kind} other.test {kind} >/dev/null; {line}")
}

/// Returns the line of shell by which openssl connects to `api.test`.
fn s_client(family: Family, options: &str) -> String {
    let address = super::host(family.pick(dns::A, dns::AAAA));
    format!("echo | timeout 10 openssl s_client -CAfile {AUTHORITY} -connect {address}:443 {options}")
}

/// Checks that each connection was closed because it has proved no name.
fn all_unproven(records: &[Value]) -> Result<()> {
    let mut closed = records.iter().filter(|record| record["type"] == "closed");
    ensure!(
        closed.all(|record| record["reason"] == "unproven" && record["bytes_down"] == 0),
        "{records:?}"
    );
    Ok(())
}

/// Tests that clients reach an allowed name through the proxy, and that no byte of others reaches the server.
fn proven(context: &Context, family: Family, kind: Kind) -> Result<()> {
    let far = FarEnd::new(context, &[family])?;
    let proxy = RunningProxy::start(kind)?;
    let options = proxy.option(family);
    let rule = "api.test:443/tls";
    let shown = "allow api.test:443/tls";
    for (client, line) in lines("api.test") {
        if client == "curl -4" && family == Family::V6 || client == "curl -6" && family == Family::V4 {
            continue;
        }
        // The server has one family. The others try both addresses of the name, and openssl only the first one that connects.
        let line = match client {
            "openssl" if family == Family::V6 => line.replace("s_client", "s_client -6"),
            _ => line,
        };
        let (text, records) = far.run_with(&options, &[rule], &line)?;
        ensure!(text.contains(content(client)), "{client}: {text}");
        let proofs = proofs(&records);
        ensure!(
            !proofs.is_empty() && proofs.iter().all(|proof| *proof == ("proven", "api.test", shown)),
            "{client}: {proofs:?}"
        );
        ensure!(
            records.iter().any(|record| record["decision"] == "proxy"),
            "{client}: {records:?}"
        );
    }
    let address = super::host(family.pick(dns::A, dns::AAAA));
    if kind == Kind::Squid {
        proxy.logs(&format!("CONNECT {address}:443"))?;
    }
    let before = far.server.received();
    ensure!(before.iter().all(|bytes| *bytes > 0), "{before:?}");
    for (line, proof, name) in [
        (
            s_client(family, "-servername other.test"),
            "other-name",
            "other.test",
        ),
        (s_client(family, "-noservername"), "no-name", ""),
        (curl(family.flag(), "http://api.test:443/hello"), "not-tls", ""),
    ] {
        let (text, records) = far.run_with(&options, &[rule], &resolved(family, &line))?;
        ensure!(
            !text.contains(HELLO) && !text.contains("CERTIFICATE"),
            "{line}: {text}"
        );
        let proofs = proofs(&records);
        ensure!(
            !proofs.is_empty() && proofs.iter().all(|found| *found == (proof, name, shown)),
            "{line}: {proofs:?}"
        );
        all_unproven(&records)?;
    }
    no_byte_since(&far, before.len())
}

/// Tests two names with the same address, of which one uses the proxy and the other does not.
fn one_address(context: &Context, family: Family) -> Result<()> {
    let far = FarEnd::new(context, &[family])?;
    let proxy = RunningProxy::start(Kind::Squid)?;
    let rules = ["api.test:443/tls", "other.test:443/tls"];
    let request = |name: &str| resolved(family, &curl(family.flag(), &format!("https://{name}/hello")));
    let options = |further: [&str; 2]| [proxy.option(family), further.map(str::to_owned)].concat();
    for further in [["--no-proxy", "api.test"], ["--proxy-for", "other.test"]] {
        for (name, uses) in [("api.test", false), ("other.test", true)] {
            let expected = connects() + usize::from(uses);
            let (text, records) = far.run_with(&options(further), &rules, &request(name))?;
            ensure!(text.contains(HELLO), "{further:?}, {name}: {text}");
            let rule = format!("allow {name}:443/tls");
            let proofs = proofs(&records);
            ensure!(
                proofs == [("proven", name, &*rule)],
                "{further:?}, {name}: {proofs:?}"
            );
            let proxied = records.iter().any(|record| record["decision"] == "proxy");
            ensure!(proxied == uses, "{further:?}, {name}: {records:?}");
            // squid writes its log when the connection has ended.
            let what = format!("{further:?}, {name}: {expected} connections through squid");
            process::wait_until(&what, Duration::from_secs(10), || Ok(connects() == expected))?;
        }
    }
    // Without the proof of one of them, no connection is opened, neither directly nor through the proxy.
    let further = ["--no-proxy", "api.test"];
    let (before, proxied) = (far.server.received().len(), connects());
    for (line, proof) in [
        (s_client(family, "-servername third.test"), "other-name"),
        (s_client(family, "-noservername"), "no-name"),
        (curl(family.flag(), "http://api.test:443/hello"), "not-tls"),
    ] {
        let (text, records) = far.run_with(&options(further), &rules, &resolved(family, &line))?;
        ensure!(!text.contains(HELLO), "{line}: {text}");
        let proofs = proofs(&records);
        ensure!(
            !proofs.is_empty() && proofs.iter().all(|found| found.0 == proof),
            "{line}: {proofs:?}"
        );
        all_unproven(&records)?;
    }
    ensure!(
        (far.server.received().len(), connects()) == (before, proxied),
        "a connection was opened"
    );
    // A proxy that does not run is a reset after the proof.
    let stopped = options(further);
    drop(proxy);
    let (text, records) = far.run_with(&stopped, &rules, &request("other.test"))?;
    ensure!(text.contains("curl: (35)"), "{text}");
    let closed = records.iter().find(|record| record["type"] == "closed");
    ensure!(
        closed.is_some_and(|record| record["reason"] == "proxy-failed"),
        "{records:?}"
    );
    Ok(())
}
