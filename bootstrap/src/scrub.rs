//! `bootstrap scrub`: lets the engine check everything that it has stored.

use std::path::PathBuf;

use anyhow::Result;
use bytesize::ByteSize;
use engine_api::ErrorKind;

use crate::info::open;

/// Checks a store.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ScrubArgs {
    /// Directory of the store
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Memory of the engine
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<ByteSize>,
}

/// Exit code 0 when nothing is wrong, 1 when something is.
pub(crate) fn run(args: &ScrubArgs) -> Result<u8> {
    let checked = open(&args.dir, args.memory).and_then(|mut engine| {
        let pairs = engine.scrub()?;
        let checkpoint = engine.checkpoint()?;
        let slot = checkpoint.slot.map_or("none".to_owned(), |slot| slot.to_string());
        println!("sound: engine={} pairs={pairs} seq={} slot={slot}", engine.label(), checkpoint.seq);
        Ok(engine.close()?)
    });
    match checked {
        Ok(()) => Ok(0),
        // Found when it was opened or when it was read: the same to whoever asks.
        Err(error) => match error.downcast_ref::<engine_api::Error>() {
            Some(failed) if failed.kind() == ErrorKind::DataDamaged => {
                println!("damaged: {error:#}");
                println!(
                    "go back to a copy, load the store anew, or see what `repair --dir {}` can keep",
                    args.dir.display()
                );
                Ok(1)
            }
            _ => Err(error),
        },
    }
}
