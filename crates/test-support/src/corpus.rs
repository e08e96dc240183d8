//! The committed corpus of a target, for the ordinary tests of the crates under `crates`, each of which has this file as a
//! module.

use std::path::Path;

/// Plays every input, of which there are more than `least`.
pub fn replay(target: &str, least: usize, play: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let inputs: Vec<_> = std::fs::read_dir(corpus).expect("a corpus").collect();
    assert!(inputs.len() > least, "{} inputs", inputs.len());
    for input in inputs {
        let path = input.expect("an entry").path();
        play(&std::fs::read(path).expect("an input"));
    }
}
