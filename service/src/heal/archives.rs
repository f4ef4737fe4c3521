//! The snapshot archives that a gap can be closed from.
//!
//! Owns: the search in directories and at validators, and which full archive an incremental one adds to. Must not: read
//! an archive. Runs on the blocking pool.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use solana::archive::{Archive, Name, is_url};

/// Paths at which a validator's RPC redirects to its newest archives.
const NEWEST_FULL: &str = "snapshot.tar.bz2";
const NEWEST_INCREMENTAL: &str = "incremental-snapshot.tar.bz2";

/// A full archive, perhaps with an incremental one on top of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Slot of the newer one.
    pub(super) slot: u64,
    pub(super) full: String,
    pub(super) incremental: Option<String>,
}

impl Found {
    /// The location of the newer one.
    pub(super) fn newest(&self) -> &str {
        self.incremental.as_deref().unwrap_or(&self.full)
    }
}

/// The archives of all sources, the newest first, and the reasons why sources could not be asked.
#[derive(Debug, Default)]
pub(super) struct Search {
    pub(super) found: Vec<Found>,
    pub(super) failed: Vec<String>,
}

/// Looks for archives in all sources.
pub(super) fn search(sources: &[String]) -> Search {
    let (mut all, mut failed) = (Vec::new(), Vec::new());
    for source in sources {
        let asked = if is_url(source) { at_url(source) } else { in_directory(Path::new(source)) };
        match asked {
            Ok(found) => all.extend(found),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    Search { found: paired(&all), failed }
}

/// Returns the archives in a directory. Other names, such as those of unfinished archives, are left out.
pub(super) fn in_directory(dir: &Path) -> Result<Vec<(Name, String)>> {
    let list = || -> std::io::Result<_> {
        let mut found = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).and_then(Name::parse);
            if let (Some(Ok(name)), Some(location)) = (name, path.to_str()) {
                found.push((name, location.to_owned()));
            }
        }
        Ok(found)
    };
    list().with_context(|| format!("cannot list heal_from={}", dir.display()))
}

/// Returns the archive at a URL, or the newest ones of the validator whose RPC it is.
fn at_url(url: &str) -> Result<Vec<(Name, String)>> {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    if let Some(Ok(name)) = path.rsplit('/').next().and_then(Name::parse) {
        return Ok(vec![(name, url.to_owned())]);
    }
    let named = |newest: &str| -> Result<Option<(Name, String)>> {
        let archive = Archive::open(&format!("{}/{newest}", url.trim_end_matches('/')))?;
        Ok(archive.name().map(|name| (name.clone(), archive.shown().to_owned())))
    };
    let full = named(NEWEST_FULL)?.with_context(|| {
        let shown = path.rsplit('@').next().unwrap_or_default();
        format!("the server names no archive of a slot: heal_from={shown} path=/{NEWEST_FULL}")
    })?;
    // A validator that has just written a full archive has no incremental one.
    let incremental = named(NEWEST_INCREMENTAL).ok().flatten();
    Ok(std::iter::once(full).chain(incremental).collect())
}

/// Pairs incremental archives with the full ones that they add to. The newest comes first, and of one slot a full one.
fn paired(all: &[(Name, String)]) -> Vec<Found> {
    let fulls = || all.iter().filter(|(name, _)| name.base.is_none());
    let mut found: Vec<Found> =
        fulls().map(|(name, full)| Found { slot: name.slot, full: full.clone(), incremental: None }).collect();
    for (name, incremental) in all {
        let base = fulls().find(|(full, _)| Some(full.slot) == name.base);
        found.extend(base.map(|(_, full)| Found {
            slot: name.slot,
            full: full.clone(),
            incremental: Some(incremental.clone()),
        }));
    }
    found.sort_by_key(|found| (std::cmp::Reverse(found.slot), found.incremental.is_some()));
    found
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const HASH: &str = "EsRJJbTfoF5zDhboW3rMVYiY4xxzEFQJk4U2CEj1QwaQ";

    #[test]
    fn whole_archives_are_found_and_paired_with_their_base() {
        let temp = tempfile::tempdir().unwrap();
        let path = |name: String| temp.path().join(name).to_str().unwrap().to_owned();
        let (old, new) = (path(format!("snapshot-10-{HASH}.tar.zst")), path(format!("snapshot-20-{HASH}.tar.zst")));
        let on_old = path(format!("incremental-snapshot-10-30-{HASH}.tar.zst"));
        let on_none = path(format!("incremental-snapshot-15-40-{HASH}.tar.zst"));
        let unfinished = path(format!("tmp-snapshot-50-{HASH}.tar.zst"));
        for file in [&old, &new, &on_old, &on_none, &unfinished, &path("notes.txt".to_owned())] {
            fs::write(file, "").unwrap();
        }
        let missing = path("missing".to_owned());
        let Search { found, failed } = search(&[temp.path().to_str().unwrap().to_owned(), missing.clone()]);
        let expected = [(30, &old, Some(&on_old)), (20, &new, None), (10, &old, None)]
            .map(|(slot, full, incremental)| Found { slot, full: full.clone(), incremental: incremental.cloned() });
        assert_eq!(found, expected);
        assert!(failed.len() == 1 && failed[0].contains(&missing), "{failed:?}");
    }

    /// Serves the headers of a validator's RPC that has a full archive and an incremental one, for `requests` requests.
    fn validator(requests: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming().take(requests) {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(&stream).lines().map_while(Result::ok);
                let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let head = match lines[0].split(' ').nth(1).unwrap() {
                    "/snapshot.tar.bz2" => format!("303 See Other\r\nlocation: /snapshot-10-{HASH}.tar.zst"),
                    "/incremental-snapshot.tar.bz2" => {
                        format!("303 See Other\r\nlocation: /incremental-snapshot-10-30-{HASH}.tar.zst")
                    }
                    path if path.ends_with(".tar.zst") => "200 OK".to_owned(),
                    _ => "404 Not Found".to_owned(),
                };
                write!(stream, "HTTP/1.1 {head}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
            }
        });
        url
    }

    #[test]
    fn a_validator_names_its_newest_archives_by_redirection() {
        let url = validator(4);
        let Search { found, failed } = search(&[format!("{url}/")]);
        let at = |name: String| format!("{url}/{name}.tar.zst");
        let full = at(format!("snapshot-10-{HASH}"));
        let incremental = Some(at(format!("incremental-snapshot-10-30-{HASH}")));
        let both = Found { slot: 30, full: full.clone(), incremental };
        assert_eq!(found, [both, Found { slot: 10, full, incremental: None }], "{failed:?}");
    }

    #[test]
    fn the_url_of_an_archive_needs_no_server_to_be_named() {
        let url = format!("https://user:secret@host/snapshot-10-{HASH}.tar.zst?token=secret");
        let Search { found, failed } = search(std::slice::from_ref(&url));
        assert_eq!((found.len(), found[0].slot, failed.len()), (1, 10, 0));
        assert_eq!(found[0].full, url);
    }
}
