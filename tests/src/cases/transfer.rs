//! Files and repositories over HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::{expect, host};
use crate::case::{Case, Context, Family};
use crate::network::Network;
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

fn http(network: &Network<'_>, family: Family, files: Option<PathBuf>) -> Result<String> {
    let address = SocketAddr::new(network.server_address(family), 80);
    network.server().enter(|| server::http::start(address, files))?;
    Ok(format!("http://{}", host(address.ip())))
}

fn fetch(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let url = http(&network, family, None)?;
    let line = format!("curl -sSg --fail {url}/bytes/3/{GIB} | $E2E guest verify 3 {GIB}");
    expect(&network.run().shell(&line).text()?, "ok")
}

fn upload(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let url = http(&network, family, None)?;
    // A file, so that curl says how long it is.
    let file = scratch("upload")?.join("file");
    process::output(Command::new("sh").args([
        "-c",
        &format!(
            "{} guest generate 4 {GIB} > {}",
            crate::run::own_path(),
            file.display()
        ),
    ]))?;
    let line = format!("curl -sSg --fail -T {} {url}/check/4/{GIB}", file.display());
    expect(&network.run().shell(&line).text()?, "ok")
}

/// Five hundred connections at one time, of 64 KiB each.
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
    anyhow::ensure!(whole == 250, "{whole} of 250 came whole");
    Ok(())
}

fn clone(context: &Context, family: Family) -> Result<()> {
    let network = Network::new(context)?;
    let directory = scratch("git")?;
    let make = "cd \"$1\" && git init -q --bare served/repository.git && git init -q work && cd work \
                && i=0 && while [ $i -lt 50 ]; do i=$((i + 1)); seq $i $((i * 400)) > file$i; done \
                && git add . && git -c user.name=t -c user.email=t@t commit -qm all \
                && git push -q ../served/repository.git HEAD:refs/heads/main \
                && git -C ../served/repository.git symbolic-ref HEAD refs/heads/main \
                && git -C ../served/repository.git update-server-info && git rev-parse 'HEAD^{tree}'";
    let git = |command: &mut Command| {
        process::output(command.env("HOME", &directory).env("GIT_CONFIG_NOSYSTEM", "1"))
    };
    let tree = git(Command::new("sh").args(["-c", make, "sh"]).arg(&directory))?;
    let url = http(&network, family, Some(directory.join("served")))?;
    let line = format!(
        "export HOME={0}; git clone -q {url}/files/repository.git {0}/clone && git -C {0}/clone fsck --full \
         && git -C {0}/clone rev-parse 'HEAD^{{tree}}'",
        directory.display()
    );
    expect(&network.run().shell(&line).text()?, tree.trim_end())
}

/// An empty directory in memory, which ends with the case.
fn scratch(name: &str) -> Result<PathBuf> {
    let directory = PathBuf::from("/mnt");
    super::tmpfs(&directory)?;
    let directory = directory.join(name);
    std::fs::create_dir(&directory)?;
    Ok(directory)
}
