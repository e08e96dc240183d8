//! Replays the committed corpus of a fuzz target in ordinary tests.

use std::path::Path;

/// Runs every input of a target's corpus. Panics if there are not more than `least` inputs.
pub fn replay(target: &str, least: usize, run: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tools/fuzz/corpus")
        .join(target);
    let inputs: Vec<_> = std::fs::read_dir(corpus).expect("a corpus").collect();
    assert!(inputs.len() > least, "{} inputs", inputs.len());
    for input in inputs {
        let path = input.expect("an entry").path();
        run(&std::fs::read(path).expect("an input"));
    }
}
