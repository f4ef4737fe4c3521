//! `bootstrap verify`: reads every pair of the source back from the store, then looks for pairs that only the store has.
//!
//! A key that comes more than once must hold its last value. Only keys that differ at first sight are remembered, so
//! memory stays small unless the store is wrong in general. How many pairs the store may have is the source's word: a
//! store that has followed a stream since its load is compared with what it should hold now.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use engine_api::{Key, Reader, Value};
use engines::{EngineArgs, OpenMode};

use workload::Digest;

use crate::limits::{self, CHUNK_PAIRS};
use crate::load::beside;
use crate::order::{OnDuplicate, Order, Ordered};
use crate::source::{Record, Source, SourceArgs};

/// Compares a store with a source. Where keys come more than once in it, it is sorted in DIR.verify to count them.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
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
    let options = engines::options_for(&args.dir, &args.engine)?;
    let engine = engines::open(&args.dir, &options, OpenMode::Existing)?;
    let mut reader = engine.reader()?;
    let mut check = Check { reader: &mut *reader, records: Vec::new(), values: Vec::new(), different: BTreeMap::new() };
    let mut given = Digest::default();
    source.for_each(&mut |record| {
        given.add(&record.1, &record.2);
        check.records.push(record);
        if check.records.len() == CHUNK_PAIRS { check.chunk() } else { Ok(()) }
    })?;
    check.chunk()?;
    let records = given.pairs();
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
    let mut held = Digest::default();
    reader.scan(&mut |key, value| {
        held.add(key, value);
        ControlFlow::Continue(())
    })?;
    drop(reader);
    engine.close()?;
    let stored = held.pairs();
    if wrong > 0 {
        println!("not equal: records={records} different={wrong} of_them_missing={missing} stored_pairs={stored}");
        return Ok(1);
    }
    let expected = if held == given { stored } else { distinct(args, &source, stored, records)? };
    if stored != expected {
        let more = stored - expected;
        println!("not equal: records={records} expected_pairs={expected} stored_pairs={stored} only_in_store={more}");
        return Ok(1);
    }
    println!("equal: records={records} stored_pairs={stored}");
    Ok(0)
}

/// How many keys the source has, all of which are among the `stored` ones: fewer than records where a key comes more
/// than once, which takes a sort to tell.
fn distinct(args: &VerifyArgs, source: &Source, stored: u64, records: u64) -> Result<u64> {
    // Without a key given twice there are as many keys as records, and never more.
    if stored > records || matches!(source, Source::Synthetic { .. }) {
        return Ok(records);
    }
    ensure!(
        !source.is_read_once(),
        "keys come more than once, or the store has pairs that the source has not: records={records} \
         stored_pairs={stored}; standard input cannot be read again to tell: give the file by its name"
    );
    let work = beside(&args.dir, ".verify");
    let options = engines::options_for(&args.dir, &args.engine)?;
    let (_, buffers) = limits::divide(&options, Order::Sorted, 0)?;
    let ordered = Ordered::prepare(source, Order::Sorted, args.source.seed, &work, &buffers, &mut |_| Ok(()))?;
    let tally = ordered.for_each(0, OnDuplicate::Last, &mut |_| Ok(true))?;
    ordered.discard()?;
    Ok(tally.pairs)
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
