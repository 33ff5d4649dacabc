//! The `drover` program: command line, configuration, wiring. No protocol logic (architecture.md §2).
//!
//! | Module | Story |
//! | --- | --- |
//! | [`cli`] | the words after `drover`, and exit codes |
//! | [`config`] | what the operator chose |
//! | [`logging`] | log lines and what they never say |

mod cli;
mod config;
mod logging;

use mimalloc::MiMalloc;

#[global_allocator]
static GLOBAL: MiMalloc = MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main(std::env::args_os().collect())
}
