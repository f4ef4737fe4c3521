//! SIGKILL again and again during a faulty stream: in the end the map is the one that the stream's generator computes, and its
//! derived stores have an entry for each of its pairs, and no other, and every state that it had in between.

use std::path::Path;
use std::process::ExitCode;

use workload::Rng;

use crate::past::{assert_past, state};
use crate::support::{BASE_SLOT, Service, columns, digest, end, load, stream};

const KILLS: u64 = 10;
const EVENTS_PER_SLOT: u64 = 400;

/// Number of the stream's events; `SOLKV_CRASH_EVENTS=2000000` for a long run.
fn events() -> u64 {
    std::env::var("SOLKV_CRASH_EVENTS").map_or(160_000, |text| text.parse().unwrap())
}

/// Runs `bootstrap derive` on the map in `dir`.
#[track_caller]
pub(crate) fn derive(dir: &Path, more: &[&str]) {
    let args = ["bootstrap", "derive", "--dir", dir.to_str().unwrap()];
    let code = bootstrap::cli::run(args.iter().chain(more).map(Into::into).collect());
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS), "{args:?} {more:?}");
}

#[test]
fn killed_ten_times_under_a_faulty_stream_nothing_is_lost() {
    let events = events();
    for options in columns() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("store");
        // At this rate the stream is unfinished at most kills. The replay window covers the time in which the service
        // is down.
        let (stream, workload) = stream(&format!(
            "--pairs 20000 --events {events} --events-per-slot {EVENTS_PER_SLOT} --rate 40000 --replay-slots 1000000 \
             --unknown-share 0.05 --change-share 0.3 --close-share 0.05 --skew zipfian:0.9 --dead-every 9 \
             --skip-every 11 --out-of-order-every 7 --disconnect-every 25000 --duplicates"
        ));
        load(&dir, &options, &workload);
        derive(&dir, &[]);
        let geyser = format!("http://{}", stream.address());
        let mut rng = Rng::new(options.engine as u64);
        let last_slot = BASE_SLOT + events / EVENTS_PER_SLOT;
        let (mut reached, mut midway) = (BASE_SLOT, 0);
        // Periods of a seventh of these slots.
        let history = ["--history-slots", &(2 * (last_slot - BASE_SLOT)).to_string()];
        let mut states = vec![state(&dir, &options)];
        for kill in 0..KILLS {
            let mut service = Service::start(&dir, &options, &geyser, &history);
            let part = (last_slot - BASE_SLOT) * (kill + 1) / (KILLS + 1);
            let slot = service.wait_for_slot((BASE_SLOT + part).saturating_sub(rng.below(9)).max(reached));
            assert!(slot >= reached, "{options:?}: committed slots went from {reached} back to {slot}");
            reached = slot;
            midway += u64::from(reached < last_slot);
            service.kill();
            // Mostly the next life has to recover the store.
            if kill % 4 == 1 {
                states.push(state(&dir, &options));
            }
        }
        assert!(midway > KILLS / 2, "kills after the last slot prove nothing: midway={midway}");
        let mut service = Service::start(&dir, &options, &geyser, &history);
        let end = end(&stream);
        service.wait_for_slot(end.slot);
        assert!(service.terminate().success());
        assert_eq!(digest(&dir, &options), end.digest, "{options:?}");
        derive(&dir, &["--check"]);
        assert!(states.len() > 2 && states[1].0 > BASE_SLOT);
        assert_past(&dir, &options, &states);
        stream.stop().unwrap();
    }
}
