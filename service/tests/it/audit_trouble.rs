//! `service audit` in trouble: a stream that continues meanwhile, damaged archives, a full disk.

use std::fs;
use std::path::{Path, PathBuf};

use crate::audit::{FULL, Key, Loaded, SLOT, archive, base58, slot, str, text};
use crate::disk::Disk;
use crate::scripted::Scripted;
use crate::support::{Service, columns, stream};

const STORY: &str = "--pairs 3000 --seed 7 --events 40000 --events-per-slot 100 --change-share 0.3 --close-share 0.05";

/// Changes three keys without the feed: one value, one key that goes, one key that comes. Returns the lines that an
/// audit has to print of them, in their order.
fn damage(loaded: &Loaded) -> Vec<String> {
    let (different, missing, added) = (loaded.key(2), loaded.key(7), [203; 32]);
    loaded.tamper(&[(different, Some([9; 32])), (missing, None), (added, Some([9; 32]))]);
    let (was, gone) = (base58(&loaded.pairs[&different]), base58(&loaded.pairs[&missing]));
    let mut lines: Vec<(Key, String)> = vec![
        (different, format!("different: key={} expected={was} found={}", base58(&different), base58(&[9; 32]))),
        (missing, format!("missing: key={} expected={gone} found=nothing", base58(&missing))),
        (added, format!("only in store: key={} expected=nothing found={}", base58(&added), base58(&[9; 32]))),
    ];
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect()
}

/// Whether a line of an audit names a key.
fn names_a_key(line: &&str) -> bool {
    line.contains(" key=")
}

#[test]
fn exactly_the_differing_keys_are_named_while_the_stream_goes_on() {
    for options in columns() {
        let temp = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let plan = loadgen::archive::options(&format!("{STORY} --without large")).unwrap();
        let full = loadgen::archive::write(&plan, temp.path(), &mut |_| Ok(())).unwrap().remove(0).file;
        let loaded = Loaded::of(&full, options, &["--extract", "account-owner"]);
        let expected = damage(&loaded);
        let (stream, _) = stream(&format!("{STORY} --rate 2000 --replay-slots 100000"));
        let geyser = format!("http://{}", stream.address());
        let mut service = Service::start(&loaded.dir, &loaded.options, &geyser, &[]);
        let mut slots = vec![slot_of(&full)];
        for _ in 0..3 {
            let after = *slots.last().unwrap();
            service.wait_for_slot(after + 10);
            let said = loaded.audit_with(1, &["--archive", str(&full)]);
            let named: Vec<&str> = said.lines().filter(names_a_key).collect();
            assert_eq!(named, expected, "{:?}: {said}", loaded.options);
            assert!(said.contains("different=1 missing=1 only_in_store=1 lost_changes=0"), "{said}");
            let (_, rest) = said.split_once(" store_slot=").unwrap();
            slots.push(rest.split(' ').next().unwrap().parse::<u64>().unwrap());
        }
        assert!(slots.is_sorted_by(|a, b| a < b), "the stream went on between the audits: {slots:?}");
        assert!(service.terminate().success());
    }
}

/// Returns the slot in an archive's name.
fn slot_of(full: &Path) -> u64 {
    full.file_name().unwrap().to_str().unwrap().split('-').nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_damaged_archive_is_an_error_with_its_place_and_no_verdict() {
    let loaded = Loaded::owners(columns().remove(0));
    let server = Scripted::start(vec![slot(SLOT + 1, &[]), slot(SLOT + 2, &[])]);
    let mut service = loaded.follow(&server, &[]);
    service.wait_for_slot(SLOT + 2);
    let packed = fs::read(archive(FULL)).unwrap();
    let tar = zstd::decode_all(&packed[..]).unwrap();
    let zst = loaded.temp.path().join(FULL);
    let plain = zst.with_extension("");
    let check = |file: &PathBuf, bytes: &[u8], part: &str| {
        fs::write(file, bytes).unwrap();
        let said = loaded.audit_with(1, &["--archive", str(file)]);
        assert!(said.contains(&format!("archive={}", str(file))) && said.contains(part), "{part}: {said}");
        assert!(said.contains(" entry=") && said.contains("offset="), "{said}");
        assert!(!said.contains("equal") && !said.contains(" key="), "{said}");
        assert!(!loaded.work_dir().exists(), "an audit leaves nothing: {said}");
    };
    check(&zst, &packed[..packed.len() / 2], "the zstd data are cut short");
    check(&plain, &tar[..tar.len() / 2], "the archive is cut short");
    // The length of the data of the first account of a file.
    let header = tar.windows(9).enumerate().filter(|(_, bytes)| bytes == b"accounts/").nth(3).unwrap().0;
    let mut flipped = tar;
    flipped[header + 512 + 15] ^= 0x80;
    check(&plain, &flipped, "bad snapshot archive");
    assert!(loaded.audit(0, &[]).contains("equal: "));
    assert!(service.terminate().success());
}

#[test]
fn a_full_disk_ends_an_audit_and_nothing_else() {
    for options in columns() {
        let loaded = Loaded::owners(options);
        let server = Scripted::start(vec![slot(SLOT + 1, &[]), slot(SLOT + 2, &[])]);
        let mut service = loaded.follow(&server, &[]);
        service.wait_for_slot(SLOT + 2);
        let Some(disk) = Disk::mount(loaded.temp.path().join("disk")) else { return };
        let (work, ballast, full) = (disk.0.join("work"), disk.0.join("ballast"), archive(FULL));
        let audit = ["--archive", str(&full), "--work-dir", str(&work)];
        fs::create_dir(&work).unwrap();
        disk.fill(&ballast);
        for check in [&[][..], &["--skip-disk-check"]] {
            let output = loaded.command(&[&audit[..], check].concat()).output().unwrap();
            let said = text(&output);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("space") && said.contains(str(&disk.0)), "{:?}: {said}", loaded.options);
            assert!(!said.contains("equal"), "{said}");
            assert_eq!(service.slot(), Some(SLOT + 2), "the service goes on");
        }
        fs::remove_file(&ballast).unwrap();
        assert!(loaded.audit_with(0, &audit).contains("equal: "));
        assert!(service.terminate().success());
    }
}
