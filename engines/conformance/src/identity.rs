//! Ownership of a directory: one process at a time, one engine, one format.

use std::path::Path;

use engine_api::{Durability, ErrorKind};

use crate::Store;
use crate::agent::{Agent, say, wait_for_the_end};
use crate::support::{Map, assert_holds, commit, describe, key, mark, must, must_fail, temp_dir, value};

/// A directory that one process has open is refused to others. The error names the directory and the pid of the holder.
pub fn a_second_process_is_refused(store: &dyn Store) {
    let dir = temp_dir();
    let engine = must("create", store.open(dir.path()));
    commit(&*engine, &[(key(1), Some(value(1)))], 1, Durability::Synced);

    let second = Agent::start(store, "hold", dir.path(), None);
    let answer = second.next_line().expect("the agent answers before it ends");
    assert!(answer.starts_with("refused kind=Retry"), "{answer}");
    assert!(answer.contains(&*dir.path().to_string_lossy()), "the error names the directory: {answer}");
    assert!(answer.contains(&std::process::id().to_string()), "the error names the holder: {answer}");
    drop(second);
    must_fail("a second open in one process", ErrorKind::Retry, store.open(dir.path()));
    assert_holds(&*engine, &Map::from([(key(1), value(1))]), &mark(1));
    must("close", engine.close());

    let holder = Agent::start(store, "hold", dir.path(), None);
    assert_eq!(holder.next_line().as_deref(), Some("opened"));
    let error = must_fail("open while another holds it", ErrorKind::Retry, store.open(dir.path()));
    assert!(error.to_string().contains(&holder.id().to_string()), "the error names the holder: {error}");
    drop(holder);
    assert_holds(
        &*must("open after the holder was killed", store.open(dir.path())),
        &Map::from([(key(1), value(1))]),
        &mark(1),
    );
}

/// After closing, or dropping, another process can open the directory at once.
pub fn closing_releases_the_directory(store: &dyn Store) {
    let dir = temp_dir();
    must("close", must("create", store.open(dir.path())).close());
    for _ in 0..2 {
        let mut agent = Agent::start(store, "hold", dir.path(), None);
        assert_eq!(agent.next_line().as_deref(), Some("opened"));
        agent.finish();
        assert_eq!(agent.next_line().as_deref(), Some("closed"));
        drop(must("open after the agent has closed", store.open(dir.path())));
    }
}

/// `store` must refuse a directory that `other`, of a different engine, has made. The error names that engine.
pub fn another_engines_directory_is_refused(store: &dyn Store, other: &dyn Store, other_engine: &str) {
    let dir = temp_dir();
    let engine = must("create", other.open(dir.path()));
    commit(&*engine, &[(key(1), Some(value(1)))], 1, Durability::Synced);
    must("close", engine.close());
    let error = must_fail("open another engine's directory", ErrorKind::FixInput, store.open(dir.path()));
    assert!(error.to_string().contains(other_engine), "the error names the engine {other_engine}: {error}");
    assert_holds(&*must("open it as what it is", other.open(dir.path())), &Map::from([(key(1), value(1))]), &mark(1));
}

/// Runs the agent that holds a store open until its supervisor lets it go.
pub(crate) fn hold(store: &dyn Store, dir: &Path) {
    match store.open(dir) {
        Err(error) => say(format_args!("refused {}", describe(&error))),
        Ok(engine) => {
            say("opened");
            wait_for_the_end();
            must("close", engine.close());
            say("closed");
        }
    }
}
