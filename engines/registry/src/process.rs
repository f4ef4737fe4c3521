//! Limits of the process that opens a store.
//!
//! Owns: which of them are raised, and which end in an error. Must not: open anything. Used on the main thread and on the one
//! that opens the store.

/// Has writing beyond the limit of a file's size (`ulimit -f`, `LimitFSIZE=`) fail as an error that names the file. By the
/// signal's default action the process would end without a word. To be called once, before anything is written.
pub fn file_size_limit_is_an_error() {
    // SAFETY: no handler is installed; ignoring a signal is allowed at any time.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Allows this process as many open files as it may allow itself: RocksDB and strata keep every file of a store open,
/// more than a thousand at a billion pairs, and 1024 is what processes begin with.
pub(crate) fn raise_open_files() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    // Where it is refused, an engine that needs more says so.
    rustix::process::setrlimit(rustix::process::Resource::Nofile, most).ok();
}
