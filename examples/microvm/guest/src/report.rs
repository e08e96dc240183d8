//! What the guest tells the VMM.

use core::fmt::{self, Write};

use crate::memory;
use crate::tasks::Failure;
use pontoon_microvm_abi::{PORT_STAGE, REPORT, Report, Stage};

/// What is measured begins, or is over.
pub(crate) fn stage(stage: Stage) {
    memory::out(PORT_STAGE, stage as u32);
}

/// The end, of which the VMM is told before the guest stops for ever.
pub(crate) fn end(outcome: Result<Report, Failure>) -> ! {
    match outcome {
        Ok(report) => finish(&report, Stage::End),
        Err(failure) => fail(format_args!("{failure}")),
    }
}

/// The end of a guest that failed.
pub(crate) fn fail(why: fmt::Arguments<'_>) -> ! {
    let mut report = Report::new();
    // What does not fit is lost.
    let _ = Text(&mut report.error).write_fmt(why);
    finish(&report, Stage::Failed)
}

fn finish(report: &Report, last: Stage) -> ! {
    // SAFETY: a report is bytes and numbers, without padding between them.
    let bytes =
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(report).cast(), size_of::<Report>()) };
    memory::put(REPORT, bytes);
    loop {
        stage(last);
    }
}

/// Room for a text.
struct Text<'t>(&'t mut [u8]);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let len = text.len().min(self.0.len());
        let (here, rest) = core::mem::take(&mut self.0).split_at_mut(len);
        here.copy_from_slice(&text.as_bytes()[..len]);
        self.0 = rest;
        Ok(())
    }
}
