//! The client against servers on real sockets that answer as a test tells them: breaks, holes, refusals. The service's
//! own tests cover the client together with the service.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[cfg(feature = "grpc")]
mod feed;
#[cfg(feature = "shm")]
mod shm;
#[cfg(feature = "grpc")]
mod token;
