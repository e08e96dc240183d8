//! Test of the C example: built with the commands in its comment, and run with a device made of rust-vmm's crates.

// An unexpected error fails the test.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use pontoon_test_support::vhost_user_device::Device;

const FRAMES: u16 = 2000;

#[test]
fn c_example_echoes_frames() {
    let directory = tempfile::tempdir().unwrap();
    let program = build(directory.path());
    let (sender, frames) = mpsc::channel();
    let mut arp = vec![0xff; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    let datagrams = (0..FRAMES).map(|number| datagram([2, 1], number));
    let device = Device::new(std::iter::once(arp).chain(datagrams).collect(), Some(sender));

    let mut echo = Command::new(program)
        .arg(device.path())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    for number in 0..FRAMES {
        let frame = frames.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(frame == datagram([1, 2], number), "frame {number}");
    }
    drop(device);
    assert!(echo.wait().unwrap().success());
    assert!(
        frames.try_recv().is_err(),
        "a frame without a datagram is not echoed"
    );
}

#[test]
fn c_example_has_less_than_100_lines() {
    let lines = include_str!("../../examples/echo.c").lines().count();
    assert!(lines < 100, "{lines} lines");
}

/// The pacing is an int and no enumeration, because the C compiler chooses the size of an enumeration: one byte with
/// `-fshort-enums`, which is common on bare metal.
#[test]
fn struct_layout_is_independent_of_enum_size() {
    const CHECK: &str = r#"
        #include "pontoon_guest.h"
        _Static_assert(sizeof(((struct pontoon_config *)0)->pacing) == sizeof(int), "pacing");
        int (*attach)(struct pontoon **, const char *, uint16_t, int) = pontoon_attach;
    "#;
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("check.c");
    std::fs::write(&source, CHECK).unwrap();
    for enumerations in ["-fshort-enums", "-fno-short-enums"] {
        run(Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"])
            .args(["-fsyntax-only", enumerations, "-I"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
            .arg(&source));
    }
}

/// Builds the library and the example, and returns the path of the example.
fn build(directory: &Path) -> PathBuf {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c");
    run(Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "pontoon-guest-c", "--target-dir"])
        .arg(&target)
        .current_dir(crate_directory));
    let program = directory.join("echo");
    run(Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
        .arg(crate_directory.join("include"))
        .arg(crate_directory.join("examples/echo.c"))
        .arg(target.join("debug/libpontoon_guest_c.a"))
        .arg("-o")
        .arg(&program));
    program
}

fn run(command: &mut Command) {
    let status = command
        .status()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}

/// Returns a frame with a datagram whose addresses and ports end in these numbers.
fn datagram([from, to]: [u8; 2], number: u16) -> Vec<u8> {
    let len = 60 + usize::from(number) % 1400;
    let mut frame = vec![number as u8; len];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, from]);
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[23] = 17;
    frame[26..30].copy_from_slice(&[10, 0, 0, from]);
    frame[30..34].copy_from_slice(&[10, 0, 0, to]);
    frame[34..38].copy_from_slice(&[0, from, 0, to]);
    frame[38..40].copy_from_slice(&number.to_be_bytes());
    frame
}
