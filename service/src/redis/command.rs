//! The commands: their names, and how many words each takes.
//!
//! Owns: this table, from which `COMMAND` answers. Must not: answer anything else. Threads: the network edge.

use std::ops::RangeInclusive;

use super::answer::Answers;
use super::request::WORDS_MAX;

/// The commands, by the answer that they get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Auth,
    Client,
    Command,
    Commitment,
    Config,
    Exists,
    Get,
    GetAt,
    GetWithSlot,
    Hello,
    Info,
    KeysOf,
    MGet,
    MGetWithSlot,
    Ping,
    Quit,
    Select,
}

/// A command, as `COMMAND` describes it.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Number of words that it takes, its name among them.
    pub(super) words: RangeInclusive<usize>,
    /// Places of its first and its last key among the words, as `COMMAND` counts them; 0 without keys.
    keys: (u8, i8),
    /// Whether a client may use it before it has sent its token.
    pub(super) is_open: bool,
}

const fn open(name: &'static str, kind: Kind, words: RangeInclusive<usize>) -> Command {
    Command { name, kind, words, keys: (0, 0), is_open: true }
}

const fn asks(name: &'static str, kind: Kind, words: RangeInclusive<usize>, keys: (u8, i8)) -> Command {
    Command { name, kind, words, keys, is_open: false }
}

static COMMANDS: [Command; 17] = [
    open("auth", Kind::Auth, 2..=3),
    asks("client", Kind::Client, 2..=WORDS_MAX, (0, 0)),
    asks("command", Kind::Command, 1..=WORDS_MAX, (0, 0)),
    asks("config", Kind::Config, 2..=WORDS_MAX, (0, 0)),
    asks("exists", Kind::Exists, 2..=WORDS_MAX, (1, -1)),
    asks("get", Kind::Get, 2..=2, (1, 1)),
    open("hello", Kind::Hello, 1..=7),
    asks("info", Kind::Info, 1..=WORDS_MAX, (0, 0)),
    asks("mget", Kind::MGet, 2..=WORDS_MAX, (1, -1)),
    open("ping", Kind::Ping, 1..=2),
    open("quit", Kind::Quit, 1..=1),
    asks("select", Kind::Select, 2..=2, (0, 0)),
    asks("solkv.commitment", Kind::Commitment, 1..=2, (0, 0)),
    asks("solkv.get", Kind::GetWithSlot, 2..=6, (1, 1)),
    asks("solkv.getat", Kind::GetAt, 3..=5, (1, 1)),
    asks("solkv.keysof", Kind::KeysOf, 2..=10, (1, 1)),
    asks("solkv.mget", Kind::MGetWithSlot, 2..=WORDS_MAX, (0, 0)),
];

/// Returns the command of this name, in letters of any case.
pub(super) fn find(name: &[u8]) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Answers `COMMAND` with these words after it. Returns false if there is no such subcommand.
pub(super) fn answer(words: &[&[u8]], answers: &mut Answers) -> bool {
    let Some((subcommand, rest)) = words.split_first() else {
        answers.array(COMMANDS.len());
        COMMANDS.iter().for_each(|command| command.describe(answers));
        return true;
    };
    match subcommand.to_ascii_lowercase().as_slice() {
        b"count" => answers.number(COMMANDS.len() as u64),
        b"list" => {
            answers.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| answers.bulk(command.name.as_bytes()));
        }
        b"info" => {
            answers.array(rest.len());
            rest.iter().for_each(|name| match find(name) {
                Some(command) => command.describe(answers),
                None => answers.null(),
            });
        }
        // redis-cli asks for these to help while somebody types.
        b"docs" => answers.map(0),
        _ => return false,
    }
    true
}

impl Command {
    fn describe(&self, answers: &mut Answers) {
        let (least, most) = (self.words.start(), self.words.end());
        let (first, last) = self.keys;
        answers.array(6);
        answers.bulk(self.name.as_bytes());
        // Redis's sign of a command that takes more words.
        answers.signed(if least == most { *least as i64 } else { -(*least as i64) });
        answers.array(1);
        answers.text("readonly");
        answers.number(first.into());
        answers.signed(last.into());
        answers.number(u64::from(first > 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_letters_of_any_case_and_described() {
        assert_eq!(find(b"MgEt").map(|command| command.kind), Some(Kind::MGet));
        assert!(find(b"set").is_none());
        let mut answers = Answers::default();
        assert!(answer(&[b"info", b"get", b"set"], &mut answers));
        let described = "*2\r\n*6\r\n$3\r\nget\r\n:2\r\n*1\r\n+readonly\r\n:1\r\n:1\r\n:1\r\n$-1\r\n";
        assert_eq!(String::from_utf8(answers.bytes).unwrap(), described);
    }
}
