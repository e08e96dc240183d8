//! Tests of virtqueues with invalid addresses or sizes.

use pontoon_ring::device::{Device, State};
use pontoon_ring::driver::{Driver, Slot};
use pontoon_ring::memory::{Area, Window};
use pontoon_ring::{Features, Layout, LayoutError, Part};

use crate::forge::ORIGIN;
use pontoon_test_support::ring::model::ModelMemory;

#[test]
fn queues_with_invalid_layouts_are_refused() {
    let memory = Window::new(ModelMemory::new(0x1000), ORIGIN);
    let layout = Layout::contiguous(8, ORIGIN);
    let device = |layout| Device::new(layout, Features::default(), State::default());
    for size in [0, 3, 32_769] {
        assert_eq!(
            device(Layout { size, ..layout }).unwrap_err(),
            LayoutError::Size(size)
        );
    }
    let state = State {
        available: 3,
        used: 65_530,
    };
    assert_eq!(
        Device::new(layout, Features::default(), state).unwrap_err(),
        LayoutError::State {
            available: 3,
            used: 65_530,
            size: 8
        }
    );
    for (wrong, error) in [
        (
            Layout {
                descriptors: ORIGIN + 8,
                ..layout
            },
            LayoutError::Misaligned {
                part: Part::Descriptors,
                addr: ORIGIN + 8,
            },
        ),
        (
            Layout {
                available: ORIGIN + 1,
                ..layout
            },
            LayoutError::Misaligned {
                part: Part::Available,
                addr: ORIGIN + 1,
            },
        ),
        (
            Layout {
                used: ORIGIN + 2,
                ..layout
            },
            LayoutError::Misaligned {
                part: Part::Used,
                addr: ORIGIN + 2,
            },
        ),
        (
            Layout {
                used: ORIGIN - 4,
                ..layout
            },
            LayoutError::Unmapped {
                part: Part::Used,
                addr: ORIGIN - 4,
                len: 70,
            },
        ),
        (
            Layout {
                used: ORIGIN + 0x1000 - 68,
                ..layout
            },
            LayoutError::Unmapped {
                part: Part::Used,
                addr: ORIGIN + 0x1000 - 68,
                len: 70,
            },
        ),
    ] {
        assert_eq!(device(wrong).unwrap().attach(&memory).unwrap_err(), error);
        assert!(!error.to_string().is_empty());
    }
    // The address is aligned in the guest, but not in this process.
    let misaligned = Window::new(ModelMemory::new(0x1000).slice(8, 0xff0), ORIGIN);
    assert_eq!(
        device(layout).unwrap().attach(&misaligned).unwrap_err(),
        LayoutError::Misaligned {
            part: Part::Descriptors,
            addr: ORIGIN
        }
    );
    assert_eq!(
        Driver::new(&memory, layout, Features::default(), [Slot::default(); 7]).unwrap_err(),
        LayoutError::Slots { slots: 7, size: 8 }
    );
}
