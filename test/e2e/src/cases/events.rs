//! Cases about events of flows: the audit file and `pontoon ctl events`.

mod killed;
mod vm;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::{OBEDIENT, expect, tcp_server, tmpfs};
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::process;
use crate::run::RunningProgram;

const AUDIT: &str = "/run/audit";
const SOCKET: &str = "/run/control";

pub(super) fn cases() -> Vec<Case> {
    [
        Case::new("events.audit", 60, audit),
        Case::new("events.audit-rotation", 60, rotation),
        Case::new("events.audit-on-a-full-disk", 60, full_disk),
        Case::new("events.audit-on-a-frozen-file-system", 60, frozen_file_system),
        Case::new("events.control", 60, control),
        // Its flows must be opened before the client has stalled for too long.
        Case::new("events.stalled-client", 60, stalled_client).alone(),
    ]
    .into_iter()
    .chain([killed::case()])
    .chain(vm::cases())
    .map(Case::pontoon_only)
    .collect()
}

/// Lowest port of servers that count bytes.
const COUNTING: u16 = 7001;

/// Number of bytes that a server has received and sent on each connection, by the port of the server and that of the guest.
type Counts = HashMap<(u16, u16), (u64, u64)>;
type Seen = Arc<Mutex<Counts>>;

/// Starts a server that reads each connection to its end, then sends three bytes for each received one, and closes. The first
/// line is the guest's port.
fn counting_server(network: &Network<'_>) -> Result<(SocketAddr, Seen)> {
    let seen = Seen::default();
    Ok((counting_server_at(network, COUNTING, &seen)?, seen))
}

/// Starts such a server at a port of the far end.
fn counting_server_at(network: &Network<'_>, port: u16, seen: &Seen) -> Result<SocketAddr> {
    let address = SocketAddr::new(network.server_address(Family::V4), port);
    let listener = network.server().enter(|| Ok(TcpListener::bind(address)?))?;
    let counts = Arc::clone(seen);
    std::thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            let counts = Arc::clone(&counts);
            std::thread::spawn(move || serve(stream, &counts));
        }
    });
    Ok(address)
}

fn serve(mut stream: TcpStream, counts: &Mutex<Counts>) -> Result<()> {
    let ours = stream.local_addr()?.port();
    let mut received = Vec::new();
    stream.read_to_end(&mut received)?;
    let line = received.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let port: u16 = str::from_utf8(line)?.parse()?;
    let reply = vec![0; 3 * received.len()];
    stream.write_all(&reply)?;
    stream.shutdown(Shutdown::Write)?;
    let mut counts = counts.lock().expect("no panic");
    counts.insert((ours, port), (received.len() as u64, reply.len() as u64));
    Ok(())
}

/// Records of an audit file, and of the files before it.
fn records(path: &str) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    let older = (1..1000).map(|number| format!("{path}.{number}"));
    let older: Vec<String> = older.take_while(|path| Path::new(path).exists()).collect();
    for path in older.iter().rev().map(String::as_str).chain([path]) {
        let text = fs::read_to_string(path)?;
        ensure!(
            text.is_empty() || text.ends_with('\n'),
            "{path} ends with a part of a record"
        );
        for line in text.lines() {
            all.push(serde_json::from_str(line).with_context(|| format!("{path}: {line}"))?);
        }
    }
    Ok(all)
}

fn number(record: &Value, name: &str) -> Result<u64> {
    record[name]
        .as_u64()
        .with_context(|| format!("{name} in {record}"))
}

/// Checks that each number from `first` on is that of a record, or is named by a record about missing ones. Returns the
/// number of records that are missing.
fn check_numbers(records: &[Value], first: u64) -> Result<u64> {
    let (mut next, mut missing) = (first, 0);
    for record in records {
        ensure!(record["v"] == 1, "{record}");
        if record["type"] == "gap" {
            ensure!(
                number(record, "from")? == next,
                "expected number {next}: {record}"
            );
            let to = number(record, "to")?;
            missing += to + 1 - next;
            next = to + 1;
        } else {
            ensure!(number(record, "n")? == next, "expected number {next}: {record}");
            next += 1;
        }
    }
    Ok(missing)
}

