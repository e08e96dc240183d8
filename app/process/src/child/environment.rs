//! The user's environment, which has secrets in it for the command, is nothing for a process that moves packets.

// SAFETY: the C library has this variable, of this type (environ(7)).
unsafe extern "C" {
    static environ: *mut *mut libc::c_char;
}

/// Wipes it out of this process' memory. Call it in a child of ours, once it has read what it wants to know: from here on
/// no variable is set.
///
/// # Safety
/// The process has one thread, and nothing in it has a pointer into the environment.
pub unsafe fn forget() {
    // SAFETY: the list ends with a null pointer, and each of its strings with a zero: both lie on the stack, where the
    // kernel has put them for this process to write to, or on the heap, if they were set later. Nobody else looks at them
    // meanwhile, says the caller. Strings that are empty and no strings at all are what any later reader may find.
    unsafe {
        let mut next = environ;
        while let Some(string) = next.as_ref().filter(|string| !string.is_null()) {
            string.write_bytes(0, libc::strlen(*string));
            next = next.add(1);
        }
        libc::clearenv();
    }
}

#[cfg(test)]
mod tests {
    use pontoon_test_support::process::in_child;

    use super::*;

    #[test]
    fn nothing_of_it_is_left() {
        let environment = || std::fs::read("/proc/self/environ").unwrap();
        assert!(environment().iter().any(|byte| *byte != 0));
        let status = in_child("child::environment::tests::nothing_of_it_is_left", || {
            // SAFETY: a child has one thread, and this one has just begun.
            unsafe { forget() };
            let gone = environment().iter().all(|byte| *byte == 0);
            u8::from(!(gone && std::env::vars_os().next().is_none()))
        });
        assert_eq!(status, 0);
        assert!(environment().iter().any(|byte| *byte != 0));
    }
}
