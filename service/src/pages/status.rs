//! The status as JSON: the answer of `/status.json`, and a part of the dashboard's.
//!
//! Owns: the names in it. Must not: block; every read is wait-free. Threads: the network edge, the blocking pool.

use bootstrap::{Numbers, Seen};
use serde_json::{Map, Value, json};

use crate::base::chain::Phase;
use crate::pages::handles::Handles;
use crate::pages::metrics;

/// Returns every field of the Status rpc under its own name, the providers, the load, the spool, the heal, the warm-up, and
/// the counters.
pub(super) fn json(handles: &Handles) -> Value {
    let phase = handles.status.ingest.progress.phase();
    let status = handles.status.response();
    let checkpoint = status.checkpoint.map(|checkpoint| {
        json!({
            "seq": checkpoint.seq,
            "slot": checkpoint.slot,
            "blockhash": bs58::encode(&checkpoint.blockhash).into_string(),
        })
    });
    let gap =
        status.gap.map(|gap| json!({ "first_slot": gap.first_slot, "last_slot": gap.last_slot, "detail": gap.detail }));
    let counters: Map<String, Value> = metrics::counters(handles)
        .into_iter()
        .map(|(metric, value)| (metric.short_name().to_owned(), json!(value)))
        .collect();
    json!({
        "engine": status.engine,
        "pairs_estimate": status.pairs_estimate,
        "checkpoint": checkpoint,
        "lag_slots": status.lag_slots,
        "lag_ms": status.lag_ms,
        "ready": status.ready,
        "not_ready_reason": status.not_ready_reason,
        "gap": gap,
        "version": status.version,
        "providers": handles.status.ingest.providers.reports(),
        "load": load_json(&handles.load, matches!(phase, Phase::Loading(_))),
        "spool": handles.spool.json(),
        "heal": handles.status.ingest.healing.json(matches!(phase, Phase::Healing(_))),
        "warm_up": handles.warmth.json(),
        "counters": counters,
    })
}

/// Returns the progress of the load, or of the comparison of a heal. `under_way`: whether the store is being loaded.
fn load_json(load: &Seen, under_way: bool) -> Value {
    let Numbers { read_bytes, archive_bytes, versions, pairs, waiting } = load.now();
    json!({
        "under_way": under_way,
        "read_bytes": read_bytes,
        "archive_bytes": archive_bytes,
        "versions": versions,
        "pairs": pairs,
        "waiting": waiting.map(|waiting| waiting.to_string()),
    })
}