/// Checks that each flow with an opening record has one record of its end. Returns the numbers of flows that were opened,
/// closed and lost.
fn check_ends(records: &[Value]) -> Result<(usize, usize, usize)> {
    let of = |kind: &'static str| records.iter().filter(move |record| record["type"] == kind);
    let opened: HashSet<u64> = of("opened")
        .map(|record| number(record, "n"))
        .collect::<Result<_>>()?;
    let mut ended = HashSet::new();
    for record in of("closed")
        .chain(of("lost"))
        .filter(|record| !record["opened"].is_null())
    {
        let opening = number(record, "opened")?;
        ensure!(opened.contains(&opening), "{record} has no opening record");
        ensure!(
            ended.insert(opening),
            "second record of the end of a flow: {record}"
        );
    }
    ensure!(
        ended.len() == opened.len(),
        "{} flows have no end",
        opened.len() - ended.len()
    );
    Ok((opened.len(), of("closed").count(), of("lost").count()))
}

/// Checks that the bytes of each connection to a server that counts them, and with an orderly end, are those that it has seen.
/// Returns their number, and the numbers of the other ends by their reason.
fn check_bytes(records: &[Value], seen: &Seen) -> Result<(usize, BTreeMap<String, usize>)> {
    let seen = seen.lock().expect("no panic");
    let (mut compared, mut others) = (0, BTreeMap::new());
    let port_of = |record: &Value, name: &str| -> Result<u16> {
        let address: SocketAddr = record[name].as_str().unwrap_or_default().parse()?;
        Ok(address.port())
    };
    for record in records.iter().filter(|record| record["type"] == "closed") {
        let reason = record["reason"].as_str().unwrap_or_default();
        let ends = (port_of(record, "remote")?, port_of(record, "guest")?);
        if record["protocol"] != "tcp" || reason != "guest-fin" || ends.0 < COUNTING {
            *others.entry(reason.to_owned()).or_default() += 1;
            continue;
        }
        let bytes = (number(record, "bytes_up")?, number(record, "bytes_down")?);
        let counted = seen.get(&ends);
        ensure!(counted == Some(&bytes), "{record}: the server has {counted:?}");
        compared += 1;
    }
    Ok((compared, others))
}

fn start(network: &Network<'_>, options: &[&str]) -> Result<RunningProgram> {
    let run = network.run().options(options);
    run.shell(OBEDIENT).spawn()?.listening()
}

/// Ends the guest and the program, so that the audit file is complete.
fn end(mut guest: RunningProgram) -> Result<()> {
    guest.send_line("exit 0")?;
    guest.finish()?;
    Ok(())
}

