//! `pontoon-bench`: compares network stacks on this machine. `pontoon bench` runs it.

use std::process::ExitCode;

fn main() -> ExitCode {
    pontoon_bench::main()
}
