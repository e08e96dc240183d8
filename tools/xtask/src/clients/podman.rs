//! Podman and buildah: Debian packages, and podman's tests from the Go module of the same version. The Go module of podman 6
//! cannot be downloaded ("This module version is not available"), so its tests are not run.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::clients::programs::{
    DOWNLOAD, SUITE, go_environment, once, shell, succeed, unpack_packages, version_of,
};

/// Packages that are unpacked but not installed: podman and buildah, the programs that they execute, their libraries and
/// files, and bats for podman's tests.
const UNPACKED: &[&str] = &[
    "podman",
    "buildah",
    "aardvark-dns",
    "bats",
    "catatonit",
    "conmon",
    "crun",
    "golang-github-containers-common",
    "golang-github-containers-image",
    "netavark",
    "libacl1",
    "libassuan9",
    "libatomic1",
    "libaudit1",
    "libblake3-0",
    "libbsd0",
    "libbz2-1.0",
    "libc6",
    "libcap-ng0",
    "libcap2",
    "libcrypt1",
    "libgcc-s1",
    "libglib2.0-0t64",
    "libgpg-error0",
    "libgpgme45",
    "libjson-c5",
    "libmd0",
    "libpam0g",
    "libpcre2-8-0",
    "libseccomp2",
    "libselinux1",
    "libsemanage2",
    "libsepol2",
    "libsqlite3-0",
    "libsubid6",
    "libsystemd0",
];

/// The Debian suite of podman 6.
const SUITE_OF_6: &str = "experimental";

/// Packages that podman 6 needs in the version of [`SUITE_OF_6`]. The others are the same as those of podman 5.
const NEWER_IN_6: &[&str] = &["podman", "buildah", "golang-github-containers-common", "netavark"];

/// Programs that need the unpacked libraries.
const WITH_OWN_LIBRARIES: &[&str] = &[
    "usr/bin/podman",
    "usr/bin/buildah",
    "usr/bin/conmon",
    "usr/bin/crun",
    "usr/lib/podman/aardvark-dns",
    "usr/lib/podman/netavark",
    "usr/libexec/podman/rootlessport",
];

/// Downloads what the cache directory lacks. Returns the versions of the packages.
pub(crate) fn install(cache: &Path, go: &Path) -> Result<String> {
    once(cache, &format!("podman-{SUITE}"), "podman", |to| {
        unpack_packages(to, &[SUITE], UNPACKED, WITH_OWN_LIBRARIES, "/mnt")
    })?;
    let versions = fs::read_to_string(cache.join("podman/versions"))?;
    let version = version_of(&versions, "podman");
    // Debian's versions end with `+ds` or `-` and a number.
    let version = version.split(['+', '-', '~']).next().unwrap_or_default();
    once(cache, &format!("podman-tests-{version}"), "podman-tests", |to| {
        fetch_tests(go, cache, to, version)
    })?;
    Ok(versions)
}

/// Downloads podman 6 unless the cache directory has it. Returns the versions of the packages.
pub(crate) fn install_6(cache: &Path) -> Result<String> {
    let packages: Vec<String> = UNPACKED
        .iter()
        .map(|name| match NEWER_IN_6.contains(name) {
            true => format!("{name}/{SUITE_OF_6}"),
            false => (*name).to_owned(),
        })
        .collect();
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    once(cache, &format!("podman-{SUITE_OF_6}"), "podman-6", |to| {
        unpack_packages(to, &[SUITE, SUITE_OF_6], &packages, WITH_OWN_LIBRARIES, "/mnt")
    })?;
    Ok(fs::read_to_string(cache.join("podman-6/versions"))?)
}

fn fetch_tests(go: &Path, cache: &Path, to: &Path, version: &str) -> Result<()> {
    let (major, _) = version.split_once('.').context("a version without a dot")?;
    let module = format!("github.com/containers/podman/v{major}@v{version}");
    let mut fetch = shell(
        "\"$GO\" mod download \"$1\"
        cp --recursive --no-preserve=mode \"$GOPATH/pkg/mod/$1/test/system/.\" .",
        &[&module],
    );
    go_environment(&mut fetch, go, cache, to);
    succeed(
        &format!("fetch the tests of podman {version}"),
        &mut fetch,
        DOWNLOAD,
    )
}
