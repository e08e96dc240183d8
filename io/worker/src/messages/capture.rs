//! Captures that begin and end while the engine runs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::str::Lines;
use std::sync::Arc;
use std::time::Duration;

use super::door::Descriptor;

/// A command to start or stop a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// It begins. There is no other.
    Start(Start),
    /// The one with this number ends.
    Stop(u64),
}

/// A capture to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Larger than that of every capture before.
    pub number: u64,
    /// A file, from its offset on.
    pub file: Descriptor,
    /// Bytes that are kept of a frame.
    pub snap: u32,
    /// Bytes of the file, at most.
    pub size: Option<u64>,
    /// The longest duration, in whole milliseconds.
    pub time: Option<Duration>,
}

/// The result of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Its number.
    pub number: u64,
    /// Frames that went into the file.
    pub frames: u64,
    /// Frames that are missing there, as they came faster than they could be written.
    pub dropped: u64,
    /// Bytes of the file that are whole.
    pub bytes: u64,
    /// It did not end as it was to: there may be a part of something behind them.
    pub failed: bool,
    /// Why it has ended, in a few words.
    pub why: String,
}

impl Order {
    /// A line of text. The file goes along.
    pub(super) fn encode(&self) -> String {
        match self {
            Self::Start(start) => {
                let time = start.time.map(|time| time.as_millis());
                format!(
                    "{START} {} {} {} {}",
                    start.number,
                    start.snap,
                    start
                        .size
                        .map_or_else(|| NONE.to_owned(), |size| size.to_string()),
                    time.map_or_else(|| NONE.to_owned(), |time| time.to_string()),
                )
            }
            Self::Stop(number) => format!("{STOP} {number}"),
        }
    }

    /// The file that goes along with it.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Start(start) => Some(start.file.as_fd()),
            Self::Stop(_) => None,
        }
    }

    pub(super) fn decode(line: &str, descriptors: &mut impl Iterator<Item = OwnedFd>) -> Option<Self> {
        let mut words = line.split(' ');
        let word = words.next()?;
        let number = words.next()?.parse().ok()?;
        let order = match word {
            START => Self::Start(Start {
                number,
                file: Arc::new(descriptors.next()?).into(),
                snap: words.next()?.parse().ok()?,
                size: limit(words.next()?)?,
                time: limit(words.next()?)?.map(Duration::from_millis),
            }),
            STOP => Self::Stop(number),
            _ => return None,
        };
        words.next().is_none().then_some(order)
    }
}

impl Captured {
    pub(super) fn encode(&self) -> [String; 6] {
        let why = self.why.replace('\n', " ");
        let [number, frames, dropped, bytes] =
            [self.number, self.frames, self.dropped, self.bytes].map(|count| count.to_string());
        let end = if self.failed { FAILED } else { NONE };
        [number, frames, dropped, bytes, end.to_owned(), why]
    }

    pub(super) fn decode(mut lines: Lines<'_>) -> Option<Self> {
        let mut count = || lines.next()?.parse().ok();
        let captured = Self {
            number: count()?,
            frames: count()?,
            dropped: count()?,
            bytes: count()?,
            failed: match lines.next()? {
                FAILED => true,
                NONE => false,
                _ => return None,
            },
            why: lines.next()?.to_owned(),
        };
        lines.next().is_none().then_some(captured)
    }
}

/// None, or a number.
fn limit(word: &str) -> Option<Option<u64>> {
    match word {
        NONE => Some(None),
        number => number.parse().ok().map(Some),
    }
}

const START: &str = "start";
const STOP: &str = "stop";
const FAILED: &str = "failed";
const NONE: &str = "-";
