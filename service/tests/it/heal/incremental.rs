//! Heals from an incremental archive without its full one.

use std::fs;
use std::path::Path;

use solana::MapPhase;

use super::{OUTAGE, Run, STORY, Subscriber, wait_for_need};
use crate::support::{BASE_SLOT, columns, wait_for};

/// Writes the incremental archive of the stream's block `block`, whose full one is that of the block `base`, to the
/// directory `to`, in the form of the validator `like`. Returns the slots of both.
fn incremental(run: &Run, to: &Path, like: &str, base: u64, block: u64) -> (u64, u64) {
    let made = run.temp.path().join("made");
    let slots = format!("--slots-after {base} --incremental-slots {} --like {like}", block - base);
    let plan = loadgen::archive::options(&format!("{STORY} --without large {slots}")).unwrap();
    let written = loadgen::archive::write(&plan, &made, &mut |_| Ok(())).unwrap();
    for file in fs::read_dir(&made).unwrap().map(Result::unwrap) {
        if file.file_name().to_str().unwrap().starts_with("incremental-") {
            fs::rename(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    fs::remove_dir_all(&made).unwrap();
    (written[0].slot, written[1].slot)
}

#[test]
fn an_incremental_archive_alone_heals_a_store_that_is_not_before_its_base() {
    for options in columns() {
        let run = Run::new(options);
        let subscriber = Subscriber::start(run.follower(1));
        run.fall_behind(OUTAGE);
        let small = ["--commit-every", "5"];
        let mut service = run.start(&small);
        let before = wait_for("the store", || service.slot());
        let (needed, _) = wait_for_need(&mut service, "there is none");
        let (base, _) = incremental(&run, &run.archives, "agave-unlisted", needed - BASE_SLOT - 10, needed - BASE_SLOT);
        assert!(base > before, "changes of the slots between are in no archive");
        wait_for_need(&mut service, &format!("whose full archive is newer than the store: store_slot={before}"));
        assert_eq!(service.metric("solkv_heal_failures_total"), Some(0.0));
        let (base, slot) = incremental(&run, &run.archives, "firedancer", 3, needed - BASE_SLOT + 5);
        assert!(base < before);
        wait_for("some differences", || service.metric("solkv_heal_applied").filter(|applied| *applied > 50.0));
        service.kill();
        assert!(matches!(run.phase(), MapPhase::Healing { to_slot, .. } if to_slot == slot), "{:?}", run.phase());
        let mut service = run.start(&small);
        service.wait_for_slot(slot);
        let end = run.reach_end(&mut service);
        run.finish_with(service, &end, subscriber);
    }
}
