//! What a measurement leaves behind: one JSON line per run, complete enough to be read alone.
//!
//! Owns: the format of result files. Must not: measure or draw.

mod record;

pub use record::{Baseline, Curve, Io, Machine, Memory, Quantiles, Record, SCHEMA_VERSION, Sample, Series, Workload};
