//! Flipped bits anywhere in a packed archive: found where the packing has checksums of all bytes, and a panic nowhere.

use std::io::Write as _;

use solkv_solana::archive::{Listing, Name};

use crate::support::{INCREMENTAL, Row, data, read, unpacked};

/// Number of archives with one flipped bit, for each packing.
const FLIPS: usize = 300;

/// An archive in one packing.
struct Packed {
    name: &'static str,
    bytes: Vec<u8>,
    /// Whether its packing has checksums of all bytes.
    is_checked: bool,
}

fn zstd_with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut packer = zstd::Encoder::new(Vec::new(), 1).unwrap();
    packer.include_checksum(true).unwrap();
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

fn packings() -> Vec<Packed> {
    let tar = unpacked(INCREMENTAL);
    let of_agave = |name: &str| std::fs::read(data(name)).unwrap();
    vec![
        Packed { name: "zst", bytes: of_agave(INCREMENTAL), is_checked: false },
        Packed { name: "lz4", bytes: of_agave(&INCREMENTAL.replace(".zst", ".lz4")), is_checked: true },
        Packed { name: "zst", bytes: zstd_with_checksums(&tar), is_checked: true },
        Packed { name: "gz", bytes: gzip(&tar), is_checked: true },
        Packed { name: "", bytes: tar, is_checked: false },
    ]
}

/// Reads the archive under the name of its packing; `None` if it is refused.
fn rows(packed: &Packed, bytes: &[u8]) -> Option<Vec<Row>> {
    let name = INCREMENTAL.replace(".tar.zst", &format!(".tar.{}", packed.name));
    let name = name.trim_end_matches('.');
    assert!(Name::parse(name).unwrap().is_ok());
    let (rows, summary) = read(bytes, Some(name)).ok()?;
    assert_eq!(summary.listing, Listing::Compared);
    Some(rows)
}

#[test]
fn a_flipped_bit_is_found_wherever_the_packing_has_checksums() {
    for packed in packings() {
        let whole = rows(&packed, &packed.bytes).unwrap();
        let (mut refused, mut wrong) = (0, 0);
        for flip in 0..FLIPS {
            // Steps that have nothing in common with the records' length.
            let bit = flip * (packed.bytes.len() * 8 / FLIPS) + flip % 8;
            let mut bytes = packed.bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            match rows(&packed, &bytes) {
                None => refused += 1,
                Some(rows) => wrong += usize::from(rows != whole),
            }
        }
        let Packed { name, is_checked, .. } = packed;
        assert!(refused > 0, "packing={name}");
        // RUNBOOK.md says so: nothing but a checksum of the file, or another archive, finds these.
        assert_eq!(wrong == 0, is_checked, "packing={name} is_checked={is_checked} refused={refused} wrong={wrong}");
    }
}
