//! An outage right after a wrong block: an incremental archive alone takes the changes of that block back.

use std::fs;
use std::path::Path;

use loadgen::provider::{Act, Provider};

use super::{Run, wait_for_need, wait_for_sent};
use crate::support::{BASE_SLOT, Service, columns};

/// A slot takes half a second, in which the provider has to end.
const DELIVERY: &str = "--rate 200 --replay-slots 4";
const STORY: &str = "--pairs 4000 --events 4000 --events-per-slot 100 --unknown-share 0.05 --change-share 0.4 \
                     --close-share 0.05";
/// Slots sent while the only provider is away: more than the server keeps.
const OUTAGE: u64 = 8;

/// Writes the archive of the stream's block `base`, and the incremental one of the block `block`, to `to`. Leaves the full
/// one out unless `full`.
fn archives(run: &Run, to: &Path, base: u64, block: u64, full: bool) {
    let made = run.temp.path().join("made");
    let slots = format!("--slots-after {base} --incremental-slots {}", block - base);
    let plan = loadgen::archive::options(&format!("{STORY} --without large {slots}")).unwrap();
    loadgen::archive::write(&plan, &made, &mut |_| Ok(())).unwrap();
    for file in fs::read_dir(&made).unwrap().map(Result::unwrap) {
        let is_full = file.file_name().to_str().unwrap().starts_with("snapshot-");
        if full || !is_full {
            fs::rename(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    fs::remove_dir_all(&made).unwrap();
}

/// The provider may not end in time. Then its next slot contradicts the wrong one, a full archive is needed, and nothing is
/// taken back. So there are three attempts.
#[test]
fn a_wrong_last_slot_is_taken_back() {
    assert!((0..3).any(|_| heals_from_an_incremental_archive()), "the wrong slot was contradicted each time");
}

/// Heals a store whose last slot is wrong. Returns whether an incremental archive alone was enough.
fn heals_from_an_incremental_archive() -> bool {
    let run = Run::telling(columns().remove(0), STORY, DELIVERY);
    let stream = format!("http://{}", run.stream.address());
    let provider = Provider::start_of("127.0.0.1:0", &stream).unwrap();
    let address = provider.address().to_string();
    let heal = ["--heal-from", run.archives.to_str().unwrap(), "--gap-timeout", "500ms"];
    let mut service = Service::start(&run.dir, &run.options, &format!("http://{address}"), &heal);
    let reached = service.wait_for_slot(BASE_SLOT + 4);
    provider.set(Act::Forks);
    let wrong = service.wait_for_slot(reached + 1);
    drop(provider);
    wait_for_sent(&run.stream, wrong + OUTAGE);
    let _honest = Provider::start_of(&address, &stream).unwrap();
    let (needed, _) = wait_for_need(&mut service, "there is none");
    let is_contradicted = service.log().contains("contradicts the applied chain");
    archives(&run, &run.archives, 2, needed - BASE_SLOT, is_contradicted);
    service.wait_for_slot(needed);
    let end = run.reach_end(&mut service);
    assert_eq!(service.metric("solkv_heals_total"), Some(1.0));
    run.finish(service, &end);
    !is_contradicted
}
