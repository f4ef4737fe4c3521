//! Survey of a store's directory beyond the files that its manifest names: WAL files to replay, and remains of a crash.
//!
//! Owns: which files are this store's, and which of them an opening may remove. Must not: change anything before the
//! whole directory proved to be in a state that a crash can leave. Runs on the thread that opens or repairs the store.

use std::collections::BTreeSet;

use engine_api::{Error, ErrorKind, Result};

use crate::file::{ReadFile, shown, sync_dir};
use crate::format::footer::Wrong;
use crate::format::manifest::{self, Manifest};
use crate::format::wal;
use crate::read::sections::{ReadFooter, is_damage, read_footer, salvage_footer};
use crate::read::segment;
use crate::storage::Storage;

/// Upper bound on the number of files that a store made since its manifest: far more than any device writes between two
/// manifests, and far from the end of the numbers.
const NUMBERS_AHEAD_MAX: u64 = 1 << 32;

/// A file whose name has the form that strata gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    Segment(u64),
    Wal(u64),
}

/// Result of looking at every file of a store.
#[derive(Default)]
pub(crate) struct Survey {
    /// Numbers of the WAL files to replay, ascending.
    pub(crate) wals: Vec<u64>,
    /// Files that nothing needs: those of an interrupted merge or load, and those whose content is in the runs by now.
    pub(crate) obsolete: Vec<String>,
    /// The highest number of any file.
    pub(crate) highest: u64,
    /// The segment with the newest batch among those that the manifest does not name.
    pub(crate) newest: Option<Unnamed>,
    /// The WAL file with the newest batch among those whose first record has another number.
    pub(crate) misnamed: Option<Misnamed>,
}

/// A WAL file that begins with a record of another number: it waits to be overwritten, or somebody renamed it.
pub(crate) struct Misnamed {
    id: u64,
    written_as: u64,
    batch: u64,
}

/// A whole segment that the manifest does not name.
pub(crate) struct Unnamed {
    id: u64,
    batch: u64,
}

impl Own {
    /// Parses a file name; `None` if strata would not have given it.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let (id, _) = name.split_once('.')?;
        let id = id.parse().ok()?;
        let own = [Self::Segment(id), Self::Wal(id)];
        own.into_iter().find(|own| own.name() == name)
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Segment(id) => segment::name(id),
            Self::Wal(id) => wal::name(id),
        }
    }

    pub(crate) fn id(self) -> u64 {
        match self {
            Self::Segment(id) | Self::Wal(id) => id,
        }
    }
}

/// Lists the files whose names have strata's form, in order of their numbers.
pub(crate) fn own_files(storage: &dyn Storage) -> Result<Vec<Own>> {
    let failed = |e| Error::io(format!("cannot list the store's directory: dir={}", storage.shown()), e);
    let names = storage.list().map_err(failed)?;
    let mut own: Vec<Own> = names.iter().filter_map(|name| Own::of(name)).collect();
    own.sort_unstable_by_key(|own| (own.id(), matches!(own, Own::Wal(_))));
    Ok(own)
}

/// Returns a message if a store whose manifest has this `next_id` cannot have given the file's number.
pub(crate) fn is_beyond(storage: &dyn Storage, next_id: u64, own: Own) -> Option<String> {
    (own.id() > next_id.saturating_add(NUMBERS_AHEAD_MAX)).then(|| {
        format!(
            "a file is in the store's directory that is not its own: file={} has a number that the store cannot have \
             come to: next_number={next_id}",
            shown(storage, &own.name())
        )
    })
}

/// Refuses a directory with files of a store but no manifest: the store is not new, its manifest is lost.
pub(crate) fn refuse_files_without_manifest(storage: &dyn Storage) -> Result<()> {
    let files = own_files(storage)?;
    let Some(first) = files.first() else { return Ok(()) };
    Err(Error::new(
        ErrorKind::DataDamaged,
        format!(
            "manifest is missing: file={} beside files={} first={}",
            shown(storage, manifest::NAME),
            files.len(),
            first.name(),
        ),
    )
    .with_way_out("put it back, or make it anew with bootstrap repair; nothing was changed"))
}