/// Tests the records of each kind of flow, with the reasons of their ends.
fn audit(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(Path::new("/run"))?;
    let server = tcp_server(&network, Family::V4)?;
    let datagrams = super::udp_server(&network, Family::V4)?;
    let deny = format!("{}:9", server.ip());
    let options = ["--audit", AUDIT, "--deny", &deny, "--publish", "8080:80"];
    let mut guest = start(&network, &options)?;
    let ip = server.ip();
    for (line, answer) in [
        (format!("$E2E guest tcp {server} put 0 1 100000"), "ok"),
        (format!("$E2E guest tcp {server} fetch 0 1 200000"), "ok"),
        (
            format!("$E2E guest tcp {ip}:7999 refused >/dev/null 2>&1; echo done"),
            "done",
        ),
        (
            format!("$E2E guest tcp {ip}:9 refused >/dev/null 2>&1; echo done"),
            "done",
        ),
        (
            format!("$E2E guest udp survive {datagrams} 1 >/dev/null 2>&1; echo done"),
            "done",
        ),
        (format!("ping -c 1 -W 1 {ip} >/dev/null 2>&1; echo done"), "done"),
    ] {
        expect(&guest.ask(&line)?, answer)?;
    }
    process::wait_until("records are written", Duration::from_secs(5), || {
        Ok(fs::read_to_string(AUDIT)?.contains("\"refused\""))
    })?;
    let mode = fs::metadata(AUDIT)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "mode {mode:o}");
    end(guest)?;
    let records = records(AUDIT)?;
    ensure!(check_numbers(&records, 1)? == 0, "records are missing");
    let (_, _, lost) = check_ends(&records)?;
    ensure!(lost == 0, "flows are lost");
    let has = |fields: &[(&str, Value)]| -> Result<()> {
        let is = |record: &&Value| fields.iter().all(|(name, value)| record[*name] == *value);
        ensure!(
            records.iter().any(|record| is(&record)),
            "no record with {fields:?}"
        );
        Ok(())
    };
    let remote = |port: u16| ("remote", Value::from(format!("{ip}:{port}")));
    let kind = |kind: &str| ("type", Value::from(kind));
    has(&[kind("start")])?;
    has(&[kind("end")])?;
    has(&[
        kind("closed"),
        remote(7999),
        ("reason", "connect-failed".into()),
        ("error", "connection refused".into()),
    ])?;
    has(&[
        kind("refused"),
        remote(9),
        ("reason", "rule".into()),
        ("rule", format!("deny {deny}").into()),
    ])?;
    has(&[
        kind("opened"),
        ("protocol", "udp".into()),
        remote(datagrams.port()),
    ])?;
    has(&[
        kind("closed"),
        ("protocol", "udp".into()),
        ("reason", "ended".into()),
    ])?;
    let carried = |record: &&Value, name, least| record[name].as_u64().is_some_and(|bytes| bytes >= least);
    for (name, least) in [("bytes_up", 100_000), ("bytes_down", 200_000)] {
        let one = records.iter().find(|record| carried(record, name, least));
        one.with_context(|| format!("no record with {least} {name}"))?;
    }
    Ok(())
}

/// Tests that files are renamed under load without a loss.
fn rotation(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(Path::new("/run"))?;
    let (server, _) = counting_server(&network)?;
    let audit = format!("{AUDIT},size=50k,keep=900");
    let mut guest = start(&network, &["--audit", &audit])?;
    expect(
        &guest.ask(&format!("$E2E guest tcp {server} send-port 1000"))?,
        "1000",
    )?;
    end(guest)?;
    let records = records(AUDIT)?;
    ensure!(check_numbers(&records, 1)? == 0, "records are missing");
    let (opened, closed, lost) = check_ends(&records)?;
    ensure!(
        (opened, closed, lost) == (1000, 1000, 0),
        "{opened} {closed} {lost}"
    );
    let sizes: Vec<u64> = (1..=4)
        .map(|number| Ok(fs::metadata(format!("{AUDIT}.{number}"))?.len()))
        .collect::<Result<_>>()?;
    ensure!(
        sizes.iter().all(|size| (45_000..=50_000).contains(size)),
        "{sizes:?}"
    );
    Ok(())
}

