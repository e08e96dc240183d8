//! A driver and a device on the same memory, with a model of their state against which each operation is checked.

use std::collections::VecDeque;

use pontoon_ring::device::{Chain, Device, State};
use pontoon_ring::driver::{AddError, Buffer, Driver, Slot};
use pontoon_ring::memory::{Area, Memory, Raw, Window};
use pontoon_ring::{Access, Features, Layout, Notification};

use crate::shared::ORIGIN;

/// Length of the longest buffer in bytes.
pub(crate) const BUFFER: u32 = 40;
/// Number of buffers in the longest chain.
pub(crate) const BUFFERS: usize = 4;

/// Bytes of memory for each chain: an indirect table and the buffers.
const PLACE: u64 = 16 * BUFFERS as u64 + BUFFER as u64 * BUFFERS as u64;

/// Lengths of a chain's readable buffers, then of its writable ones.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) readable: Vec<u32>,
    pub(crate) writable: Vec<u32>,
    pub(crate) indirect: bool,
}

/// A chain that the driver has added to the queue.
#[derive(Clone, Debug)]
struct Added {
    tag: u32,
    shape: Shape,
    /// Address of the chain's memory, [`PLACE`] bytes.
    place: u64,
}

/// A chain that the device has taken from the queue.
struct Taken<'m> {
    chain: Chain,
    added: Added,
    pieces: Vec<Raw<'m>>,
}

/// A chain that the device has returned as used.
struct Returned {
    added: Added,
    len: u32,
}

/// Notification request of one side, according to the calls that the test has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotifyRequest {
    /// The side sleeps, so that the next publication of the other side must notify it.
    Asleep,
    /// The side has requested no notifications.
    Suppressed,
    /// The side was notified, or is about to poll again, so that a notification is optional.
    Awake,
}

pub(crate) struct World<'m> {
    pub(crate) memory: Window<Raw<'m>>,
    pub(crate) layout: Layout,
    features: Features,
    pub(crate) driver: Driver<Box<[Slot]>>,
    pub(crate) device: Device,
    next_tag: u32,
    places: Vec<u64>,
    added: VecDeque<Added>,
    published: VecDeque<Added>,
    taken: VecDeque<Taken<'m>>,
    put: VecDeque<Returned>,
    returned: VecDeque<Returned>,
    driver_request: NotifyRequest,
    device_request: NotifyRequest,
    /// Number of entries that were published to the driver, and to the device, since its last poll.
    driver_unseen: usize,
    device_unseen: usize,
}

impl<'m> World<'m> {
    /// Returns the number of bytes of memory for a queue of `size` descriptors and as many chains.
    pub(crate) fn bytes(size: u16) -> usize {
        (Self::place(size, size) - ORIGIN) as usize
    }

    /// Returns the address of the memory of chain `index`.
    fn place(size: u16, index: u16) -> u64 {
        let first = (ORIGIN + Layout::contiguous_bytes(size) as u64).next_multiple_of(16);
        first + PLACE.next_multiple_of(16) * u64::from(index)
    }

    pub(crate) fn new(memory: Window<Raw<'m>>, size: u16, features: Features) -> Self {
        let layout = Layout::contiguous(size, ORIGIN);
        let places = (0..size).map(|index| Self::place(size, index)).collect();
        let slots = vec![Slot::default(); size.into()].into_boxed_slice();
        Self {
            driver: Driver::new(memory, layout, features, slots).unwrap(),
            device: Device::new(layout, features, State::default()).unwrap(),
            memory,
            layout,
            features,
            next_tag: 0,
            places,
            added: VecDeque::new(),
            published: VecDeque::new(),
            taken: VecDeque::new(),
            put: VecDeque::new(),
            returned: VecDeque::new(),
            driver_request: NotifyRequest::Asleep,
            device_request: NotifyRequest::Asleep,
            driver_unseen: 0,
            device_unseen: 0,
        }
    }

    /// Adds a chain with the driver, if the queue has room.
    pub(crate) fn add(&mut self, mut shape: Shape) {
        shape.indirect &= self.features.indirect;
        let Some(place) = self.places.pop() else {
            return;
        };
        let tag = self.next_tag;
        let mut addr = place + 16 * BUFFERS as u64;
        let mut buffers = Vec::new();
        for (index, len) in shape.readable.iter().enumerate() {
            area(&self.memory, addr, *len).copy_in(0, &request(tag, index, *len));
            buffers.push(Buffer::readable(addr, *len));
            addr += u64::from(BUFFER);
        }
        for len in &shape.writable {
            buffers.push(Buffer::writable(addr, *len));
            addr += u64::from(BUFFER);
        }
        let free = self.driver.free();
        let mut queue = self.driver.attach(&self.memory).unwrap();
        let needed = if shape.indirect { 1 } else { buffers.len() };
        let result = if shape.indirect {
            queue.add_indirect(tag, place, &buffers)
        } else {
            queue.add(tag, &buffers)
        };
        if buffers.len() > self.layout.size.into() {
            assert_eq!(result, Err(AddError::TooManyBuffers(buffers.len())));
        } else if needed > free.into() {
            assert_eq!(result, Err(AddError::Full { needed, free }));
        } else {
            assert_eq!(result, Ok(()));
            assert_eq!(usize::from(queue.free()), usize::from(free) - needed);
            self.next_tag += 1;
            self.added.push_back(Added { tag, shape, place });
            return;
        }
        self.places.push(place);
    }

