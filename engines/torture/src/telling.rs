//! The lines by which an agent tells the supervisor about its actions.
//!
//! Owns: their form. Must not: judge them. Called on any thread of an agent.
//!
//! They go to the standard output, one line each and in one write, so that a reported line survives the process:
//!
//! | line | meaning |
//! |---|---|
//! | `opening`, `found SEQ`, `opened SEQ` | the store is being opened; its checkpoint; all of it was compared |
//! | `attempt SEQ EPOCH`, `written SEQ`, `committing SEQ`, `acked SEQ DURABILITY` | a batch, from its first put on |
//! | `parked` | it waits after `written`, as its task demands |
//! | `loading SEQ` | a sorted chunk, between `attempt` and `acked` |
//! | `error WHERE KIND MESSAGE` | the engine has refused an operation |
//! | `recovered itself`, `recovered reopened` | the first success after that |
//! | `closed`, `done`, `gave up` | the store was closed; the work is done; it cannot be opened |
//! | `settling SCOPE`, `settled` | it waits for flushes and merges |
//! | `did OPERATIONS` | gets, puts and deletes since the last such line |
//! | `wrong MESSAGE` | the store differs from the model |

use std::io::Write;

use engine_api::Error;

/// Sends one line to the supervisor.
pub(crate) fn say(line: impl std::fmt::Display) {
    let line = format!("{}\n", line.to_string().replace('\n', " "));
    let mut out = std::io::stdout().lock();
    if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
        // The supervisor is gone.
        std::process::exit(0);
    }
}

/// Reports that the engine has refused an operation.
pub(crate) fn report(place: &str, error: &Error) {
    say(format_args!("error {place} {:?} {}", error.kind(), engine_api::words(error)));
}
