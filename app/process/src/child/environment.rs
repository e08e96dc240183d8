//! Environment variables of the user, which may contain secrets. They are erased in processes that forward packets.

// SAFETY: the C library has this variable, of this type (environ(7)).
unsafe extern "C" {
    static environ: *mut *mut libc::c_char;
}

/// Overwrites the environment variables in this process's memory and removes them. A child process calls this function
/// after it has read the variables that it uses.
///
/// # Safety
/// The process has one thread, and nothing in it has a pointer into the environment.
pub unsafe fn erase() {
    // SAFETY: the list ends with a null pointer, and each of its strings with a zero: both lie on the stack, where the
    // kernel has put them for this process to write to, or on the heap, if they were set later. No other thread reads them
    // meanwhile, which the caller ensures. A later reader may find empty strings, or no strings.
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
    fn erased_environment_is_empty() {
        let environment = || std::fs::read("/proc/self/environ").unwrap();
        assert!(environment().iter().any(|byte| *byte != 0));
        let status = in_child("child::environment::tests::erased_environment_is_empty", || {
            // SAFETY: the child has one thread, and has not read a variable yet.
            unsafe { erase() };
            let erased = environment().iter().all(|byte| *byte == 0);
            u8::from(!(erased && std::env::vars_os().next().is_none()))
        });
        assert_eq!(status, 0);
        assert!(environment().iter().any(|byte| *byte != 0));
    }
}
