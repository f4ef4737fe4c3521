//! The command line: `service [run] ...`, `snapshot`, `restore`, `check-config`, `completions`.
//!
//! Owns: arguments, logging, exit codes. `run` may be left out.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::backup;
use crate::config::{Config, LogFormat, Settings};
use crate::metrics;
use crate::net::Edge;
use crate::run::run;

const AFTER_HELP: &str = "\
Examples:
  service --engine rocksdb --dir /data/solkv --geyser https://geyser.example:443 --x-token-file /etc/solkv/token
  service --config /etc/solkv/service.toml
  service check-config --config /etc/solkv/service.toml
  service snapshot --dir /data/solkv --to /data/snapshots/monday
  service restore --from /data/snapshots/monday --dir /data/solkv-again

`service run --help` explains every setting; each is also a key of the file, with _ for -. The word run may be left
out. RUST_LOG sets the log level (default info).

Exit codes: 0 stopped as asked; 1 an error, said on stderr or in the log; 2 wrong arguments.";

#[derive(Parser, Debug)]
#[command(name = "service", version, after_help = AFTER_HELP)]
/// Follows a Yellowstone account stream into a store and serves lookups from it
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Follow the stream and serve
    Run(Box<Args>),
    /// Print the configuration in effect and how memory is divided, and exit
    CheckConfig(Box<Args>),
    /// Copy a store, of the service that is running or of none, into a directory that is itself a store
    Snapshot(backup::SnapshotArgs),
    /// Make a store of a snapshot; a service started on it catches up from there
    Restore(backup::RestoreArgs),
    /// Print what is made from the metric catalogue
    #[command(hide = true)]
    Metrics {
        /// METRICS.md, or the Grafana dashboard
        #[arg(long, value_enum)]
        format: MetricsFormat,
    },
    /// Print shell completions
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum MetricsFormat {
    Markdown,
    Grafana,
}

#[derive(clap::Args, Debug)]
struct Args {
    /// Configuration file (TOML); flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

impl Args {
    fn config(self) -> Result<Config> {
        let file = self.config.as_deref().map(Settings::read).transpose()?.unwrap_or_default();
        self.settings.or(file).resolve()
    }
}

/// Parses, runs, reports.
pub fn main(mut args: Vec<OsString>) -> ExitCode {
    // A first word that is a setting means run; --help and --version stay the program's own.
    let first = args.get(1).map(|arg| arg.to_string_lossy().into_owned()).unwrap_or_default();
    if first.starts_with('-') && !["-h", "--help", "-V", "--version"].contains(&first.as_str()) {
        args.insert(1, "run".into());
    }
    let outcome = match Cli::parse_from(args).command {
        Command::Run(args) => args.config().and_then(|config| {
            log(config.log_format);
            run(&config)
        }),
        Command::CheckConfig(args) => args.config().and_then(|config| check(&config)),
        Command::Snapshot(args) => backup::snapshot(&args),
        Command::Restore(args) => backup::restore(&args),
        Command::Metrics { format } => {
            print!(
                "{}",
                match format {
                    MetricsFormat::Markdown => metrics::document::markdown(),
                    MetricsFormat::Grafana => metrics::grafana::dashboard(),
                }
            );
            Ok(())
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "service", &mut std::io::stdout());
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("service: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn check(config: &Config) -> Result<()> {
    print!("{}", toml::to_string(config)?);
    println!("# memory: {}", config.engine.division());
    // Read, so that a missing or empty file is found now; never printed.
    let token = config.x_token()?;
    println!("# x-token: {}", if token.is_some() { "given" } else { "none" });
    println!("# access: {}", Edge::open(config)?.access);
    Ok(())
}

fn log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => builder.json().init(),
    }
}
