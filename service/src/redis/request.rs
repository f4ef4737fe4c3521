//! The form of a request: an array of bulk strings, or a line of words.
//!
//! Owns: finding where a request ends, and its words. Must not: take memory for a length that a client names, know a command,
//! or read a socket. Threads: the network edge.
//!
//! The work of a request is in proportion to its bytes, however they are cut: no byte is read twice.

use std::ops::Range;

use proto::v1::GET_MANY_KEYS_MAX;

/// Maximum number of words: a batch of keys, its command and its options.
pub(super) const WORDS_MAX: usize = GET_MANY_KEYS_MAX + 8;

/// Maximum number of words, and of bytes a word, of a client that has to send a token first.
const WORDS_UNKNOWN_MAX: usize = 10;

/// Number of words for which memory is kept for the next request.
const WORDS_KEPT: usize = 64;

/// Maximum length of a word: a token may be this long, a key has 48 bytes at most.
const WORD_BYTES_MAX: usize = 4096;

/// Maximum length of a line without its end: a number, or the words of somebody who types.
const LINE_BYTES_MAX: usize = 1024;

/// A request, as far as its bytes have come. Ranges are of the bytes since its beginning.
#[derive(Debug, Default)]
pub(super) struct Request {
    words: Vec<Range<usize>>,
    /// Number of words that the client has announced; `None` before it has.
    announced: Option<usize>,
    /// Number of bytes that were understood.
    read: usize,
}

/// Bytes that are no request: the connection ends, because nobody knows where the next one begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// The two forms of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Array,
    /// Words of a line. Requests of other protocols look like this.
    Line,
}

impl Request {
    /// Reads on in `bytes`, which begin where the request does. Returns its form once it is complete, else `None`. `is_known` says
    /// that the client may ask.
    ///
    /// # Errors
    /// The bytes can be no request, or a length is beyond its bound.
    pub(super) fn read(&mut self, bytes: &[u8], is_known: bool) -> Result<Option<Form>, Malformed> {
        if self.announced.is_none() {
            match bytes.first() {
                None => return Ok(None),
                Some(b'*') => {}
                Some(_) => return self.words_of_line(bytes),
            }
            let words_max = if is_known { WORDS_MAX } else { WORDS_UNKNOWN_MAX };
            let Some(count) = self.number(bytes, b'*')? else { return Ok(None) };
            // No words, as Redis has it: there is nothing to answer.
            let count = usize::try_from(count).unwrap_or(0);
            if count > words_max {
                return Err(Malformed("too many words: ask for at most 10000 keys at once, and with AUTH first"));
            }
            self.announced = Some(count);
        }
        while Some(self.words.len()) < self.announced {
            let start = self.read;
            let Some(length) = self.number(bytes, b'$')? else { return Ok(None) };
            let Some(length) = usize::try_from(length).ok().filter(|length| *length <= WORD_BYTES_MAX) else {
                return Err(Malformed("invalid bulk length: a word has at most 4096 bytes"));
            };
            let word = self.read..self.read + length;
            match bytes.get(word.end..word.end + 2) {
                // The length is read again with the rest of the word, so at most a line of bytes.
                None => {
                    self.read = start;
                    return Ok(None);
                }
                Some(b"\r\n") => {}
                Some(_) => return Err(Malformed("a word is longer than it says")),
            }
            self.read = word.end + 2;
            self.words.push(word);
        }
        Ok(Some(Form::Array))
    }

