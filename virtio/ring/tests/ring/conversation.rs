//! Random operations of a driver and a device in one thread: no chain is lost, duplicated or altered.

use pontoon_ring::Features;
use proptest::prelude::*;

use crate::shared::SharedMemory;
use crate::world::{BUFFER, BUFFERS, Shape, World};
use pontoon_test_support::property::cases;

#[derive(Clone, Debug)]
enum Step {
    Add(Shape),
    DriverPublish,
    Pop(usize),
    Rewind(usize),
    Put(usize, u32),
    DevicePublish,
    Reap(usize),
    DriverSleep,
    DeviceSleep,
    DriverSuppress,
    DeviceSuppress,
    Restart,
}

fn shape() -> impl Strategy<Value = Shape> {
    let lens = || prop::collection::vec(1..=BUFFER, 0..=BUFFERS / 2);
    (lens(), lens(), any::<bool>())
        .prop_filter("a chain has a buffer", |(readable, writable, _)| {
            !readable.is_empty() || !writable.is_empty()
        })
        .prop_map(|(readable, writable, indirect)| Shape {
            readable,
            writable,
            indirect,
        })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => shape().prop_map(Step::Add),
        6 => Just(Step::DriverPublish),
        6 => (0..8_usize).prop_map(Step::Pop),
        1 => (0..4_usize).prop_map(Step::Rewind),
        12 => (any::<usize>(), any::<u32>()).prop_map(|(which, fill)| Step::Put(which, fill)),
        6 => Just(Step::DevicePublish),
        6 => (0..8_usize).prop_map(Step::Reap),
        2 => Just(Step::DriverSleep),
        2 => Just(Step::DeviceSleep),
        1 => Just(Step::DriverSuppress),
        1 => Just(Step::DeviceSuppress),
        1 => Just(Step::Restart),
    ]
}

fn take(world: &mut World<'_>, step: Step) {
    match step {
        Step::Add(shape) => world.add(shape),
        Step::DriverPublish => world.driver_publish(),
        Step::Pop(most) => world.pop(most),
        Step::Rewind(most) => world.rewind(most),
        Step::Put(which, fill) => world.put(which, fill),
        Step::DevicePublish => world.device_publish(),
        Step::Reap(most) => world.reap(most),
        Step::DriverSleep => world.driver_rearm(),
        Step::DeviceSleep => world.device_rearm(),
        Step::DriverSuppress => world.driver_suppress(),
        Step::DeviceSuppress => world.device_suppress(),
        Step::Restart => world.restart(),
    }
}

/// Number of operations of the longest test case.
const LONGEST: usize = if cfg!(miri) { 60 } else { 300 };

fn features() -> impl Strategy<Value = Features> {
    (any::<bool>(), any::<bool>()).prop_map(|(event_idx, indirect)| Features { event_idx, indirect })
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn chains_are_neither_lost_nor_altered(
        bits in 0..6_u32,
        features in features(),
        steps in prop::collection::vec(step(), 0..LONGEST),
    ) {
        let size = 1 << bits;
        let shared = SharedMemory::new(World::bytes(size));
        let mut world = World::new(shared.window(), size, features);
        for step in steps {
            take(&mut world, step);
        }
        world.finish();
    }
}

#[cfg(not(miri))]
proptest! {
    #![proptest_config(cases(24))]

    /// Random operations near the point at which the 16-bit indices wrap.
    #[test]
    fn chains_survive_index_wrap_around(
        before in 65_500..65_536_u32,
        features in features(),
        steps in prop::collection::vec(step(), 100..300),
    ) {
        let shared = SharedMemory::new(World::bytes(8));
        let mut world = World::new(shared.window(), 8, features);
        world.turn(before as u16);
        // An event index from before the wrap would match again after it.
        world.driver_suppress();
        world.device_suppress();
        for step in steps {
            take(&mut world, step);
        }
        world.finish();
    }
}

/// With event indices, suppression of notifications expires after 65,535 entries unless it is renewed.
#[test]
#[cfg_attr(miri, ignore = "hundreds of thousands of steps")]
fn suppression_lasts_longer_than_the_index() {
    let shared = SharedMemory::new(World::bytes(4));
    let features = Features {
        event_idx: true,
        indirect: false,
    };
    let mut world = World::new(shared.window(), 4, features);
    for _ in 0..10 {
        world.device_suppress();
        world.driver_suppress();
        world.turn(20_000);
    }
}