    /// Publishes the driver's chains, and checks whether the device must be notified.
    pub(crate) fn driver_publish(&mut self) {
        let fresh = !self.added.is_empty();
        let notification = self.driver.attach(&self.memory).unwrap().publish();
        self.device_unseen += self.added.len();
        self.published.append(&mut self.added);
        check_notification(
            notification,
            fresh,
            &mut self.device_request,
            self.features.event_idx,
        );
    }

    /// Takes up to `most` chains with the device.
    pub(crate) fn pop(&mut self, most: usize) {
        let mut queue = self.device.attach(&self.memory).unwrap();
        assert_eq!(queue.poll(), Ok(self.published.len() as u16));
        self.device_unseen = 0;
        for _ in 0..most {
            let mut pieces = Vec::new();
            let Some(chain) = queue.pop(|piece| pieces.push(piece)).unwrap() else {
                assert!(self.published.is_empty());
                break;
            };
            let added = self.published.pop_front().expect("was shown");
            let shape = &added.shape;
            assert_eq!(chain.readable, shape.readable.iter().sum::<u32>());
            assert_eq!(chain.writable, shape.writable.iter().sum::<u32>());
            assert_eq!(pieces.len(), shape.readable.len() + shape.writable.len());
            let (readable, writable) = pieces.split_at(shape.readable.len());
            for (index, piece) in readable.iter().enumerate() {
                assert_eq!(piece.access, Access::Readable);
                assert_eq!(
                    bytes(piece.area),
                    request(added.tag, index, shape.readable[index])
                );
            }
            assert!(writable.iter().all(|piece| piece.access == Access::Writable));
            let lens: Vec<usize> = writable.iter().map(|piece| piece.area.len()).collect();
            assert!(
                lens.iter().eq(shape
                    .writable
                    .iter()
                    .map(|len| *len as usize)
                    .collect::<Vec<_>>()
                    .iter())
            );
            let pieces = writable.iter().map(|piece| piece.area).collect();
            self.taken.push_back(Taken { chain, added, pieces });
        }
    }

    /// Returns up to `most` of the chains that the device has taken to the available ones, if the device has returned
    /// none that was taken after them.
    pub(crate) fn rewind(&mut self, most: usize) {
        // The newest chain in flight is the last one taken only if no chain taken after it was returned.
        let newest = self
            .published
            .front()
            .map_or(self.next_unpublished(), |added| added.tag);
        let mut back = 0;
        while back < most
            && self
                .taken
                .back()
                .is_some_and(|taken| taken.added.tag + 1 + back as u32 == newest)
        {
            let taken = self.taken.pop_back().unwrap();
            self.published.push_front(taken.added);
            back += 1;
        }
        self.device.attach(&self.memory).unwrap().rewind(back as u16);
    }

    /// Writes to one of the chains that the device has taken, and returns the chain.
    pub(crate) fn put(&mut self, which: usize, fill: u32) {
        if self.taken.is_empty() {
            return;
        }
        let Taken { chain, added, pieces } = self.taken.remove(which % self.taken.len()).unwrap();
        let len = if chain.writable == 0 {
            0
        } else {
            fill % (chain.writable + 1)
        };
        let reply = reply(added.tag, len);
        let mut rest = &reply[..];
        for piece in pieces {
            let (now, later) = rest.split_at(rest.len().min(piece.len()));
            piece.copy_in(0, now);
            rest = later;
        }
        self.device.attach(&self.memory).unwrap().put(chain, len);
        self.put.push_back(Returned { added, len });
    }

    /// Publishes the device's used entries, and checks whether the driver must be notified.
    pub(crate) fn device_publish(&mut self) {
        let fresh = !self.put.is_empty();
        let notification = self.device.attach(&self.memory).unwrap().publish();
        self.driver_unseen += self.put.len();
        self.returned.append(&mut self.put);
        check_notification(
            notification,
            fresh,
            &mut self.driver_request,
            self.features.event_idx,
        );
    }

    /// Reaps up to `most` chains with the driver.
    pub(crate) fn reap(&mut self, most: usize) {
        let mut queue = self.driver.attach(&self.memory).unwrap();
        assert_eq!(queue.poll(), Ok(self.returned.len() as u16));
        self.driver_unseen = 0;
        for _ in 0..most {
            let Some(used) = queue.reap().unwrap() else {
                assert!(self.returned.is_empty());
                break;
            };
            let Returned { added, len } = self.returned.pop_front().expect("was shown");
            assert_eq!((used.tag, used.len), (added.tag, len));
            let mut written = Vec::new();
            let mut addr = added.place + 16 * BUFFERS as u64;
            addr += u64::from(BUFFER) * added.shape.readable.len() as u64;
            for len in &added.shape.writable {
                written.extend(bytes(area(&self.memory, addr, *len)));
                addr += u64::from(BUFFER);
            }
            assert_eq!(&written[..len as usize], &reply(added.tag, len)[..]);
            self.places.push(added.place);
        }
    }

