//! Messages about captures that start and end while the engine runs.

use std::time::Duration;

use pontoon_ipc::Descriptor;
use serde::{Deserialize, Serialize};

use super::MAX_TEXT;

/// Command to start or stop a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureCommand {
    /// Start a capture; no other capture is running.
    Start(CaptureStart),
    /// Stop the capture with this number.
    Stop(u64),
}

/// Parameters of a capture that is to be started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureStart {
    /// Number of the capture, larger than those of all earlier captures.
    pub number: u64,
    /// File of the capture, which is written from its current offset on.
    pub file: Descriptor,
    /// Limit on the bytes that are captured of each frame.
    pub snap: u32,
    /// Limit on the size of the file in bytes.
    pub size: Option<u64>,
    /// Limit on the duration of the capture.
    pub time: Option<Duration>,
}

/// Result of a capture that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureResult {
    /// Number of the capture.
    pub number: u64,
    /// Number of frames in the file.
    pub frames: u64,
    /// Number of frames that are missing in the file because they arrived faster than they could be written.
    pub dropped: u64,
    /// Number of bytes in the file that are complete blocks.
    pub bytes: u64,
    /// True if the capture ended with an error: an incomplete block may follow the complete bytes.
    pub failed: bool,
    /// Reason for the end, in a few words.
    pub why: String,
}

impl CaptureResult {
    pub(super) fn is_valid(&self) -> bool {
        self.why.len() <= MAX_TEXT
    }
}
