//! The device and the platform of the tests.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::boxed::Box;
use std::cell::RefCell;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

use pontoon_ring::device::{Device, State};
use pontoon_ring::memory::{Area, Memory, Raw, Window};
use pontoon_ring::{Access, Features, Notification};

use crate::{DeviceGone, HEADER, Interface, Map, Pacing, Platform, Ring};

pub(crate) const ORIGIN: u64 = 0x4_0000;
pub(crate) const MAP: Map<16> = Map::new(ORIGIN, 1514);

pub(crate) type Net<'m> = Interface<Window<Raw<'m>>, Host<'m>, 16>;

/// Memory for the rings and buffers of [`MAP`].
pub(crate) struct SharedMemory(Box<[Line]>);

#[repr(align(64))]
struct Line {
    _words: [AtomicU64; 8],
}

impl SharedMemory {
    pub(crate) fn new() -> Self {
        let line = || Line {
            _words: [const { AtomicU64::new(0) }; 8],
        };
        Self((0..MAP.bytes() / size_of::<Line>()).map(|_| line()).collect())
    }

    pub(crate) fn window(&self) -> Window<Raw<'_>> {
        let base = NonNull::from(&*self.0).cast();
        // SAFETY: the lines are a live, shared slice of atomics for as long as `self` is borrowed, and nothing but the
        // `Raw` accesses them: the slice is private.
        let raw = unsafe { Raw::new(base, size_of_val(&*self.0)) };
        Window::new(raw, ORIGIN)
    }
}

/// Creates and starts an interface, and returns it with its device.
pub(crate) fn open(
    shared: &SharedMemory,
    pacing: Pacing,
    event_idx: bool,
) -> (Net<'_>, Rc<RefCell<Peer<'_>>>) {
    let features = Features {
        event_idx,
        indirect: false,
    };
    let peer = Rc::new(RefCell::new(Peer::new(shared.window(), features)));
    let mut net = Net::new(shared.window(), MAP, features, Host::new(peer.clone()), pacing).unwrap();
    net.start();
    assert_eq!(peer.borrow_mut().take_notifications(), [Ring::Receive]);
    (net, peer)
}

/// The device side of both rings, as the interface's peer.
pub(crate) struct Peer<'m> {
    memory: Window<Raw<'m>>,
    to_guest: Device,
    from_guest: Device,
    take_notifications: Vec<Ring>,
    calls: u64,
}

impl<'m> Peer<'m> {
    pub(crate) fn new(memory: Window<Raw<'m>>, features: Features) -> Self {
        let device = |layout| Device::new(layout, features, State::default()).unwrap();
        Self {
            memory,
            to_guest: device(MAP.receive()),
            from_guest: device(MAP.transmit()),
            take_notifications: Vec::new(),
            calls: 0,
        }
    }

    /// Returns and clears the list of notifications from the guest.
    pub(crate) fn take_notifications(&mut self) -> Vec<Ring> {
        std::mem::take(&mut self.take_notifications)
    }

    /// Returns and clears the number of calls that the guest has requested.
    pub(crate) fn calls(&mut self) -> u64 {
        std::mem::take(&mut self.calls)
    }

    /// Requests notifications for both rings.
    pub(crate) fn request_notifications(&mut self) {
        let _ = self.to_guest.attach(self.memory).unwrap().rearm().unwrap();
        assert_eq!(self.rearm(), 0);
    }

    /// Requests a notification for the next frame from the guest, and returns the number of frames that can be taken.
    pub(crate) fn rearm(&mut self) -> u16 {
        self.from_guest.attach(self.memory).unwrap().rearm().unwrap()
    }

    /// Suppresses notifications for both rings.
    pub(crate) fn suppress(&mut self) {
        for device in [&mut self.to_guest, &mut self.from_guest] {
            device.attach(self.memory).unwrap().suppress();
        }
    }

