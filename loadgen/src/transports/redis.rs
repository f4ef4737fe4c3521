//! A lean client of the Redis protocol, the same for this service and for redis-server.
//!
//! Owns: one connection, its requests, and the reading of their answers. Must not: know which server answers. Runs on the
//! caller's thread.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result, bail, ensure};
use client::{Key, Value};
use workload::Pairs;

/// Number of pairs that are stored with one request.
const STORED_TOGETHER: u64 = 1000;

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A connection to a server of the Redis protocol.
pub(super) struct Redis {
    stream: BufReader<Box<dyn Stream>>,
    request: Vec<u8>,
    line: Vec<u8>,
}

impl Redis {
    /// Returns the rest of an address after `redis://` or `redis+unix://`, or `None` if it is another one.
    pub(super) fn target(address: &str) -> Option<&str> {
        ["redis://", "redis+unix://"].into_iter().find_map(|scheme| address.strip_prefix(scheme))
    }

    /// Connects to `redis://HOST:PORT` or `redis+unix:///PATH`.
    ///
    /// # Errors
    /// An address of another form; the server cannot be reached.
    pub(super) fn connect(address: &str) -> Result<Self> {
        let target = Self::target(address).with_context(|| format!("no address of the Redis protocol: {address}"))?;
        let failed = || format!("cannot connect: address={address}");
        let stream: Box<dyn Stream> = if address.starts_with("redis+unix://") {
            Box::new(UnixStream::connect(target).with_context(failed)?)
        } else {
            let stream = TcpStream::connect(target).with_context(failed)?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        };
        Ok(Self { stream: BufReader::new(stream), request: Vec::new(), line: Vec::new() })
    }

    /// Returns the engine that a service names, or `redis-server`.
    pub(super) fn engine(&mut self) -> Result<String> {
        self.send(&[b"INFO"])?;
        let length = self.header(b'$')?.context("no answer to INFO")?;
        let mut info = vec![0; length + 2];
        self.stream.read_exact(&mut info)?;
        let info = String::from_utf8(info)?;
        let engine = info.lines().find_map(|line| line.strip_prefix("solkv_engine:"));
        Ok(engine.unwrap_or("redis-server").to_owned())
    }

    /// Stores the first `count` pairs.
    pub(super) fn fill(&mut self, pairs: &Pairs, count: u64) -> Result<()> {
        for from in (0..count).step_by(STORED_TOGETHER as usize) {
            let stored: Vec<_> =
                (from..count.min(from + STORED_TOGETHER)).map(|n| (pairs.key(n), pairs.value(n, 0))).collect();
            let words = stored.iter().flat_map(|(key, value)| [key.as_slice(), value.as_slice()]);
            self.send(&std::iter::once(b"MSET".as_slice()).chain(words).collect::<Vec<_>>())?;
            ensure!(self.line(b'+')? == b"OK", "the pairs were not stored");
        }
        Ok(())
    }

    pub(super) fn get(&mut self, key: &Key) -> Result<Option<Value>> {
        self.send(&[b"GET", key])?;
        self.value()
    }

    pub(super) fn get_many(&mut self, keys: &[Key]) -> Result<Vec<Option<Value>>> {
        self.send(&std::iter::once(b"MGET".as_slice()).chain(keys.iter().map(Key::as_slice)).collect::<Vec<_>>())?;
        let count = self.header(b'*')?.context("no answer to MGET")?;
        ensure!(count == keys.len(), "wrong number of values: got={count} expected={}", keys.len());
        keys.iter().map(|_| self.value()).collect()
    }

    fn send(&mut self, words: &[&[u8]]) -> Result<()> {
        self.request.clear();
        write!(self.request, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.request, "${}\r\n", word.len())?;
            self.request.extend_from_slice(word);
            self.request.extend_from_slice(b"\r\n");
        }
        Ok(self.stream.get_mut().write_all(&self.request)?)
    }

    fn value(&mut self) -> Result<Option<Value>> {
        let Some(length) = self.header(b'$')? else { return Ok(None) };
        let mut bytes = [0; 34];
        ensure!(length + 2 == bytes.len(), "a value of wrong length: bytes={length}");
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes.first_chunk().copied())
    }

    /// Reads the length or the count at the beginning of an answer of this kind; `None` for a null.
    fn header(&mut self, kind: u8) -> Result<Option<usize>> {
        let line = std::str::from_utf8(self.line(kind)?)?;
        if line == "-1" { Ok(None) } else { Ok(Some(line.parse().with_context(|| format!("no number: {line}"))?)) }
    }

    /// Reads a line of this kind, and returns the rest of it.
    fn line(&mut self, kind: u8) -> Result<&[u8]> {
        self.line.clear();
        self.stream.read_until(b'\n', &mut self.line)?;
        match self.line.strip_suffix(b"\r\n").and_then(<[u8]>::split_first) {
            Some((first, rest)) if *first == kind => Ok(rest),
            _ => bail!("the server answered: {}", String::from_utf8_lossy(&self.line).trim_end()),
        }
    }
}
