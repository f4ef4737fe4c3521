//! Opens an archive wherever it is: a file, a directory, standard input or a URL.
//!
//! Owns: the meaning of a location, and its text for messages. Must not: read any of the archive's bytes, or wait for a
//! writer of a pipe. Runs on the thread of the caller.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::Error;
use super::name::Name;
use super::{Tell, directory, http};

/// The location that stands for standard input.
const STDIN: &str = "-";

/// An open archive, not read yet.
pub(super) struct Input {
    pub(super) source: Source,
    pub(super) name: Option<Name>,
    /// The location without a URL's user, password and query.
    pub(super) shown: String,
    /// The location after all redirections, with these.
    pub(super) location: String,
    /// Number of the archive's packed bytes, where it is known.
    pub(super) packed_bytes: Option<u64>,
    /// A server's failures since its last byte.
    pub(super) failures: Arc<http::Failures>,
}

/// Source of an archive's bytes.
pub(super) enum Source {
    Stream(Box<dyn Read + Send>),
    Directory(PathBuf),
}

impl Input {
    /// Opens the archive at `location`. A server that fails is asked again if there is a `waiting`, which is called
    /// meanwhile.
    ///
    /// # Errors
    /// There is nothing to read, or it has the name of an archive with a wrong part; errors of `waiting`.
    pub(super) fn open(location: &str, waiting: Option<&mut Tell<'_>>) -> Result<Self, Error> {
        if location == STDIN {
            let source = Source::Stream(Box::new(io::stdin()));
            return Ok(Self {
                source,
                name: None,
                shown: "standard input".to_owned(),
                location: location.to_owned(),
                packed_bytes: None,
                failures: Arc::default(),
            });
        }
        if http::is_url(location) { Self::open_url(location, waiting) } else { Self::open_path(Path::new(location)) }
    }

    fn open_url(url: &str, waiting: Option<&mut Tell<'_>>) -> Result<Self, Error> {
        let shown = http::shown(url);
        let opened = http::open(url, waiting)?;
        // A server may lead from a fixed name to that of its newest archive.
        let names = [opened.shown.as_str(), shown.as_str()].map(|url| url.rsplit('/').next().and_then(Name::parse));
        let name = names.into_iter().flatten().next().transpose()?;
        let (failures, location) = (opened.bytes.failures(), opened.bytes.url().to_owned());
        let source = Source::Stream(Box::new(opened.bytes));
        Ok(Self { source, name, shown: opened.shown, location, packed_bytes: opened.length, failures })
    }

    fn open_path(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        let failed = |source| Error::Open { archive: shown.clone(), source };
        let metadata = fs::metadata(path).map_err(failed)?;
        if metadata.is_dir() {
            // The name in full, for a location such as ".".
            let full = fs::canonicalize(path).map_err(failed)?;
            let name = full.file_name().and_then(|name| name.to_str()).and_then(Name::of_directory);
            let packed_bytes = Some(directory::bytes(path));
            return Ok(Self {
                source: Source::Directory(path.to_owned()),
                name,
                location: shown.clone(),
                shown,
                packed_bytes,
                failures: Arc::default(),
            });
        }
        let name = path.file_name().and_then(|name| name.to_str()).and_then(Name::parse).transpose()?;
        let bytes: Box<dyn Read + Send> = match metadata.is_file() {
            true => Box::new(File::open(path).map_err(failed)?),
            false => Box::new(Pipe(Err(path.to_owned()))),
        };
        let packed_bytes = metadata.is_file().then_some(metadata.len());
        let (source, location) = (Source::Stream(bytes), shown.clone());
        Ok(Self { source, name, shown, location, packed_bytes, failures: Arc::default() })
    }
}

/// A named pipe, or its path before the first read. The opening waits for a writer, so the thread `unpack` opens it.
struct Pipe(Result<File, PathBuf>);

impl Read for Pipe {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Err(path) = &self.0 {
            self.0 = Ok(File::open(path)?);
        }
        self.0.as_mut().map_or(Ok(0), |file| file.read(out))
    }
}
