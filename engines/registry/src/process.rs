//! Limits of the process that opens a store.
//!
//! Owns: raising the limit of open files, and turning the limit of file sizes into an error. Must not: open anything.
//! Used on the main thread and on the thread that opens the store.

/// Makes a write beyond the limit of a file's size (`ulimit -f`, `LimitFSIZE=`) fail with an error that names the file.
/// By the signal's default action the process would end without a message. Call this once, before anything is written.
pub fn file_size_limit_is_an_error() {
    // SAFETY: no handler is installed; ignoring a signal is allowed at any time.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Raises this process's limit of open files to its hard limit. RocksDB and strata keep every file of a store open,
/// more than a thousand at a billion pairs, and processes begin with a limit of 1024.
pub(crate) fn raise_open_files() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    // If this is refused, an engine that needs more files reports it.
    rustix::process::setrlimit(rustix::process::Resource::Nofile, most).ok();
}
