//! Reports from the guest to the VMM.

use core::fmt::{self, Write};

use crate::memory;
use crate::tasks::TaskFailure;
use pontoon_microvm_abi::{PORT_STAGE, REPORT, Stage, TaskReport};

/// Reports to the VMM that the measured task begins or ends.
pub(crate) fn stage(stage: Stage) {
    memory::out(PORT_STAGE, stage as u32);
}

/// Reports the result of the task to the VMM, and halts.
pub(crate) fn end(outcome: Result<TaskReport, TaskFailure>) -> ! {
    match outcome {
        Ok(report) => finish(&report, Stage::End),
        Err(failure) => fail(format_args!("{failure}")),
    }
}

/// Reports an error to the VMM, and halts.
pub(crate) fn fail(why: fmt::Arguments<'_>) -> ! {
    let mut report = TaskReport::EMPTY;
    // Text that exceeds the buffer is truncated.
    let _ = TextBuffer(&mut report.error).write_fmt(why);
    finish(&report, Stage::Failed)
}

fn finish(report: &TaskReport, last: Stage) -> ! {
    // SAFETY: a report consists of bytes and integers, without padding between them.
    let bytes =
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(report).cast(), size_of::<TaskReport>()) };
    memory::put(REPORT, bytes);
    loop {
        stage(last);
    }
}

/// A buffer for text, which truncates text that does not fit.
struct TextBuffer<'t>(&'t mut [u8]);

impl Write for TextBuffer<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let len = text.len().min(self.0.len());
        let (here, rest) = core::mem::take(&mut self.0).split_at_mut(len);
        here.copy_from_slice(&text.as_bytes()[..len]);
        self.0 = rest;
        Ok(())
    }
}
