//! The client against servers on real sockets that say what a test wants said: breaks, holes, refusals. How it gets on
//! with the service itself is tested there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod feed;
mod token;
