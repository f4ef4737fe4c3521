//! The command line: `bootstrap [load] ...`, `migrate`, `verify`, `compare`, `scrub`, `repair`, `info`, `get`, `derive`,
//! `keys-of`, `export`, `count`, `plan`, `completions`, `man`.
//!
//! Owns: arguments and exit codes. The word `load` may be left out, because loading is the program's main job. The word
//! `migrate` may be left out too, because --from-store implies it. The installed program is called `solkv-bootstrap`,
//! and that name appears in its help and its manual.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use engine_api::{ErrorKind, words};

use crate::args::LoadArgs;
use crate::out::tell;
use crate::signal::{self, Stopped};
use crate::wrong::Wrong;
use crate::{compare, derive, export, get, info, keys_of, load, migrate, plan, repair, scrub, verify};

const AFTER_HELP: &str = "\
Examples:
  solkv-bootstrap --dir /data/solkv --input snapshot-312000000-HASH.tar.zst --extract token-owner
  solkv-bootstrap --dir /data/solkv --input snapshot-312000000-HASH.tar.zst --extract token-owner \\
      --incremental incremental-snapshot-312000000-312004000-HASH.tar.zst --cluster mainnet --resume
  solkv-bootstrap --dir /data/solkv --input pairs.bin --slot 312000000 --extract token-owner
  solkv-bootstrap --dir /data/solkv --input owners.csv --on-duplicate last --extract account-owner
  solkv-bootstrap --engine rocksdb --bloom 20 --dir /data/trial --pairs 2M --seed 1
  solkv-bootstrap plan --pairs 1.2G --memory 8GiB
  solkv-bootstrap --from-store /data/solkv --engine strata --dir /data/solkv-strata
  solkv-bootstrap verify --dir /data/solkv --input pairs.bin
  solkv-bootstrap compare --dir /data/solkv --with /backup/solkv
  solkv-bootstrap scrub --dir /data/solkv
  solkv-bootstrap repair --dir /data/solkv
  solkv-bootstrap info --dir /data/solkv --digest
  solkv-bootstrap get --dir /data/solkv TOKEN_ACCOUNT
  solkv-bootstrap derive --dir /data/solkv
  solkv-bootstrap keys-of --dir /data/solkv WALLET
  solkv-bootstrap export --dir /data/solkv --to pairs.csv

'load --help' explains the options of a load. The word load may be left out, and so may
migrate if --from-store is given. 'solkv-service snapshot' makes copies, and
'solkv-service restore' puts them back.

Exit codes:
  0         done; for load also if it was complete already
  1         the store differs (verify, compare, migrate), is damaged (scrub), lost
            something (repair), lacks a key (get, keys-of), or an error that stderr explains
  2         wrong arguments or engine options, archives that do not fit together, or a
            memory limit that is too small for a load: the same command fails each time
  3         a memory fault in an LMDB store whose file is cut or damaged: stderr names it
  130, 143  stopped by Ctrl-C or SIGTERM: stderr says whether --resume continues or the load begins again";

/// Exit code when a memory fault in a damaged LMDB file has ended the process.
const FAULT: u8 = 3;

#[derive(Parser, Debug)]
#[command(name = "solkv-bootstrap", version, after_help = AFTER_HELP)]
/// Bulk-loads pubkey-to-pubkey pairs into a store: hundreds of millions, in bounded memory, resumable and verified
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Load pairs into a new store, or continue a load with --resume
    Load(Box<LoadArgs>),
    /// Copy a store into a new one, for instance of another engine, with its checkpoint, and compare the two
    Migrate(Box<migrate::MigrateArgs>),
    /// Check whether a store holds exactly the pairs of a source, and name the keys that differ
    Verify(verify::VerifyArgs),
    /// Compare a store with another one, of any engine
    Compare(compare::CompareArgs),
    /// Read the whole store and its derived stores, and check them against the engine's own checksums (LMDB has none)
    Scrub(scrub::ScrubArgs),
    /// Repair a damaged store and list the losses (strata); unreadable files are set aside, not removed
    Repair(repair::RepairArgs),
    /// Describe a store, even while a service has it open
    Info(info::InfoArgs),
    /// Look up keys in a store that no service has open
    Get(get::GetArgs),
    /// Build the store that finds the keys of a value, compare it with its map, or remove it
    Derive(derive::DeriveArgs),
    /// Print the keys that have a value, of a store that no service has open
    KeysOf(keys_of::KeysOfArgs),
    /// Write pairs of a store to a file: all, those of a value or a prefix, or a sample
    Export(export::ExportArgs),
    /// Count the pairs by a full scan
    Count(info::CountArgs),
    /// Compute memory, disk and loading time for a number of pairs
    Plan(plan::PlanArgs),
    #[command(flatten)]
    Shell(program::Shell),
}

fn name(args: &[OsString]) -> String {
    program::program_name(args.first().map(OsString::as_os_str), "bootstrap")
}

/// Runs the program: [`run`], in a process that a panic of any thread ends.
pub fn main(args: Vec<OsString>) -> ExitCode {
    program::end_at_panics(&name(&args), engines::catches_panics);
    run(args)
}

/// Parses the arguments, runs the command, prints an error, and returns the exit code.
pub fn run(args: Vec<OsString>) -> ExitCode {
    let name = name(&args);
    engines::explain_faults(Some(FAULT));
    engines::file_size_limit_is_an_error();
    let args = program::with_command(args, |args| {
        let from_store = |arg: &OsString| {
            let arg = arg.to_string_lossy();
            arg == "--from-store" || arg.starts_with("--from-store=")
        };
        if args.iter().any(from_store) { "migrate" } else { "load" }
    });
    let outcome = match program::parse::<Cli>(&name, args).command {
        Command::Load(args) => load::run(&args),
        Command::Migrate(args) => migrate::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Scrub(args) => scrub::run(&args),
        Command::Repair(args) => repair::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Get(args) => get::run(&args),
        Command::Derive(args) => derive::run(&args),
        Command::KeysOf(args) => keys_of::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Count(args) => info::count(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Shell(shell) => shell.run::<Cli>(&name).map(|()| 0),
    };
    let code = match outcome {
        Err(error) if Stopped::is_cause_of(&error) => signal::tell_unchanged(&error),
        Err(error) => {
            tell!("{name}: {}", words(error.as_ref()));
            if is_damage_without_a_way_out(&error) {
                tell!(
                    "restore a snapshot or load the store again; with strata, `{name} repair --dir DIR` \
                     keeps all that can be read"
                );
            }
            // A service manager restarts the program after code 1, and not after 2.
            if error.is::<Wrong>() { 2 } else { 1 }
        }
        Ok(code) => code,
    };
    program::end(&name, code)
}

/// Whether the command met damage while it read pairs, and its message names no way out. Errors of opening a store name
/// one.
fn is_damage_without_a_way_out(error: &anyhow::Error) -> bool {
    let damage = error.downcast_ref::<engine_api::Error>().filter(|found| found.kind() == ErrorKind::DataDamaged);
    damage.is_some_and(|damage| !damage.has_way_out())
}
