//! `bootstrap export`: writes the pairs of a store at rest to a file.
//!
//! Owns: the choice of pairs, and the file until it is complete. Must not: write to the store, or leave a part of a file under
//! its name. Runs on the main thread.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use derived::values;
use engine_api::{Engine, Key, Value};
use engines::Digest;
use workload::Rng;

use crate::derive::{open_values, refuse_derived};
use crate::out::{say, tell};
use crate::paths::beside;
use crate::progress::Progress;
use crate::running::warn_of_part;
use crate::scan::open_to_scan;
use crate::served;
use crate::sides::base58;
use crate::signal::Stop;

/// Number of keys of a value that are read together.
const PAGE_KEYS: usize = 10_000;

/// Number of pairs between two looks for a signal, and two drawings of the progress.
const LOOK_EVERY_PAIRS: u64 = 1 << 16;

/// Largest sample, which is held in memory: 640 MB.
const SAMPLE_MAX: u64 = 10_000_000;

/// Bytes that are written together.
const BUFFER_BYTES: usize = 1 << 20;

/// The form of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    /// KEY,VALUE in base58, a line a pair
    Csv,
    /// 64 bytes a pair: the key, then the value
    Raw,
    /// Two columns of 32 bytes, with the slot and the digest among the file's metadata
    #[cfg(feature = "parquet")]
    Parquet,
}

/// Writes pairs of a store to a file
///
/// `load` reads csv and raw again. Without a choice all pairs are written, in the order of their keys. The last lines say how many
/// there are, their digest, and the checkpoint of the store. Of a running service, export a snapshot, which `service snapshot`
/// makes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ExportArgs {
    /// Directory of the store or of a snapshot; nothing in it is changed
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// File to write, which must not exist; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) to: PathBuf,
    /// Form of the pairs in the file [default: that of the file's ending, or csv]
    #[arg(long, value_name = "FORM", value_enum)]
    pub(crate) form: Option<Form>,
    /// Only pairs with this value, in base58 or as 64 hex digits; the store needs its derived store
    #[arg(long, value_name = "VALUE", value_parser = workload::pubkey, conflicts_with_all = ["prefix", "sample"])]
    pub(crate) value: Option<Value>,
    /// Only pairs whose keys begin with these bytes, as hex digits
    #[arg(long, value_name = "HEX", value_parser = prefix)]
    pub(crate) prefix: Option<Prefix>,
    /// So many pairs, drawn at random
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SAMPLE_MAX))]
    pub(crate) sample: Option<u64>,
    /// Seed of the draw: the same seed draws the same pairs of the same store
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub(crate) seed: u64,
}

impl ExportArgs {
    /// Returns the form that is asked for, or the one that the file's ending names.
    fn form(&self) -> Result<Form> {
        let ending = self.to.extension().and_then(|ending| ending.to_str());
        Ok(match (self.form, ending) {
            (Some(form), _) => form,
            (None, Some("raw")) => Form::Raw,
            #[cfg(feature = "parquet")]
            (None, Some("parquet")) => Form::Parquet,
            #[cfg(not(feature = "parquet"))]
            (None, Some("parquet")) => anyhow::bail!(
                "this program writes no Parquet: file={}: build it with --features parquet, or give --form csv",
                self.to.display()
            ),
            (None, _) => Form::Csv,
        })
    }
}

/// The first bytes of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prefix(Vec<u8>);

fn prefix(text: &str) -> Result<Prefix, String> {
    let is_whole = text.len().is_multiple_of(2) && text.len() <= 2 * size_of::<Key>();
    if !is_whole || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err("give an even number of hex digits, at most 64".to_owned());
    }
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).map_err(|error| error.to_string());
    (0..text.len()).step_by(2).map(byte).collect::<Result<_, _>>().map(Prefix)
}

