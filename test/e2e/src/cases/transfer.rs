//! Cases that transfer files and repositories over HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;

use anyhow::Result;

use super::{expect, host};
use crate::case::{Case, Context, Family};
use crate::network::Network;
use crate::run::own_path;
use crate::{process, server};

const GIB: u64 = 1 << 30;

pub(super) fn cases() -> Vec<Case> {
    [
        Case::both("transfer.curl-fetches-a-gib", 60, fetch).map(Case::alone),
        Case::both("transfer.curl-uploads-a-gib", 60, upload).map(Case::alone),
        Case::both("transfer.500-parallel-requests", 60, parallel).map(Case::alone),
        Case::both("transfer.git-clone", 30, clone),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn http(network: &Network<'_>, family: Family, repositories: Option<PathBuf>) -> Result<String> {
    let address = SocketAddr::new(network.server_address(family), 80);
    network
        .server()
        .enter(|| server::http::start(address, repositories))?;
    Ok(format!("http://{}", host(address.ip())))
}

/// Tests that downloaded content has the hash of the content that the server sends.
fn fetch(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let url = http(&network, family, None)?;
    let wanted = shell(format!(
        "{} guest generate 3 {GIB} | openssl dgst -sha256 -r",
        own_path()
    ));
    let line = format!("curl -sSg --fail {url}/bytes/3/{GIB} | openssl dgst -sha256 -r");
    let got = network.run().shell(&line).text()?;
    expect(&got, process::join(wanted)?.trim_end())
}

/// Tests that the content that the server receives has the hash of the uploaded file.
fn upload(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let url = http(&network, family, None)?;
    // The upload is from a file, so that curl sends its length.
    let file = scratch("upload")?.join("file");
    let file = file.display();
    process::join(shell(format!("{} guest generate 4 {GIB} > {file}", own_path())))?;
    let wanted = shell(format!("openssl dgst -sha256 -r < {file}"));
    let line = format!("curl -sSg --fail -T {file} {url}/sha256");
    let got = network.run().shell(&line).text()?;
    expect(&got, process::join(wanted)?.trim_end())
}

/// Runs a shell command on a thread, and returns its output.
fn shell(line: String) -> JoinHandle<Result<String>> {
    std::thread::spawn(move || process::output(Command::new("sh").args(["-c", &line])))
}

/// Tests five hundred simultaneous downloads of 64 KiB each.
fn parallel(context: &Context, family: Family) -> Result<()> {
    const LEN: u64 = 65_536;
    let network = Network::new(context)?;
    let url = http(&network, family, None)?;
    let line = format!(
        "curl -sSg --fail --no-progress-meter --parallel --parallel-immediate --parallel-max 300 \
         '{url}/bytes/5/{LEN}?[1-250]' -o /dev/null & one=$!; \
         curl -sSg --fail --no-progress-meter --parallel --parallel-immediate --parallel-max 300 \
         '{url}/bytes/5/{LEN}?[1-250]' --write-out '%{{http_code}} %{{size_download}}\\n' -o /dev/null && wait $one"
    );
    let text = network.run().shell(&line.replace("-sSg", "-sS")).text()?;
    let whole = text.lines().filter(|line| *line == format!("200 {LEN}")).count();
    anyhow::ensure!(whole == 250, "{whole} of 250 downloads are complete");
    Ok(())
}

/// Tests `git clone` by Git's smart HTTP protocol; the server does not offer the files of the dumb protocol.
fn clone(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let directory = scratch("git")?;
    let make = "cd \"$1\" && git init -q --bare served/repository.git && git init -q work && cd work \
                && i=0 && while [ $i -lt 50 ]; do i=$((i + 1)); seq $i $((i * 400)) > file$i; done \
                && head -c 4000000 /dev/urandom > noise \
                && git add . && git -c user.name=t -c user.email=t@t commit -qm all \
                && git push -q ../served/repository.git HEAD:refs/heads/main \
                && cd ../served/repository.git && git config http.getanyfile false \
                && git symbolic-ref HEAD refs/heads/main && git rev-parse HEAD";
    let git = |command: &mut Command| {
        process::output(command.env("HOME", &directory).env("GIT_CONFIG_NOSYSTEM", "1"))
    };
    let head = git(Command::new("sh").args(["-c", make, "sh"]).arg(&directory))?;
    let url = http(&network, family, Some(directory.join("served")))?;
    let line = format!(
        "export HOME={0}; git clone -q {url}/git/repository.git {0}/clone && git -C {0}/clone fsck --full \
         && git -C {0}/clone rev-parse HEAD",
        directory.display()
    );
    expect(&network.run().shell(&line).text()?, head.trim_end())
}

/// Mounts an empty tmpfs, which exists until the end of the case.
fn scratch(name: &str) -> Result<PathBuf> {
    let directory = PathBuf::from("/mnt");
    super::tmpfs(&directory)?;
    let directory = directory.join(name);
    std::fs::create_dir(&directory)?;
    Ok(directory)
}
