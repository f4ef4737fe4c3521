//! The snapshot archives that a gap can be closed from.
//!
//! Owns: the search in directories and at validators, and which full archive an incremental one adds to. Must not: read
//! an archive. Runs on the blocking pool.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::SystemTime;

use anyhow::{Context as _, Result, anyhow};
use solana::archive::{Archive, Name, is_url};

/// Paths at which a validator's RPC redirects to its newest archives.
const NEWEST_FULL: &str = "snapshot.tar.bz2";
const NEWEST_INCREMENTAL: &str = "incremental-snapshot.tar.bz2";

/// Archives that bring a store to a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) slot: u64,
    pub(super) archives: Archives,
    /// State of the newest archive when it was found; `None` at a server.
    pub(super) state: Option<FileState>,
}

/// Tells one state of a file from another: its length and its time of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileState {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl FileState {
    pub(super) fn of(found: &fs::Metadata) -> Self {
        Self { bytes: found.len(), modified: found.modified().ok() }
    }
}

/// An archive of a source.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    name: Name,
    /// Its path or URL, as it is opened by.
    location: String,
    state: Option<FileState>,
}

/// The archives themselves, each by its path or URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Archives {
    Full(String),
    /// A full archive, and an incremental one on top of it.
    Both {
        full: String,
        incremental: String,
    },
    /// An incremental archive, for a store that does not stand before the slot `base`.
    Incremental {
        base: u64,
        incremental: String,
    },
}

impl Found {
    /// The location of the newest archive.
    pub(super) fn newest(&self) -> &str {
        match &self.archives {
            Archives::Full(newest)
            | Archives::Both { incremental: newest, .. }
            | Archives::Incremental { incremental: newest, .. } => newest,
        }
    }

    /// Whether a store at `slot` can be brought to the archives' slot.
    pub(super) fn takes(&self, slot: u64) -> bool {
        match self.archives {
            Archives::Full(_) | Archives::Both { .. } => true,
            Archives::Incremental { base, .. } => base <= slot,
        }
    }

    /// How much is read of archives of one slot: less first.
    fn cost(&self) -> u8 {
        match self.archives {
            Archives::Incremental { .. } => 0,
            Archives::Full(_) => 1,
            Archives::Both { .. } => 2,
        }
    }
}

/// The archives of all sources, the newest first, and the reasons why sources could not be asked.
#[derive(Debug, Default)]
pub(super) struct Search {
    pub(super) found: Vec<Found>,
    pub(super) failed: Vec<String>,
}

/// Looks for archives in the directories among the sources, and asks the servers if `is_usable` takes none of these. The
/// servers are asked side by side, because each one may take minutes to answer.
pub(super) fn search(sources: &[String], is_usable: impl Fn(&Found) -> bool) -> Search {
    let (urls, dirs): (Vec<&String>, Vec<&String>) = sources.iter().partition(|source| is_url(source));
    let mut asked: Vec<_> = dirs.iter().map(|dir| in_directory(Path::new(dir))).collect();
    let here: Vec<_> = asked.iter().flatten().flatten().cloned().collect();
    if !paired(&here).iter().any(is_usable) {
        thread::scope(|scope| {
            let servers: Vec<_> = urls.iter().map(|url| scope.spawn(|| at_url(url))).collect();
            let panicked = |_| Err(anyhow!("the search for archives has panicked: this is a bug"));
            asked.extend(servers.into_iter().map(|server| server.join().unwrap_or_else(panicked)));
        });
    }
    let failed = asked.iter().filter_map(|asked| asked.as_ref().err()).map(|error| format!("{error:#}")).collect();
    let all: Vec<_> = asked.into_iter().flatten().flatten().collect();
    Search { found: paired(&all), failed }
}

/// Returns the archives in a directory. Other names, such as those of unfinished archives, are left out.
pub(super) fn in_directory(dir: &Path) -> Result<Vec<Listed>> {
    let list = || -> std::io::Result<_> {
        let mut found = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).and_then(Name::parse);
            // Anything else, such as a named pipe, would be waited for.
            let is_archive = |found: &fs::Metadata| found.is_file() || found.is_dir();
            if let (Some(Ok(name)), Some(location), Some(metadata)) =
                (name, path.to_str(), fs::metadata(&path).ok().filter(is_archive))
            {
                found.push(Listed { name, location: location.to_owned(), state: Some(FileState::of(&metadata)) });
            }
        }
        Ok(found)
    };
    list().with_context(|| format!("cannot list heal_from={}", dir.display()))
}

