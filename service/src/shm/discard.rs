//! Closing sockets that hold something unread.
//!
//! Owns: threads `shm-close`, one a socket. Must not: close such a socket on the thread that answers lookups: descriptors
//! may lie in it, and closing the last of one may block, such as a TCP socket's that lingers. Threads: `shm-lookup` puts
//! in.

use std::mem::ManuallyDrop;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

/// Threads at a time. A client that makes all of them block costs a descriptor each time it comes back, once an
/// `ACCEPT_PAUSE`.
const THREADS_MAX: usize = 8;

/// See the head of the file.
#[derive(Default)]
pub(super) struct Discard {
    threads: Vec<JoinHandle<()>>,
}

impl Discard {
    /// Closes a socket elsewhere, or leaves it open where that is not possible.
    pub(super) fn put(&mut self, socket: UnixStream) {
        self.threads.retain(|thread| !thread.is_finished());
        if self.threads.len() >= THREADS_MAX {
            tracing::error!(max = THREADS_MAX, "a socket is not closed: closing others takes too long");
            return std::mem::forget(socket);
        }
        // Without a thread the closure is dropped here and now, and the socket in it stays open.
        let socket = ManuallyDrop::new(socket);
        let close = move || drop(ManuallyDrop::into_inner(socket));
        match std::thread::Builder::new().name("shm-close".to_owned()).spawn(close) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => tracing::error!(%error, "a socket is not closed: there is no thread to do it"),
        }
    }
}
