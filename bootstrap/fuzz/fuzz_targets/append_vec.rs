//! Fuzz target: feeds arbitrary bytes to the parser of accounts files. However they are cut into slices, they give the
//! same versions and the same refusal.
//!
//! Owns: nothing. Must not: touch a file. One thread.

#![no_main]

use libfuzzer_sys::fuzz_target;
use solana::archive::HEAD_BYTES;
use solana::archive::append_vec::{AppendVec, DATA_BYTES_MAX, Refusal};

/// Offset, address, lamports and length of the data of each version; and how the file ended.
type Parsed = (Vec<(u64, [u8; 32], u64, u64)>, Result<u64, String>);

fuzz_target!(|input: &[u8]| {
    let Some((piece, bytes)) = input.split_first() else { return };
    let whole = parse(bytes, bytes.len().max(1));
    assert_eq!(parse(bytes, usize::from(*piece) + 1), whole);
    assert_eq!(parse(bytes, 1), whole);
});

fn parse(bytes: &[u8], piece: usize) -> Parsed {
    let mut found = Vec::new();
    let mut file = AppendVec::new(1, 2, bytes.len() as u64);
    let pushed = bytes.chunks(piece).try_for_each(|part| {
        file.push(part, &mut |version| {
            assert!(version.offset.is_multiple_of(8) && version.data_len <= DATA_BYTES_MAX);
            assert_eq!(version.data.len() as u64, version.data_len.min(HEAD_BYTES as u64));
            let begin = version.offset as usize + 136;
            assert_eq!(version.data, &bytes[begin..begin + version.data.len()]);
            found.push((version.offset, *version.key, version.lamports, version.data_len));
            Ok(())
        })
    });
    let ended = pushed.and_then(|()| file.finish()).map_err(|refusal| match refusal {
        Refusal::Fault(at, fault) => format!("{at} {fault}"),
        Refusal::Stopped(error) => panic!("nobody stops: {error}"),
    });
    (found, ended)
}
