//! The command line: `service [run] ...`, `snapshot`, `restore`, `audit`, `check-config`, `completions`, `man`.
//!
//! Owns: arguments, logging, exit codes. `run` may be left out. The program is called `solkv-service` where it is
//! installed, which is the name in its help and its manual.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use program::{say, tell};
use solana::archive::is_url;
use tracing_subscriber::EnvFilter;

use crate::admin::audit;
use crate::admin::backup;
use crate::base::failed::Failed;
use crate::config::{Config, LogFormat, Moment, Settings, file};
use crate::derive;
use crate::heal;
use crate::ingest::geyser::Geyser;
use crate::ingest::provider;
use crate::run::{Checked, run};
use crate::store;

const AFTER_HELP: &str = "\
Examples:
  solkv-service --config /etc/solkv/solkv.toml
  solkv-service check-config --config /etc/solkv/solkv.toml
  solkv-service --dir /data/solkv --geyser https://geyser.example:443
  solkv-service --dir /data/solkv --geyser https://geyser.example:443 --extract token-owner \\
      --create --snapshot snapshot-312000000-HASH.tar.zst
  solkv-service snapshot --dir /data/solkv --to /data/snapshots/monday
  solkv-service restore --from /data/snapshots/monday --dir /data/solkv-again
  solkv-service audit --dir /data/solkv --archive snapshot-312000000-HASH.tar.zst

'run --help' explains every setting; each is also a key of the file, with _ for -.
The word run may be left out. RUST_LOG sets the log level (default info).

Exit codes:
  0         stopped as asked, or done; of audit: equal
  1         an error, said on stderr or in the log; of audit also: not equal
  2         wrong arguments, configuration or store: starting again will not help, and
            check-config says the same; of audit: archive and store cannot be compared,
            or the store is damaged
  130, 143  stopped by Ctrl-C or SIGTERM before the store was open, where nothing needs an
            orderly end; also an audit that was stopped";

#[derive(Parser, Debug)]
#[command(name = "solkv-service", version, after_help = AFTER_HELP)]
/// Follows a Yellowstone account stream into a store and serves lookups from it
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Follow the stream and serve
    Run(Box<Args>),
    /// Print the configuration in effect and how memory is divided, or the error that a start would report, and exit
    CheckConfig(Box<Args>),
    /// Copy a store, whether or not a service is running, into a directory that is itself a store
    Snapshot(backup::SnapshotArgs),
    /// Restore a snapshot as a new store; a service started on it catches up from there
    Restore(backup::RestoreArgs),
    /// Compare a store with a snapshot archive of Solana, even while a service runs, and name the keys that differ
    Audit(audit::AuditArgs),
    #[command(flatten)]
    Shell(program::Shell),
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
    fn config(self) -> Result<Config, Failed> {
        let config = match self.config {
            Some(path) => file::config(&path, self.settings),
            None => self.settings.resolve(),
        };
        config.map_err(Failed::wrong)
    }
}

/// Parses the arguments, runs the command, and reports its error.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let name = program::program_name(args.first().map(OsString::as_os_str), "service");
    program::end_at_panics(&name, engines::catches_panics);
    // A fault ends the process by the signal's default action, so that a service manager sees it as a crash.
    engines::explain_faults(None);
    engines::file_size_limit_is_an_error();
    let args = program::with_command(args, |_| "run");
    let outcome = match program::parse::<Cli>(&name, args).command {
        Command::Run(args) => args.config().and_then(|config| {
            log(config.process.log_format)?;
            run(&config).map(|()| 0)
        }),
        Command::CheckConfig(args) => args.config().and_then(|config| check(&config)).map(|()| 0),
        Command::Snapshot(args) => backup::snapshot(&args).map(|()| 0).map_err(Failed::by_remedy),
        Command::Restore(args) => backup::restore(&args).map(|()| 0).map_err(Failed::by_remedy),
        Command::Audit(args) => audit::run(&args),
        Command::Shell(shell) => shell.run::<Cli>(&name).map(|()| 0).map_err(Failed::from),
    };
    let code = outcome.unwrap_or_else(|failed| {
        tell!("{name}: {failed}");
        failed.code()
    });
    program::end(&name, code)
}

