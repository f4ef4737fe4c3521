//! Archives that must not be used, or not yet, and faults of the disk: they keep no other archive from healing the gap.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

use workload::Pairs;

use super::{OUTAGE, Run, get, wait_for_need, write_archive_of};
use crate::support::{BASE_SLOT, columns, wait_for};

const HASH: &str = "EsRJJbTfoF5zDhboW3rMVYiY4xxzEFQJk4U2CEj1QwaQ";

/// A name with the slot of another cluster, and one of a pipe that nobody writes to.
#[test]
fn an_archive_that_the_stream_does_not_reach_keeps_no_other_one_waiting() {
    for options in columns() {
        let run = Run::new(options);
        run.fall_behind(OUTAGE);
        let mut service = run.start(&[]);
        let (needed, _) = wait_for_need(&mut service, "there is none");
        let pipe = run.archives.join(format!("snapshot-{}-{HASH}.tar.zst", needed + 1));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        fs::write(run.archives.join(format!("snapshot-99999999-{HASH}.tar.zst")), "x").unwrap();
        wait_for("the wait for the stream", || {
            service.get("/readyz").filter(|(_, body)| body.contains("to reach the archive's slot=99999999"))
        });
        let slot = run.archive(needed - BASE_SLOT + 5);
        service.wait_for_slot(slot);
        let end = run.reach_end(&mut service);
        assert_eq!(service.metric("solkv_heal_failures_total"), Some(0.0));
        run.finish(service, &end);
    }
}

/// Only the stream's own slots tell that an archive is of the stream's chain.
#[test]
fn an_archive_of_another_chain_is_not_applied_once_the_spool_is_full() {
    for options in columns() {
        let run = Run::new(options);
        run.fall_behind(OUTAGE);
        let mut service = run.start(&["--spool-max-bytes", "30kB"]);
        let before = wait_for("the store", || service.slot());
        let (needed, _) = wait_for_need(&mut service, "there is none");
        wait_for("a full spool", || service.metric("solkv_spool_stopped").filter(|stopped| *stopped == 1.0));
        let (_, told) = wait_for_need(&mut service, "the stream is no longer kept: ");
        assert!(told.contains("spool_max_bytes"), "{told}");
        write_archive_of("--seed 9", &run.archives, needed - BASE_SLOT + 60);
        wait_for("new slots", || service.log().contains("the kept slots end before every archive").then_some(()));
        std::thread::sleep(std::time::Duration::from_secs(3));
        assert_eq!((service.slot(), service.metric("solkv_heal_differences")), (Some(before), Some(0.0)));
        service.kill();
    }
}

#[test]
fn a_heal_goes_on_after_a_full_disk() {
    for options in columns() {
        let run = Run::new(options);
        run.fall_behind(OUTAGE);
        let mut service = run.start(&[]);
        let (needed, _) = wait_for_need(&mut service, "there is none");
        let heal = run.dir.join("heal");
        fs::create_dir_all(&heal).unwrap();
        let differences = heal.join("differences");
        symlink("/dev/full", &differences).unwrap();
        run.archive(needed - BASE_SLOT);
        wait_for_need(&mut service, "No space left on device");
        assert_eq!(service.metric("solkv_heal_failures_total"), Some(1.0));
        fs::remove_file(&differences).unwrap();
        let slot = run.archive(needed - BASE_SLOT + 5);
        service.wait_for_slot(slot);
        let end = run.reach_end(&mut service);
        run.finish(service, &end);
    }
}

/// No thread has answered anything before the heal, so that each of them needs a view that it opened by itself.
/// Of the engines the first and the last are tried: with a commit for every two changes LMDB and redb take a minute.
#[test]
fn idle_lookup_threads_answer_while_differences_are_applied() {
    let all = columns();
    for options in BTreeSet::from([0, all.len() - 1]).into_iter().map(|at| all[at].clone()) {
        let run = Run::new(options);
        run.fall_behind(OUTAGE);
        let mut service = run.start(&["--commit-every", "2", "--lookup-threads", "16"]);
        let (needed, _) = wait_for_need(&mut service, "there is none");
        let slot = run.archive(needed - BASE_SLOT);
        wait_for("some differences", || service.metric("solkv_heal_applied").filter(|applied| *applied > 20.0));
        let key = Pairs::new(run.workload.seed).key(7);
        let mut asked = 0;
        while service.slot().is_none_or(|at| at < slot) {
            get(&run.uds, &key).unwrap_or_else(|refused| panic!("asked={asked}: {refused:?}"));
            asked += 1;
        }
        let end = run.reach_end(&mut service);
        run.finish(service, &end);
    }
}
