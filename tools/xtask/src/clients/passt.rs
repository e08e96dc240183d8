//! passt's tests: its source package, and programs that the tests execute.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::clients::machine;
use crate::clients::programs::{DOWNLOAD, SUITE, once, shell, succeed, unpack_packages, unpack_source};

/// Packages that are unpacked but not installed: programs of which the tests need newer versions than this machine may
/// have, and their libraries.
const UNPACKED: &[&str] = &[
    "iproute2",
    "jq",
    "libbpf1",
    "libbsd0",
    "libc6",
    "libcap2",
    "libelf1t64",
    "libjq1",
    "libmd0",
    "libmnl0",
    "libonig5",
    "libpcre2-8-0",
    "libselinux1",
    "libzstd1",
    "sipcalc",
    "zlib1g",
];

/// Programs that need the unpacked libraries.
const WITH_OWN_LIBRARIES: &[&str] = &["usr/bin/ip", "usr/bin/jq", "usr/bin/sipcalc"];

/// Downloads what the cache directory lacks. Returns the version of the source.
pub(crate) fn install(cache: &Path) -> Result<String> {
    once(
        cache,
        &format!("passt-programs-{SUITE}"),
        "passt-programs",
        |to| {
            unpack_packages(
                to,
                &[SUITE],
                UNPACKED,
                WITH_OWN_LIBRARIES,
                "/run/clients/passt-programs",
            )
        },
    )?;
    let source = format!("passt-source-{SUITE}");
    once(cache, &source, "passt-source", |to| unpack_source(to, "passt")).with_context(|| {
        let place = cache.join(&source);
        format!(
            "no source of passt (try: unpack it into {}, with its version in the file `version`)",
            place.display()
        )
    })?;
    machine::link_kernel(cache)?;
    let source = cache.join("passt-source");
    let mut build = shell("[ -x nstool ] || cc -o nstool test/nstool.c", &[]);
    succeed(
        "build nstool of passt's tests",
        build.current_dir(&source),
        DOWNLOAD,
    )?;
    Ok(fs::read_to_string(source.join("version"))?.trim().to_owned())
}
