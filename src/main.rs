//! The `drover` program; all of it is in the library beside this.

use mimalloc::MiMalloc;

#[global_allocator]
static GLOBAL: MiMalloc = MiMalloc;

fn main() -> std::process::ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    drover::main(&args)
}
