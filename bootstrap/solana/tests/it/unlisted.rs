//! Archives whose manifest lists no accounts files, as today's validators write them: the same accounts, and no part of an
//! archive taken for the whole.

use std::io::Write as _;

use solkv_solana::archive::{Archive, Listing};

use crate::rewrite::{Entry, Named, block, entries, firedancer, parts, without_list, zstd_frames};
use crate::support::{Accounts, FULL, INCREMENTAL, Row, add, chain, read, unpacked};

/// Archive, and the parts into which it can be cut between two frames or members.
type Shape = (String, Vec<Vec<u8>>);

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut packed = lz4_flex::frame::FrameEncoder::new(Vec::new());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// Packs the parts one by one in every packing. The names say the packing.
fn packed(name: &str, entries: &[Entry]) -> Vec<Shape> {
    let (parts, stem) = (parts(entries), name.strip_suffix(".zst").unwrap());
    let each = |pack: fn(&[u8]) -> Vec<u8>| parts.iter().map(|part| pack(part)).collect();
    vec![
        (format!("{stem}.zst"), zstd_frames(&parts)),
        (format!("{stem}.lz4"), each(lz4)),
        (format!("{stem}.gz"), each(gzip)),
        (stem.to_owned(), parts.clone()),
    ]
}

fn newest(rows: Vec<Row>) -> Accounts {
    let mut accounts = Accounts::new();
    add(&mut accounts, rows);
    // The writers name the files as they like.
    accounts.values_mut().for_each(|row| row.place = Default::default());
    accounts
}

#[test]
fn an_archive_without_a_list_holds_the_same_accounts() {
    for archive in [FULL, INCREMENTAL] {
        let tar = unpacked(archive);
        let (rows, listed) = read(&tar, Some(archive.strip_suffix(".zst").unwrap())).unwrap();
        assert_eq!(listed.listing, Listing::Compared);
        let expected = newest(rows);
        for entries in [without_list(&tar), firedancer(&tar, Named::SameSlot), firedancer(&tar, Named::CountingDown)] {
            for (name, parts) in packed(archive, &entries) {
                // Also where nothing but the first bytes shows the packing.
                for name in [Some(name.as_str()), None] {
                    let (rows, summary) = read(&parts.concat(), name).unwrap();
                    assert_eq!(summary.listing, Listing::Empty, "{name:?}");
                    assert_eq!((summary.blockhash, summary.files), (listed.blockhash, listed.files), "{name:?}");
                    assert!(newest(rows) == expected, "{name:?}");
                }
            }
        }
    }
}

/// A download of such an archive decodes without an error up to the cut.
#[test]
fn an_archive_without_a_list_that_is_cut_between_two_frames_is_refused() {
    for archive in [FULL, INCREMENTAL] {
        let tar = unpacked(archive);
        for (name, parts) in packed(archive, &firedancer(&tar, Named::SameSlot)) {
            let last = parts.len() - 1;
            let cuts = if archive == FULL { vec![last / 2, last] } else { (1..=last).collect() };
            for whole in cuts {
                let said = chain(&read(&parts[..whole].concat(), Some(&name)).unwrap_err());
                let expected = "the archive is cut short: it ends before its end marker: get the archive again";
                assert!(said.contains(expected), "{name} parts={whole}: {said}");
            }
            // The end is there, but the frame around it is not whole.
            let all = parts.concat();
            let frame_ends = all.len() - parts[last].len() + 1024;
            for cut in [all.len() - 1, frame_ends - 1].into_iter().filter(|cut| *cut < all.len()) {
                assert!(read(&all[..cut], Some(&name)).is_err(), "{name} cut={cut}");
            }
        }
    }
}

#[test]
fn an_archive_with_a_list_that_is_cut_after_its_last_file_is_refused() {
    for archive in [FULL, INCREMENTAL] {
        for (name, parts) in packed(archive, &entries(&unpacked(archive))) {
            assert_eq!(read(&parts.concat(), Some(&name)).unwrap().1.listing, Listing::Compared);
            let said = chain(&read(&parts[..parts.len() - 1].concat(), Some(&name)).unwrap_err());
            assert!(said.contains("it ends before its end marker: get the archive again"), "{name}: {said}");
        }
    }
}

