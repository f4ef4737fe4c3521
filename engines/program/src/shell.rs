//! The shell of a program: its arguments, its help, the command that may be left out, completions and manuals.
//!
//! Owns: the commands that every program has besides its own. Help names programs as they are called here. Must not:
//! know a program's own commands. Runs on the main thread.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process;

use anyhow::{Context as _, Result};
use clap::{CommandFactory, Parser, Subcommand};

use crate::end::last_code;
use crate::name::as_called;
use crate::{out, tell};

/// Commands that every program has.
#[derive(Subcommand, Debug)]
pub enum Shell {
    /// Print the completions for a shell
    Completions {
        /// The shell to complete for
        shell: clap_complete::Shell,
    },
    /// Write the manual pages
    #[command(hide = true)]
    Man {
        /// Directory to write them to
        dir: PathBuf,
    },
}

impl Shell {
    /// Runs the command for the program `A`, which was called by `name`.
    ///
    /// # Errors
    /// I/O errors of writing the manuals, naming the directory.
    pub fn run<A: CommandFactory>(&self, name: &str) -> Result<()> {
        match self {
            Self::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut A::command(), name, &mut script);
                out::print(format_args!("{}", String::from_utf8_lossy(&script)));
                Ok(())
            }
            Self::Man { dir } => clap_mangen::generate_to(A::command(), dir)
                .with_context(|| format!("cannot write manuals: dir={}", dir.display())),
        }
    }
}

/// Parses the arguments of the program that was called by `name`. Wrong ones end the program with exit code 2, and
/// `--help` with 0 unless it cannot be written.
pub fn parse<A: Parser>(name: &str, args: Vec<OsString>) -> A {
    A::try_parse_from(args).unwrap_or_else(|error| {
        let to_stderr = error.use_stderr();
        let is_terminal = if to_stderr { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        let said = error.render();
        let said = if is_terminal { said.ansi().to_string() } else { said.to_string() };
        if to_stderr {
            tell!("{}", said.trim_end());
            process::exit(error.exit_code())
        }
        out::print(format_args!("{}", as_called(&said, A::command().get_name(), name)));
        process::exit(last_code(name, 0).into())
    })
}

/// Adds the command that was left out, if the first argument is an option of one. `--help` and `--version` stay the
/// program's own. `command` chooses it by the arguments.
pub fn with_command(mut args: Vec<OsString>, command: impl FnOnce(&[OsString]) -> &'static str) -> Vec<OsString> {
    let first = args.get(1).map(|arg| arg.to_string_lossy().into_owned()).unwrap_or_default();
    if first.starts_with('-') && !["-h", "--help", "-V", "--version"].contains(&first.as_str()) {
        let command = command(&args).into();
        args.insert(1, command);
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_left_out_before_an_option_alone() {
        let with = |args: &[&str]| {
            let args = args.iter().map(OsString::from).collect();
            with_command(args, |_| "run")
                .into_iter()
                .map(|arg| arg.into_string().unwrap())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(with(&["service", "--dir", "x"]), "service run --dir x");
        for whole in ["service", "service --help", "service -V", "service get --dir x"] {
            assert_eq!(with(&whole.split(' ').collect::<Vec<_>>()), whole);
        }
    }
}
