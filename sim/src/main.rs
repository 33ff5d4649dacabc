//! `drover-sim`: runs one seed with its trace, or many.

use clap::Parser;
use drover_sim::plan::{Fault, Feature, Seed};
use drover_sim::report::{self, Hire};
use drover_sim::sabotage;
use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

/// Runs the relay's engine in simulated worlds. Prints what it ran; exits with 1 and a trace if a rule was broken.
#[derive(Parser)]
#[command(name = "drover-sim")]
struct Arguments {
    /// One seed. What else is given holds down what it would draw.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Seeds A to B, B not included.
    #[arg(long, value_name = "A..B", value_parser = range)]
    seeds: Option<Range<u64>>,
    /// Threads for many seeds.
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(1, usize::from))]
    threads: usize,
    /// At most so many members in each workspace.
    #[arg(long)]
    members: Option<usize>,
    /// At most so many actions of each client.
    #[arg(long)]
    actions: Option<u32>,
    /// At most so many workspaces.
    #[arg(long)]
    workspaces: Option<usize>,
    /// At most so many shards.
    #[arg(long)]
    shards: Option<usize>,
    /// Faults that never happen.
    #[arg(long, value_delimiter = ',')]
    without: Vec<Fault>,
    /// Features that no world has.
    #[arg(long, value_delimiter = ',')]
    lacks: Vec<Feature>,
    /// Somebody breaks the rules, to see it found.
    #[arg(long)]
    saboteur: Option<String>,
    /// Prints the trace of a seed that keeps the rules too.
    #[arg(long)]
    trace: bool,
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("two numbers with .. between")?;
    let number = |text: &str| text.parse().map_err(|_| format!("{text} is no number"));
    Ok(number(from)?..number(to)?)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let hire = match arguments.saboteur.as_deref().map(sabotage::by_name) {
        None => None,
        Some(Ok(hire)) => Some(hire),
        Some(Err(error)) => {
            eprintln!("{error}");
            return ExitCode::from(64);
        }
    };
    let seed = Seed {
        seed: arguments.seed.unwrap_or_default(),
        members: arguments.members,
        actions: arguments.actions,
        workspaces: arguments.workspaces,
        shards: arguments.shards,
        without: arguments.without.iter().copied().collect(),
        lacks: arguments.lacks.iter().copied().collect(),
    };
    match arguments.seeds {
        Some(seeds) => many(seeds, arguments.threads, &seed, hire),
        None => one(&seed, hire, arguments.trace),
    }
}

fn one(seed: &Seed, hire: Option<Hire>, trace: bool) -> ExitCode {
    let summary = report::run(seed, hire, true);
    if trace || summary.violation.is_some() {
        for line in &summary.lines {
            println!("{line}");
        }
    }
    println!("{seed}: trace {:016x}; {}", summary.hash, summary.coverage);
    match summary.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("broken: {}\n  {}", violation.rule, violation.what);
            ExitCode::FAILURE
        }
    }
}

fn many(seeds: Range<u64>, threads: usize, like: &Seed, hire: Option<Hire>) -> ExitCode {
    let began = Instant::now();
    let totals = report::run_all(seeds, threads, like, hire);
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{} seeds in {seconds:.1} s ({:.1} a second): {}",
        totals.seeds,
        totals.seeds as f64 / seconds,
        totals.coverage
    );
    let Some((number, violation)) = totals.failed else {
        return ExitCode::SUCCESS;
    };
    let failed = Seed {
        seed: number,
        ..like.clone()
    };
    println!("{failed} broke: {}\n  {}", violation.rule, violation.what);
    println!("looking for a smaller world that breaks the same");
    let smallest = report::shrink(&failed, violation.rule, hire);
    one(&smallest, hire, true);
    println!("first:    {failed}\nsmallest: {smallest}");
    ExitCode::FAILURE
}
