//! More load than the service can take. A stream faster than its commits waits in the socket, and readers that never
//! stop leave the ingest its share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use client::Builder;
use workload::{Pairs, Rng};

use crate::support::{Service, columns, digest, end, load, stream, wait_for};

/// Maximum of the queue's metric.
const QUEUE_BATCHES_MAX: f64 = 256.0;

/// Maximum growth of memory. The full queue takes some 40 MiB and the engine's caches 64 MiB; the whole stream is many
/// times that.
const GROWTH_BYTES_MAX: u64 = 320 << 20;

#[test]
fn a_stream_faster_than_the_disk_waits_and_loses_nothing() {
    let options = columns().remove(0);
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    let (stream, workload) =
        stream("--pairs 20000 --events 200000 --events-per-slot 2000 --change-share 0.9 --rate max --replay-slots 500");
    load(&dir, &options, &workload);
    let geyser = format!("http://{}", stream.address());
    // One flush for every few events makes the disk the bottleneck.
    let mut service = Service::start(&dir, &options, &geyser, &["--commit-every", "32", "--gap-timeout", "10m"]);
    service.wait_for_slot(1000);
    let before = service.memory_bytes("VmRSS");
    let (mut longest, mut most) = (0.0f64, before);
    let end = wait_for("the stream's last slot", || {
        longest = longest.max(service.metric("solkv_queue_batches").unwrap_or_default());
        most = most.max(service.memory_bytes("VmRSS"));
        let at = service.slot()?;
        stream.outcome().unwrap().filter(|end| at >= end.slot).cloned()
    });
    assert!(longest > QUEUE_BATCHES_MAX / 8.0, "the queue shows that the stream waits: longest={longest}");
    assert!(longest <= QUEUE_BATCHES_MAX, "longest={longest}");
    assert!(most - before < GROWTH_BYTES_MAX, "before={before} most={most}");
    assert!(service.terminate().success());
    assert_eq!(digest(&dir, &options), end.digest);
    stream.stop().unwrap();
}

#[test]
fn readers_that_never_stop_leave_the_ingest_its_share() {
    let options = columns().remove(0);
    let temp = tempfile::tempdir().unwrap();
    let (dir, uds, shm) = (temp.path().join("store"), temp.path().join("kv.sock"), temp.path().join("shm.sock"));
    let (stream, workload) = stream(
        "--pairs 20000 --events 150000 --events-per-slot 500 --change-share 0.5 --rate 30000 --replay-slots 500",
    );
    load(&dir, &options, &workload);
    let geyser = format!("http://{}", stream.address());
    let more = ["--uds", uds.to_str().unwrap(), "--shm", shm.to_str().unwrap()];
    let mut service = Service::start(&dir, &options, &geyser, &more);
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let addresses = [format!("shm://{}", shm.display()), format!("unix://{}", uds.display())];
    let readers: Vec<_> = (0..8)
        .map(|reader| {
            let builder = Builder::new(&addresses[reader % 2]).unwrap();
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            let (pairs, known, mut rng) = (Pairs::new(workload.seed), workload.pairs, Rng::new(reader as u64));
            std::thread::spawn(move || {
                let mut client = wait_for("a connection", || builder.clone().connect_blocking().ok());
                // ORDERING: Relaxed: a flag and a statistic.
                while !stop.load(Ordering::Relaxed) {
                    let keys: Vec<_> = (0..1000).map(|_| pairs.key(rng.below(known))).collect();
                    match client.get_many(&keys) {
                        Ok(found) => answered.fetch_add(found.value.len() as u64, Ordering::Relaxed),
                        Err(error) => {
                            assert_eq!(error.kind(), client::ErrorKind::RetryLater, "{error}");
                            0
                        }
                    };
                }
            })
        })
        .collect();
    let end = end(&stream);
    service.wait_for_slot(end.slot);
    stop.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    let answered = answered.load(Ordering::Relaxed);
    assert!(answered > 100_000, "answered={answered}");
    assert!(service.terminate().success());
    assert_eq!(digest(&dir, &options), end.digest);
    stream.stop().unwrap();
}
