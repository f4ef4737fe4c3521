//! Tests of the ingest as a whole.

mod simulation;