/// Looks at every file whose name has strata's form.
///
/// # Errors
/// `DataDamaged` naming a file of another store, because then nothing may be removed; I/O errors of reading.
pub(crate) fn survey(storage: &dyn Storage, manifest: &Manifest) -> Result<Survey> {
    let named: BTreeSet<u64> = manifest.runs.iter().flatten().map(|info| info.id).collect();
    let mut found = Survey::default();
    let refused = |why| Err(Error::new(ErrorKind::DataDamaged, format!("{why}: move it away; nothing was changed")));
    for own in own_files(storage)? {
        if let Some(why) = is_beyond(storage, manifest.next_id, own) {
            return refused(why);
        }
        found.highest = found.highest.max(own.id());
        match own {
            Own::Segment(id) if named.contains(&id) => continue,
            Own::Wal(id) if id >= manifest.wal_floor => found.wals.push(id),
            obsolete => found.obsolete.push(obsolete.name()),
        }
        if let Some(why) = is_foreign(storage, manifest, own)? {
            return refused(why);
        }
    }
    found.newest = newest_unnamed(storage, manifest, read_footer)?;
    found.misnamed = misnamed(storage, manifest)?;
    Ok(found)
}

/// Finds the WAL file with the newest batch among those of this store whose first record says another number than the
/// name. One whose beginning the device does not give is left out.
pub(crate) fn misnamed(storage: &dyn Storage, manifest: &Manifest) -> Result<Option<Misnamed>> {
    let mut newest: Option<Misnamed> = None;
    for own in own_files(storage)? {
        let Own::Wal(id) = own else { continue };
        if let Some((written_as, batch)) = unless_damaged(wal::is_misnamed(storage, &manifest.wal_key, id))?
            && newest.as_ref().is_none_or(|newest| newest.batch < batch)
        {
            newest = Some(Misnamed { id, written_as, batch });
        }
    }
    Ok(newest)
}

/// Takes a beginning of a file that the device does not give for none, as a repair does.
pub(crate) fn unless_damaged<T>(read: Result<Option<T>>) -> Result<Option<T>> {
    match read {
        Err(failed) if is_damage(&failed) => Ok(None),
        read => read,
    }
}

/// Finds the segment with the newest batch among those of this store that the manifest does not name.
pub(crate) fn newest_unnamed(storage: &dyn Storage, manifest: &Manifest, read: ReadFooter) -> Result<Option<Unnamed>> {
    let named: BTreeSet<u64> = manifest.runs.iter().flatten().map(|info| info.id).collect();
    let mut newest: Option<Unnamed> = None;
    for own in own_files(storage)? {
        let Own::Segment(id) = own else { continue };
        if named.contains(&id) {
            continue;
        }
        if let Ok((footer, _)) = read(&ReadFile::open(storage, &segment::name(id))?)?
            && footer.origin.seed == manifest.seed
            && newest.as_ref().is_none_or(|newest| newest.batch < footer.origin.batch)
        {
            newest = Some(Unnamed { id, batch: footer.origin.batch });
        }
    }
    Ok(newest)
}

/// Returns a message if the manifest belongs to another store. That is so if there are whole segments, none of them has
/// the manifest's seed, and no segment that it names is damaged and might be its own.
pub(crate) fn is_of_another_store(storage: &dyn Storage, manifest: &Manifest) -> Result<Option<String>> {
    let named: BTreeSet<u64> = manifest.runs.iter().flatten().map(|info| info.id).collect();
    if named.is_empty() {
        return Ok(None);
    }
    let mut other = None;
    for own in own_files(storage)? {
        let id = match own {
            Own::Segment(id) => id,
            // A WAL file with the manifest's salt proves that they belong together, whatever is in the segments' place.
            Own::Wal(id)
                if unless_damaged(wal::begins_with(storage, id))?
                    .is_some_and(|(salt, _)| salt == manifest.wal_key.salt(id)) =>
            {
                return Ok(None);
            }
            Own::Wal(_) => continue,
        };
        let file = ReadFile::open(storage, &segment::name(id))?;
        match salvage_footer(&file)? {
            Ok((footer, _)) if footer.origin.seed == manifest.seed => return Ok(None),
            Err(_) if named.contains(&id) => return Ok(None),
            Ok(_) => other = Some(file.shown().to_owned()),
            Err(_) => {}
        }
    }
    let manifest = shown(storage, manifest::NAME);
    Ok(other.map(|other| format!("manifest is of another store: file={manifest} has another seed than file={other}")))
}

/// Returns a message if the manifest is older than the segments, whatever their batches are. That is so if a segment
/// that it names is gone, and a whole segment has a number that was given after this manifest. A merge removes replaced
/// segments only after it has replaced the manifest.
pub(crate) fn is_superseded(storage: &dyn Storage, manifest: &Manifest) -> Result<Option<String>> {
    let own: BTreeSet<u64> = own_files(storage)?
        .into_iter()
        .filter_map(|own| if let Own::Segment(id) = own { Some(id) } else { None })
        .collect();
    let Some(gone) = manifest.runs.iter().flatten().find(|info| !own.contains(&info.id)) else { return Ok(None) };
    for id in own.range(manifest.next_id..) {
        let file = ReadFile::open(storage, &segment::name(*id))?;
        if salvage_footer(&file)?.is_ok_and(|(footer, _)| footer.origin.seed == manifest.seed) {
            return Ok(Some(format!(
                "manifest is older than the store: file={} names {}, which is gone, and file={} is newer",
                shown(storage, manifest::NAME),
                segment::name(gone.id),
                file.shown(),
            )));
        }
    }
    Ok(None)
}

