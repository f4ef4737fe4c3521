//! Fuzz target: feeds arbitrary bytes to the reader of archives, as a tar file whose checksums were put right, and as
//! whatever packed stream their beginning claims. They are refused, or give the same versions in pieces of any size.
//!
//! Owns: nothing. Must not: touch a file. The reader's own thread unpacks.

#![no_main]

use std::io::{self, Read};

use libfuzzer_sys::fuzz_target;
use solana::archive::{Archive, Name};

const NAMES: [&str; 2] = [
    "snapshot-9-EsRJJbTfoF5zDhboW3rMVYiY4xxzEFQJk4U2CEj1QwaQ.tar",
    "incremental-snapshot-5-9-EsRJJbTfoF5zDhboW3rMVYiY4xxzEFQJk4U2CEj1QwaQ.tar",
];

/// Hands out its bytes in pieces.
struct Pieces {
    bytes: Vec<u8>,
    at: usize,
    piece: usize,
}

impl Read for Pieces {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let length = self.piece.min(out.len()).min(self.bytes.len() - self.at);
        out[..length].copy_from_slice(&self.bytes[self.at..self.at + length]);
        self.at += length;
        Ok(length)
    }
}

fuzz_target!(|input: &[u8]| {
    let Some(([choice, piece], bytes)) = input.split_first_chunk() else { return };
    let name = NAMES.get(usize::from(*choice % 3)).and_then(|name| Name::parse(name)).map(|name| name.expect("good"));
    let mut bytes = bytes.to_vec();
    bytes.chunks_exact_mut(512).filter(|block| block[257..].starts_with(b"ustar")).for_each(seal);
    let whole = read(&bytes, name.clone(), usize::MAX);
    assert_eq!(read(&bytes, name, usize::from(*piece) + 1), whole);
});

/// Puts a header's checksum right: no fuzzer guesses one.
fn seal(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// Returns slot and address of each version, and the archive's slot; `None` if it is refused. Where two things are wrong with
/// it, the sizes of the pieces decide which of them is met first.
fn read(bytes: &[u8], name: Option<Name>, piece: usize) -> Option<(Vec<(u64, [u8; 32])>, u64)> {
    let pieces = Pieces { bytes: bytes.to_vec(), at: 0, piece };
    let mut found = Vec::new();
    let outcome = Archive::from_reader("fuzz", name, pieces).read(&mut |_| Ok(()), &mut |version| {
        found.push((version.slot, *version.key));
        Ok(())
    });
    let summary = outcome.ok()?;
    assert!(found.iter().all(|(slot, _)| *slot <= summary.slot) && summary.files > 0);
    assert_eq!(summary.versions, found.len() as u64);
    Some((found, summary.slot))
}
