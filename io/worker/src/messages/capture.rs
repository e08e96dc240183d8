//! Captures that begin and end while the engine runs.

use std::time::Duration;

use pontoon_ipc::Descriptor;
use serde::{Deserialize, Serialize};

use super::MAX_TEXT;

/// A command to start or stop a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureCommand {
    /// A capture begins. No other one is running.
    Start(CaptureStart),
    /// The capture with this number ends.
    Stop(u64),
}

/// A capture that begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureStart {
    /// Larger than that of every capture before.
    pub number: u64,
    /// A file, which is written from its offset on.
    pub file: Descriptor,
    /// Bytes that are kept of a frame.
    pub snap: u32,
    /// Limit on the bytes of the file.
    pub size: Option<u64>,
    /// Limit on the duration.
    pub time: Option<Duration>,
}

/// The result of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureResult {
    /// The number of the capture.
    pub number: u64,
    /// Frames in the file.
    pub frames: u64,
    /// Frames that are missing in the file, because they arrived faster than they could be written.
    pub dropped: u64,
    /// Bytes of the file that are complete.
    pub bytes: u64,
    /// True if the capture ended with an error: an incomplete record may follow the complete bytes.
    pub failed: bool,
    /// The reason for the end, in a few words.
    pub why: String,
}

impl CaptureResult {
    pub(super) fn is_valid(&self) -> bool {
        self.why.len() <= MAX_TEXT
    }
}