/// Tests a disk that is full for some time: the program and its guest continue, and records that are missing are named.
fn full_disk(context: &Context) -> Result<()> {
    use rustix::mount::{MountFlags, mount};
    let network = Network::new(context)?;
    tmpfs(Path::new("/run"))?;
    // All but 64 KiB are in use by another file.
    mount(
        "tmpfs",
        "/mnt",
        "tmpfs",
        MountFlags::empty(),
        c"mode=1777,size=2m",
    )?;
    fs::write("/mnt/other", vec![1; (2 << 20) - (64 << 10)])?;
    let (server, _) = counting_server(&network)?;
    let mut guest = start(
        &network,
        &["--control", SOCKET, "--audit", "/mnt/audit,size=100M"],
    )?;
    expect(
        &guest.ask(&format!("$E2E guest tcp {server} send-port 1000"))?,
        "1000",
    )?;
    let full = fs::read_to_string("/mnt/audit")?;
    ensure!(
        (50_000..=65_536).contains(&full.len()) && full.ends_with('\n'),
        "{} bytes",
        full.len()
    );
    let metrics = || {
        let url = "http://pontoon/metrics";
        process::output(Command::new("curl").args(["-sS", "--unix-socket", SOCKET, url]))
    };
    ensure!(
        !metrics()?.contains("pontoon_audit_errors_total 0"),
        "no error was counted"
    );
    // Each flow has about 450 bytes of records, and 1 MiB waits.
    expect(
        &guest.ask(&format!("$E2E guest tcp {server} send-port 4000"))?,
        "4000",
    )?;
    fs::remove_file("/mnt/other")?;
    process::wait_until("records are written again", Duration::from_secs(5), || {
        Ok(fs::metadata("/mnt/audit")?.len() > 900_000)
    })?;
    expect(
        &guest.ask(&format!("$E2E guest tcp {server} send-port 10"))?,
        "10",
    )?;
    end(guest)?;
    let records = records("/mnt/audit")?;
    let missing = check_numbers(&records, 1)?;
    eprintln!("{missing} records are missing");
    ensure!(missing > 0, "the buffer is not limited");
    let gap = records.iter().find(|record| record["type"] == "gap");
    ensure!(gap.is_some_and(|gap| gap["reason"] == "file"), "{gap:?}");
    ensure!(
        records.last().is_some_and(|record| record["type"] == "end"),
        "the end is missing"
    );
    Ok(())
}

/// Tests that the program serves its guest and its control socket while the process that writes the audit file does not run, as
/// if its file system did not respond, and that missing records are named.
fn frozen_file_system(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(Path::new("/run"))?;
    let (server, _) = counting_server(&network)?;
    let mut guest = start(&network, &["--control", SOCKET, "--audit", AUDIT])?;
    let writer = context.program.process("pontoon-audit")?;
    writer.signal(Signal::STOP)?;
    // Each flow has about 450 bytes of records, and 1 MiB waits.
    expect(
        &guest.ask(&format!("$E2E guest tcp {server} send-port 4000"))?,
        "4000",
    )?;
    let metrics = || {
        let url = "http://pontoon/metrics";
        process::output(Command::new("curl").args(["-sS", "-m", "2", "--unix-socket", SOCKET, url]))
    };
    process::wait_until("records are missing", Duration::from_secs(5), || {
        Ok(!metrics()?.contains("pontoon_audit_lost_total 0"))
    })?;
    context.program.kill_engine()?;
    writer.signal(Signal::CONT)?;
    process::wait_until("records are written again", Duration::from_secs(5), || {
        Ok(fs::read_to_string(AUDIT)?.contains("\"gap\""))
    })?;
    expect(
        &guest.ask(&format!("$E2E guest tcp {server} send-port 10"))?,
        "10",
    )?;
    end(guest)?;
    let records = records(AUDIT)?;
    let missing = check_numbers(&records, 1)?;
    ensure!(missing > 0, "no record is missing");
    ensure!(
        records.last().is_some_and(|record| record["type"] == "end"),
        "the end is missing"
    );
    Ok(())
}

