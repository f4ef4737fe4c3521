//! The files and directories that a command was given, seen together: none of them may be another one, or inside it.
//!
//! Owns: these refusals, and the default place of a spill. Must not: make or change anything. Runs on the main thread,
//! before a source is read.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::Result;

use crate::load::LoadArgs;
use crate::source::SourceArgs;
use crate::wrong::Wrong;

/// The directory of a spill.
#[derive(Clone, Debug)]
pub(crate) struct WorkDir {
    pub(crate) path: PathBuf,
    /// Nobody has named it: even one that a load finds empty is removed with the spill, because a load that was killed as
    /// it began has left it.
    pub(crate) is_default: bool,
}

impl WorkDir {
    /// One that somebody has named.
    pub(crate) fn named(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), is_default: false }
    }
}

/// The directory of a spill: the one that was asked for, or that of the store with `ending` at the end of its name.
///
/// # Errors
/// It is the store's directory, inside it or around it; or it holds the input. The store's directory is a link to nothing.
pub(crate) fn work_dir(dir: &Path, asked: Option<&Path>, ending: &str, source: &SourceArgs) -> Result<WorkDir> {
    if dir.is_symlink() && !dir.exists() {
        return Err(Wrong::error(format!("the store's directory is a link that leads nowhere: dir={}", dir.display())));
    }
    let default = || WorkDir { path: beside(dir, ending), is_default: true };
    let work = asked.map_or_else(default, WorkDir::named);
    let (at, store) = (resolved(&work.path), resolved(dir));
    if at.starts_with(&store) || store.starts_with(&at) {
        return Err(Wrong::error(format!(
            "the store and the spill need directories of their own: dir={} work_dir={}: name one beside the store with \
             --work-dir",
            store.display(),
            at.display()
        )));
    }
    let input = source.input.as_deref().filter(|input| *input != Path::new("-"));
    if let Some(input) = input.filter(|input| resolved(input).starts_with(&at)) {
        return Err(Wrong::error(format!(
            "the input is inside the directory of the spill: file={} work_dir={}: name another with --work-dir",
            input.display(),
            work.path.display()
        )));
    }
    Ok(work)
}

/// Refuses to write a report over the input, over another one, or into the store.
///
/// # Errors
/// Names the options and the file.
pub(crate) fn check_outputs(args: &LoadArgs, work: &Path) -> Result<()> {
    let input = args.source.input.as_deref();
    // A file may be redirected to standard input.
    let input = input.map(|input| if input == Path::new("-") { Path::new("/dev/stdin") } else { input });
    let outputs = [("--report", args.report.as_deref()), ("--hlog", args.hlog.as_deref())];
    let mut earlier: Vec<(&str, &Path)> = input.map(|input| ("--input", input)).into_iter().collect();
    for (name, path) in outputs.into_iter().filter_map(|(name, path)| Some((name, path?))) {
        if let Some((other, _)) = earlier.iter().find(|(_, other)| is_same(path, other)) {
            return Err(Wrong::error(format!(
                "{name} and {other} are the same file: file={}: name another one for {name}",
                path.display()
            )));
        }
        let at = resolved(path);
        for dir in [args.dir.as_path(), work] {
            if at.starts_with(resolved(dir)) {
                let (dir, file) = (dir.display(), path.display());
                return Err(Wrong::error(format!("{name} is inside dir={dir}: file={file}: name a file elsewhere")));
            }
        }
        earlier.push((name, path));
    }
    Ok(())
}

/// Whether both are one file, by their inode or, where there is none yet, by their place. Devices may be one: nothing in
/// them is lost.
fn is_same(path: &Path, other: &Path) -> bool {
    match (fs::metadata(path), fs::metadata(other)) {
        (Ok(one), Ok(two)) => one.is_file() && (one.dev(), one.ino()) == (two.dev(), two.ino()),
        _ => resolved(path) == resolved(other),
    }
}

/// `dir` with `ending` at the end of its name.
pub(crate) fn beside(dir: &Path, ending: &str) -> PathBuf {
    let named = matches!(dir.components().next_back(), Some(Component::Normal(_)));
    // Without a slash at the end. `.` and `..` have no name of their own.
    let dir: PathBuf = if named { dir.components().collect() } else { resolved(dir) };
    let mut name = dir.into_os_string();
    name.push(ending);
    PathBuf::from(name)
}

/// Where `path` is or will be: the nearest directory above it that exists, without links, and the names below that one.
fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for above in path.ancestors() {
        if let (Ok(real), Ok(below)) = (above.canonicalize(), path.strip_prefix(above)) {
            return if below.as_os_str().is_empty() { real } else { real.join(below) };
        }
    }
    path
}
