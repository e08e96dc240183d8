use super::*;

const MICRO: u64 = 1000;

/// A pacer, its clock in microseconds, and how long it has spun.
struct Clocked {
    pacer: Pacer,
    now: u64,
    spun: u64,
}

impl Clocked {
    fn new(pacing: Pacing, cpus: f64) -> Self {
        Self {
            pacer: Pacer::new(pacing, cpus, Instant(0)),
            now: 0,
            spun: 0,
        }
    }

    fn turn(&mut self, worked: bool) -> Wait {
        let now = Instant(self.now * MICRO);
        if worked {
            self.pacer.worked(now, now)
        } else {
            self.pacer.idle(now)
        }
    }

    /// A turn with work, then turns of a microsecond until the pacer sleeps or `next` microseconds have passed, when
    /// there is work again. Says whether it slept.
    fn work_again_after(&mut self, next: u64) -> bool {
        let end = self.now + next;
        let mut wait = self.turn(true);
        while wait == Wait::No && self.now < end {
            self.now += 1;
            self.spun += 1;
            if self.now < end {
                wait = self.turn(false);
            }
        }
        self.now = end;
        wait == Wait::Sleep
    }
}

#[test]
fn event_sleeps_and_poll_does_not() {
    for worked in [true, false] {
        assert_eq!(Clocked::new(Pacing::Event, 8.0).turn(worked), Wait::Sleep);
        assert_eq!(Clocked::new(Pacing::Poll, 1.0).turn(worked), Wait::No);
    }
}

#[test]
fn hybrid_sleeps_after_a_long_turn() {
    let after =
        |micros: u64| Pacer::new(Pacing::Hybrid, 2.0, Instant(0)).worked(Instant(0), Instant(micros * MICRO));
    assert_eq!(after(50), Wait::No);
    assert_eq!(after(51), Wait::Sleep);
}

#[test]
fn hybrid_needs_a_second_cpu() {
    assert_eq!(Clocked::new(Pacing::Hybrid, 1.99).turn(true), Wait::Sleep);
    assert_eq!(Clocked::new(Pacing::Hybrid, 2.0).turn(true), Wait::No);
}

#[test]
fn one_spin_lasts_a_window() {
    let mut clocked = Clocked::new(Pacing::Hybrid, 2.0);
    assert!(clocked.work_again_after(10_000));
    assert_eq!(clocked.spun, 50);
}

#[test]
fn the_work_itself_is_not_spun() {
    let mut pacer = Pacer::new(Pacing::Hybrid, 2.0, Instant(0));
    // Turns of 90 ms of work each, with a microsecond between them: nothing of the ration is used.
    for turn in 0..20 {
        let begin = turn * 90_001 * MICRO;
        assert_eq!(
            pacer.worked(Instant(begin), Instant(begin + 90_000 * MICRO)),
            Wait::No
        );
    }
    assert!(pacer.spun < Duration::from_micros(3), "{:?}", pacer.spun);
}

#[test]
fn idle_wake_ups_do_not_spin() {
    let mut clocked = Clocked::new(Pacing::Hybrid, 2.0);
    for _ in 0..10 {
        clocked.now += 100;
        assert_eq!(clocked.turn(false), Wait::Sleep);
    }
}

#[test]
fn spins_that_miss_are_rationed() {
    let mut clocked = Clocked::new(Pacing::Hybrid, 2.0);
    // Work every 60 us: each spin misses it by 10.
    let mut slept = 0;
    while clocked.now < 1_000_000 {
        slept += u64::from(clocked.work_again_after(60));
    }
    assert_eq!(slept, 16_667, "every one of them");
    // A fifth, and the spin that passes the limit, in each of ten periods.
    let share = clocked.spun;
    assert!(
        (200_000..=200_000 + 10 * 50).contains(&share),
        "{share} us of a second"
    );
}

#[test]
fn spins_that_hit_go_on() {
    let mut clocked = Clocked::new(Pacing::Hybrid, 2.0);
    while clocked.now < 1_000_000 {
        assert!(!clocked.work_again_after(40), "slept at {} us", clocked.now);
    }
    assert_eq!(clocked.spun, 1_000_000);
}

#[test]
fn a_miss_among_eight_brings_the_ration_back() {
    let mut clocked = Clocked::new(Pacing::Hybrid, 2.0);
    while clocked.now < 1_000_000 {
        for _ in 0..7 {
            clocked.work_again_after(40);
        }
        clocked.work_again_after(60);
    }
    let share = clocked.spun;
    assert!((150_000..=201_000).contains(&share), "{share} us of a second");
}
