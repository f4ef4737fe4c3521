//! Archives that are damaged, cut, or made to do harm: each is an error that names its place, and never a panic or a
//! part of the accounts taken for all of them.

use solkv_solana::archive::{Archive, Error, Stop};

use crate::support::{Tar, accounts, chain, read, record, row};

const NAME: &str = "snapshot-9-EsRJJbTfoF5zDhboW3rMVYiY4xxzEFQJk4U2CEj1QwaQ.tar";
const INCREMENTAL: &str = "incremental-snapshot-5-9-EsRJJbTfoF5zDhboW3rMVYiY4xxzEFQJk4U2CEj1QwaQ.tar";

fn two_records() -> Vec<u8> {
    accounts(&[record(1, 5, 165), record(2, 0, 0)])
}

fn small() -> Tar {
    Tar::snapshot(9).accounts(8, 1, &two_records()).accounts(9, 2, &accounts(&[record(1, 6, 21)]))
}

/// Returns the error of an archive, with its causes.
fn error(tar: &[u8], name: Option<&str>) -> String {
    match read(tar, name) {
        Ok((_, summary)) => panic!("no error: {summary:?}"),
        Err(error) => chain(&error),
    }
}

#[test]
fn a_small_archive_is_read_in_any_order() {
    let expected = vec![row((8, 1, 0), 1, 5, 165), row((8, 1, 304), 2, 0, 0), row((9, 2, 0), 1, 6, 21)];
    let last = accounts(&[record(1, 6, 21)]);
    let orders = [
        small(),
        Tar::default()
            .accounts(8, 1, &two_records())
            .file("snapshots/9/9", b"manifest")
            .accounts(9, 2, &last)
            .file("snapshots/status_cache", b"")
            .file("version", b"1.2.0"),
        // As `tar -c .` makes it, with directories and long padding.
        Tar::default()
            .entry("./", b'5', b"")
            .file("./version", b"1.9\n")
            .entry("./accounts/", b'5', b"")
            .file("./accounts/8.1", &[two_records(), vec![0; 1000]].concat())
            .file("./accounts/9.2", &[last.clone(), vec![0; 3]].concat())
            .entry("./snapshots", b'5', b"")
            .file("./snapshots/9/9", b"manifest"),
    ];
    for tar in orders {
        for zeros in [0, 1, 9216] {
            let bytes = [tar.clone().end(), vec![0; zeros]].concat();
            for name in [None, Some(NAME), Some(INCREMENTAL)] {
                let (rows, summary) = read(&bytes, name).unwrap();
                assert_eq!(rows, expected);
                assert_eq!((summary.slot, summary.files, summary.versions), (9, 2, 3));
                assert_eq!(summary.unpacked_bytes, bytes.len() as u64);
            }
        }
    }
}

#[test]
fn every_cut_is_an_error() {
    let bytes = small().end();
    for cut in 0..bytes.len() {
        let text = error(&bytes[..cut], Some(NAME));
        assert!(text.contains("cut short"), "cut={cut}: {text}");
    }
}

#[test]
fn a_flipped_bit_of_a_header_is_an_error_or_changes_nothing() {
    let bytes = small().end();
    let expected = read(&bytes, Some(NAME)).unwrap();
    let header = |at: usize| bytes[at..].starts_with(b"version\0") || bytes[at + 257..].starts_with(b"ustar  \0");
    let headers: Vec<usize> = (0..bytes.len() - 1024).step_by(512).filter(|at| header(*at)).collect();
    assert_eq!(headers.len(), 7);
    for at in headers.into_iter().flat_map(|at| at..at + 512) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        if let Ok(found) = read(&damaged, Some(NAME)) {
            assert_eq!(found, expected, "at={at}");
        }
    }
    // Anywhere else, accounts may differ, but nothing panics.
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x81;
        let _ = read(&damaged, None);
    }
}

