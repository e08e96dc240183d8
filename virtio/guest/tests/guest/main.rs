//! Tests of an attached interface with a device made of rust-vmm's crates.

// An unexpected error fails the test.
#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use pontoon_guest::{Attached, DeviceGone, Error, Options, Pacing, Platform, QueueError, Ready, attach};
use pontoon_test_support::vhost_user_device::Device;

const PACINGS: [Pacing; 3] = [Pacing::Event, Pacing::Hybrid, Pacing::Poll];

/// A timeout that expires only if the test fails.
const LONG: Duration = Duration::from_secs(30);

fn open(device: &Device, pacing: Pacing) -> Attached {
    let socket = UnixStream::connect(device.path()).unwrap();
    let options = Options {
        pacing,
        ..Options::default()
    };
    attach(socket, options).unwrap()
}

fn wait(interface: &mut Attached) -> Ready {
    let deadline = interface.platform().now() + LONG;
    interface.poll(Some(deadline)).unwrap()
}

#[test]
fn frames_are_echoed_whole_and_in_order() {
    for pacing in PACINGS {
        let device = Device::new(Vec::new(), None);
        let mut interface = open(&device, pacing);
        let frame = |number: u32| {
            let len = 60 + number as usize % 1455;
            let mut frame = vec![number as u8; len];
            frame[..4].copy_from_slice(&number.to_le_bytes());
            frame
        };
        let (mut sent, mut received) = (0, 0);
        let mut buffer = [0; 1514];
        while received < 20_000 {
            while sent < 20_000 && sent - received < 64 {
                match interface.queue(&frame(sent)) {
                    Ok(()) => sent += 1,
                    Err(QueueError::Full) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(wait(&mut interface).is_any(), "{received} of {sent}");
            while let Some(len) = interface.read(&mut buffer).unwrap() {
                assert!(buffer[..len] == frame(received), "frame {received}");
                received += 1;
            }
        }
        let counters = interface.counters();
        assert_eq!((counters.sent, counters.received), (20_000, 20_000));
        assert!(pacing != Pacing::Poll || counters.sleeps == 0);
    }
}

#[test]
fn deadline_ends_a_wait() {
    for pacing in PACINGS {
        let device = Device::new(Vec::new(), None);
        let mut interface = open(&device, pacing);
        let begin = Instant::now();
        let deadline = interface.platform().now() + Duration::from_millis(30);
        assert_eq!(interface.poll(Some(deadline)), Ok(Ready::default()));
        assert!(begin.elapsed() >= Duration::from_millis(30));
    }
}

#[test]
fn disconnected_device_ends_a_sleep() {
    let device = Device::new(Vec::new(), None);
    let mut interface = open(&device, Pacing::Event);
    drop(device);
    assert_eq!(interface.poll(None), Err(Error::Gone(DeviceGone)));
}
