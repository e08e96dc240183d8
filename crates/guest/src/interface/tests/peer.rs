//! The device at the other end, and the host that both are on.

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
use pontoon_ring::{Access, Features};

use crate::{Gone, HEADER, Interface, Map, Pacing, Platform, Ring};

pub(crate) const ORIGIN: u64 = 0x4_0000;
pub(crate) const MAP: Map<16> = Map::new(ORIGIN, 1514);

pub(crate) type Net<'m> = Interface<Window<Raw<'m>>, Host<'m>, 16>;

/// Memory for one [`MAP`].
pub(crate) struct Shared(Box<[Line]>);

#[repr(align(64))]
struct Line {
    _words: [AtomicU64; 8],
}

impl Shared {
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

/// An interface that was started, and the device that it was started with.
pub(crate) fn open(shared: &Shared, pacing: Pacing, event_idx: bool) -> (Net<'_>, Rc<RefCell<Peer<'_>>>) {
    let features = Features {
        event_idx,
        indirect: false,
    };
    let peer = Rc::new(RefCell::new(Peer::new(shared.window(), features)));
    let mut net = Net::new(shared.window(), MAP, features, Host::new(peer.clone()), pacing).unwrap();
    net.start();
    assert_eq!(peer.borrow_mut().rung(), [Ring::Receive]);
    (net, peer)
}

/// The device.
pub(crate) struct Peer<'m> {
    memory: Window<Raw<'m>>,
    to_guest: Device,
    from_guest: Device,
    rung: Vec<Ring>,
    calls: u64,
}

impl<'m> Peer<'m> {
    pub(crate) fn new(memory: Window<Raw<'m>>, features: Features) -> Self {
        let device = |layout| Device::new(layout, features, State::default()).unwrap();
        Self {
            memory,
            to_guest: device(MAP.receive()),
            from_guest: device(MAP.transmit()),
            rung: Vec::new(),
            calls: 0,
        }
    }

    /// Doorbells since this was last asked.
    pub(crate) fn rung(&mut self) -> Vec<Ring> {
        std::mem::take(&mut self.rung)
    }

    /// Times that the guest wanted to be called since this was last asked.
    pub(crate) fn calls(&mut self) -> u64 {
        std::mem::take(&mut self.calls)
    }

    /// Asks to be rung for both rings.
    pub(crate) fn doze(&mut self) {
        let _ = self.to_guest.attach(self.memory).unwrap().rearm().unwrap();
        assert_eq!(self.rearm(), 0);
    }

    /// Asks to be rung for the next frame from the guest, and says how many there are already.
    pub(crate) fn rearm(&mut self) -> u16 {
        self.from_guest.attach(self.memory).unwrap().rearm().unwrap()
    }

    /// Asks not to be rung.
    pub(crate) fn stay_awake(&mut self) {
        for device in [&mut self.to_guest, &mut self.from_guest] {
            device.attach(self.memory).unwrap().suppress();
        }
    }

    /// Takes all frames from the guest, and returns their buffers.
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
        self.calls += u64::from(ring.publish());
        frames
    }

    /// Sends the guest a frame, for which there is a buffer.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        let mut bytes = vec![0; HEADER];
        // num_buffers
        bytes[HEADER - 2] = 1;
        bytes.extend(frame);
        self.write(&bytes, bytes.len());
    }

    /// Sends the guest a buffer that is said to have only `len` bytes.
    pub(crate) fn send_short(&mut self, len: usize) {
        self.write(&[], len);
    }

    /// Overwrites what says how many frames the guest has got.
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
        self.calls += u64::from(ring.publish());
    }
}

type Action<'m> = Box<dyn FnOnce(&mut Peer<'m>) + 'm>;

/// A clock that moves by a microsecond whenever it is looked at, and a sleep in which things happen.
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

    /// What happens at the next look at the clock.
    pub(crate) fn when_idle(&mut self, action: impl FnOnce(&mut Peer<'m>) + 'm) {
        self.idle = Some(Box::new(action));
    }

    /// What happens in the next sleep.
    pub(crate) fn when_asleep(&mut self, action: impl FnOnce(&mut Peer<'m>) + 'm) {
        self.asleep = Some(Box::new(action));
    }

    /// When the last sleep began.
    pub(crate) fn slept_at(&self) -> Duration {
        self.slept_at
    }

    /// The device goes away.
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
        self.peer.borrow_mut().rung.push(ring);
    }

    fn sleep(&mut self, until: Option<Duration>) -> Result<(), Gone> {
        self.slept_at = self.now;
        match (self.asleep.take(), until) {
            _ if self.gone => return Err(Gone),
            (Some(action), _) => action(&mut self.peer.borrow_mut()),
            (None, Some(until)) => self.now = until,
            (None, None) => panic!("asleep for ever"),
        }
        Ok(())
    }
}