fn check(config: &Config) -> Result<(), Failed> {
    // The URL may hold a secret in every part except host and port.
    let shown = |geyser: &Geyser| Geyser { url: provider::shown(&geyser.url), ..geyser.clone() };
    let mut told = config.clone();
    told.stream.geyser = config.stream.geyser.iter().map(shown).collect();
    told.store.snapshot = config.store.snapshot.as_deref().map(shown_archive);
    told.store.incremental = config.store.incremental.as_deref().map(shown_archive);
    program::print(format_args!("{}", toml::to_string(&told).context("cannot print the configuration")?));
    let (options, memory) = derive::divide(config.engine.options(), &config.store.dir, config.derived.keeps_history());
    say!("# memory: {}", options.division());
    for part in memory.parts() {
        say!("# memory of the derived store {}", part);
    }
    for note in engines::notes(&config.store.dir, &config.engine.options())? {
        say!("# {}: {}", if note.is_warning { "warning" } else { "engine" }, note.text);
    }
    // Make all checks of a start, by the same code.
    log_filter(std::env::var(EnvFilter::DEFAULT_ENV).ok().as_deref()).map_err(Failed::wrong)?;
    let Checked { access, providers, .. } = Checked::of(config, Moment::Ahead)?;
    for of in &providers {
        let token = if of.token_file.is_some() { "given" } else { "none" };
        let name = if providers.len() == 1 { String::new() } else { format!(" of {}", provider::shown(&of.url)) };
        say!("# {}{name}: {token}", of.token_header);
        for caution in of.cautions() {
            say!("# warning: {caution}");
        }
    }
    say!("# access: {access}");
    if config.store.create
        && config.store.snapshot.iter().chain(&config.store.incremental).any(|path| is_url(&path.to_string_lossy()))
    {
        say!("# snapshot: the disk is not checked, because the archive's server is asked only when the load starts");
    }
    for reason in heal::unlisted(config) {
        say!("# warning: {reason}: the service waits for archives there");
    }
    if !store::look(config.opening())? {
        say!("# store: not checked, because another process has it open");
    }
    let options = config.engine.options();
    for caution in config.stream.selection().cautions(options.label(), options.has_filter_in_memory()) {
        say!("# follow: {caution}");
    }
    Ok(())
}

/// Returns an archive's location without the secrets that a URL may hold.
fn shown_archive(location: &Path) -> PathBuf {
    let text = location.to_string_lossy();
    if is_url(&text) { provider::shown(&text).into() } else { location.to_owned() }
}

/// Parses the filter in RUST_LOG; `info` without one.
fn log_filter(text: Option<&str>) -> Result<EnvFilter> {
    let text = text.filter(|text| !text.is_empty()).unwrap_or("info");
    EnvFilter::builder()
        .parse(text)
        .with_context(|| format!("not a filter of logs: RUST_LOG={text}: such as info, or warn,solkv_service=debug"))
}

fn log(format: LogFormat) -> Result<(), Failed> {
    let filter = log_filter(std::env::var(EnvFilter::DEFAULT_ENV).ok().as_deref()).map_err(Failed::wrong)?;
    program::log(filter, format == LogFormat::Json).map_err(anyhow::Error::from)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_of_logs_that_is_none_is_refused() {
        for good in [None, Some(""), Some("debug"), Some("warn,solkv_service=debug")] {
            log_filter(good).unwrap();
        }
        let error = format!("{:#}", log_filter(Some("info,solkv_service=loud")).unwrap_err());
        assert!(error.contains("RUST_LOG=info,solkv_service=loud"), "{error}");
    }
}
