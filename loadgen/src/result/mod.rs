//! Result files: one JSON line for each run, complete enough to be read alone.
//!
//! Owns: the format of result files. Must not: measure or draw.

mod record;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

pub use record::{
    Baseline, Curve, Io, Machine, Memory, Opening, Quantiles, Record, SCHEMA_VERSION, Sample, Series, Workload,
};

/// Reads a result file, which may be compressed with zstd.
///
/// # Errors
/// I/O errors, naming the file; a line that is not a record, or is of a newer format.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    /// Only the version, so that a newer format is reported as such even if its other fields have changed.
    #[derive(serde::Deserialize)]
    struct Version {
        schema: u32,
    }
    let text = text_of(path).with_context(|| format!("cannot read file={}", path.display()))?;
    let mut records = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = || format!("not a record: file={} line={}", path.display(), number + 1);
        let version: Option<Version> = serde_json::from_str(line).ok();
        let not_ours = || format!("{}: give a result file, as `loadgen bench` writes it", at());
        let Version { schema } = version.with_context(not_ours)?;
        ensure!(
            schema <= SCHEMA_VERSION,
            "a newer format: file={} line={} schema={schema} newest_known={SCHEMA_VERSION}; use a newer loadgen",
            path.display(),
            number + 1
        );
        records.push(serde_json::from_str(line).with_context(at)?);
    }
    Ok(records)
}

fn text_of(path: &Path) -> std::io::Result<String> {
    if path.extension().is_some_and(|ending| ending == "zst") {
        std::io::read_to_string(zstd::Decoder::new(File::open(path)?)?)
    } else {
        std::fs::read_to_string(path)
    }
}

/// Refuses a file that could not be written at the end of the work: its folder is missing.
///
/// # Errors
/// The missing folder, with the option that names the file.
pub fn check_folder(option: &str, file: Option<&Path>) -> Result<()> {
    let folder = file.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    let (Some(file), Some(folder)) = (file, folder) else { return Ok(()) };
    let (file, shown) = (file.display(), folder.display());
    ensure!(
        folder.is_dir(),
        "the folder of this file is missing: {option}={file}: make dir={shown}, or name another file"
    );
    Ok(())
}

/// Appends a record as one line.
///
/// # Errors
/// I/O errors of writing, naming the file.
pub fn append(path: &Path, record: &Record) -> Result<()> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    let at = || format!("cannot write results: file={}", path.display());
    let mut file = OpenOptions::new().create(true).append(true).open(path).with_context(at)?;
    file.write_all(&line).with_context(at)
}

/// Returns the command line that started this program, quoted for a shell.
pub fn command() -> String {
    let arguments = std::env::args().skip(1).map(|argument| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:,=@+%".contains(letter);
        if !argument.is_empty() && argument.chars().all(plain) {
            argument
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    });
    std::iter::once("loadgen".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// Returns the time, in ms since the Unix epoch.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Returns version and commit of this program.
pub fn program() -> String {
    format!("{} ({})", env!("CARGO_PKG_VERSION"), env!("SOLKV_COMMIT"))
}
