//! The snapshot archives that a gap can be closed from.
//!
//! Owns: the search in directories and at validators, and which full archive an incremental one adds to. Must not: read
//! an archive. Runs on the blocking pool; each question to a server has a thread of its own.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, bail};
use solana::archive::{Archive, Error, Name, is_url, shown_url};

/// How long a search waits for servers. An answer that comes later counts in the next search.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// How often the answers of servers are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Paths at which a validator's RPC redirects to its newest archives.
const NEWEST_FULL: &str = "snapshot.tar.bz2";
const NEWEST_INCREMENTAL: &str = "incremental-snapshot.tar.bz2";

/// Directory beside a validator's own archives, into which agave downloads those of others.
const REMOTE: &str = "remote";

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

    /// Whether a store at `slot` can be brought to the archives' slot, if every slot up to there is right.
    pub(super) fn takes(&self, slot: u64) -> bool {
        match self.archives {
            Archives::Full(_) | Archives::Both { .. } => true,
            Archives::Incremental { base, .. } => base <= slot,
        }
    }

    /// How much is read of archives of one slot: less first.
    pub(super) fn cost(&self) -> u8 {
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
    /// The sources that have answered or failed, as the configuration names them, with the reasons of the failures. A
    /// server that has not answered yet is not among them.
    pub(super) answers: Vec<(String, Result<(), String>)>,
}

/// The places in which archives are searched, and the questions to servers that are not answered yet.
#[derive(Debug)]
pub(super) struct Sources {
    dirs: Vec<String>,
    servers: Vec<Server>,
}

/// A server, which is asked by one thread at a time, because it may take minutes to answer.
#[derive(Debug)]
struct Server {
    url: String,
    asked: Option<JoinHandle<Asked>>,
}

/// The archives that a source has.
type Asked = Result<Vec<Listed>>;

impl Sources {
    /// Sorts the sources into directories and servers.
    pub(super) fn new(sources: &[String]) -> Self {
        let (urls, dirs): (Vec<String>, Vec<String>) = sources.iter().cloned().partition(|source| is_url(source));
        Self { dirs, servers: urls.into_iter().map(|url| Server { url, asked: None }).collect() }
    }

    /// Looks for archives in the directories, and asks the servers if `is_usable` takes none of these. A server that does
    /// not answer delays neither the others nor the next search.
    pub(super) fn search(&mut self, is_usable: impl Fn(&Found) -> bool) -> Search {
        let mut asked: Vec<_> = self.dirs.iter().map(|dir| (dir, Some(in_directory(Path::new(dir))))).collect();
        let here: Vec<_> =
            asked.iter().filter_map(|(_, listed)| listed.as_ref()?.as_ref().ok()).flatten().cloned().collect();
        if !paired(&here).iter().any(is_usable) {
            self.servers.iter_mut().for_each(Server::ask);
            let until = Instant::now() + ANSWER_WAIT;
            while Instant::now() < until && !self.servers.iter().all(Server::has_answered) {
                thread::sleep(LOOK_EVERY);
            }
            asked.extend(self.servers.iter_mut().map(|server| {
                let answer = server.answer();
                (&server.url, answer)
            }));
        }
        Search::of(asked)
    }
}

impl Search {
    /// Sorts the answers of sources. A server has none yet if it was not quick enough.
    fn of<'a>(asked: impl IntoIterator<Item = (&'a String, Option<Asked>)>) -> Self {
        let (mut all, mut failed, mut answers) = (Vec::new(), Vec::new(), Vec::new());
        for (source, answer) in asked {
            let answer = match answer {
                Some(Ok(listed)) => {
                    all.extend(listed);
                    Ok(())
                }
                Some(Err(error)) => Err(format!("{error:#}")),
                None => {
                    failed.push(format!("the server has not answered yet: heal_from={}", shown_url(source)));
                    continue;
                }
            };
            failed.extend(answer.clone().err());
            answers.push((source.clone(), answer));
        }
        Self { found: paired(&all), failed, answers }
    }
}

impl Server {
    /// Asks, unless the question before is not answered yet.
    fn ask(&mut self) {
        if self.asked.is_none() {
            let url = self.url.clone();
            // Without a thread the server counts as one that has not answered yet, and the next search asks it.
            self.asked = thread::Builder::new().name("heal-ask".to_owned()).spawn(move || at_url(&url)).ok();
        }
    }

