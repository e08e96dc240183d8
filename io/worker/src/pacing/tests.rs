use super::*;

const MICRO: u64 = 1000;

/// Pacer with a simulated clock in microseconds, and the time for which it has spun.
struct Clocked {
    pacer: Pacer,
    now: u64,
    spun: u64,
}

impl Clocked {
    fn new(pacing: Pacing, cpus: f64) -> Self {
        Self {
            pacer: Pacer::new(on(pacing, cpus), Instant(0)),
            now: 0,
            spun: 0,
        }
    }

    fn turn(&mut self, worked: bool) -> Wait {
        let now = Instant(self.now * MICRO);
        if worked {
            self.pacer.worked(Side::Host, now, now)
        } else {
            self.pacer.idle(now)
        }
    }

    /// Makes the pacer experience waits of `micros`, until spinning after them is worthwhile, or no longer is.
    fn get_used_to(&mut self, micros: u64) {
        for _ in 0..8 {
            self.turn(true);
            self.now += micros;
        }
    }

    /// Simulates a turn with work, then turns of one microsecond without work until the pacer sleeps or `next` microseconds
    /// have passed, when there is work again. Returns true if the pacer slept.
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
fn pacing_event_sleeps_and_poll_does_not() {
    for worked in [true, false] {
        assert_eq!(Clocked::new(Pacing::Event, 8.0).turn(worked), Wait::Sleep);
        assert_eq!(Clocked::new(Pacing::Poll, 1.0).turn(worked), Wait::No);
    }
}

#[test]
fn hybrid_sleeps_after_a_long_turn() {
    let after = |micros: u64| {
        Pacer::new(Pacing::Hybrid, Instant(0)).worked(Side::Host, Instant(0), Instant(micros * MICRO))
    };
    assert_eq!(after(50), Wait::No);
    assert_eq!(after(51), Wait::Sleep);
}

#[test]
fn hybrid_sleeps_while_the_link_is_full() {
    let mut clocked = Clocked::new(Pacing::Hybrid, 2.0);
    assert_eq!(clocked.turn(true), Wait::No);
    assert_eq!(clocked.pacer.blocked(), Wait::Sleep);
    assert_eq!(clocked.turn(false), Wait::Sleep);
}

#[test]
fn hybrid_needs_a_second_cpu() {
    assert_eq!(Clocked::new(Pacing::Hybrid, 1.99).turn(true), Wait::Sleep);
    assert_eq!(Clocked::new(Pacing::Hybrid, 2.0).turn(true), Wait::No);
}

#[test]
fn spin_ends_after_the_busy_poll_time() {
    let mut clocked = Clocked::new(Pacing::Hybrid, 2.0);
    assert!(clocked.work_again_after(10_000));
    assert_eq!(clocked.spun, 50);
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
fn unsuccessful_spins_are_limited_in_each_period() {
    let mut clocked = Clocked::new(Pacing::Hybrid, 2.0);
    // Work arrives alternately so soon that spins are worthwhile on average, and just after a spin has ended.
    let (mut unsuccessful, mut slept) = (0, 0);
    while clocked.now < 1_000_000 {
        clocked.work_again_after(1);
        let before = clocked.spun;
        slept += u64::from(clocked.work_again_after(60));
        unsuccessful += clocked.spun - before;
    }
    assert!(slept > 16_000, "{slept}: every one of them");
    // The limit is a fifth of each of ten periods, plus the spin that exceeds it.
    assert!(
        (200_000..=200_000 + 10 * 50).contains(&unsuccessful),
        "{unsuccessful} us of a second"
    );
}

#[test]
fn successful_spins_are_not_limited() {
    let mut clocked = Clocked::new(Pacing::Hybrid, 2.0);
    while clocked.now < 1_000_000 {
        assert!(!clocked.work_again_after(40), "slept at {} us", clocked.now);
    }
    assert_eq!(clocked.spun, 1_000_000);
}

#[test]
fn single_long_wait_among_short_ones_does_not_stop_spinning() {
    let mut clocked = Clocked::new(Pacing::Hybrid, 2.0);
    while clocked.now < 1_000_000 {
        for _ in 0..99 {
            assert!(!clocked.work_again_after(40), "slept at {} us", clocked.now);
        }
        assert!(clocked.work_again_after(60));
    }
}

#[test]
fn long_waits_stop_spinning_and_short_waits_resume_it() {
    let mut clocked = Clocked::new(Pacing::Hybrid, 2.0);
    clocked.get_used_to(10_000);
    assert_eq!(clocked.turn(true), Wait::Sleep);
    // The worker slept and was woken after 60 us; a worker that spun would have found the work within the window.
    clocked.now += 10_000;
    clocked.get_used_to(60);
    assert_eq!(clocked.turn(true), Wait::No);
}

#[test]
fn wait_history_is_kept_for_each_side() {
    let mut pacer = Pacer::new(Pacing::Hybrid, Instant(0));
    let mut now = 0;
    let mut waits = Vec::new();
    // A guest sends a hundred requests per second, and the host replies to each after 20 us.
    for _ in 0..20 {
        waits.push((Side::Guest, pacer.worked(Side::Guest, Instant(now), Instant(now))));
        now += 20 * MICRO;
        waits.push((Side::Host, pacer.worked(Side::Host, Instant(now), Instant(now))));
        now += 10_000 * MICRO;
    }
    let settled = &waits[20..];
    assert!(
        settled
            .iter()
            .all(|(side, wait)| (*wait == Wait::No) == (*side == Side::Guest)),
        "{settled:?}"
    );
}
