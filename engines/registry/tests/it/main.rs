//! The registry's integration tests: the conformance suite on every compiled engine, and tests of the registry itself
//! and of the measured engine.

use std::fs;
use std::path::Path;

mod conformance;
mod directory;
mod marker;
mod measured;
mod read_only;
mod readme;
mod standing;

/// Returns the marker's text as an operator edits it: without the checksum in its first line.
fn marker_text(dir: &Path) -> String {
    let text = fs::read_to_string(dir.join("SOLKV")).expect("a store has a marker");
    let (checksum, text) = text.split_once('\n').expect("a marker has lines");
    assert!(checksum.starts_with("checksum = "), "{checksum}");
    text.to_owned()
}
