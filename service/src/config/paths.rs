//! Paths of the Unix sockets: refused before the store is opened if a bind could never succeed.
//!
//! Owns: this rule. Must not: bind, create or remove files; `net::uds` does. Runs on `main`.

use std::fs;
use std::io::ErrorKind as Io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{Access, access};

use super::Config;

/// Maximum length of a Unix socket's path in bytes: `sun_path` holds 108, of which the last is zero.
const PATH_BYTES_MAX: usize = 107;

/// A service manager creates directories below this one when it starts a service, and removes them afterwards.
const RUNTIME_DIRS: &str = "/run";

/// The time at which a configuration is checked, relative to its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// At the start of the service that uses it.
    Start,
    /// Ahead of a later start, when directories below `/run` may not exist yet.
    Ahead,
}

/// Names in a store's directory that belong to the store, so that no socket may use them.
const STORE_NAMES: [&str; 7] = ["SOLKV", "SOLKV.tmp", "LOCK", "admin.sock", "data", "feed", "spool"];

impl Config {
    /// Refuses sockets that cannot be bound. Their path is too long, their directory is missing or not writable, or
    /// another kind of file has that name. Also refuses the store's own names, and one path for two sockets.
    ///
    /// # Errors
    /// The first such socket; the error names the setting.
    pub fn check_sockets(&self, at: Moment) -> Result<()> {
        let mut taken: Vec<(&str, PathBuf)> = Vec::new();
        let sockets = [
            ("uds", &self.grpc.uds),
            ("redis_uds", &self.redis.redis_uds),
            ("http_uds", &self.web.http_uds),
            ("shm", &self.shm.shm),
        ];
        for (key, path) in sockets {
            let Some(path) = path else { continue };
            let place = self.place(key, path, at)?;
            if let Some((other, _)) = taken.iter().find(|(_, known)| *known == place) {
                bail!("{other} and {key} are the same path: {key}={}: give one of them another", path.display());
            }
            taken.push((key, place));
        }
        Ok(())
    }

    /// Returns the path that the socket will have, with symbolic links in its directory resolved.
    fn place(&self, key: &str, path: &Path, at: Moment) -> Result<PathBuf> {
        let (store, shown) = (&self.store, path.display());
        let bytes = path.as_os_str().as_bytes().len();
        ensure!(
            bytes <= PATH_BYTES_MAX,
            "the path of a Unix socket has a limit: {key}={shown} bytes={bytes} max_bytes={PATH_BYTES_MAX}: give a \
             shorter one, such as /run/solkv/{key}.sock"
        );
        let Some(name) = path.file_name() else { bail!("{key}={shown}: give the path of a file") };
        let above = match path.parent() {
            Some(above) if !above.as_os_str().is_empty() => above,
            _ => Path::new("."),
        };
        let real = match above.canonicalize() {
            Ok(real) => real,
            // The store's directory is created before the socket.
            Err(e) if e.kind() == Io::NotFound && (store.create_empty || store.create) && above == store.dir => {
                return Ok(path.to_owned());
            }
            Err(e) if e.kind() == Io::NotFound && at == Moment::Ahead && above.starts_with(RUNTIME_DIRS) => {
                return Ok(path.to_owned());
            }
            Err(e) => return Err(e).with_context(|| format!("{key}={shown}: there is no such directory: make it")),
        };
        ensure!(real.is_dir(), "{key}={shown}: not a directory: {}", above.display());
        let place = real.join(name);
        if let Some(within) =
            store.dir.canonicalize().ok().and_then(|dir| place.strip_prefix(dir).ok().map(Path::to_owned))
            && let Some(name) = STORE_NAMES.into_iter().find(|name| within.starts_with(name))
        {
            bail!("{key}={shown}: this is the store's own {name}: give another path");
        }
        match fs::symlink_metadata(&place) {
            Ok(found) if !found.file_type().is_socket() => {
                bail!("{key}={shown}: the path exists and is not a socket: choose another path or remove it")
            }
            Err(e) if e.kind() != Io::NotFound => {
                return Err(e).with_context(|| format!("cannot look at {key}={shown}"));
            }
            _ => {}
        }
        access(&real, Access::WRITE_OK | Access::EXEC_OK)
            .with_context(|| format!("{key}={shown}: cannot create a file in its directory"))?;
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::super::Settings;
    use super::*;

    fn config(dir: &Path, uds: Option<&Path>, shm: Option<&Path>) -> Config {
        let mut settings = Settings::default();
        settings.store.dir = Some(dir.to_owned());
        settings.stream.extract = Some(crate::ingest::extract::Extract::TokenMint);
        settings.stream.geyser = Some(vec!["http://h:1".to_owned().into()]);
        settings.grpc.uds = uds.map(Path::to_owned);
        settings.shm.shm = shm.map(Path::to_owned);
        settings.resolve().unwrap()
    }

    fn check(dir: &Path, uds: Option<&Path>, shm: Option<&Path>) -> Result<()> {
        config(dir, uds, shm).check_sockets(Moment::Start)
    }

    #[test]
    fn a_socket_that_can_never_be_bound_is_refused_by_its_setting() {
        let home = tempfile::tempdir().unwrap();
        let (dir, file, link) = (home.path().join("store"), home.path().join("file"), home.path().join("link"));
        fs::create_dir_all(dir.join("data")).unwrap();
        fs::write(&file, b"").unwrap();
        symlink(&dir, &link).unwrap();
        let long = home.path().join("x".repeat(PATH_BYTES_MAX));
        for (path, says) in [
            (long.as_path(), "max_bytes=107"),
            (&dir, "not a socket"),
            (&file, "not a socket"),
            (&home.path().join("missing/a.sock"), "no such directory"),
            (&file.join("a.sock"), "not a directory"),
            (Path::new("/"), "path of a file"),
            (&dir.join("LOCK"), "store's own LOCK"),
            (&dir.join("SOLKV"), "store's own SOLKV"),
            (&link.join("admin.sock"), "store's own admin.sock"),
            (&link.join("data/a.sock"), "store's own data"),
        ] {
            for (key, refused) in [("uds", check(&dir, Some(path), None)), ("shm", check(&dir, None, Some(path)))] {
                let said = format!("{:#}", refused.unwrap_err()).to_lowercase();
                let named = said.contains(&format!("{key}=")) && said.contains(&says.to_lowercase());
                assert!(named, "{}: {said}", path.display());
            }
        }
    }

    #[test]
    fn sockets_have_places_of_their_own_and_may_take_that_of_a_dead_one() {
        let home = tempfile::tempdir().unwrap();
        let (dir, link) = (home.path().join("store"), home.path().join("link"));
        fs::create_dir(&dir).unwrap();
        symlink(&dir, &link).unwrap();
        let path = dir.join("a.sock");
        let said = check(&dir, Some(&path), Some(&link.join("a.sock"))).unwrap_err().to_string();
        assert!(said.contains("uds and shm are the same path"), "{said}");
        drop(UnixListener::bind(&path).unwrap());
        check(&dir, Some(&path), Some(&dir.join("b.sock"))).unwrap();
        // The unit's runtime directory exists only while the unit runs.
        let config = config(&dir, Some(Path::new("/run/solkv-of-no-unit/kv.sock")), None);
        config.check_sockets(Moment::Ahead).unwrap();
        assert!(config.check_sockets(Moment::Start).unwrap_err().to_string().contains("no such directory"));
    }
}
