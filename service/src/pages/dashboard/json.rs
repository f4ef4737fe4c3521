//! The answer to the page's polls: the figures of this moment, and the samples that the page does not have yet.
//!
//! Owns: the names in the JSON. Must not: do I/O. Threads: the blocking pool.
//!
//! With seven latency series a poll is 5 KB and takes 1.5 ms. The first poll, with all 900 samples, is 285 KB.

use std::sync::atomic::Ordering;

use engine_latency::instrument_ns;
use serde_json::{Value, json};

use super::Dashboard;
use super::history::{COLUMNS, Curve, HISTORY_SAMPLES, Newest, Sample, SeriesNow};
use super::sample::QUANTILES;
use crate::base::figure::unix_ms;
use crate::ingest::receive::queue_batches;
use crate::net::figures::Listener;
use crate::pages::handles::Handles;
use crate::pages::status;

/// Renders the answer to `dashboard.json?since=SEQ`. Absent figures are `null`.
pub(crate) fn render(state: &Dashboard, since: u64) -> Vec<u8> {
    let (samples, newest) = state.history.since(since);
    let resources = &newest.resources;
    let mut answer = status::json(&state.handles);
    let Handles { status, net, shm_sessions, feed, .. } = &state.handles;
    let checkpoint = status.ingest.published.checkpoint();
    // ORDERING: Relaxed, also below: statistics, nothing is inferred from them.
    let open = |listener| net.of(listener).open.load(Ordering::Relaxed);
    let more = json!({
        "now_unix_ms": unix_ms(),
        "connected": status.ingest.figures.is_connected(),
        "newest_slot": status.ingest.newest_slot(),
        "applied_slot": checkpoint.slot,
        "checkpoint_seq": checkpoint.seq,
        "queue_batches": status.ingest.figures.queue_batches.load(Ordering::Relaxed),
        "queue_batches_max": queue_batches(),
        "identity": *state.identity,
        "connections": {
            "grpc": open(Listener::GrpcTcp) + open(Listener::GrpcUds),
            "shm": shm_sessions.load(Ordering::Relaxed),
        },
        "start_unix_ms": newest.start_unix_ms,
        "connected_since_unix_ms": newest.connected_since_unix_ms,
        "applied_unix_ms": newest.applied_unix_ms,
        "memory": {
            "cap_bytes": resources.cap_bytes,
            "cap_from": newest.cap_from,
            "rss": resources.rss,
            "group": resources.group,
        },
        "disk": { "store_bytes": status.ingest.figures.stats.load().disk_bytes, "space": resources.space },
        "details": details(&newest),
        "subscribers": feed.as_ref().map(|feed| feed.subscribed()).unwrap_or_default(),
        "latency": {
            "instrument_ns": instrument_ns(),
            "quantiles": QUANTILES,
            "window_unix_ms": newest.window_unix_ms,
            "series": newest.series.iter().map(series).collect::<Vec<_>>(),
        },
        "history": {
            "samples_max": HISTORY_SAMPLES,
            "columns": COLUMNS,
            "rows": samples.iter().map(|sample| row(sample)).collect::<Vec<_>>(),
        },
    });
    if let (Value::Object(answer), Value::Object(more)) = (&mut answer, more) {
        answer.extend(more);
    }
    answer.to_string().into_bytes()
}

fn details(newest: &Newest) -> Vec<Value> {
    newest.details.iter().map(|detail| json!([detail.name, detail.value, detail.per_s.map(number)])).collect()
}

fn series(series: &SeriesNow) -> Value {
    json!({
        "source": series.source,
        "op": series.op.as_str(),
        "total": curve(&series.total),
        "window": series.window.as_ref().map(curve),
    })
}

fn curve(curve: &Curve) -> Value {
    json!({
        "count": curve.count,
        "mean_ns": number(curve.mean_ns),
        "max_ns": curve.max_ns,
        "values_ns": curve.values_ns,
    })
}

/// Renders a sample as `[seq, unix_ms, [figure...], [[series, count, p50_ns, p99_ns, p999_ns, max_ns]...]]`
fn row(sample: &Sample) -> Value {
    let figures: Vec<Value> = sample.figures.iter().copied().map(number).collect();
    let latencies: Vec<[u64; 6]> = sample
        .latencies
        .iter()
        .map(|of| [of.series as u64, of.count, of.p50_ns, of.p99_ns, of.p999_ns, of.max_ns])
        .collect();
    json!([sample.seq, sample.unix_ms, figures, latencies])
}

/// Returns the number with at most one decimal, because nobody reads more and the history has 900 rows of figures.
fn number(value: f64) -> Value {
    let tenths = (value * 10.0).round();
    if !tenths.is_finite() {
        Value::Null
    } else if tenths % 10.0 == 0.0 {
        json!((tenths / 10.0) as i64)
    } else {
        json!(tenths / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_what_is_not_there_is_null() {
        let texts = [0.0, 3.0, 2.46, -7.04, 1e12, f64::NAN].map(|value| number(value).to_string());
        assert_eq!(texts, ["0", "3", "2.5", "-7", "1000000000000", "null"]);
    }
}
