//! Kills by SIGKILL at random moments: a supervisor starts an agent that commits batch after batch, kills it, opens the
//! store itself and compares.
//!
//! The oracle: every commit that the agent has reported is there. The store ends exactly at a checkpoint, with every
//! batch up to it whole and nothing of a later one. No checkpoint is beyond the last attempted one. A kill leaves the
//! page cache intact, so the oracle is the same for buffered and for synced commits. Power loss is not simulated here.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine_api::Durability;
use engine_kit::Rng;

use crate::Store;
use crate::agent::{Agent, say};
use crate::bulk::chunk;
use crate::support::{Change, Map, apply, assert_holds, commit, key, mark, must, reader, scan, temp_dir, value};

const ROUNDS: u64 = 5;
/// Number of keys: few enough that batches overwrite and delete each other's pairs.
const KEYS: u64 = 3000;
const CHANGES: u64 = 100;

/// Kills during commits that wait for the device.
pub fn killed_with_synced_commits(store: &dyn Store) {
    supervise(store, "synced");
}

/// Kills during commits that are only handed to the kernel.
pub fn killed_with_buffered_commits(store: &dyn Store) {
    supervise(store, "buffered");
}

/// Kills during loads of sorted chunks. A chunk without its checkpoint may be there, and loading continues from the
/// checkpoint.
pub fn killed_while_bulk_loading(store: &dyn Store) {
    supervise(store, "bulk");
}

/// Runs the agent: it reports `opened SEQ`, then `attempt SEQ` before and `acked SEQ` after each batch, until it is
/// killed.
pub(crate) fn agent(store: &dyn Store, dir: &Path, role: &str, seed: u64) {
    let engine = must("open", store.open(dir));
    let last = must("checkpoint", engine.checkpoint()).seq;
    say(format_args!("opened {last}"));
    for seq in last + 1.. {
        if role == "bulk" {
            let pairs = chunk(seq);
            let bulk = engine.bulk().expect("the supervisor has seen that there is one");
            say(format_args!("attempt {seq}"));
            must("load_sorted", bulk.load_sorted(&pairs, &mark(seq)));
        } else {
            let durability = if role == "synced" { Durability::Synced } else { Durability::Buffered };
            let changes = batch(seed, seq);
            say(format_args!("attempt {seq}"));
            commit(&*engine, &changes, seq, durability);
        }
        say(format_args!("acked {seq}"));
    }
}

fn supervise(store: &dyn Store, role: &str) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    if role == "bulk" && engine.bulk().is_none() {
        println!("{} has no path for sorted input: nothing to check", engine.label());
        return;
    }
    must("close", engine.close());
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let seed = since_epoch.as_nanos() as u64;
    println!("store={} role={role} seed={seed}", store.name());
    let mut rng = Rng::new(seed);
    let (mut expected, mut last) = (Map::new(), 0);
    for round in 0..ROUNDS {
        let agent = Agent::start(store, role, dir.path(), seed, None);
        let (acked, attempted) = run_and_kill(agent, &mut rng, last);
        let engine = must("open after a kill", store.open(dir.path()));
        let seq = must("checkpoint", engine.checkpoint()).seq;
        let place = format!("round={round} seq={seq} acked={acked} attempted={attempted} seed={seed}");
        assert!(acked <= seq && seq <= attempted, "{place}");
        println!("{place}");
        for seq in last + 1..=seq {
            match role {
                "bulk" => expected.extend(chunk(seq)),
                _ => apply(&mut expected, &batch(seed, seq)),
            }
        }
        if role == "bulk" {
            // Any part of the chunk that was cut short may be there. Loading it again must make it whole.
            let cut: Map = chunk(seq + 1).into_iter().collect();
            let mut found = scan(&mut *reader(&*engine));
            found.retain(|key, _| !cut.contains_key(key));
            expected.iter().for_each(|(key, value)| assert_eq!(found.remove(key), Some(*value), "{place}"));
            assert!(found.is_empty(), "pairs of no attempted chunk: {} {place}", found.len());
            let bulk = engine.bulk().expect("seen above");
            must("load the cut chunk again", bulk.load_sorted(&chunk(seq + 1), &mark(seq + 1)));
            expected.extend(chunk(seq + 1));
            last = seq + 1;
        } else {
            last = seq;
        }
        if last > 0 {
            assert_holds(&*engine, &expected, &mark(last));
        }
        must("close", engine.close());
    }
    assert!(last > 0, "no round got as far as a commit");
}

/// Lets the agent run for a random number of commits and a random time more. Once there is a first commit, the agent
/// sometimes gets only a moment from its start, so that its opening is cut short too. Returns the last acknowledged and
/// the last attempted batch.
fn run_and_kill(agent: Agent, rng: &mut Rng, last: u64) -> (u64, u64) {
    let (mut acked, mut attempted) = (last, last);
    let mut note = |line: String| {
        let number = |text: &str| text.parse::<u64>().expect("agents say numbers");
        match line.split_once(' ') {
            Some(("acked", seq)) => acked = number(seq),
            Some(("attempt", seq)) => attempted = number(seq),
            _ => {}
        }
        acked
    };
    if last == 0 || rng.below(4) != 0 {
        let target = last + 1 + rng.below(40);
        while let Some(line) = agent.next_line() {
            if note(line) >= target {
                break;
            }
        }
    }
    std::thread::sleep(Duration::from_micros(rng.below(30_000)));
    for line in agent.kill() {
        note(line);
    }
    (acked, attempted)
}

fn batch(seed: u64, seq: u64) -> Vec<Change> {
    let mut rng = Rng::new(seed ^ seq.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (0..CHANGES).map(|_| (key(rng.below(KEYS)), (rng.below(5) != 0).then(|| value(rng.next())))).collect()
}