    pub(crate) fn driver_rearm(&mut self) {
        let waiting = self.driver.attach(&self.memory).unwrap().rearm().unwrap();
        assert_eq!(usize::from(waiting), self.returned.len());
        self.driver_request = request_after_poll(std::mem::take(&mut self.driver_unseen));
    }

    pub(crate) fn device_rearm(&mut self) {
        let waiting = self.device.attach(&self.memory).unwrap().rearm().unwrap();
        assert_eq!(usize::from(waiting), self.published.len());
        self.device_request = request_after_poll(std::mem::take(&mut self.device_unseen));
    }

    pub(crate) fn driver_suppress(&mut self) {
        self.driver.attach(&self.memory).unwrap().suppress();
        self.driver_request = NotifyRequest::Suppressed;
    }

    pub(crate) fn device_suppress(&mut self) {
        self.device.attach(&self.memory).unwrap().suppress();
        self.device_request = NotifyRequest::Suppressed;
    }

    /// Replaces the device by one that continues from its state and reads the chains in flight again.
    pub(crate) fn restart(&mut self) {
        self.device_publish();
        let state = self.device.state();
        let used = pontoon_ring::device::used_index(&self.memory, &self.layout).unwrap();
        assert_eq!(state.used, used);
        assert_eq!(usize::from(self.device.taken()), self.taken.len());
        self.device = Device::new(self.layout, self.features, state).unwrap();
        self.device_unseen = self.published.len();
        let mut queue = self.device.attach(&self.memory).unwrap();
        for taken in &self.taken {
            assert_eq!(queue.chain(taken.chain.head, |_| ()), Ok(taken.chain));
        }
    }

    /// Takes, returns and reaps all chains.
    pub(crate) fn finish(&mut self) {
        self.driver_publish();
        self.pop(usize::MAX);
        while !self.taken.is_empty() {
            self.put(self.taken.len() / 2, u32::MAX / 3);
        }
        self.device_publish();
        self.reap(usize::MAX);
        assert_eq!(self.driver.free(), self.layout.size);
        assert_eq!(self.driver.outstanding(), 0);
        assert_eq!(self.device.taken(), 0);
    }

    /// Advances the indices of both rings by `entries`.
    pub(crate) fn turn(&mut self, entries: u16) {
        let shape = Shape {
            readable: vec![1],
            writable: vec![],
            indirect: false,
        };
        for _ in 0..entries {
            self.add(shape.clone());
            self.finish();
        }
    }

    /// Returns the tag of the first chain that is not published.
    fn next_unpublished(&self) -> u32 {
        self.added.front().map_or(self.next_tag, |added| added.tag)
    }
}

/// Returns the notification request after a poll. A side that finds new entries stays awake; entries that it has seen
/// before do not keep it awake.
fn request_after_poll(news: usize) -> NotifyRequest {
    match news {
        0 => NotifyRequest::Asleep,
        _ => NotifyRequest::Awake,
    }
}

/// Checks a notification: a sleeping side is notified, a side with notifications suppressed is not, and with event
/// indices no side is notified twice.
fn check_notification(
    notification: Notification,
    fresh: bool,
    notify_request: &mut NotifyRequest,
    event_idx: bool,
) {
    let notified = notification == Notification::Required;
    match notify_request {
        _ if !fresh => assert!(!notified, "notified without new entries"),
        NotifyRequest::Asleep => assert!(notified, "sleeping side was not notified"),
        NotifyRequest::Suppressed => assert!(!notified, "notified although suppressed"),
        NotifyRequest::Awake => assert!(!notified || !event_idx, "notified twice"),
    }
    if fresh && *notify_request == NotifyRequest::Asleep {
        *notify_request = NotifyRequest::Awake;
    }
}

fn area<'m>(memory: &Window<Raw<'m>>, addr: u64, len: u32) -> Raw<'m> {
    memory.area(addr, len as usize).unwrap()
}

fn bytes(area: Raw<'_>) -> Vec<u8> {
    let mut bytes = vec![0; area.len()];
    area.copy_out(0, &mut bytes);
    bytes
}

/// Returns the bytes that the driver writes to a readable buffer of a chain.
fn request(tag: u32, index: usize, len: u32) -> Vec<u8> {
    (0..len)
        .map(|at| (tag.wrapping_mul(31) + 7 * index as u32 + at) as u8)
        .collect()
}

/// Returns the bytes that the device writes to a chain.
fn reply(tag: u32, len: u32) -> Vec<u8> {
    (0..len)
        .map(|at| (tag.wrapping_mul(17) ^ at.wrapping_mul(3)) as u8)
        .collect()
}
