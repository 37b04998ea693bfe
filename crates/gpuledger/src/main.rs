//! The one binary: everything is in the library, so that tests and tools can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    gpuledger::cli::main()
}