/// The versions of such a file would count as older than those of the full archive.
#[test]
fn an_incremental_archive_of_slot_zero_is_refused_with_its_writer() {
    let rewritten = |archive| parts(&firedancer(&unpacked(archive), Named::SlotZero)).concat();
    let (_, summary) = read(&rewritten(FULL), FULL.strip_suffix(".zst")).unwrap();
    assert_eq!(summary.listing, Listing::Empty, "a full archive has each account once");
    let said = chain(&read(&rewritten(INCREMENTAL), INCREMENTAL.strip_suffix(".zst")).unwrap_err());
    assert!(said.contains("as Firedancer named all of them at first") && said.contains("or a full one"), "{said}");
}

#[test]
fn an_unpacked_archive_without_a_list_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for entry in without_list(&unpacked(FULL)) {
        let path = dir.path().join(&entry.name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        match entry.kind {
            b'5' => std::fs::create_dir_all(path).unwrap(),
            _ => std::fs::write(path, &entry.bytes).unwrap(),
        }
    }
    let archive = Archive::open(dir.path().to_str().unwrap()).unwrap();
    let said = chain(&archive.read(&mut |_| Ok(()), &mut |_| panic!("nothing of it counts")).unwrap_err());
    assert!(
        said.contains("the manifest lists no accounts files") && said.contains("give the archive itself"),
        "{said}"
    );
}

#[test]
fn what_is_not_a_snapshots_is_refused_with_the_way_out() {
    let tar = unpacked(INCREMENTAL);
    let name = INCREMENTAL.strip_suffix(".zst").unwrap();
    let with = |name: &str, kind: u8, bytes: &[u8]| {
        let entry = Entry { name: name.to_owned(), kind, bytes: bytes.to_vec() };
        [&block(&entry)[..], &tar].concat()
    };
    for (bytes, expected) in [
        (with("./PaxHeaders/version", b'x', b"11 size=1\n"), "pack its files again with tar --format=ustar"),
        (with("pax_global_header", b'g', b""), "pack its files again with tar --format=ustar"),
        (with("./._version", b'0', b"\0\x05\x16\x07"), "COPYFILE_DISABLE=1 tar --format=ustar"),
        (with("accounts/._351000360.1", b'0', b""), "COPYFILE_DISABLE=1 tar --format=ustar"),
        (with("accounts/351000360.1.data", 0, b""), "agave's split accounts file storage is not supported yet"),
    ] {
        let said = chain(&read(&bytes, Some(name)).unwrap_err());
        assert!(said.contains(expected), "{said}");
    }
    // A block of lz4's legacy frames, as `lz4 -l` writes them.
    let legacy = [&[0x02, 0x21, 0x4c, 0x18, 5, 0, 0, 0][..], &[0x40, 1, 2, 3, 4]].concat();
    for name in [Some(format!("{name}.lz4")), None] {
        let said = chain(&read(&legacy, name.as_deref()).unwrap_err());
        assert!(said.contains("legacy frames") && said.contains("lz4 -d FILE | lz4 - NEW"), "{said}");
        assert!(!said.contains("error page"), "{said}");
    }
}

#[test]
fn zeros_after_the_last_gzip_member_are_padding() {
    let (tar, name) = (unpacked(INCREMENTAL), INCREMENTAL.replace(".zst", ".gz"));
    let expected = read(&gzip(&tar), Some(&name)).unwrap();
    for zeros in [1, 512, 300_000] {
        assert!(read(&[gzip(&tar), vec![0; zeros]].concat(), Some(&name)).unwrap() == expected, "{zeros}");
    }
    let said = chain(&read(&[gzip(&tar), vec![0; 9], vec![7]].concat(), Some(&name)).unwrap_err());
    assert!(said.contains("packing=gzip") && said.contains("bytes after a gzip member's padding"), "{said}");
}

/// pzstd begins a file with a frame to be skipped.
#[test]
fn an_archive_may_begin_with_a_frame_to_be_skipped() {
    let (tar, skipped) = (unpacked(INCREMENTAL), [0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 1, 2]);
    let expected = read(&tar, None).unwrap();
    for (ending, packed) in [(".zst", zstd::encode_all(&tar[..], 1).unwrap()), (".lz4", lz4(&tar))] {
        let (bytes, name) = ([&skipped[..], &packed].concat(), INCREMENTAL.replace(".zst", ending));
        assert!(read(&bytes, Some(&name)).unwrap() == expected, "{ending}");
        // Damage in it is called that, and not an error page.
        let said = chain(&read(&bytes[..bytes.len() - 1], Some(&name)).unwrap_err());
        assert!(said.contains("cut short") && !said.contains("error page"), "{said}");
    }
    let packed = zstd::encode_all(&tar[..], 1).unwrap();
    assert!(read(&[&skipped[..], &packed].concat(), None).unwrap() == expected);
}
