//! `bootstrap scrub`: lets the engine check everything that it has stored.
//!
//! Owns: what is said of it. Must not: write to the store, or repair it. Runs on the main thread.

use std::path::PathBuf;

use anyhow::Result;
use bytesize::ByteSize;
use engine_api::ErrorKind;

use crate::info::open_to_scan;
use crate::out::say;
use crate::running::warn_of_part;

/// Checks a store.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ScrubArgs {
    /// Directory of the store; nothing in it is changed
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Memory of the engine [default: an eighth of what this process may use]
    #[arg(long, value_name = "BYTES", value_parser = engines::size)]
    pub(crate) memory: Option<ByteSize>,
}

/// Exit code 0 when nothing is wrong, 1 when something is.
pub(crate) fn run(args: &ScrubArgs) -> Result<u8> {
    let checked = open_to_scan(&args.dir, None, args.memory).and_then(|mut engine| {
        warn_of_part(&args.dir)?;
        let pairs = engine.scrub()?;
        say!("sound: engine={} pairs={pairs} {}", engine.label(), solana::shown(&engine.checkpoint()?));
        Ok(engine.close()?)
    });
    match checked {
        Ok(()) => Ok(0),
        // Found when it was opened or when it was read: the same to whoever asks.
        Err(error) => match error.downcast_ref::<engine_api::Error>() {
            Some(failed) if failed.kind() == ErrorKind::DataDamaged => {
                say!("damaged: {}", engine_api::words(error.as_ref()));
                say!(
                    "go back to a copy, load the store again, or see what `repair --dir {}` can keep",
                    args.dir.display()
                );
                Ok(1)
            }
            _ => Err(error),
        },
    }
}
