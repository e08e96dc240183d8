//! Tests of an interface in the test's memory, whose device is the device side of `pontoon-ring`.

use core::ptr;

use pontoon_guest::HEADER;
use pontoon_ring::Notification;
use pontoon_ring::device::{Device, State};
use pontoon_ring::memory::Area;

use super::*;
use crate::{pontoon_now, pontoon_poll, pontoon_queue, pontoon_read, pontoon_start, pontoon_write};

const ADDRESS: u64 = 0x10_0000;
const FRAME: u16 = 1514;
const FEATURES: Features = Features {
    event_idx: true,
    indirect: false,
};

/// State of the callbacks, which is their context.
#[derive(Default)]
struct World {
    now: u64,
    notified: Vec<c_int>,
    slept: Vec<u64>,
    gone: bool,
}

// SAFETY: the three callbacks are called with the context of `Program::config`.
unsafe extern "C" fn now(context: *mut c_void) -> u64 {
    // SAFETY: the context is the test's `World`, which is not used otherwise meanwhile.
    let world = unsafe { &mut *context.cast::<World>() };
    world.now += 1;
    world.now
}

// SAFETY: `notify` is called with the context of `Program::config`.
unsafe extern "C" fn notify(context: *mut c_void, ring: c_int) {
    // SAFETY: the context is the test's `World`, which nothing else uses during the call.
    unsafe { &mut *context.cast::<World>() }.notified.push(ring);
}

unsafe extern "C" fn sleep(context: *mut c_void, until: u64) -> c_int {
    // SAFETY: the context is the test's `World`, which nothing else uses during the call.
    let world = unsafe { &mut *context.cast::<World>() };
    world.slept.push(until);
    world.now = until;
    world.gone.into()
}

#[repr(C, align(64))]
struct Page([u8; 4096]);

/// Memory that a C program would provide.
struct Program {
    storage: Box<[Page]>,
    shared: Box<[Page]>,
    world: Box<World>,
}

impl Program {
    fn new() -> Self {
        let pages = |bytes: usize| (0..bytes.div_ceil(4096)).map(|_| Page([0; 4096])).collect();
        Self {
            storage: pages(STORAGE),
            shared: pages(pontoon_shared_bytes(FRAME)),
            world: Box::default(),
        }
    }

    fn config(&mut self) -> Config {
        Config {
            storage: self.storage.as_mut_ptr().cast(),
            shared: self.shared.as_mut_ptr().cast(),
            address: ADDRESS,
            frame: FRAME,
            event_idx: 1,
            pacing: 0,
            platform: Platform {
                context: ptr::from_mut(&mut *self.world).cast(),
                now: Some(now),
                notify: Some(notify),
                sleep: Some(sleep),
            },
        }
    }
}

fn create(config: &Config) -> Result<(*mut Pontoon, [VringLayout; 2]), c_int> {
    let mut interface = ptr::null_mut();
    let mut rings = [VringLayout {
        descriptors: 0,
        available: 0,
        used: 0,
    }; 2];
    // SAFETY: the program's memory outlives the test's interface.
    match unsafe { pontoon_create(&mut interface, config, rings.as_mut_ptr()) } {
        0 => Ok((interface, rings)),
        error => Err(error),
    }
}

#[test]
fn frames_are_carried_in_both_directions() {
    let mut program = Program::new();
    let config = program.config();
    let (net, rings) = create(&config).unwrap();
    let shared = NonNull::new(config.shared.cast()).unwrap();
    // SAFETY: the memory is the program's, which outlives this value, and is accessed by `Raw`s only, in one thread.
    let memory = Window::new(unsafe { Raw::new(shared, pontoon_shared_bytes(FRAME)) }, ADDRESS);
    let [mut to_guest, mut from_guest] = rings.map(|ring| {
        let VringLayout {
            descriptors,
            available,
            used,
        } = ring;
        let layout = Layout {
            size: 256,
            descriptors,
            available,
            used,
        };
        Device::new(layout, FEATURES, State::default()).unwrap()
    });
    let mut buffer = [0_u8; 64];

    // SAFETY: only this test uses the interface, here and below, and the lengths of buffers are correct.
    unsafe {
        assert_eq!(pontoon_start(net), 0);
        assert_eq!(pontoon_queue(net, b"question".as_ptr().cast(), 8), 0);
        assert_eq!(pontoon_write(net, b"another".as_ptr().cast(), 7), 0);
        assert_eq!(pontoon_read(net, buffer.as_mut_ptr().cast(), buffer.len()), -1);
    }
    let mut ring = from_guest.attach(memory).unwrap();
    assert_eq!(ring.poll(), Ok(2));
    let mut question = [0; 8];
    ring.pop(|piece| piece.area.copy_out(HEADER, &mut question))
        .unwrap();
    assert_eq!(&question, b"question");

    let mut ring = to_guest.attach(memory).unwrap();
    assert_eq!(ring.poll(), Ok(256));
    let chain = ring
        .pop(|piece| piece.area.copy_in(HEADER, b"reply!"))
        .unwrap()
        .unwrap();
    ring.put(chain, HEADER as u32 + 6);
    assert_eq!(ring.publish(), Notification::NotRequired, "the guest is awake");
    // SAFETY: only this test uses the interface, and the lengths of buffers are correct.
    unsafe {
        assert_eq!(pontoon_poll(net, FOREVER), 1, "a frame");
        assert_eq!(pontoon_read(net, buffer.as_mut_ptr().cast(), buffer.len()), 6);
        assert_eq!(&buffer[..6], b"reply!");
        assert_eq!(pontoon_poll(net, 1000), 0);
        assert!(pontoon_now(net) > 1000);
    }
    assert_eq!(program.world.notified, [0, 1]);
    assert_eq!(program.world.slept, [1000]);
}

#[test]
fn errors_are_converted_to_codes() {
    let mut program = Program::new();
    let (net, _) = create(&program.config()).unwrap();
    let frame = [0_u8; 2000];
    // SAFETY: only this test uses the interface, and the lengths of buffers are correct.
    unsafe {
        assert_eq!(pontoon_queue(net, frame.as_ptr().cast(), frame.len()), code::LONG);
        assert_eq!(pontoon_queue(net, ptr::null(), 0), code::INVALID);
        for _ in 0..256 {
            assert_eq!(pontoon_queue(net, frame.as_ptr().cast(), 60), 0);
        }
        assert_eq!(pontoon_queue(net, frame.as_ptr().cast(), 60), code::AGAIN);
    }
    program.world.gone = true;
    // SAFETY: only this test uses the interface.
    assert_eq!(unsafe { pontoon_poll(net, FOREVER) }, code::GONE);
}

#[test]
fn invalid_configuration_is_refused() {
    let mut program = Program::new();
    let right = program.config();
    let odd = right.storage.wrapping_byte_add(8);
    let platform = Platform {
        sleep: None,
        ..right.platform
    };
    for wrong in [
        Config {
            storage: ptr::null_mut(),
            ..right
        },
        Config {
            storage: odd,
            ..right
        },
        Config {
            shared: right.shared.wrapping_byte_add(4),
            ..right
        },
        Config {
            address: ADDRESS + 8,
            ..right
        },
        Config { pacing: 3, ..right },
        Config { platform, ..right },
    ] {
        assert_eq!(create(&wrong).err(), Some(code::INVALID), "{wrong:?}");
    }
    assert!(create(&right).is_ok());
}
