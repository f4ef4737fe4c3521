//! The ground of the service: plain types and rules that every other room uses.
//!
//! Owns: the chain's types, figures, the published slot, pulses, stops, exit codes, and how a setting and a label
//! are declared. Must
//! not: use another room of the service. Any thread.

pub(crate) mod chain;
pub(crate) mod failed;
pub(crate) mod figure;
pub(crate) mod label;
pub(crate) mod plausible;
pub(crate) mod published;
pub(crate) mod pulse;
pub(crate) mod setting;
pub(crate) mod slow;
pub(crate) mod stop;
pub(crate) mod views;