    fn has_answered(&self) -> bool {
        self.asked.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns the answer, if there is one yet.
    fn answer(&mut self) -> Option<Asked> {
        // There is no panic to look at: it would have ended the program.
        self.asked.take_if(|asked| asked.is_finished())?.join().ok()
    }
}

/// Returns the archives in a directory, and those in its directory [`REMOTE`] if that can be read. Other names, such as
/// those of unfinished archives, are left out.
pub(super) fn in_directory(dir: &Path) -> Asked {
    let list = |dir: &Path| -> std::io::Result<_> {
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
    let mut found = list(dir).with_context(|| format!("cannot list heal_from={}", dir.display()))?;
    found.extend(list(&dir.join(REMOTE)).unwrap_or_default());
    Ok(found)
}

/// Returns the archive at a URL, or the newest ones of the validator whose RPC it is.
fn at_url(url: &str) -> Asked {
    let listed = |name, location: &str| Listed { name, location: location.to_owned(), state: None };
    let path = url.split(['?', '#']).next().unwrap_or_default();
    if let Some(Ok(name)) = path.rsplit('/').next().and_then(Name::parse) {
        return Ok(vec![listed(name, url)]);
    }
    let query = &url[path.len()..];
    let named = |newest: &str| -> Result<Option<Listed>> {
        let archive = Archive::open(&format!("{}/{newest}{query}", path.trim_end_matches('/')))?;
        // A server may lead to a URL that is of use only with its query.
        Ok(archive.name().map(|name| listed(name.clone(), archive.location())))
    };
    let full = match named(NEWEST_FULL) {
        Err(failed) if !is_not_found(&failed) => return Err(failed),
        asked => asked,
    };
    // A validator that has just written a full archive has no incremental one, and a server may have only incremental ones.
    let incremental = named(NEWEST_INCREMENTAL).ok().flatten();
    let found: Vec<_> = full.as_ref().ok().cloned().flatten().into_iter().chain(incremental).collect();
    if found.is_empty() {
        full?;
        let shown = path.rsplit('@').next().unwrap_or_default();
        bail!("the server names no archive of a slot: heal_from={shown} path=/{NEWEST_FULL}");
    }
    Ok(found)
}

/// Whether a server has answered that it does not have an archive.
fn is_not_found(failed: &anyhow::Error) -> bool {
    matches!(failed.downcast_ref(), Some(Error::Open { source, .. }) if source.kind() == ErrorKind::NotFound)
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

    fn search(sources: &[String]) -> Search {
        Sources::new(sources).search(|_| false)
    }

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
        let Search { found, failed, .. } = search(&[temp.path().to_str().unwrap().to_owned(), missing.clone()]);
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

    #[test]
    fn archives_that_agave_has_downloaded_are_found_beside_its_own() {
        let temp = tempfile::tempdir().unwrap();
        let remote = temp.path().join(REMOTE);
        fs::create_dir_all(remote.join(REMOTE)).unwrap();
        let path = |dir: &Path, name: &str| dir.join(format!("{name}-{HASH}.tar.zst")).to_str().unwrap().to_owned();
        let (own, downloaded) = (path(temp.path(), "snapshot-10"), path(&remote, "incremental-snapshot-10-30"));
        for file in [&own, &downloaded, &path(&remote.join(REMOTE), "snapshot-40")] {
            fs::write(file, "").unwrap();
        }
        let Search { found, failed, .. } = search(&[temp.path().to_str().unwrap().to_owned()]);
        let told: Vec<_> = found.iter().map(|found| found.archives.clone()).collect();
        let both = Archives::Both { full: own.clone(), incremental: downloaded.clone() };
        assert_eq!(told, [alone(10, &downloaded), both, Archives::Full(own)], "{failed:?}");
        assert_eq!(failed, [""; 0]);
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
                    "/incremental-snapshot.tar.bz2" | "/without-full/incremental-snapshot.tar.bz2" => {
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
        let Search { found, failed, answers } = search(&[format!("{url}/")]);
        let at = |name: String| format!("{url}/{name}.tar.zst");
        let full = at(format!("snapshot-10-{HASH}"));
        let incremental = at(format!("incremental-snapshot-10-30-{HASH}"));
        let expected = [
            (30, alone(10, &incremental)),
            (30, Archives::Both { full: full.clone(), incremental }),
            (10, Archives::Full(full)),
        ];
        assert_eq!(found, expected.map(|(slot, archives)| Found { slot, archives, state: None }), "{failed:?}");
        assert_eq!(answers, [(format!("{url}/"), Ok(()))]);
    }

    #[test]
    fn a_server_without_a_full_archive_is_asked_for_the_incremental_one() {
        let url = validator(3);
        let Search { found, failed, .. } = search(&[format!("{url}/without-full")]);
        let incremental = format!("{url}/incremental-snapshot-10-30-{HASH}.tar.zst");
        assert_eq!(found, [Found { slot: 30, archives: alone(10, &incremental), state: None }], "{failed:?}");
    }

    #[test]
    fn an_answer_that_comes_late_counts_in_a_later_search_and_delays_no_other_source() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let late = format!("http://user:secret@{}/", listener.local_addr().unwrap());
        let mut sources = Sources::new(&[late, validator(16)]);
        for _ in 0..2 {
            let begun = Instant::now();
            let Search { found, failed, answers } = sources.search(|_| false);
            assert!((ANSWER_WAIT..2 * ANSWER_WAIT).contains(&begun.elapsed()), "{:?}", begun.elapsed());
            assert_eq!((found.len(), failed.len()), (3, 1), "{failed:?}");
            assert!(failed[0].starts_with("the server has not answered yet: heal_from=http://127."), "{failed:?}");
            assert_eq!(answers.len(), 1, "the late one has neither answered nor failed: {answers:?}");
        }
        // The one question of both searches is answered now.
        let (question, _) = listener.accept().unwrap();
        drop(question);
        let Search { failed, .. } = sources.search(|_| false);
        assert!(failed.len() == 1 && !failed[0].contains("not answered yet"), "{failed:?}");
        assert!(!failed[0].contains("secret"), "{failed:?}");
    }

    #[test]
    fn the_url_of_an_archive_needs_no_server_to_be_named() {
        let url = format!("https://user:secret@host/snapshot-10-{HASH}.tar.zst?token=secret");
        let Search { found, failed, .. } = search(std::slice::from_ref(&url));
        assert_eq!((found.len(), found[0].slot, failed.len()), (1, 10, 0));
        assert_eq!(found[0].archives, Archives::Full(url));
    }
}