    /// Takes all frames from the guest, and returns their buffers to it.
    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        let mut ring = self.from_guest.attach(self.memory).unwrap();
        let mut frames = Vec::new();
        ring.poll().unwrap();
        loop {
            let mut bytes = Vec::new();
            let popped = ring.pop(|piece| {
                assert_eq!(piece.access, Access::Readable);
                let at = bytes.len();
                bytes.resize(at + piece.area.len(), 0);
                piece.area.copy_out(0, &mut bytes[at..]);
            });
            let Some(chain) = popped.unwrap() else { break };
            ring.put(chain, 0);
            let frame = bytes.split_off(HEADER);
            assert_eq!(bytes, [0; HEADER]);
            frames.push(frame);
        }
        self.calls += u64::from(ring.publish() == Notification::Required);
        frames
    }

    /// Sends a frame to the guest, which must have a free receive buffer.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        let mut bytes = vec![0; HEADER];
        // The field `num_buffers` of the header.
        bytes[HEADER - 2] = 1;
        bytes.extend(frame);
        self.write(&bytes, bytes.len());
    }

    /// Returns a receive buffer with a written length of `len` bytes, which is shorter than the header.
    pub(crate) fn send_short(&mut self, len: usize) {
        self.write(&[], len);
    }

    /// Overwrites the used index of the receive ring.
    pub(crate) fn corrupt_used_index(&mut self, index: u16) {
        let ring = self.memory.area(MAP.receive().used, 4).unwrap();
        ring.store_u16(2, index.to_le(), Ordering::Release);
    }

    fn write(&mut self, bytes: &[u8], len: usize) {
        let mut ring = self.to_guest.attach(self.memory).unwrap();
        ring.poll().unwrap();
        let popped = ring.pop(|piece| {
            assert_eq!(piece.access, Access::Writable);
            assert_eq!(piece.area.len(), HEADER + MAP.frame());
            piece.area.copy_in(0, bytes);
        });
        let chain = popped.unwrap().expect("a buffer");
        ring.put(chain, len as u32);
        self.calls += u64::from(ring.publish() == Notification::Required);
    }
}

type Action<'m> = Box<dyn FnOnce(&mut Peer<'m>) + 'm>;

/// A platform whose clock advances by a microsecond at each reading, and which runs actions during a sleep.
pub(crate) struct Host<'m> {
    peer: Rc<RefCell<Peer<'m>>>,
    now: Duration,
    slept_at: Duration,
    gone: bool,
    idle: Option<Action<'m>>,
    asleep: Option<Action<'m>>,
}

impl<'m> Host<'m> {
    pub(crate) fn new(peer: Rc<RefCell<Peer<'m>>>) -> Self {
        Self {
            peer,
            now: Duration::ZERO,
            slept_at: Duration::ZERO,
            gone: false,
            idle: None,
            asleep: None,
        }
    }

    /// Sets the action that runs at the next reading of the clock.
    pub(crate) fn at_next_clock_reading(&mut self, action: impl FnOnce(&mut Peer<'m>) + 'm) {
        self.idle = Some(Box::new(action));
    }

    /// Sets the action that runs during the next sleep.
    pub(crate) fn at_next_sleep(&mut self, action: impl FnOnce(&mut Peer<'m>) + 'm) {
        self.asleep = Some(Box::new(action));
    }

    /// Returns the time at which the last sleep began.
    pub(crate) fn slept_at(&self) -> Duration {
        self.slept_at
    }

    /// Disconnects the device.
    pub(crate) fn leave(&mut self) {
        self.gone = true;
    }
}

impl Platform for Host<'_> {
    fn now(&mut self) -> Duration {
        self.now += Duration::from_micros(1);
        if let Some(action) = self.idle.take() {
            action(&mut self.peer.borrow_mut());
        }
        self.now
    }

    fn notify(&mut self, ring: Ring) {
        self.peer.borrow_mut().take_notifications.push(ring);
    }

    fn sleep(&mut self, until: Option<Duration>) -> Result<(), DeviceGone> {
        self.slept_at = self.now;
        match (self.asleep.take(), until) {
            _ if self.gone => return Err(DeviceGone),
            (Some(action), _) => action(&mut self.peer.borrow_mut()),
            (None, Some(until)) => self.now = until,
            (None, None) => panic!("the sleep would never end"),
        }
        Ok(())
    }
}
