//! The requirements on every engine, as functions over [`engine_api`]. Each topic is one function that panics with the
//! engine's label if the contract is broken, and [`suite!`] turns all of them into tests.
//!
//! Owns: the topics, the model. Must not: name a concrete engine; [`Store`] hides the differences
//! between engines. Everything is real: real files, real processes. The torture kills
//! processes with SIGKILL while they write and load, and fills their disk. Threads: a
//! test's own, unless a topic says otherwise.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a suite of tests")]

mod ability;
pub mod agent;
pub mod basic;
pub mod bulk;
pub mod child;
pub mod copies;
pub mod files;
pub mod full;
pub mod identity;
pub mod model;
pub mod numbered;
pub mod readers;
pub mod scrub;
mod support;

use std::path::Path;

pub use ability::{Ability, able};
use engine_api::{Engine, Result};

/// The way in which a test opens the engine under test.
pub trait Store: Sync {
    /// Returns the name by which a child process finds the same store.
    fn name(&self) -> &'static str;

    /// Opens the store in `dir`. Creates it if the directory is missing or empty.
    fn open(&self, dir: &Path) -> Result<Box<dyn Engine>>;

    /// Opens the store with the smallest fixed size that the engine can be configured with, so that a test can fill it.
    /// The default opens it as usual, for engines without such a size.
    fn open_small(&self, dir: &Path) -> Result<Box<dyn Engine>> {
        self.open(dir)
    }

    /// Whether stored values are under a checksum.
    fn has_checksums(&self) -> bool {
        true
    }
}

/// Defines one `#[test]` per topic for the store that the expression returns. The test binary also needs an entry for
/// child processes: a test named [`agent::ENTRY`] that calls [`child::enter`].
#[macro_export]
macro_rules! suite {
    ($store:expr) => {
        $crate::suite! { $store;
            basic: empty_store put_get_overwrite_delete dropped_batch_leaves_no_trace last_write_wins_in_a_batch
                own_writes_are_visible extreme_keys_and_values checkpoint_is_part_of_the_batch
                checkpoint_bytes_of_any_length_are_kept a_checkpoint_too_long_is_refused reopen_keeps_everything scan_is_ordered_and_complete scan_from_begins_at_its_key
                scan_prefix_stays_within_its_prefix a_second_writer_waits;
            readers: a_snapshot_stays_until_refresh readers_see_whole_batches get_many_equals_get;
            copies: a_copy_opens_and_equals a_copy_made_while_writing_is_one_commit;
            scrub: a_sound_store_passes_a_scrub a_flipped_bit_is_found;
            bulk: loaded_chunks_equal_puts unsorted_input_is_refused loading_a_chunk_again_converges;
            full: full_files_lose_nothing full_size_loses_nothing;
            identity: a_second_process_is_refused closing_releases_the_directory;
            model: random_operations_equal_the_model;
        }
    };
    ($store:expr; $($module:ident: $($topic:ident)+;)+) => {
        $($(
            #[test]
            fn $topic() {
                $crate::$module::$topic(&$store);
            }
        )+)+
    };
}