/// Returns the archive at a URL, or the newest ones of the validator whose RPC it is.
fn at_url(url: &str) -> Result<Vec<Listed>> {
    let listed = |name, location: &str| Listed { name, location: location.to_owned(), state: None };
    let path = url.split(['?', '#']).next().unwrap_or_default();
    if let Some(Ok(name)) = path.rsplit('/').next().and_then(Name::parse) {
        return Ok(vec![listed(name, url)]);
    }
    let query = &url[path.len()..];
    let named = |newest: &str| -> Result<Option<Listed>> {
        let archive = Archive::open(&format!("{}/{newest}{query}", path.trim_end_matches('/')))?;
        Ok(archive.name().map(|name| listed(name.clone(), archive.shown())))
    };
    let full = named(NEWEST_FULL)?.with_context(|| {
        let shown = path.rsplit('@').next().unwrap_or_default();
        format!("the server names no archive of a slot: heal_from={shown} path=/{NEWEST_FULL}")
    })?;
    // A validator that has just written a full archive has no incremental one.
    let incremental = named(NEWEST_INCREMENTAL).ok().flatten();
    Ok(std::iter::once(full).chain(incremental).collect())
}

/// Returns the ways to use archives: each one by itself, and incremental ones on top of the full ones that they add to.
/// The newest comes first, and of one slot the one of which the least is read.
fn paired(all: &[Listed]) -> Vec<Found> {
    let mut found = Vec::new();
    for Listed { name, location, state } in all {
        let mut add = |archives| found.push(Found { slot: name.slot, archives, state: *state });
        let Some(base) = name.base else {
            add(Archives::Full(location.clone()));
            continue;
        };
        let incremental = || location.clone();
        add(Archives::Incremental { base, incremental: incremental() });
        if let Some(full) = all.iter().find(|full| full.name.base.is_none() && full.name.slot == base) {
            add(Archives::Both { full: full.location.clone(), incremental: incremental() });
        }
    }
    found.sort_by_key(|found| (std::cmp::Reverse(found.slot), found.cost()));
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
        let Search { found, failed } = search(&[temp.path().to_str().unwrap().to_owned(), missing.clone()], |_| false);
        let expected = [
            (40, alone(15, &on_none)),
            (30, alone(10, &on_old)),
            (30, Archives::Both { full: old.clone(), incremental: on_old.clone() }),
            (20, Archives::Full(new.clone())),
            (10, Archives::Full(old.clone())),
        ];
        let told: Vec<_> = found.iter().map(|found| (found.slot, found.archives.clone())).collect();
        assert_eq!(told, expected);
        let state_of = |found: &Found| FileState::of(&fs::metadata(found.newest()).unwrap());
        assert!(found.iter().all(|found| found.state == Some(state_of(found))));
        let takes: Vec<bool> = found.iter().map(|found| found.takes(12)).collect();
        assert_eq!(takes, [false, true, true, true, true], "a store that stands before the base lacks changes");
        assert!(failed.len() == 1 && failed[0].contains(&missing), "{failed:?}");
    }

    fn alone(base: u64, incremental: &str) -> Archives {
        Archives::Incremental { base, incremental: incremental.to_owned() }
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
        let Search { found, failed } = search(&[format!("{url}/")], |_| false);
        let at = |name: String| format!("{url}/{name}.tar.zst");
        let full = at(format!("snapshot-10-{HASH}"));
        let incremental = at(format!("incremental-snapshot-10-30-{HASH}"));
        let expected = [
            (30, alone(10, &incremental)),
            (30, Archives::Both { full: full.clone(), incremental }),
            (10, Archives::Full(full)),
        ];
        assert_eq!(found, expected.map(|(slot, archives)| Found { slot, archives, state: None }), "{failed:?}");
    }

    #[test]
    fn the_url_of_an_archive_needs_no_server_to_be_named() {
        let url = format!("https://user:secret@host/snapshot-10-{HASH}.tar.zst?token=secret");
        let Search { found, failed } = search(std::slice::from_ref(&url), |_| false);
        assert_eq!((found.len(), found[0].slot, failed.len()), (1, 10, 0));
        assert_eq!(found[0].archives, Archives::Full(url));
    }
}
