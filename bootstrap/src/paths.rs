//! Checks the files and directories of a command together: none of them may be another one, or inside it.
//!
//! Owns: these refusals, and the default place of a spill. Must not: create or change anything. Runs on the main
//! thread, before a source is read.

use engine_api::Code;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::Result;
use engines::resolved;

use crate::args::LoadArgs;
use crate::order::WorkDir;
use crate::source::SourceArgs;
use crate::wrong::Wrong;

/// Returns the spill's directory: the one that was asked for, or the store's path with `ending` appended.
///
/// # Errors
/// [`Wrong`]: it is the store's directory, inside it or around it; it holds the input; or the store's directory is a
/// dangling link.
pub(crate) fn work_dir(dir: &Path, asked: Option<&Path>, ending: &str, source: &SourceArgs) -> Result<WorkDir> {
    if dir.is_symlink() && !dir.exists() {
        return Err(Wrong::error(
            Code::Directory,
            format!("the store's directory is a symbolic link to a missing directory: dir={}", dir.display()),
        ));
    }
    let default = || WorkDir { is_default: true, ..WorkDir::named(beside(dir, ending)) };
    let work = asked.map_or_else(default, WorkDir::named);
    let (at, store) = (resolved(&work.path), resolved(dir));
    if at.starts_with(&store) || store.starts_with(&at) {
        return Err(Wrong::error(
            Code::Directory,
            format!(
                "the store and the spill need directories of their own: dir={} work_dir={}: name one beside the store with \
             --work-dir",
                store.display(),
                at.display()
            ),
        ));
    }
    let inputs = [&source.input, &source.incremental].into_iter().flatten().filter(|input| **input != Path::new("-"));
    if let Some(input) = inputs.into_iter().find(|input| resolved(input).starts_with(&at)) {
        return Err(Wrong::error(
            Code::Directory,
            format!(
                "the input is inside the directory of the spill: file={} work_dir={}: name another with --work-dir",
                input.display(),
                work.path.display()
            ),
        ));
    }
    Ok(work)
}

/// Refuses to write a report over the input, over another one, or into the store or the spill.
///
/// # Errors
/// [`Wrong`], naming the options and the file.
pub(crate) fn check_outputs(args: &LoadArgs, work: &Path) -> Result<()> {
    let input = args.source.input.as_deref();
    // Standard input may be redirected from a file.
    let input = input.map(|input| if input == Path::new("-") { Path::new("/dev/stdin") } else { input });
    let outputs = [("--report", args.report.as_deref()), ("--hlog", args.hlog.as_deref())];
    let mut earlier: Vec<(&str, &Path)> = input.map(|input| ("--input", input)).into_iter().collect();
    earlier.extend(args.source.incremental.as_deref().map(|input| ("--incremental", input)));
    for (name, path) in outputs.into_iter().filter_map(|(name, path)| Some((name, path?))) {
        if let Some((other, _)) = earlier.iter().find(|(_, other)| is_same(path, other)) {
            return Err(Wrong::error(
                Code::Directory,
                format!("{name} and {other} are the same file: file={}: name another one for {name}", path.display()),
            ));
        }
        let at = resolved(path);
        for dir in [args.dir.as_path(), work] {
            if at.starts_with(resolved(dir)) {
                let (dir, file) = (dir.display(), path.display());
                return Err(Wrong::error(
                    Code::Directory,
                    format!("{name} is inside dir={dir}: file={file}: name a file elsewhere"),
                ));
            }
        }
        earlier.push((name, path));
    }
    Ok(())
}

/// Whether both are one file: by their inodes or, if one does not exist yet, by their paths. Two options may name the
/// same device, because no data in it is lost.
fn is_same(path: &Path, other: &Path) -> bool {
    match (fs::metadata(path), fs::metadata(other)) {
        (Ok(one), Ok(two)) => one.is_file() && (one.dev(), one.ino()) == (two.dev(), two.ino()),
        _ => resolved(path) == resolved(other),
    }
}

/// Appends `ending` to the name of `dir`.
pub(crate) fn beside(dir: &Path, ending: &str) -> PathBuf {
    let named = matches!(dir.components().next_back(), Some(Component::Normal(_)));
    // Collecting the components removes a slash at the end. `.` and `..` have no name of their own, so they are
    // resolved first.
    let dir: PathBuf = if named { dir.components().collect() } else { resolved(dir) };
    let mut name = dir.into_os_string();
    name.push(ending);
    PathBuf::from(name)
}
