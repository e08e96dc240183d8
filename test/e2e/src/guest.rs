//! The guest's side of the tests: the command `pontoon-e2e guest ...`, whose functions cases also call directly.

pub(crate) mod dns;
mod filter;
mod flood;
pub(crate) mod raw;
pub(crate) mod routes;
pub(crate) mod tcp;
pub(crate) mod tcp_load;
pub(crate) mod udp;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::pattern::Pattern;
use crate::server;

/// Runs a guest command, and prints its result to standard output.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve", listeners @ ..] => serve(listeners),
        ["generate", seed, len] => server::tcp::send(
            &mut std::io::stdout().lock(),
            &Pattern::of(seed.parse()?),
            len.parse()?,
        ),
        ["tcp", server, rest @ ..] => print_line(&tcp::command(server.parse()?, rest)?),
        ["load", rest @ ..] => tcp_load::command(rest),
        ["udp", rest @ ..] => print_line(&udp::command(rest)?),
        ["dns", server, count] => print_line(&dns::parallel(server.parse()?, count.parse()?)?.to_string()),
        ["raw", rest @ ..] => raw::command(rest),
        ["filter", "terminal"] => print_line(&filter::insert()),
        ["without-user-namespaces", words @ ..] => filter::without_user_namespaces(words),
        ["filter"] => print_line(&filter::command()?),
        #[cfg(target_arch = "x86_64")]
        ["filter", "32"] => print_line(&filter::command_of_32_bits()?),
        ["flood", rest @ ..] => flood::command(rest),
        ["exchange", socket, request] => print_line(&exchange(socket, request)?),
        _ => bail!("unknown guest command {}", words.join(" ")),
    }
}

/// Runs servers, each given as `tcp:ADDRESS` or `udp:ADDRESS`, until standard input is closed.
fn serve(listeners: &[&str]) -> Result<()> {
    for listener in listeners {
        match listener.split_once(':') {
            Some(("tcp", address)) => server::tcp::start(address.parse::<SocketAddr>()?)?,
            Some(("udp", address)) => server::udp::start(address.parse::<SocketAddr>()?)?,
            Some(("stun", address)) => server::stun::start(address.parse::<SocketAddr>()?)?,
            _ => bail!("{listener} is not of the form tcp:ADDRESS or udp:ADDRESS"),
        };
    }
    print_line("listening")?;
    loop {
        std::thread::park();
    }
}

/// Sends a request to a Unix socket, and returns the response, which is not empty.
fn exchange(socket: &str, request: &str) -> Result<String> {
    let mut socket = UnixStream::connect(socket)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    socket.write_all(request.as_bytes())?;
    socket.shutdown(Shutdown::Write)?;
    let response = rest(socket)?;
    ensure!(
        !response.is_empty(),
        "the connection was closed without a response"
    );
    Ok(response)
}

/// Prints a line to standard output and flushes it.
pub(crate) fn print_line(line: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{}", line.trim_end())?;
    Ok(output.flush()?)
}

/// Reads `from` to its end, as text.
fn rest(mut from: impl Read) -> Result<String> {
    let mut text = String::new();
    from.read_to_string(&mut text)?;
    Ok(text)
}
