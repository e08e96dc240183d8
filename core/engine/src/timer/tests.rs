use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::{Kind, WorkerId};

#[test]
fn timer_expires_once_at_the_tick_after_its_time() {
    let mut wheel = Wheel::default();
    let mut timer = Timer::default();
    assert_eq!(wheel.next(), None);
    wheel.arm(&mut timer, flow(1), Instant(TICK + 1));
    assert_eq!(wheel.next(), Some(Instant(2 * TICK)));
    assert_eq!(wheel.expired(Instant(2 * TICK - 1)), None);
    assert_eq!(wheel.expired(Instant(2 * TICK)), Some(flow(1)));
    assert_eq!(wheel.expired(Instant(2 * TICK)), None);
    assert_eq!(wheel.next(), None);
}

#[test]
fn arming_later_keeps_the_earlier_deadline() {
    let mut wheel = Wheel::default();
    let mut timer = Timer::default();
    wheel.arm(&mut timer, flow(1), seconds(2));
    wheel.arm(&mut timer, flow(1), seconds(9));
    let early = wheel.next();
    assert!(early < Some(seconds(3)));
    wheel.arm(&mut timer, flow(1), seconds(1));
    assert!(wheel.next() < early);
    assert_eq!(wheel.expired(seconds(2)), Some(flow(1)));
    assert_eq!(wheel.expired(seconds(10)), None, "arming again adds no timer");
}

#[test]
fn disarmed_timer_does_not_expire() {
    let mut wheel = Wheel::default();
    let (mut one, mut two) = (Timer::default(), Timer::default());
    wheel.arm(&mut one, flow(1), seconds(1));
    wheel.arm(&mut two, flow(2), seconds(1));
    wheel.disarm(&mut one);
    wheel.disarm(&mut one);
    assert_eq!(wheel.expired(seconds(2)), Some(flow(2)));
    two.fired();
    wheel.disarm(&mut two);
    assert_eq!(wheel.expired(seconds(2)), None);
    assert_eq!(wheel.next(), None);
}

#[test]
fn expired_timer_can_be_disarmed() {
    let mut wheel = Wheel::default();
    let mut timers = [const { Timer(None) }; 3];
    for (n, timer) in (0..).zip(&mut timers) {
        wheel.arm(timer, flow(n), seconds(1));
    }
    assert_eq!(wheel.expired(seconds(2)), Some(flow(0)));
    wheel.disarm(&mut timers[1]);
    assert_eq!(wheel.expired(seconds(2)), Some(flow(2)));
    assert_eq!(wheel.expired(seconds(2)), None);
}

#[test]
fn timer_in_the_past_expires_at_the_next_tick() {
    let mut wheel = Wheel::default();
    let mut timer = Timer::default();
    assert_eq!(wheel.expired(seconds(5)), None);
    let mut fired = 0;
    wheel.arm(&mut timer, flow(1), Instant(0));
    let now = wheel.next().unwrap();
    assert!(now > seconds(5) && now.since(seconds(5)) <= Duration::from_nanos(TICK));
    while wheel.expired(now).is_some() {
        timer.fired();
        wheel.arm(&mut timer, flow(1), Instant(0));
        fired += 1;
    }
    assert_eq!(fired, 1, "a loop over expired timers ends");
}

#[test]
fn each_timer_causes_one_wake_up() {
    let mut wheel = Wheel::default();
    let mut timers: Vec<_> = (0..1_000).map(|_| Timer::default()).collect();
    for (n, timer) in (0_u32..).zip(&mut timers) {
        // Times between a second and half a year, all different.
        let at = seconds(1) + Duration::from_secs(u64::from(n).pow(2) * 16);
        wheel.arm(timer, flow(n), at);
    }
    let mut wake_ups = 0;
    let mut fired = 0;
    while let Some(now) = wheel.next() {
        wake_ups += 1;
        while wheel.expired(now).is_some() {
            fired += 1;
        }
    }
    assert_eq!((wake_ups, fired), (1_000, 1_000));
}

#[test]
fn disarmed_timer_causes_one_wake_up() {
    let mut wheel = Wheel::default();
    let (mut one, mut two) = (Timer::default(), Timer::default());
    wheel.arm(&mut one, flow(1), seconds(3_600));
    wheel.arm(&mut two, flow(2), seconds(3_700));
    wheel.disarm(&mut one);
    let mut wake_ups = vec![];
    while let Some(now) = wheel.next() {
        wake_ups.push((now.0 / 1_000_000_000, wheel.expired(now)));
    }
    assert_eq!(wake_ups, [(3_600, None), (3_700, Some(flow(2)))]);
}

#[test]
fn timer_at_the_end_of_time_is_accepted() {
    let mut wheel = Wheel::default();
    let mut timer = Timer::default();
    wheel.arm(&mut timer, flow(1), Instant(u64::MAX));
    assert_eq!(wheel.next(), Some(Instant(u64::MAX)));
    assert_eq!(wheel.expired(Instant(u64::MAX - TICK)), None);
    wheel.disarm(&mut timer);
    assert_eq!(wheel.expired(Instant(u64::MAX)), None);
    wheel.arm(&mut timer, flow(1), Instant(u64::MAX));
    assert!(wheel.next().is_some());
}