    /// Returns the words of a complete request, in the bytes that it was read from.
    pub(super) fn words<'b>(&self, bytes: &'b [u8]) -> Vec<&'b [u8]> {
        self.words.iter().map(|word| &bytes[word.clone()]).collect()
    }

    /// Begins the next request. Returns the number of bytes of this one.
    pub(super) fn take(&mut self) -> usize {
        if self.words.capacity() > WORDS_KEPT {
            self.words = Vec::new();
        }
        self.words.clear();
        self.announced = None;
        std::mem::take(&mut self.read)
    }

    /// Reads a line with a kind and a number. `None` if its end has not come yet.
    fn number(&mut self, bytes: &[u8], kind: u8) -> Result<Option<i64>, Malformed> {
        let Some(line) = line(&bytes[self.read..])? else { return Ok(None) };
        let [first, digits @ ..] = line else { return Err(Malformed("expected a kind and a number")) };
        if *first != kind {
            return Err(Malformed("expected an array of bulk strings"));
        }
        // `parse` would take a plus.
        let is_number = digits.first().is_some_and(|digit| digit.is_ascii_digit() || *digit == b'-');
        let number = std::str::from_utf8(digits).ok().filter(|_| is_number).and_then(|digits| digits.parse().ok());
        let number = number.ok_or(Malformed("invalid length"))?;
        self.read += line.len() + 2;
        Ok(Some(number))
    }

    fn words_of_line(&mut self, bytes: &[u8]) -> Result<Option<Form>, Malformed> {
        let end = bytes.iter().take(LINE_BYTES_MAX + 1).position(|byte| *byte == b'\n');
        let Some(end) = end else {
            return if bytes.len() > LINE_BYTES_MAX { Err(Malformed("too long a line")) } else { Ok(None) };
        };
        let mut start = None;
        for (at, byte) in bytes[..=end].iter().enumerate() {
            match (byte.is_ascii_whitespace(), start) {
                (false, None) => start = Some(at),
                (true, Some(from)) => {
                    self.words.push(from..at);
                    start = None;
                }
                _ => {}
            }
        }
        self.read = end + 1;
        Ok(Some(Form::Line))
    }
}

/// Returns the first line without its end; `None` if the end has not come.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    // A number and its kind.
    const NUMBER_BYTES_MAX: usize = 21;
    let Some(end) = bytes.iter().take(NUMBER_BYTES_MAX + 2).position(|byte| *byte == b'\n') else {
        return if bytes.len() > NUMBER_BYTES_MAX + 1 { Err(Malformed("invalid length")) } else { Ok(None) };
    };
    match bytes[..end].strip_suffix(b"\r") {
        Some(line) => Ok(Some(line)),
        None => Err(Malformed("a line has to end with \\r\\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Requests = Vec<(Form, Vec<Vec<u8>>)>;

    /// Reads all requests in `bytes`, which come in pieces of `step`.
    fn read(bytes: &[u8], step: usize) -> Result<Requests, Malformed> {
        let (mut request, mut all, mut begin, mut come) = (Request::default(), Vec::new(), 0, 0);
        while come < bytes.len() {
            come = (come + step).min(bytes.len());
            while let Some(form) = request.read(&bytes[begin..come], true)? {
                let words = request.words(&bytes[begin..come]);
                all.push((form, words.into_iter().map(<[u8]>::to_vec).collect()));
                begin += request.take();
            }
        }
        Ok(all)
    }

    #[test]
    fn requests_are_read_however_they_are_cut() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$4\r\n\r\n$1\r\nPING\r\n\r\n*0\r\n*-1\r\n  get \t a  \n*1\r\n$0\r\n\r\n";
        let words =
            |form, words: &[&str]| (form, words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>());
        let expected = vec![
            words(Form::Array, &["GET", "\r\n$1"]),
            words(Form::Line, &["PING"]),
            words(Form::Line, &[]),
            words(Form::Array, &[]),
            words(Form::Array, &[]),
            words(Form::Line, &["get", "a"]),
            words(Form::Array, &[""]),
        ];
        for step in 1..=bytes.len() {
            assert_eq!(read(bytes, step).unwrap(), expected, "{step}");
        }
    }

    #[test]
    fn lengths_are_bounded_before_any_of_it_comes() {
        let most = format!("*{WORDS_MAX}\r\n");
        assert_eq!(Request::default().read(most.as_bytes(), true), Ok(None));
        assert!(Request::default().read(most.as_bytes(), false).is_err());
        assert_eq!(Request::default().read(b"*10\r\n$4096\r\n", false), Ok(None));
        for wrong in [
            format!("*{}\r\n", WORDS_MAX + 1),
            "*1\r\n$4097\r\n".to_owned(),
            "*1\r\n$-1\r\n".to_owned(),
            "*1\r\n$99999999999999999999\r\n".to_owned(),
            "*1\r\n$+1\r\n".to_owned(),
            "*1\r\n:1\r\n".to_owned(),
            "*1\n".to_owned(),
            "*\r\n".to_owned(),
            "*1\r\n$1\r\nabc".to_owned(),
            format!("*{}", "1".repeat(30)),
            "x".repeat(LINE_BYTES_MAX + 1),
        ] {
            let mut request = Request::default();
            assert!(request.read(wrong.as_bytes(), true).is_err(), "{wrong:?}");
        }
    }
}
