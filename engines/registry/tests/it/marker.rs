//! Markers of other versions: those of this format without a table of options, and those of an engine that this version
//! does not have.

use std::fs;

use engine_api::{Checkpoint, Durability, ErrorKind};
use solkv_engine_registry::{self as engines, EngineKind, EngineOptions, Holds, OpenMode, Terms, checked, inspect};

/// The marker of a store without a table of options, whole: its checksum, options that every engine had there, a load.
const UNTABLED: &str = "\
checksum = \"68a865bae07bd612\"
format = 3
engine = \"lmdb\"
created_by = \"solkv 0.1.0\"
bloom = 0
profile = \"vanilla\"
seq = 1000

[load]
state = \"complete\"
source = \"7636279afb73ca29\"

[load.loaded]
seq = 1000
pairs = 1000
digest = \"1000:06d181451f0e15dfc45359a6bbddf497\"
";

#[test]
fn a_marker_without_a_table_of_options_is_read_and_a_table_is_written() {
    for &kind in engines::compiled() {
        let dir = tempfile::tempdir().unwrap();
        let marker = dir.path().join("SOLKV");
        let engine = engines::open(dir.path(), &EngineOptions::new(kind), OpenMode::Create).unwrap();
        let mut txn = engine.begin().unwrap();
        txn.put(&[1; 32], &[2; 32]).unwrap();
        txn.commit(&Checkpoint { seq: 1000, ..Checkpoint::default() }, Durability::Synced).unwrap();
        engine.close().unwrap();
        let text = UNTABLED.split_once('\n').unwrap().1.replace("\"lmdb\"", &format!("\"{kind}\""));
        let text = if kind == EngineKind::Rocksdb {
            text.replace("bloom = 0", "bloom = 20").replace("\"vanilla\"", "\"tuned\"")
        } else {
            text
        };
        checked::write(&marker, &text).unwrap();
        if kind == EngineKind::Lmdb {
            assert_eq!(fs::read_to_string(&marker).unwrap(), UNTABLED, "the form that stores have");
        }
        let known = inspect(dir.path()).unwrap().unwrap();
        let options: Vec<_> = known.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let expected: &[&str] = if kind == EngineKind::Rocksdb { &["bloom=20", "profile=tuned"] } else { &[] };
        assert_eq!(options, expected);
        assert_eq!(
            (known.engine, known.seq, known.loaded_at(1000).map(|load| load.pairs)),
            (kind, Some(1000), Some(1000))
        );

        let terms = Terms { holds: Holds { cluster: Some("here".to_owned()), ..Holds::default() }, ..Terms::default() };
        let engine = engines::open_on(dir.path(), &EngineOptions::new(kind), OpenMode::Existing, &terms).unwrap();
        assert_eq!(engine.reader().unwrap().get(&[1; 32]).unwrap(), Some([2; 32]));
        engine.close().unwrap();
        let text = crate::marker_text(dir.path());
        assert_eq!(
            text.contains("[options]\nbloom = \"20\"\nprofile = \"tuned\"\n"),
            kind == EngineKind::Rocksdb,
            "{text}"
        );
        assert!(!text.contains("bloom = 0") && text.contains("cluster = \"here\""), "{text}");
        assert_eq!(inspect(dir.path()).unwrap().unwrap().options, known.options);
    }
}

#[test]
fn the_store_of_an_engine_that_this_version_does_not_have_is_refused_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let text = UNTABLED.split_once('\n').unwrap().1.replace("\"lmdb\"", "\"unheard-of\"");
    checked::write(&dir.path().join("SOLKV"), &text).unwrap();
    for error in [
        inspect(dir.path()).unwrap_err(),
        engines::open(dir.path(), &EngineOptions::default(), OpenMode::CreateOrOpen).err().unwrap(),
        engines::open_read_only(dir.path(), None).err().unwrap(),
    ] {
        assert_eq!(error.kind(), ErrorKind::FixInput, "{error}");
        let said = error.to_string();
        assert!(said.contains("engine=unheard-of known=rocksdb,lmdb,redb,strata: use the version"), "{said}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is made beside it");
}
