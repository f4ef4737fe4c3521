//! Closing sockets that hold unread data.
//!
//! Owns: threads `shm-close`, one for each socket. Must not: close such a socket on the thread that answers lookups. It
//! may hold descriptors, and closing the last copy of one may block, such as a lingering TCP socket. Threads:
//! `shm-lookup` adds sockets.

use std::mem::ManuallyDrop;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

/// Maximum number of threads at a time. A client that makes all of them block costs one descriptor each time it comes
/// back, once an `ACCEPT_PAUSE`.
const THREADS_MAX: usize = 8;

/// The threads that close sockets; see the head of the file.
#[derive(Default)]
pub(super) struct Discard {
    threads: Vec<JoinHandle<()>>,
}

impl Discard {
    /// Closes a socket on another thread, or leaves it open if no thread is free.
    pub(super) fn put(&mut self, socket: UnixStream) {
        self.threads.retain(|thread| !thread.is_finished());
        if self.threads.len() >= THREADS_MAX {
            tracing::error!(max = THREADS_MAX, "a socket is not closed: closing others takes too long");
            return std::mem::forget(socket);
        }
        // If no thread can be started, the closure is dropped here, and the socket in it must stay open.
        let socket = ManuallyDrop::new(socket);
        let close = move || drop(ManuallyDrop::into_inner(socket));
        match std::thread::Builder::new().name("shm-close".to_owned()).spawn(close) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => tracing::error!(%error, "a socket is not closed: there is no thread to do it"),
        }
    }
}
