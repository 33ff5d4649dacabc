//! `drover bench` without the rest of `drover`.

use clap::Parser;
use drover_benches::BenchCommand;
use std::process::ExitCode;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    bench: BenchCommand,
}

fn main() -> ExitCode {
    match drover_benches::run(&Cli::parse().bench, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