/// Writes the file. The exit code is 0 when it is complete, and 128 + signal when it was asked to stop.
pub(crate) fn run(args: &ExportArgs) -> Result<u8> {
    if served::ask(&args.dir)?.is_some() {
        return Err(served::refusal(&args.dir, "make a snapshot with `service snapshot`, and export that"));
    }
    let stop = Stop::install()?;
    refuse_derived(&args.dir)?;
    let form = args.form()?;
    let engine = open_to_scan(&args.dir, None, None)?;
    warn_of_part(&args.dir)?;
    let is_file = args.to != Path::new("-");
    let partial = beside(&args.to, ".partial");
    ensure!(!is_file || !args.to.exists(), "the file is there already: file={}: name another one", args.to.display());
    let file: Box<dyn Write + Send> = match is_file {
        true => Box::new(File::create_new(&partial).with_context(|| {
            format!("cannot create the file: file={}: if an export was killed there, remove it", partial.display())
        })?),
        false => Box::new(io::stdout()),
    };
    let written = pairs(form, file).and_then(|out| write(args, &*engine, out, &stop)).and_then(|digest| {
        if digest.is_some() && is_file {
            File::open(&partial)?.sync_all()?;
            fs::rename(&partial, &args.to)?;
            let parent = args.to.parent().filter(|parent| *parent != Path::new(""));
            File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Ok(digest)
    });
    let written = written.with_context(|| format!("cannot write the file: file={}", args.to.display()));
    if is_file && !matches!(written, Ok(Some(_))) {
        fs::remove_file(&partial).ok();
    }
    let Some(digest) = written? else {
        tell!("stopped: no file was written");
        return Ok(stop.asked().unwrap_or(1));
    };
    let checkpoint = solana::shown_of_copy(&engine.checkpoint()?);
    engine.close()?;
    let told = format!(
        "exported: file={} pairs={} digest={digest}\ncheckpoint {checkpoint}",
        args.to.display(),
        digest.pairs()
    );
    if is_file {
        say!("{told}")
    } else {
        tell!("{told}")
    }
    Ok(0)
}

/// Writes the pairs that are asked for. Returns their digest; `None` when asked to stop.
fn write(args: &ExportArgs, engine: &dyn Engine, mut out: Box<dyn Pairs>, stop: &Stop) -> Result<Option<Digest>> {
    let mut digest = Digest::default();
    let mut put = |key: &Key, value: &Value| {
        digest.add(key, value);
        out.pair(key, value)
    };
    let total = args.value.is_none().then(|| engine.stats()).transpose()?.map(|stats| stats.pairs_estimate);
    let mut progress = Progress::new(total.filter(|_| args.prefix.is_none()), "export");
    let (mut read, mut failed) = (0, None);
    let mut sample = args.sample.map(|count| Sample { rng: Rng::new(args.seed), count, seen: 0, pairs: Vec::new() });
    let mut take = |key: &Key, value: &Value| {
        read += 1;
        if read % LOOK_EVERY_PAIRS == 0 {
            progress.set(read);
        }
        failed = match &mut sample {
            Some(sample) => {
                sample.take(key, value);
                None
            }
            None => put(key, value).err(),
        };
        let ends = failed.is_some() || read % LOOK_EVERY_PAIRS == 0 && stop.asked().is_some();
        if ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    match (&args.value, &args.prefix) {
        (Some(value), _) => keys_of(args, engine, value, &mut take)?,
        (None, Some(Prefix(prefix))) => {
            let mut first = [0; 32];
            first[..prefix.len()].copy_from_slice(prefix);
            engine.reader()?.scan_prefix(&first, prefix.len(), &mut take)?;
        }
        (None, None) => engine.reader()?.scan(&mut take)?,
    }
    progress.clear();
    if let Some(failed) = failed {
        return Err(failed);
    }
    if stop.asked().is_some() {
        return Ok(None);
    }
    for (key, value) in sample.map_or_else(Vec::new, Sample::sorted) {
        put(&key, &value)?;
    }
    let checkpoint = solana::shown_of_copy(&engine.checkpoint()?).to_string();
    out.finish(&[("checkpoint", &checkpoint), ("digest", &digest.to_string())])?;
    Ok(Some(digest))
}

/// Passes the keys of a value, in the order of the derived store.
fn keys_of(
    args: &ExportArgs,
    map: &dyn Engine,
    value: &Value,
    take: &mut dyn FnMut(&Key, &Value) -> ControlFlow<()>,
) -> Result<()> {
    let (store, position) = open_values(&args.dir, map)?;
    let (mut reader, mut after) = (store.reader()?, None);
    loop {
        let page = values::page(&mut *reader, &position.secret, value, after.as_ref(), PAGE_KEYS, None)?;
        let goes_on = page.keys.iter().all(|key| take(key, value).is_continue());
        after = page.more;
        if !goes_on || after.is_none() {
            break;
        }
    }
    drop(reader);
    store.close()?;
    Ok(())
}

/// A random sample of bounded size: algorithm R of Vitter, "Random Sampling with a Reservoir", 1985.
struct Sample {
    rng: Rng,
    count: u64,
    seen: u64,
    pairs: Vec<(Key, Value)>,
}

impl Sample {
    fn take(&mut self, key: &Key, value: &Value) {
        self.seen += 1;
        if (self.pairs.len() as u64) < self.count {
            self.pairs.push((*key, *value));
            return;
        }
        let at = self.rng.below(self.seen);
        if at < self.count {
            self.pairs[at as usize] = (*key, *value);
        }
    }

    fn sorted(mut self) -> Vec<(Key, Value)> {
        self.pairs.sort_unstable();
        self.pairs
    }
}

/// A file of pairs in one form.
trait Pairs {
    fn pair(&mut self, key: &Key, value: &Value) -> Result<()>;

    /// Writes the rest, and the named facts about the store if the form has a place for them.
    fn finish(self: Box<Self>, facts: &[(&str, &str)]) -> Result<()>;
}

type Buffered = BufWriter<Box<dyn Write + Send>>;

struct Csv(Buffered);
struct Raw(Buffered);

impl Pairs for Csv {
    fn pair(&mut self, key: &Key, value: &Value) -> Result<()> {
        Ok(writeln!(self.0, "{},{}", base58(key), base58(value))?)
    }

    fn finish(mut self: Box<Self>, _: &[(&str, &str)]) -> Result<()> {
        Ok(self.0.flush()?)
    }
}

impl Pairs for Raw {
    fn pair(&mut self, key: &Key, value: &Value) -> Result<()> {
        Ok(self.0.write_all(&[*key, *value].concat())?)
    }

    fn finish(mut self: Box<Self>, _: &[(&str, &str)]) -> Result<()> {
        Ok(self.0.flush()?)
    }
}

#[cfg(feature = "parquet")]
impl Pairs for crate::table::Table {
    fn pair(&mut self, key: &Key, value: &Value) -> Result<()> {
        Self::pair(self, key, value)
    }

    fn finish(self: Box<Self>, facts: &[(&str, &str)]) -> Result<()> {
        Self::finish(*self, facts)
    }
}

fn pairs(form: Form, file: Box<dyn Write + Send>) -> Result<Box<dyn Pairs>> {
    let file = BufWriter::with_capacity(BUFFER_BYTES, file);
    Ok(match form {
        Form::Csv => Box::new(Csv(file)),
        Form::Raw => Box::new(Raw(file)),
        #[cfg(feature = "parquet")]
        Form::Parquet => Box::new(crate::table::Table::new(file)?),
    })
}
