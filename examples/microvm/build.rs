//! Builds the guest's image for the target `x86_64-unknown-none`.

use std::path::Path;
use std::process::Command;

fn main() {
    let [here, out, cargo] = ["CARGO_MANIFEST_DIR", "OUT_DIR", "CARGO"]
        .map(|name| std::env::var(name).expect("cargo sets the variable"));
    // The output directory is TARGET/PROFILE/build/PACKAGE/out; all profiles share one build of the guest.
    let target = Path::new(&out)
        .ancestors()
        .nth(4)
        .expect("OUT_DIR is in the target directory")
        .join("microvm-guest");
    let guest = Path::new(&here).join("guest");
    // Only these variables are passed on, because the others are for the host's target.
    let status = Command::new(cargo)
        .args(["build", "--release", "--locked", "--target-dir"])
        .arg(&target)
        .current_dir(&guest)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .status()
        .expect("cargo can be started");
    assert!(
        status.success(),
        "the guest cannot be built (is its target there? try: rustup target add x86_64-unknown-none)"
    );
    let image = target.join("x86_64-unknown-none/release/pontoon-microvm-guest");
    println!("cargo::rustc-env=GUEST_IMAGE={}", image.display());
    for source in [
        "abi/src",
        "guest",
        "../../virtio/guest/src",
        "../../virtio/ring/src",
    ] {
        println!("cargo::rerun-if-changed={source}");
    }
}