#[test]
fn nodes_are_reused() {
    let mut wheel = Wheel::default();
    let mut timers: Vec<_> = (0..10).map(|_| Timer::default()).collect();
    for round in 1..100 {
        for (n, timer) in (0..).zip(&mut timers) {
            wheel.arm(timer, flow(n), seconds(round));
        }
        for timer in &mut timers[..5] {
            wheel.disarm(timer);
        }
        while let Some(flow) = wheel.expired(seconds(round + 1)) {
            timers[flow.index as usize].fired();
        }
    }
    assert_eq!(wheel.nodes.len(), place(DUE) + 1 + 10);
}

#[derive(Clone, Debug)]
enum Step {
    Arm(usize, u64),
    Disarm(usize),
    Pass(u64),
    SleepUntilNext,
}

/// Generates times of every magnitude, from nanoseconds to years.
fn time() -> impl Strategy<Value = u64> {
    (0..56_u32, any::<u64>()).prop_map(|(bits, value)| value & ((1 << bits) - 1))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..FLOWS, time()).prop_map(|(flow, after)| Step::Arm(flow, after)),
        2 => (0..FLOWS).prop_map(Step::Disarm),
        1 => time().prop_map(Step::Pass),
        3 => Just(Step::SleepUntilNext),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn wheel_agrees_with_a_heap(steps in vec(step(), 0..200)) {
        let mut wheel = Wheel::default();
        let mut timers: Vec<_> = (0..FLOWS).map(|_| Timer::default()).collect();
        // The ticks of armed timers, and a heap whose entries may be outdated.
        let mut ticks = [None; FLOWS];
        let mut heap = BinaryHeap::new();
        let mut now = 0_u64;
        for step in steps {
            match step {
                Step::Arm(n, after) => {
                    let at = now.saturating_add(after);
                    let tick = at.div_ceil(TICK).max(now / TICK + 1);
                    if ticks[n].is_none_or(|earlier| tick < earlier) {
                        ticks[n] = Some(tick);
                        heap.push(Reverse((tick, n)));
                    }
                    wheel.arm(&mut timers[n], flow(u32::try_from(n).unwrap()), Instant(at));
                }
                Step::Disarm(n) => {
                    ticks[n] = None;
                    wheel.disarm(&mut timers[n]);
                }
                Step::Pass(time) => now = now.saturating_add(time),
                Step::SleepUntilNext => now = now.max(wheel.next().map_or(now, |next| next.0)),
            }
            let mut due = vec![];
            while let Some(Reverse((tick, n))) = heap.peek().copied() {
                let stale = ticks[n] != Some(tick);
                if !stale {
                    if tick > now / TICK {
                        break;
                    }
                    due.push(n);
                    ticks[n] = None;
                }
                heap.pop();
            }
            let mut fired = vec![];
            while let Some(flow) = wheel.expired(Instant(now)) {
                let n = flow.index as usize;
                timers[n].fired();
                fired.push(n);
            }
            due.sort_unstable();
            fired.sort_unstable();
            prop_assert_eq!(due, fired);

            let earliest = ticks.iter().flatten().min().map(|tick| tick.saturating_mul(TICK));
            let next = wheel.next().map(|next| next.0);
            prop_assert_eq!(next.is_some(), earliest.is_some());
            prop_assert!(next <= earliest, "the time is not after the earliest timer");
            prop_assert!(next.is_none_or(|next| next > now), "the time is in the future if no timer is due");
        }
    }

    #[test]
    fn sleeping_until_next_reaches_each_timer(steps in vec(step(), 0..100)) {
        let mut wheel = Wheel::default();
        let mut timers: Vec<_> = (0..FLOWS).map(|_| Timer::default()).collect();
        let mut allowed = 0;
        for step in steps {
            match step {
                Step::Arm(n, after) => {
                    allowed += 1;
                    wheel.arm(&mut timers[n], flow(u32::try_from(n).unwrap()), Instant(after));
                }
                Step::Disarm(n) => wheel.disarm(&mut timers[n]),
                Step::Pass(_) | Step::SleepUntilNext => {}
            }
        }
        let mut wake_ups = 0;
        while let Some(now) = wheel.next() {
            while wheel.expired(now).is_some() {}
            wake_ups += 1;
            prop_assert!(wake_ups <= allowed, "at most one wake-up for each insertion into the wheel");
        }
    }
}

fn flow(index: u32) -> FlowId {
    FlowId {
        kind: Kind::Tcp,
        worker: WorkerId(0),
        index,
        generation: 0,
    }
}

fn seconds(n: u64) -> Instant {
    Instant(0) + Duration::from_secs(n)
}

const FLOWS: usize = 12;
