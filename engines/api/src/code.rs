//! Stable codes of the errors that a person or a program does something about.
//!
//! Owns: the list; ERRORS.md has the remedy of each. Must not: lose or rename a code once it was
//! released, or hold more than 60. An error without a code has its way out in its text alone. Any thread.

use std::error::Error as StdError;
use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident $text:literal)+) => {
        /// Stable code of an error. Its text, such as `E-LOCK`, begins the message, is the
        /// metadata `solkv-code` of a gRPC status.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Code {
            $($(#[$doc])* $name,)+
        }

        impl Code {
            /// Every code, in the order of ERRORS.md.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Returns the code's text, such as `E-LOCK`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

codes! {
    /// Another process has the store open, or locks its directory.
    Lock "E-LOCK"
    /// The directory has no store.
    NoStore "E-NO-STORE"
    /// The directory cannot be used for this: it is not empty, inside another one, or not a directory's name.
    Directory "E-DIRECTORY"
    /// The store was written by another version.
    Format "E-FORMAT"
    /// The engine is unknown, not in this build, or not the store's.
    Engine "E-ENGINE"
    /// An option of the engine is wrong, or not this engine's.
    Option "E-OPTION"
    /// The store holds another map than the one asked for: cluster, values or accounts differ.
    OtherMap "E-OTHER-MAP"
    /// The load of the store is under way, or has not finished.
    Loading "E-LOADING"
    /// Files of the store are missing, older than its marker, or of another engine.
    StoreFiles "E-STORE-FILES"
    /// Stored bytes contradict each other.
    Damaged "E-DAMAGED"
    /// A write or a flush failed, and the store has to be opened again.
    Reopen "E-REOPEN"
    /// The disk is full, or too small for the work.
    Space "E-SPACE"
    /// The memory limit or a share of it is too small.
    Memory "E-MEMORY"
    /// A bug of this program or of an engine's library.
    Bug "E-BUG"
    /// The arguments contradict each other, or one is missing.
    Arguments "E-ARGUMENTS"
    /// The source's content cannot be read as pairs.
    Input "E-INPUT"
    /// The source differs from the one with which the load was begun, or changed while it was read.
    InputChanged "E-INPUT-CHANGED"
    /// There is nothing to resume, or it was begun with other arguments.
    Resume "E-RESUME"
    /// The archive is cut, damaged or incomplete.
    Archive "E-ARCHIVE"
    /// The archive's name does not say its slot, or its packing is not supported.
    ArchiveKind "E-ARCHIVE-KIND"
    /// The full and the incremental archive do not belong together.
    ArchiveBase "E-ARCHIVE-BASE"
    /// Which value to take from each account was not said.
    Extract "E-EXTRACT"
    /// A server of archives refused, failed, or sent something else.
    Fetch "E-FETCH"
    /// A setting is unknown, missing or wrong.
    Config "E-CONFIG"
    /// A file of a secret cannot be read, is empty, or can be read by others.
    Secret "E-SECRET"
    /// A certificate or its key cannot be used.
    Tls "E-TLS"
    /// An address or a socket's path cannot be used.
    Address "E-ADDRESS"
    /// The process may open too few files.
    OpenFiles "E-OPEN-FILES"
    /// Slots of the stream are missing.
    Gap "E-GAP"
    /// A provider contradicts the applied chain.
    Contradiction "E-CONTRADICTION"
    /// The stream's server refuses the token, the plan or the request.
    StreamRefused "E-STREAM-REFUSED"
    /// The request is malformed: a key's length, too many keys, a field that is missing or unknown.
    Request "E-REQUEST"
    /// The token is missing or wrong.
    Token "E-TOKEN"
    /// Too many requests wait, or a limit of this client is reached.
    Busy "E-BUSY"
    /// The deadline passed before the answer.
    Deadline "E-DEADLINE"
    /// The service is stopping and takes no more requests.
    Stopping "E-STOPPING"
    /// The store is being loaded or healed, and answers nothing meanwhile.
    NotReady "E-NOT-READY"
    /// The store has not reached the slot asked for.
    Slot "E-SLOT"
    /// This commitment is not kept, or not at the moment.
    Commitment "E-COMMITMENT"
    /// The map has no derived store, or it cannot be used.
    Derived "E-DERIVED"
    /// The service keeps no feed.
    FeedOff "E-FEED-OFF"
    /// The position belongs to another feed.
    FeedOther "E-FEED-OTHER"
    /// The position is older than the feed's log, or not in it yet.
    FeedRange "E-FEED-RANGE"
    /// The subscriber reads more slowly than the feed grows.
    FeedStalled "E-FEED-STALLED"
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A code is the source of the error that has it.
impl StdError for Code {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_each_code_once_in_this_order() {
        let document = include_str!("../../../ERRORS.md");
        let rows = document.lines().filter_map(|line| line.strip_prefix("| `E-")?.split('`').next());
        let listed: Vec<_> = Code::ALL.iter().map(|code| &code.as_str()["E-".len()..]).collect();
        assert_eq!(rows.collect::<Vec<_>>(), listed);
        assert!(listed.len() <= 60);
    }
}