/// Tests `pontoon ctl events` with a filter, and errors of requests.
fn control(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(Path::new("/run"))?;
    let server = tcp_server(&network, Family::V4)?;
    let mut guest = start(&network, &["--control", SOCKET])?;
    let mut clients = Vec::new();
    for words in [&["--json"][..], &["--type", "closed"][..]] {
        let mut command = context.program.command()?;
        let command = command.args(["ctl", "--control", SOCKET, "events"]).args(words);
        clients.push(command.stdout(Stdio::piped()).spawn()?);
    }
    process::wait_until("both clients are connected", Duration::from_secs(5), || {
        expect(&guest.ask(&format!("$E2E guest tcp {server} connects 1"))?, "ok")?;
        let streams = process::output(Command::new("ss").args(["-xH", "state", "connected", "src", SOCKET]))?;
        Ok(streams.lines().count() == 2)
    })?;
    expect(
        &guest.ask(&format!("$E2E guest tcp {server} put 0 1 54321"))?,
        "ok",
    )?;
    let mut outputs = Vec::new();
    for client in &mut clients {
        let output = client.stdout.take().context("standard output is not a pipe")?;
        outputs.push(BufReader::new(output).lines());
    }
    let record = loop {
        let line = outputs[0].next().context("the first client ended")??;
        let record: Value = serde_json::from_str(&line)?;
        if record["type"] == "closed" && record["bytes_up"].as_u64() > Some(54_321) {
            break record;
        }
    };
    ensure!(record["remote"] == server.to_string(), "{record}");
    let line = loop {
        let line = outputs[1].next().context("the second client ended")??;
        ensure!(line.contains(" closed "), "{line}");
        if line.contains(" up=54.3k ") {
            break line;
        }
    };
    ensure!(line.contains(&format!("-> {server} ")), "{line}");
    let wrong = "http://pontoon/v1/events?type=none";
    let problem = process::output(Command::new("curl").args(["-sS", "--unix-socket", SOCKET, wrong]))?;
    ensure!(problem.contains("unknown type 'none'"), "{problem}");
    end(guest)?;
    for mut client in clients {
        ensure!(client.wait()?.success(), "a client failed at the end");
    }
    Ok(())
}

/// Tests that a client that does not read delays neither the guest nor another client, and gets a record of what it missed.
fn stalled_client(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(Path::new("/run"))?;
    let (server, _) = counting_server(&network)?;
    let mut guest = start(&network, &["--control", SOCKET])?;
    let connect = || -> Result<BufReader<UnixStream>> {
        let mut stream = UnixStream::connect(SOCKET)?;
        stream.write_all(b"GET /v1/events HTTP/1.1\r\n\r\n")?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        while lines.read_line(&mut line)? > 2 {
            line.clear();
        }
        Ok(lines)
    };
    let (mut stalled, reading) = (connect()?, connect()?);
    // More than the socket and both buffers hold, in less time than a client may stall.
    let flows = 2500;
    let reader = std::thread::spawn(move || -> Result<Vec<Value>> {
        let mut all = Vec::new();
        let mut opened = 0;
        for line in reading.lines() {
            let record: Value = serde_json::from_str(&line?)?;
            opened += usize::from(record["type"] == "opened");
            all.push(record);
            // The records of several workers are in no order.
            if opened == flows + 1 {
                break;
            }
        }
        Ok(all)
    });
    expect(
        &guest.ask(&format!("$E2E guest tcp {server} send-port {flows}"))?,
        &flows.to_string(),
    )?;
    let refused = format!(
        "$E2E guest tcp {}:7999 refused >/dev/null 2>&1; echo done",
        server.ip()
    );
    expect(&guest.ask(&refused)?, "done")?;
    let all = process::join(reader)?;
    ensure!(
        check_numbers(&all, number(&all[0], "n")?)? == 0,
        "the other client has missed records"
    );
    let mut some = Vec::new();
    let mut line = String::new();
    while stalled.read_line(&mut line)? > 0 {
        let record: Value = serde_json::from_str(&line)?;
        let is_gap = record["type"] == "gap";
        some.push(record);
        line.clear();
        if is_gap {
            break;
        }
    }
    let missing = check_numbers(&some, number(&some[0], "n")?)?;
    eprintln!(
        "the stalled client has {} records and has missed {missing}",
        some.len()
    );
    ensure!(missing > 0, "the client has missed nothing");
    let gap = some.last().context("no record")?;
    ensure!(gap["reason"] == "client", "{gap}");
    end(guest)
}