impl Misnamed {
    /// Returns a message if somebody renamed this file, given that batches were recovered up to `batch`. The store
    /// itself gives a WAL file another number only once the file's batches are in runs.
    pub(crate) fn is_ahead(&self, storage: &dyn Storage, batch: u64) -> Option<String> {
        (self.batch > batch).then(|| {
            format!(
                "a WAL has another name than it was written under: file={} begins with batch={} of file={}, and \
                 recovered_batch={batch}: give it back its name",
                shown(storage, &wal::name(self.id)),
                self.batch,
                wal::name(self.written_as),
            )
        })
    }
}

impl Unnamed {
    /// Returns a message if the manifest is older than this segment, given that batches were recovered up to `batch`. A
    /// segment is written only of batches that are in runs or durable in the WAL. So a crash cannot leave a segment
    /// with a batch that recovery does not find.
    pub(crate) fn is_ahead(&self, storage: &dyn Storage, batch: u64) -> Option<String> {
        (self.batch > batch).then(|| {
            format!(
                "manifest is older than the store: file={} and the WAL end with batch={batch}, but file={} has batch={}",
                shown(storage, manifest::NAME),
                shown(storage, &segment::name(self.id)),
                self.batch,
            )
        })
    }
}

/// Returns a message if a file is whole and another store wrote it. A file that is not whole may be left by a crash.
pub(crate) fn is_foreign(storage: &dyn Storage, manifest: &Manifest, own: Own) -> Result<Option<String>> {
    let not_own = |why: &str| {
        let shown = shown(storage, &own.name());
        format!("a file is in the store's directory that is not its own: file={shown} is {why}")
    };
    let id = match own {
        Own::Wal(id) => {
            let foreign = wal::is_foreign(storage, &manifest.wal_key, id)?;
            return Ok(foreign.then(|| not_own("a WAL of another store")));
        }
        Own::Segment(id) => id,
    };
    let footer = read_footer(&ReadFile::open(storage, &segment::name(id))?)?;
    Ok(match footer {
        Ok((footer, _)) if footer.origin.seed != manifest.seed => Some(not_own("a segment of another store")),
        Ok((footer, _)) if footer.info.id != id => Some(not_own(&format!("segment={}", footer.info.id))),
        Err(Wrong::OtherVersion(version)) => Some(not_own(&format!("of another strata: version={version}"))),
        Ok(_) | Err(Wrong::Damaged(_)) => None,
    })
}

/// Removes the files that a survey found to be obsolete. Call it once everything is in order. Flushes the directory
/// first: the manifest's name may not be durable yet, and the older manifest needs the files that are removed.
///
/// Parts of a flush that was cut are removed last. The last segment of a flush stands for them too, so a rebuild of the
/// manifest must not find it without them.
pub(crate) fn remove_obsolete(storage: &dyn Storage, found: &mut Survey) -> Result<()> {
    sync_dir(storage)?;
    let is_part = |name: &String| -> Result<bool> {
        let footer =
            if name.ends_with(".seg") { read_footer(&ReadFile::open(storage, name)?)? } else { return Ok(false) };
        Ok(footer.is_ok_and(|(footer, _)| footer.origin.part))
    };
    let (mut parts, mut others) = (Vec::new(), Vec::new());
    for name in found.obsolete.drain(..) {
        if is_part(&name)? { parts.push(name) } else { others.push(name) }
    }
    let remove = |name: &String| {
        let removed = storage.remove(name);
        removed.map_err(|e| Error::io(format!("cannot remove file={} reason={e}", shown(storage, name)), e))
    };
    others.iter().try_for_each(remove)?;
    if !parts.is_empty() {
        sync_dir(storage)?;
    }
    parts.iter().try_for_each(remove)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_strata_s_only_as_strata_writes_it() {
        for own in [Own::Segment(1), Own::Wal(999_999_999_999), Own::Segment(1_000_000_000_000)] {
            assert_eq!(Own::of(&own.name()), Some(own));
        }
        let others =
            ["5.seg", "000000000005.seg.bak", "000000000005.tmp", "+00000000005.wal", "MANIFEST", "0.wal", ".seg"];
        for other in others {
            assert_eq!(Own::of(other), None, "{other}");
        }
    }
}
