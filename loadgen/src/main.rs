//! The command line of `loadgen`: arguments to library calls, results to stdout, errors to exit codes.
//!
//! Owns: nothing else. Runs on the main thread.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use program::tell;
use solkv_loadgen::report::{self, best, compare};
use solkv_loadgen::result::check_folder;
use solkv_loadgen::{archive, bench, commands, follow, get, live, provider, query, transports};
use tracing_subscriber::EnvFilter;

/// Plays a Solana account stream, and measures a service that follows it
#[derive(Parser)]
#[command(
    name = "solkv-loadgen",
    version = concat!(env!("CARGO_PKG_VERSION"), " (", env!("SOLKV_COMMIT"), ")"),
    arg_required_else_help = true
)]
#[command(
    after_help = "Exit codes:\n  0  done\n  1  a run failed, a key is absent, or a map differs from the stream's digest. A run of bench that its memory cap\n     has killed is a result, and no failure\n  2  wrong arguments"
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
    /// Write Solana snapshot archives with the stream's accounts, for programs that load such archives
    #[command(after_help = archive::EXAMPLES)]
    Archive(Box<archive::ArchiveArgs>),
    /// Play a Yellowstone server that misbehaves by a script, and check the readiness that a service reports
    #[command(after_help = provider::help())]
    Provider(Box<provider::ProviderArgs>),
    /// Run the service on a bootstrapped directory against a stream and print its latencies
    #[command(after_help = live::EXAMPLES)]
    Live(Box<live::LiveArgs>),
    /// Measure engines: scenarios of runs under memory caps, one JSON line each
    #[command(after_help = bench::EXAMPLES)]
    Bench(Box<bench::BenchArgs>),
    /// Send lookups to a running service at given rates and verify its answers
    #[command(after_help = query::EXAMPLES)]
    Query(Box<query::QueryArgs>),
    /// Compare shared memory, Unix socket and TCP: round trips and batches, side by side
    #[command(after_help = transports::EXAMPLES)]
    Transports(Box<transports::TransportsArgs>),
    /// Follow a service's changes, over shared memory, a Unix socket or TCP
    #[command(after_help = follow::EXAMPLES)]
    Follow(follow::FollowArgs),
    /// Look up keys in a running service, in base58
    #[command(after_help = get::EXAMPLES)]
    Get(get::GetArgs),
    /// One run in its own process
    #[command(hide = true)]
    BenchRun(bench::child::ChildArgs),
    /// The updates of an aged store
    #[command(hide = true)]
    BenchAge(bench::child::ChildArgs),
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
    #[command(flatten)]
    Shell(program::Shell),
}

fn main() -> ExitCode {
    let name = program::program_name(std::env::args_os().next().as_deref(), "loadgen");
    program::end_at_panics(&name, engines::catches_panics);
    let code = match log_filter() {
        Ok(filter) => {
            let ran = program::log(filter, false).map_err(anyhow::Error::from).map(|()| parsed(&name));
            ran.unwrap_or_else(|error| failed(&error, 1))
        }
        Err(error) => failed(&error, 2),
    };
    program::end(&name, code)
}

/// Reports an error, and returns the exit code.
fn failed(error: &anyhow::Error, code: u8) -> u8 {
    tell!("error: {}", said(error));
    code
}

/// Parses the arguments and runs their command. Returns the exit code.
fn parsed(name: &str) -> u8 {
    let command = program::parse::<Cli>(name, std::env::args_os().collect()).command;
    if let Err(error) = check(&command) {
        return failed(&error, 2);
    }
    let result = match command {
        Command::Stream(args) => commands::stream(*args),
        Command::Archive(args) => archive::run(&args),
        Command::Live(args) => live::run(*args),
        Command::Provider(args) => provider::run(&args),
        Command::Query(args) => query::run(&args),
        Command::Transports(args) => transports::run(&args),
        Command::Follow(args) => follow::run(&args),
        Command::Get(args) => get::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::BenchRun(args) => bench::child::run(&args),
        Command::BenchAge(args) => bench::age::run(&args),
        Command::BenchWrite(args) => bench::child::write_until_killed(&args),
        Command::Report(args) => report::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Best(args) => best::run(&args),
        Command::Shell(shell) => shell.run::<Cli>(name),
    };
    result.map_or_else(|error| failed(&error, 1), |()| 0)
}

/// Refuses arguments that can never be right, or do not go together.
fn check(command: &Command) -> Result<()> {
    match command {
        Command::Stream(args) => args.check(),
        Command::Archive(args) => args.plan.check().and_then(|()| check_folder("report", args.report.as_deref())),
        Command::Live(args) => args.check(),
        Command::Query(args) => args.check(),
        Command::Transports(args) => args.check(),
        Command::Follow(args) => args.check(),
        Command::Get(args) => args.check(),
        Command::Bench(args) => args.check(),
        _ => Ok(()),
    }
}

/// Parses the log filter in RUST_LOG.
fn log_filter() -> Result<EnvFilter> {
    let text = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let text = if text.is_empty() { "warn,solkv_loadgen=info" } else { &text };
    EnvFilter::builder().parse(text).with_context(|| {
        format!("not a log filter: RUST_LOG={text}: give for example info, or warn,solkv_loadgen=debug")
    })
}

/// Formats the error with its causes. Each text appears once, because a transport's error repeats that of its cause.
fn said(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |said, cause| {
        let words = cause.to_string();
        match said.as_str() {
            "" => words,
            _ if said.ends_with(&words) => said,
            _ => format!("{said}: {words}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    /// clap wraps a paragraph to the terminal's width, so a line break within a paragraph of the source would break it
    /// twice.
    #[test]
    fn a_paragraph_of_help_is_one_line() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().collect();
            let is_prose = |line: &str| !line.is_empty() && !line.starts_with("  ");
            for pair in lines.windows(2).filter(|pair| pair[0] != "Examples:") {
                assert!(!(is_prose(pair[0]) && is_prose(pair[1])), "{}: {pair:?}", command.get_name());
            }
        }
    }
}
