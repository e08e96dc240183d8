//! A network interface without shared virtqueues: the guest calls the VMM by an I/O port for each frame.

use core::time::Duration;

use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use crate::tasks::{Net, TrafficCounters};
use crate::{machine, memory};
use pontoon_microvm_abi::{BootParameters, PORT_READ, PORT_WAIT, PORT_WRITE, READ, READ_LEN, WRITTEN};

/// Length of the longest frame in bytes.
const FRAME: usize = 1514;

/// A network interface that calls the VMM for each frame.
#[derive(Debug)]
pub(crate) struct CallInterface {
    khz: u32,
    traffic: TrafficCounters,
    frame: [u8; FRAME],
}

/// A received frame, as smoltcp's `RxToken`.
pub(crate) struct Read<'c>(&'c [u8]);

/// Room for a frame to be sent, as smoltcp's `TxToken`.
pub(crate) struct Write<'c> {
    traffic: &'c mut TrafficCounters,
}

impl CallInterface {
    pub(crate) fn new(parameters: &BootParameters) -> Self {
        Self {
            khz: parameters.khz,
            traffic: TrafficCounters::default(),
            frame: [0; FRAME],
        }
    }
}

impl Net for CallInterface {
    fn now(&mut self) -> Duration {
        machine::now(self.khz)
    }

    fn flush(&mut self) -> Result<(), pontoon_guest::Error> {
        Ok(())
    }

    fn wait(&mut self, until: Option<Duration>) -> Result<(), pontoon_guest::Error> {
        let left = until.map_or(u128::MAX, |until| until.saturating_sub(self.now()).as_micros());
        memory::out(PORT_WAIT, u32::try_from(left).unwrap_or(u32::MAX));
        self.traffic.sleeps += 1;
        Ok(())
    }

    fn traffic(&mut self) -> TrafficCounters {
        self.traffic
    }
}

impl Device for CallInterface {
    type RxToken<'c> = Read<'c>;
    type TxToken<'c> = Write<'c>;

    fn receive(&mut self, _: Instant) -> Option<(Read<'_>, Write<'_>)> {
        memory::out(PORT_READ, 0);
        let len = memory::load(READ_LEN) as usize;
        let frame = self.frame.get_mut(..len).filter(|frame| !frame.is_empty())?;
        memory::take(READ, frame);
        self.traffic.received += 1;
        let write = Write {
            traffic: &mut self.traffic,
        };
        Some((Read(frame), write))
    }

    fn transmit(&mut self, _: Instant) -> Option<Write<'_>> {
        Some(Write {
            traffic: &mut self.traffic,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME;
        capabilities
    }
}

impl RxToken for Read<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl TxToken for Write<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = [0; FRAME];
        let frame = &mut frame[..len];
        let result = f(frame);
        memory::put(WRITTEN, frame);
        memory::out(PORT_WRITE, len as u32);
        self.traffic.sent += 1;
        result
    }
}
