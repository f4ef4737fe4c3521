//! The abilities of a machine that tests need, and the list of the tests that did not run for want of one.
//!
//! Owns: the names of the abilities, and two variables. `SOLKV_MUST_RUN=root,cgroup,fuse` names the abilities that this
//! machine has to have: a test that lacks one of them fails. `SOLKV_NOT_RUN=FILE` names a file, which gets a line
//! `ABILITY PACKAGE TEST` for each test that lacks another one. Must not: try the machine; a test tries, and passes the
//! outcome. Runs on the thread of a test, whose name is the test's.

use std::env;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Write};

/// Something that a test needs and that not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// To mount file systems and to become another user.
    Root,
    /// To make a memory cgroup for a child, of whichever version.
    Cgroup,
    /// To mount a FUSE file system.
    Fuse,
    /// To drop the pages of temporary files from memory, which a tmpfs keeps there.
    Disk,
    /// To run Chromium, the browser.
    Chromium,
    /// To run Prometheus's own tool.
    Promtool,
}

impl Ability {
    const ALL: [Self; 6] = [Self::Root, Self::Cgroup, Self::Fuse, Self::Disk, Self::Chromium, Self::Promtool];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Cgroup => "cgroup",
            Self::Fuse => "fuse",
            Self::Disk => "disk",
            Self::Chromium => "chromium",
            Self::Promtool => "promtool",
        }
    }
}

/// Returns the value of a try that needs the ability. Returns `None` if the try failed and the machine need not have the
/// ability. The caller then leaves out the rest of the test. This is printed, past the capture of the harness, and noted
/// in the file of `SOLKV_NOT_RUN`.
///
/// # Panics
/// If `SOLKV_MUST_RUN` names the ability, or one that does not exist, or if the note cannot be written.
#[track_caller]
pub fn able<T>(ability: Ability, tried: Result<T, impl Display>) -> Option<T> {
    let why = match tried {
        Ok(found) => return Some(found),
        Err(why) => why.to_string(),
    };
    let (why, name) = (why.trim(), ability.as_str());
    assert!(!is_required(ability, &env::var("SOLKV_MUST_RUN").unwrap_or_default()), "SOLKV_MUST_RUN has {name}: {why}");
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a thread without a name");
    let package = env::var("CARGO_PKG_NAME").unwrap_or_default();
    writeln!(io::stderr(), "not run: package={package} test={test} lacks={name}: {why}").ok();
    if let Some(path) = env::var_os("SOLKV_NOT_RUN") {
        // One write, because the tests of a process note their lines at the same time.
        let line = format!("{name} {package} {test}\n");
        let noted = OpenOptions::new().append(true).create(true).open(&path);
        noted.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file of SOLKV_NOT_RUN takes a line");
    }
    None
}

/// Whether the list names the ability. Panics over a name that no ability has, because it would require nothing.
fn is_required(ability: Ability, list: &str) -> bool {
    let names = || list.split(',').filter(|name| !name.is_empty());
    let unknown = names().find(|name| Ability::ALL.iter().all(|known| known.as_str() != *name));
    assert_eq!(unknown, None, "SOLKV_MUST_RUN names an unknown ability: choose from {:?}", Ability::ALL);
    names().any(|name| name == ability.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_requires_what_it_names_and_nothing_else() {
        for (list, required) in [("", false), ("cgroup", false), ("root", true), ("cgroup,root,fuse", true)] {
            assert_eq!(is_required(Ability::Root, list), required, "{list}");
        }
    }

    #[test]
    #[should_panic(expected = "unknown ability")]
    fn a_misspelt_ability_is_not_taken_for_none() {
        is_required(Ability::Root, "root,cgroups");
    }

    /// A process of its own, because its variables are of the whole process.
    #[test]
    fn a_test_that_cannot_run_is_noted_or_fails() {
        const CHILD: &str = "SOLKV_ABILITY_CHILD";
        const NAME: &str = "ability::tests::a_test_that_cannot_run_is_noted_or_fails";
        if env::var_os(CHILD).is_some() {
            assert_eq!(able(Ability::Fuse, Ok::<_, &str>(7)), Some(7));
            assert_eq!(able(Ability::Fuse, Err::<u8, _>("no /dev/fuse")), None);
            return;
        }
        let dir = tempfile::tempdir().expect("a directory for the list");
        let file = dir.path().join("not-run");
        let run = |must_run: &str| {
            let mut command = std::process::Command::new(env::current_exe().expect("this program"));
            command.args(["--exact", NAME, "--test-threads", "2"]);
            command.env(CHILD, "1").env("SOLKV_MUST_RUN", must_run).env("SOLKV_NOT_RUN", &file);
            command.output().expect("this program starts")
        };
        let output = run("root,cgroup");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains("lacks=fuse: no /dev/fuse"), "{said}");
        let line = format!("fuse {} {NAME}\n", env!("CARGO_PKG_NAME"));
        assert_eq!(std::fs::read_to_string(&file).expect("the list"), line);
        let output = run("root,fuse");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success() && said.contains("SOLKV_MUST_RUN has fuse: no /dev/fuse"), "{said}");
        assert_eq!(std::fs::read_to_string(&file).expect("the list"), line);
    }
}
