//! Names of our programs: `service` where `cargo build` puts it, `solkv-service` where it is installed.
//!
//! Owns: the prefix of installed programs. Must not: start a program. Runs on any thread.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// First part of the programs' names where they are installed. `deploy/package/tree.sh` installs them under it.
const INSTALLED: &str = "solkv-";

/// Returns the name by which the program `name` was started, for completions and messages. `started_as` is its first
/// argument; without one it has the name of an installed program.
pub fn program_name(started_as: Option<&OsStr>, name: &str) -> String {
    let given = started_as.map(Path::new).and_then(Path::file_name);
    given.map_or_else(|| format!("{INSTALLED}{name}"), |given| given.to_string_lossy().into_owned())
}

/// Programs that a text may name.
const PROGRAMS: [&str; 3] = ["service", "bootstrap", "loadgen"];

/// Returns the name by which a user calls the program `name`: with the prefix if this program was called with it.
pub fn called(name: &str) -> String {
    let own = std::env::args_os().next().unwrap_or_default();
    let path = sibling_program(Path::new(&own), name);
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Names the programs in a text of help as they are called. The text has the names of installed programs, of which
/// `own` was called by `name`.
pub(crate) fn as_called(text: &str, own: &str, name: &str) -> String {
    let text = text.replace(own, name);
    if name.starts_with(INSTALLED) {
        return text;
    }
    PROGRAMS.iter().fold(text, |text, program| text.replace(&format!("{INSTALLED}{program}"), program))
}

/// Returns the path at which the program `name` lies if it came together with the program at `path`.
pub fn sibling_program(path: &Path, name: &str) -> PathBuf {
    let is_installed = path.file_name().is_some_and(|own| own.to_string_lossy().starts_with(INSTALLED));
    path.with_file_name(if is_installed { format!("{INSTALLED}{name}") } else { name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_called_as_it_was_started_and_its_siblings_are_installed_as_it_is() {
        assert_eq!(program_name(Some(OsStr::new("/usr/bin/kv")), "service"), "kv");
        assert_eq!(program_name(None, "service"), "solkv-service");
        assert_eq!(sibling_program(Path::new("/b/service"), "bootstrap"), Path::new("/b/bootstrap"));
        assert_eq!(sibling_program(Path::new("/b/solkv-service"), "bootstrap"), Path::new("/b/solkv-bootstrap"));
        assert_eq!(called("service"), "service");
        let text = "solkv-loadgen get; solkv-service --dir /data/solkv-strata";
        assert_eq!(as_called(text, "solkv-loadgen", "solkv-loadgen"), text);
        let short = "loadgen get; service --dir /data/solkv-strata";
        assert_eq!(as_called(text, "solkv-loadgen", "loadgen"), short);
    }
}
