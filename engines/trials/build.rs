//! Compiles an LMDB from a directory, with the flags of the crates that bundle one.

fn main() {
    println!("cargo::rerun-if-env-changed=LMDB_SOURCE");
    #[cfg(feature = "lmdb-source")]
    {
        let dir = std::env::var("LMDB_SOURCE").expect("LMDB_SOURCE names a directory that holds mdb.c and midl.c");
        let dir = std::path::Path::new(&dir);
        let files = ["mdb.c", "midl.c"].map(|name| dir.join(name));
        files.iter().for_each(|file| println!("cargo::rerun-if-changed={}", file.display()));
        cc::Build::new()
            .define("MDB_IDL_LOGN", Some("16"))
            .files(files)
            .flag_if_supported("-Wno-unused-parameter")
            .compile("liblmdb.a");
    }
}
