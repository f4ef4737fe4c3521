//! The exports as another program sees them: the log is read back with the format's own reader.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use solkv_engine_latency::{Latency, Op, export};

#[test]
fn the_interval_log_reads_back_with_equal_percentiles() {
    let latency = Latency::new("lmdb");
    let mut ingest = latency.recorder("ingest");
    let mut rpc = latency.recorder("rpc");
    for i in 1..=100_000u64 {
        ingest.record(Op::ReadPositive, i * i % 7_000_003 + 1);
        rpc.record(Op::ReadNegative, 150 + i % 400);
    }
    ingest.record(Op::Commit, 2_000_000);
    let snapshot = latency.snapshot();

    let log = export::hlog(&snapshot);
    let text = std::str::from_utf8(&log).unwrap();
    assert!(text.starts_with('#') && text.contains("engine=lmdb"), "{text}");
    assert!(text.contains("[StartTime:") && text.contains("[BaseTime:"), "{text}");

    let mut read: BTreeMap<String, Histogram<u64>> = BTreeMap::new();
    for entry in IntervalLogIterator::new(&log) {
        if let LogEntry::Interval(interval) = entry.unwrap() {
            let bytes = decode_base64(interval.encoded_histogram());
            let histogram = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
            read.insert(interval.tag().unwrap().as_str().to_owned(), histogram);
        }
    }
    assert_eq!(read.keys().collect::<Vec<_>>(), ["commit.ingest", "read_negative.rpc", "read_positive.ingest"]);
    for series in &snapshot.series {
        let back = &read[&format!("{}.{}", series.op.as_str(), series.source)];
        assert_eq!(back.len(), series.histogram.len());
        for quantile in [0.0, 0.5, 0.9, 0.99, 0.999, 1.0] {
            assert_eq!(back.value_at_quantile(quantile), series.histogram.value_at_quantile(quantile));
        }
    }
}

fn decode_base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    for byte in text.bytes().filter(|&byte| byte != b'=') {
        let digit = ALPHABET.iter().position(|&letter| letter == byte).expect("base64 has no other letters");
        (bits, count) = ((bits << 6) | digit as u32, count + 6);
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    out
}
