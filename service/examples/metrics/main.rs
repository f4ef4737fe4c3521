//! Prints a document that is made from the metric catalogue: METRICS.md, or the Grafana dashboard. `make metrics` runs it.
//!
//! Owns: the choice between the two. Must not: be a part of the service's program. Thread: `main`.

#![allow(clippy::print_stdout, reason = "an example for developers")]

mod document;
mod grafana;

fn main() {
    let document = match std::env::args().nth(1).as_deref() {
        Some("markdown") => document::markdown(),
        Some("grafana") => grafana::dashboard(),
        _ => panic!("usage: metrics markdown|grafana"),
    };
    print!("{document}");
}
