//! The way in: receive, assemble whole slots, apply them in the order of the chain.

pub mod apply;
pub mod assemble;
mod backoff;
mod convert;
pub mod event;
pub mod extract;
pub mod receive;
pub mod subscribe;
