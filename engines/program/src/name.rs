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
    }
}
