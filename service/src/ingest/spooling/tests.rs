//! Tests of the replay: the provider that a contradiction counts against, and how long the spool stays.
//!
//! Owns: nothing. Threads: `spool` takes the place of ingest-apply, which takes slots from the same side of the stream.

use std::thread;

use std::time::Duration;

use tempfile::tempdir;

use super::*;
use crate::base::chain::{Phase, WholeSlot};
use crate::spool::{Origin, source_of};

const PROVIDERS: [&str; 2] = ["http://followed", "http://spooled"];

fn slot(number: u64, parent_blockhash: [u8; 32]) -> WholeSlot {
    WholeSlot {
        slot: number,
        blockhash: [number as u8; 32],
        parent: Base { slot: number - 1, blockhash: parent_blockhash },
        created_unix_ms: 0,
        events: Vec::new(),
        late: 0,
    }
}

/// Writes a spool after slot 10 whose first slot names another parent than `[10; 32]`.
fn contradicting(dir: &Path, source: u32, figures: &Arc<SpoolFigures>) {
    let base = Base { slot: 10, blockhash: [0; 32] };
    let origin = Origin { base, meaning: "account-owner all".to_owned() };
    let mut writer = Writer::open(dir, &origin, 1 << 20, Arc::clone(figures)).unwrap();
    writer.set_source(source);
    for whole in [slot(11, [77; 32]), slot(12, [11; 32])] {
        writer.append(&whole).unwrap();
    }
    writer.flush().unwrap();
}

/// Returns the spool of a stream that has ended.
fn at_rest(dir: &Path, figures: Arc<SpoolFigures>, state: &State) -> Spooling {
    Spooling {
        dir: dir.to_owned(),
        figures,
        state: state.clone(),
        stop: watch::channel(false).0,
        receiver: tokio::spawn(async {}),
        writer: tokio::spawn(async {}),
    }
}

/// Replays such a spool of `source` to the end. Returns the state of the one that took the slots.
async fn replayed(source: u32) -> State {
    let temp = tempdir().unwrap();
    let (dir, taken) = (temp.path().join("spool"), temp.path().join("taken"));
    let figures = Arc::<SpoolFigures>::default();
    contradicting(&dir, source, &figures);
    let checkpoint = ChainCheckpoint { slot: Some(10), blockhash: [10; 32], ..ChainCheckpoint::default() };
    let state = State::at(checkpoint).with_providers(PROVIDERS.map(str::to_owned));
    let last = Base { slot: 10, blockhash: [10; 32] };
    let origin = Origin { base: last, meaning: "account-owner all".to_owned() };
    let place = Place { dir: taken.clone(), meaning: origin.meaning.clone(), bytes_max: 1 << 20 };
    let writer = Writer::open(&taken, &origin, 1 << 20, Arc::default()).unwrap();
    let taker = Spooler::new(place, Some(writer), Arc::default(), state.clone(), Duration::from_secs(3600));
    let (messages, received) = mpsc::channel(8);
    let taking = thread::spawn(move || taker.run(received));
    Replay::of(at_rest(&dir, figures, &state), &checkpoint).await.unwrap().unwrap().run(&messages, &state).await;
    assert!(!dir.exists(), "a spool that contradicts the chain is of no use");
    drop(messages);
    taking.join().unwrap();
    assert_eq!(state.resume.slot(), Some(10), "no slot of it was taken");
    state
}

#[tokio::test(start_paused = true)]
async fn the_spool_stays_until_its_last_slot_is_committed() {
    let temp = tempdir().unwrap();
    let dir = temp.path().join("spool");
    let figures = Arc::<SpoolFigures>::default();
    let base = Base { slot: 10, blockhash: [10; 32] };
    let mut writer =
        Writer::open(&dir, &Origin { base, meaning: "account-owner all".to_owned() }, 1 << 20, Arc::clone(&figures))
            .unwrap();
    for whole in [slot(11, [10; 32]), slot(12, [11; 32])] {
        writer.append(&whole).unwrap();
    }
    writer.flush().unwrap();
    let at = |slot| ChainCheckpoint { slot: Some(slot), blockhash: [slot as u8; 32], ..ChainCheckpoint::default() };
    let state = State::at(at(10));
    // A provider has contradicted the kept slots, and another one is followed.
    let kept = state.at_checkpoint(at(12), Overlay::new(&at(12), false, false));
    let gap = Gap { first_slot: 13, last_slot: 13, detail: "parent".to_owned(), contradicts: true };
    kept.progress.contradict(&gap, Some(0));
    // The followed one lacks slots, which decides nothing about the contradiction.
    kept.progress.set_phase(Phase::Gap(Gap { detail: "slots".to_owned(), contradicts: false, ..gap.clone() }));
    let replay = Replay::of(at_rest(&dir, figures, &kept), &at(10)).await.unwrap().unwrap();
    let (messages, mut received) = mpsc::channel(8);
    let replaying = tokio::spawn({
        let (messages, state) = (messages.clone(), state.clone());
        async move { replay.run(&messages, &state).await }
    });
    // All slots leave the queue, and none or only the first is committed.
    let taking = tokio::spawn(async move { while received.recv().await.is_some() {} });
    for committed in [10, 11] {
        state.published.publish(at(committed));
        tokio::time::sleep(replay::LOOK_EVERY * 10).await;
        assert!(dir.exists() && !replaying.is_finished(), "removed at slot={committed}");
    }
    let accused = state.progress.contradiction().map(|of| of.accused);
    assert_eq!(accused, Some(Some(0)), "the store takes over what only the spool knows");
    state.published.publish(at(12));
    replaying.await.unwrap();
    assert!(!dir.exists());
    drop(messages);
    taking.await.unwrap();
}

#[tokio::test]
async fn a_contradiction_counts_against_the_provider_that_the_slot_came_from() {
    let state = replayed(source_of(PROVIDERS[1])).await;
    assert!(state.providers.is_distrusted(1) && !state.providers.is_distrusted(0));
    assert!(!state.resume.is_given_up(state.resume.announce()), "the stream's first connection is none of the replay");
}

#[tokio::test]
async fn nobody_is_distrusted_for_a_slot_of_a_provider_that_is_no_longer_configured() {
    let state = replayed(source_of("http://gone")).await;
    assert!(!state.providers.is_distrusted(0) && !state.providers.is_distrusted(1));
}
