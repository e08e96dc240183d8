//! The program `pontoon-bench`, which compares network stacks on this machine. `pontoon bench` executes it.

use std::process::ExitCode;

fn main() -> ExitCode {
    pontoon_bench::main()
}
