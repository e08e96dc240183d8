//! Faults of a link: frames that are lost, duplicated or reordered, as a seed determines.

/// Rates of faults, in frames of ten thousand in one direction.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Seed of the random number generator.
    pub seed: u64,
    /// Number of frames in ten thousand that are not sent.
    pub lost: u64,
    /// Number of frames in ten thousand that are sent twice.
    pub duplicated: u64,
    /// Number of frames in ten thousand that are sent after the next one.
    pub reordered: u64,
}

impl Faults {
    /// Fault rates of a link without faults.
    pub const NONE: Self = Self {
        seed: 0,
        lost: 0,
        duplicated: 0,
        reordered: 0,
    };

    /// Rates of a lossy link: 1 % lost, 0.5 % duplicated, 0.5 % sent after the next frame.
    pub const LOSSY: Self = Self {
        seed: 1,
        lost: 100,
        duplicated: 50,
        reordered: 50,
    };
}

/// The fault injector of one direction of a link.
pub struct FaultInjector {
    faults: Faults,
    state: u64,
    /// The frame that is sent after the next one.
    held: Option<Vec<u8>>,
}

impl FaultInjector {
    /// Creates an injector. `direction` makes the two directions with the same seed differ.
    pub fn new(faults: Faults, direction: u64) -> Self {
        Self {
            faults,
            state: faults.seed.wrapping_mul(2).wrapping_add(direction),
            held: None,
        }
    }

    /// Passes `frame` to `send` not at all, once, twice, or after the next frame.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn forward<E>(
        &mut self,
        frame: &[u8],
        mut send: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Faults {
            lost,
            duplicated,
            reordered,
            ..
        } = self.faults;
        let draw = self.draw() % 10_000;
        if draw < lost {
            return Ok(());
        }
        if draw < lost + duplicated {
            send(frame)?;
        } else if draw < lost + duplicated + reordered && self.held.is_none() {
            self.held = Some(frame.to_vec());
            return Ok(());
        }
        send(frame)?;
        self.flush(send)
    }

    /// Passes the frame that was delayed for reordering to `send`, if there is one.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn flush<E>(&mut self, mut send: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        self.held.take().map_or(Ok(()), |frame| send(&frame))
    }

    /// Returns the next number of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
    /// 2014).
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = self.state;
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Forwards frames with the numbers 0 to `frames` - 1, and returns the numbers that were sent.
    fn passed(faults: Faults, direction: u64, frames: u32) -> Vec<u32> {
        let mut link = FaultInjector::new(faults, direction);
        let mut out = Vec::new();
        let mut take = |frame: &[u8]| {
            out.push(u32::from_be_bytes(frame.try_into().unwrap()));
            Ok::<_, Infallible>(())
        };
        for frame in 0..frames {
            link.forward(&frame.to_be_bytes(), &mut take).unwrap();
        }
        link.flush(&mut take).unwrap();
        out
    }

    #[test]
    fn link_without_faults_changes_nothing() {
        assert_eq!(passed(Faults::NONE, 0, 100), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn fault_rates_match_and_are_deterministic() {
        const FRAMES: u32 = 100_000;
        let out = passed(Faults::LOSSY, 0, FRAMES);
        assert_eq!(out, passed(Faults::LOSSY, 0, FRAMES));
        assert_ne!(out, passed(Faults::LOSSY, 1, FRAMES));
        let mut times = vec![0; FRAMES as usize];
        for frame in &out {
            times[*frame as usize] += 1;
        }
        let frames_of = |wanted: u32| times.iter().filter(|times| **times == wanted).count();
        let late = out.windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert!((900..1100).contains(&frames_of(0)), "{} lost", frames_of(0));
        assert!((400..600).contains(&frames_of(2)), "{} duplicated", frames_of(2));
        assert!((400..600).contains(&late), "{late} reordered");
        assert_eq!(frames_of(0) + frames_of(1) + frames_of(2), FRAMES as usize);
    }
}