/// Hostile archives, each with a part of its error.
fn corpus() -> Vec<(Tar, Option<&'static str>, &'static str)> {
    let with = |field: usize, bytes: &[u8]| {
        let mut file = two_records();
        file[field..field + bytes.len()].copy_from_slice(bytes);
        Tar::snapshot(9).accounts(8, 1, &file)
    };
    let mut bad_sum = small();
    bad_sum.bytes[148] ^= 1;
    let second = 304;
    vec![
        // Entries that ask for memory, or lead elsewhere.
        (small().header("././@PaxHeader", b'x', b"77777777777"), None, "kind=PAX header"),
        (small().header("pax_global_header", b'g', b"77777777777"), None, "kind=PAX global header"),
        (small().header("././@LongLink", b'L', b"\x80\0\0\0\xff\0\0\0\0\0\0\0"), None, "kind=GNU long name"),
        (small().header("././@LongLink", b'K', b"77777777777"), None, "kind=GNU long link"),
        (small().header("accounts/7.7", b'S', b"0"), None, "kind=sparse file"),
        (small().header("accounts/7.7", b'2', b"0"), None, "kind=symbolic link"),
        (small().header("accounts/7.7", b'1', b"0"), None, "kind=hard link"),
        (
            small().header("accounts/7.7", 0, b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"),
            None,
            "too large: size_bytes=",
        ),
        (small().header("accounts/7.7", 0, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None, "field=size"),
        (small().header("accounts/7.7", 0, b""), None, "field=size"),
        (small().header("snapshots/8", b'5', b"10"), None, "a directory entry has data: size_bytes=8"),
        (small().file("version", b"1.2.0.0.0"), None, "too large: size_bytes=9 limit_bytes=8"),
        (small().file("/etc/passwd", b""), None, "entry=/etc/passwd offset=0: the tar entry's name is not allowed"),
        (small().file("accounts/../../x", b""), None, "the tar entry's name is not allowed"),
        (small().file("accounts/7.7\0/../x", b""), None, "the tar entry's name is not allowed"),
        (small().file("etc/passwd", b""), None, "entry=etc/passwd offset=0: unknown entry"),
        (small().file("accounts/7", b""), None, "unknown entry"),
        (bad_sum, None, "offset=0: the tar header's checksum is wrong: stored="),
        // Snapshots that contradict themselves.
        (small().accounts(8, 1, &[]), None, "entry=accounts/8.1 offset=0: the archive has two entries"),
        (small().file("./accounts/08.1", &[]), None, "two entries of this name"),
        (small().file("snapshots/9/9", b""), None, "two entries of this name"),
        (small().file("snapshots/status_cache", b""), None, "two entries of this name"),
        (small().file("version", b"1.2.0"), None, "two entries of this name"),
        (small().file("snapshots/8/8", b""), None, "the manifest is of another slot: slot=8 expected=9"),
        (Tar::snapshot(8).accounts(8, 1, &[]), Some(NAME), "the manifest is of another slot: slot=8 expected=9"),
        (Tar::snapshot(9).accounts(10, 1, &[]), Some(NAME), "slot=10 archive_slot=9"),
        (Tar::default().accounts(10, 1, &[]).file("snapshots/9/9", b"").file("version", b"1."), None, "archive_slot=9"),
        (small().accounts(5, 1, &[]), Some(INCREMENTAL), "slot=5 base=5"),
        (Tar::snapshot(9), None, "the archive has no accounts files"),
        (Tar::default().file("version", b"1.2.0").accounts(9, 1, &[]), None, "the archive has no manifest"),
        (Tar::default().file("snapshots/9/9", b"").accounts(9, 1, &[]), None, "the archive has no version"),
        (Tar::default().file("version", b"2.0.0"), None, "unknown version of snapshots: version=2.0.0"),
        (Tar::default().file("version", b""), None, "unknown version of snapshots: version="),
        (Tar::default().file("version", b"1\xff\n"), None, "version=1\\xff\\n"),
        // Account records that are damaged.
        (with(second + 0x60, &[7]), None, "entry=accounts/8.1 offset=304: damaged account record: executable=7"),
        (with(0x08, &[0, 0, 0, 1]), None, "offset=0: damaged account record: data_len=16777216 limit=10485760"),
        (
            with(second + 8, &[1]),
            None,
            "offset=304: damaged account record: it reaches beyond the end of its file: file_bytes=440",
        ),
        (Tar::snapshot(9).accounts(8, 1, &[0, 0, 0, 1]), None, "it reaches beyond the end of its file: file_bytes=4"),
        (Tar::snapshot(9).accounts(8, 1, &[vec![0; 500], vec![1]].concat()), None, "offset=500: damaged accounts file"),
    ]
}

#[test]
fn hostile_archives_are_refused_by_name() {
    for (tar, name, expected) in corpus() {
        let text = error(&tar.end(), name);
        assert!(text.starts_with("bad snapshot archive: archive=memory ") && text.contains(expected), "{text}");
    }
}

#[test]
fn only_zeros_follow_the_end() {
    let whole = small().end();
    let without_end = &whole[..whole.len() - 1024];
    for (tail, expected) in [
        (vec![], "it ends before its end marker"),
        (vec![0; 512], "it ends within its end marker"),
        (vec![0; 1023], "it ends within its end marker"),
        ([vec![0; 512], vec![1; 512]].concat(), "bytes after the end of the tar archive"),
        ([vec![0; 1024], vec![0; 3], vec![1]].concat(), "bytes after the end of the tar archive"),
        ([vec![0; 1024], small().bytes].concat(), "bytes after the end of the tar archive"),
        (vec![1; 100], "it ends within a header"),
    ] {
        let text = error(&[without_end, &tail].concat(), None);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn bytes_that_do_not_unpack_are_refused() {
    let tar = small().end();
    let zstd = zstd::encode_all(&tar[..], 1).unwrap();
    let named = |ending: &str| format!("{NAME}{ending}");
    let cases = [
        (zstd[..zstd.len() - 1].to_vec(), named(".zst"), "packing=zstd"),
        ([&zstd[..], b"garbage"].concat(), named(".zst"), "packing=zstd"),
        (tar.clone(), named(".zst"), "packing=zstd packed_offset="),
        (tar.clone(), named(".lz4"), "packing=lz4"),
        (tar.clone(), named(".gz"), "packing=gzip"),
        (vec![], named(".gz"), "packing=gzip"),
    ];
    for (bytes, name, expected) in cases {
        let text = error(&bytes, Some(&name));
        let begins = text.starts_with("cannot unpack the archive: archive=memory ");
        assert!(begins && text.contains(expected), "{name}: {text}");
    }
    // The error names the entry in which the unpacked bytes end. The first bytes show the packing.
    let noise = |at: u64| at.wrapping_mul(at).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let noise: Vec<u8> = (0..200_000).flat_map(noise).collect();
    let long = Tar::default().file("version", b"1.2.0").file("snapshots/status_cache", &noise).end();
    let packed = zstd::encode_all(&long[..], 1).unwrap();
    let text = error(&packed[..packed.len() / 2], None);
    let entry = "entry=snapshots/status_cache entry_offset=";
    assert!(text.starts_with("cannot unpack the archive: archive=memory ") && text.contains(entry), "{text}");
    // Packed bytes under the name of a plain tar file.
    assert!(error(&zstd, Some(NAME)).contains("archive=memory offset=0: "));
}

#[test]
fn an_error_of_the_source_is_handed_through() {
    struct Broken(usize);
    impl std::io::Read for Broken {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            self.0 += 1;
            match self.0 {
                1 => Err(std::io::ErrorKind::Interrupted.into()),
                2 => {
                    out[..7].copy_from_slice(b"version");
                    Ok(7)
                }
                _ => Err(std::io::Error::other("the disk is gone")),
            }
        }
    }
    let archive = Archive::from_reader("memory", None, Broken(0));
    let error = archive.read(&mut |_| Ok(()), &mut |_| Ok(())).unwrap_err();
    assert_eq!(chain(&error), "cannot read the archive: archive=memory packed_offset=7: the disk is gone");
}

#[test]
fn the_caller_can_stop_at_any_time() {
    let bytes = small().end();
    let archive = || Archive::from_reader("memory", None, std::io::Cursor::new(bytes.clone()));
    let stop = || Err(Stop::from("enough"));
    let mut taken = 0;
    let outcome = archive().read(&mut |_| Ok(()), &mut |_| {
        taken += 1;
        if taken == 2 { stop() } else { Ok(()) }
    });
    assert!(matches!(&outcome, Err(Error::Stopped(error)) if error.to_string() == "enough"), "{outcome:?}");
    assert_eq!(taken, 2);
    let outcome = archive().read(&mut |_| stop(), &mut |_| Ok(()));
    assert!(matches!(outcome, Err(Error::Stopped(_))), "{outcome:?}");
    // The source has no end, and reading it must stop anyway.
    let endless = Archive::from_reader("memory", None, std::io::Read::chain(&b"version"[..], std::io::repeat(1)));
    assert!(endless.read(&mut |_| Ok(()), &mut |_| Ok(())).is_err());
}

#[test]
fn a_location_without_an_archive_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| Archive::open(dir.path().join(name).to_str().unwrap()).map(|_| ());
    let text = chain(&open("none.tar").unwrap_err());
    assert!(text.starts_with("cannot open the archive: archive=") && text.contains("No such file"), "{text}");
    let text = chain(&open("snapshot-x-y.tar.zst").err().unwrap());
    assert!(text.contains("cannot open the archive"), "{text}");
    std::fs::write(dir.path().join("snapshot-x-y.tar.zst"), b"").unwrap();
    let text = chain(&open("snapshot-x-y.tar.zst").unwrap_err());
    assert!(text.starts_with("bad name of a snapshot archive: name=snapshot-x-y.tar.zst slot=x: "), "{text}");
    // An empty directory does not hold an unpacked archive.
    let archive = Archive::open(dir.path().to_str().unwrap()).unwrap();
    let text = chain(&archive.read(&mut |_| Ok(()), &mut |_| Ok(())).unwrap_err());
    assert!(text.contains("the archive has no manifest"), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_name_that_is_no_text_is_an_error_that_names_it() {
    use std::os::unix::ffi::OsStrExt as _;

    let dir = tempfile::tempdir().unwrap();
    let accounts = dir.path().join("accounts");
    std::fs::create_dir(&accounts).unwrap();
    std::fs::write(accounts.join(std::ffi::OsStr::from_bytes(b"7.\xff")), b"").unwrap();
    let archive = Archive::open(dir.path().to_str().unwrap()).unwrap();
    let text = chain(&archive.read(&mut |_| Ok(()), &mut |_| Ok(())).unwrap_err());
    assert!(text.contains("accounts/7.\u{fffd}") && text.contains("not UTF-8"), "{text}");
}
