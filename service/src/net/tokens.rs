//! Bearer tokens of the gRPC listener on TCP: a file with one token a line, read again on request.
//!
//! Owns: the tokens, and the comparison with them. Must not: print or quote one. Threads: `main` at start, the blocking
//! pool at SIGHUP; tokens are compared on the network edge.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, ensure};
use arc_swap::ArcSwap;
use subtle::{Choice, ConstantTimeEq as _};

use super::secrets;

/// Minimum length of a token; shorter ones can be guessed over the network.
const TOKEN_BYTES_MIN: usize = 16;

/// Maximum number of tokens: each request is compared with all of them, at 20 to 50 ns each.
const TOKENS_MAX: usize = 64;

/// The tokens in effect, and their file.
pub struct Tokens {
    file: PathBuf,
    current: ArcSwap<Vec<Box<[u8]>>>,
}

impl Tokens {
    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read, holds no token or too many, or a line is not a token; the error names the line's
    /// number.
    pub(super) fn open(file: PathBuf) -> Result<Self> {
        let current = ArcSwap::from_pointee(read(&file)?);
        Ok(Self { file, current })
    }

    /// Reads the file again. Calling the returned function puts its tokens into effect for all later requests.
    pub(super) fn read_again(&self) -> Result<impl FnOnce() + '_> {
        let next = Arc::new(read(&self.file)?);
        Ok(move || self.current.store(next))
    }

    pub fn len(&self) -> usize {
        self.current.load().len()
    }

    /// Whether there is no token: never, because a file without one is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a token is among these. Takes the same time whichever token it is and however much of it is right; only a
    /// length may show.
    pub fn knows(&self, given: &[u8]) -> bool {
        let tokens = self.current.load();
        tokens.iter().fold(Choice::from(0), |known, token| known | token.ct_eq(given)).into()
    }
}

fn read(path: &Path) -> Result<Vec<Box<[u8]>>> {
    let (text, name) = (secrets::read(path)?, path.display());
    let mut tokens = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (line, number) = (line.trim(), index + 1);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        ensure!(
            line.bytes().all(|byte| byte.is_ascii_graphic()),
            "a token is one word of printable ASCII: file={name} line={number}"
        );
        ensure!(
            line.len() >= TOKEN_BYTES_MIN,
            "too short for a token, make one with `openssl rand -hex 32`: file={name} line={number} \
             min_bytes={TOKEN_BYTES_MIN}"
        );
        tokens.push(line.as_bytes().into());
    }
    ensure!(!tokens.is_empty(), "no token in it: file={name} expected=one a line");
    ensure!(tokens.len() <= TOKENS_MAX, "too many tokens: file={name} tokens={} max={TOKENS_MAX}", tokens.len());
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::super::secrets::tests::file;
    use super::*;

    #[test]
    fn tokens_are_told_from_each_other_and_from_none() {
        let dir = tempfile::tempdir().unwrap();
        let text = "# two clients\n\nfirst-token-000001\n  second-token-00002  \n";
        let path = file(dir.path(), "tokens", text, 0o600);
        let tokens = Tokens::open(path.clone()).unwrap();
        assert_eq!(tokens.len(), 2);
        assert!(tokens.knows(b"first-token-000001") && tokens.knows(b"second-token-00002"));
        assert!(!tokens.knows(b"first-token-000002") && !tokens.knows(b"first-token-00000") && !tokens.knows(b""));
        std::fs::write(&path, "third-token-000003\n").unwrap();
        tokens.read_again().unwrap()();
        assert!(!tokens.knows(b"first-token-000001") && tokens.knows(b"third-token-000003"));
    }

    #[test]
    fn a_wrong_token_is_named_by_its_line_and_the_old_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), "tokens", "first-token-000001\n", 0o600);
        let tokens = Tokens::open(path.clone()).unwrap();
        for (text, part) in [
            ("first-token-000001\nhunter2\n", "line=2 min_bytes=16"),
            ("hunter2 hunter2 hunter2\n", "line=1"),
            ("# none\n", "no token"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", tokens.read_again().map(|_| ()).unwrap_err());
            assert!(error.contains(part) && !error.contains("hunter2"), "{error}");
        }
        assert!(tokens.knows(b"first-token-000001"));
    }
}
