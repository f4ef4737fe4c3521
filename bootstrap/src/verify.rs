//! `bootstrap verify`: reads every pair of the source back and compares, then counts the store.
//!
//! A key that comes more than once must hold its last value; only keys that differ at first sight are remembered,
//! so memory stays small unless the store is wrong in general.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Result, bail};
use engine_api::{Key, Reader, Value};
use engines::{EngineOptions, OpenMode};

use crate::limits::CHUNK_PAIRS;
use crate::source::{Record, Source, SourceArgs};
use crate::state::State;

/// Compares a store with a source.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) engine: EngineOptions,
    /// Directory of the store
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    #[command(flatten)]
    pub(crate) source: SourceArgs,
}

/// Differences named at most.
const SHOWN_MAX: usize = 10;
/// Differing keys remembered at most; more means that it is another store.
const DIFFERENT_MAX: usize = 1_000_000;

/// Exit code 0 when the store holds exactly the source's pairs, 1 when not.
pub(crate) fn run(args: &VerifyArgs) -> Result<u8> {
    let source = Source::new(&args.source)?;
    let engine = engines::open(&args.dir, &args.engine, OpenMode::Existing)?;
    let mut reader = engine.reader()?;
    let mut check = Check { reader: &mut *reader, records: Vec::new(), values: Vec::new(), different: BTreeMap::new() };
    let mut records = 0u64;
    source.for_each(&mut |record| {
        records += 1;
        check.records.push(record);
        if check.records.len() == CHUNK_PAIRS { check.chunk() } else { Ok(()) }
    })?;
    check.chunk()?;
    let different = std::mem::take(&mut check.different);
    let (mut wrong, mut missing) = (0usize, 0usize);
    for (key, (number, expected)) in &different {
        let found = reader.get(key)?;
        if found.as_ref() == Some(expected) {
            continue;
        }
        wrong += 1;
        missing += usize::from(found.is_none());
        if wrong <= SHOWN_MAX {
            let show = |value: &Value| bs58::encode(value).into_string();
            println!(
                "different: key={} record={} expected={} found={}",
                show(key),
                number + 1,
                show(expected),
                found.as_ref().map_or("nothing".to_owned(), show)
            );
        }
    }
    let mut stored = 0u64;
    reader.scan(&mut |_, _| {
        stored += 1;
        ControlFlow::Continue(())
    })?;
    drop(reader);
    engine.close()?;
    let expected = State::read(&args.dir)?.and_then(|state| state.pairs).unwrap_or(records);
    if wrong > 0 || stored != expected {
        println!(
            "not equal: records={records} different={wrong} of_them_missing={missing} stored_pairs={stored} \
             expected_pairs={expected}"
        );
        return Ok(1);
    }
    println!("equal: records={records} stored_pairs={stored}");
    Ok(0)
}

struct Check<'r> {
    reader: &'r mut dyn Reader,
    records: Vec<Record>,
    values: Vec<Option<Value>>,
    /// Keys that differed, with the last value the source gives them.
    different: BTreeMap<Key, (u64, Value)>,
}

impl Check<'_> {
    fn chunk(&mut self) -> Result<()> {
        let keys: Vec<Key> = self.records.iter().map(|record| record.1).collect();
        self.values.clear();
        self.values.resize(keys.len(), None);
        self.reader.get_many(&keys, &mut self.values)?;
        for ((number, key, expected), found) in self.records.drain(..).zip(&self.values) {
            if found.as_ref() != Some(&expected) || self.different.contains_key(&key) {
                self.different.insert(key, (number, expected));
            }
        }
        if self.different.len() > DIFFERENT_MAX {
            bail!("more than {DIFFERENT_MAX} pairs differ: this store was not made from this source");
        }
        Ok(())
    }
}
