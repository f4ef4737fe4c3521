//! The command line of `loadgen`: arguments to library calls, results to stdout, errors to exit codes.
//!
//! Owns: nothing else. Runs on the main thread.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use loadgen::report::{self, best, compare};
use loadgen::{bench, commands, follow, live, query, transports};

/// Plays a Solana account stream, and measures a service that follows it
#[derive(Parser)]
#[command(name = "loadgen", version, arg_required_else_help = true)]
#[command(
    after_help = "Exit codes: 0 done; 1 a run failed or a map differs from the stream's digest; 2 wrong arguments."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Play a Yellowstone server: slots of account updates from a seed, with filters, replay and faults
    #[command(after_help = commands::STREAM_EXAMPLES)]
    Stream(Box<commands::StreamArgs>),
    /// Run the service on a bootstrapped directory against a stream and print its latencies (Table 3)
    #[command(after_help = live::EXAMPLES)]
    Live(Box<live::LiveArgs>),
    /// Measure engines: scenarios of runs under memory caps, one JSON line each
    #[command(after_help = bench::EXAMPLES)]
    Bench(Box<bench::BenchArgs>),
    /// Ask a running service at given rates and verify its answers
    #[command(after_help = query::EXAMPLES)]
    Query(Box<query::QueryArgs>),
    /// Compare shared memory, Unix socket and TCP: round trips and batches, side by side
    #[command(after_help = transports::EXAMPLES)]
    Transports(Box<transports::TransportsArgs>),
    /// Follow a service's changes, over shared memory, a Unix socket or TCP
    #[command(after_help = follow::EXAMPLES)]
    Follow(follow::FollowArgs),
    /// One run in its own process
    #[command(hide = true)]
    BenchRun(bench::child::ChildArgs),
    /// A writer to be killed
    #[command(hide = true)]
    BenchWrite(bench::child::ChildArgs),
    /// Show result files as one HTML page that opens from disk, and as markdown tables
    #[command(after_help = report::EXAMPLES)]
    Report(report::ReportArgs),
    /// Compare two result files, or two engines in one, and tell differences from noise
    #[command(after_help = compare::EXAMPLES)]
    Compare(compare::CompareArgs),
    /// Compare one engine with the best of the others in every cell
    #[command(after_help = best::EXAMPLES)]
    Best(best::BestArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell to complete for
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn,loadgen=info".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    let result = match Cli::parse().command {
        Command::Stream(args) => commands::stream(*args),
        Command::Live(args) => live::run(*args),
        Command::Query(args) => query::run(&args),
        Command::Transports(args) => transports::run(&args),
        Command::Follow(args) => follow::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::BenchRun(args) => bench::child::run(&args),
        Command::BenchWrite(args) => bench::child::write_until_killed(&args),
        Command::Report(args) => report::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Best(args) => best::run(&args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "loadgen", &mut std::io::stdout());
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(1)
        }
    }
}
