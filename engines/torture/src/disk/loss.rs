//! A power loss: everything that was flushed survives, and of the other changes those that a seed selects.
//!
//! Owns: the selection of surviving changes. Must not: leave a state that no device could leave. Runs while nothing is
//! mounted.
//!
//! Unflushed bytes survive by sectors, of 512 or 4096 bytes in one loss. Each sector is as it was after any number of
//! the writes to it, independent of its neighbours, so writes are torn and reordered. A file's size grows or does not;
//! if it grew and its bytes were lost, there are zeros. A file that was cut is as before, or was cut before anything
//! that was written later.
//!
//! Operations on names happen wholly or not at all. Those that share no name may be reordered, unless the loss keeps
//! them in order as a journal does. All this is harsher than ext4 with its default `data=ordered`.

use std::collections::{BTreeMap, BTreeSet};

use engine_kit::Rng;

use super::image::Image;
use super::tree::{Body, Change, File, Naming, Pending, Tree};

/// Rule that decides which unflushed changes survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Nothing,
    Everything,
    /// All changes up to a moment survive, and none after it.
    Before(u64),
    /// Sectors that were last written after a moment survive, and no others.
    After(u64),
    /// Each sector has this chance in percent to survive as last written. Otherwise a random number of its first writes
    /// survive.
    Sectors(u64),
    /// Each write has this chance in percent to survive. A sector keeps the writes before the first that does not.
    Writes(u64),
}

impl Tree {
    /// Applies a power loss to every file and directory. Nobody has a file open afterwards.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) {
        let style = self.style(rng);
        let sector_bytes = rng.pick(&[512, 4096]);
        let naming = std::mem::take(&mut self.naming);
        for kept in surviving_names(naming, style, rng) {
            self.make_durable(&kept);
        }
        for inode in self.inodes.values_mut() {
            inode.opens = 0;
            match &mut inode.body {
                Body::File(file) => lose(file, style, sector_bytes, rng),
                Body::Dir(dir) => dir.live = dir.durable.clone(),
            }
        }
        self.forget_unused();
    }

    /// Empties the page cache, as the kernel may do when nobody has a file open. Bytes that a failed flush has left
    /// only in the page cache are lost.
    pub(crate) fn drop_caches(&mut self) {
        for inode in self.inodes.values_mut() {
            if let Body::File(file) = &mut inode.body
                && std::mem::take(&mut file.cache_differs)
            {
                let pending = file.pending.clone();
                let durable = file.durable.clone();
                file.flush();
                file.live = std::mem::replace(&mut file.durable, durable);
                file.pending = pending;
            }
        }
    }

    /// Fails a flush of this file. `chance` is the percentage of pending pages that have reached the device, and the
    /// others are not tried again. The page cache keeps all of them and no longer marks them as dirty, as in Linux.
    pub(crate) fn fail_sync(&mut self, ino: u64, chance: u64, rng: &mut Rng) {
        if let Some(Body::File(file)) = self.inodes.get_mut(&ino).map(|inode| &mut inode.body)
            && !file.pending.is_empty()
        {
            let live = file.live.clone();
            let style = if chance == 0 { Style::Nothing } else { Style::Sectors(chance) };
            lose(file, style, 4096, rng);
            file.live = live;
            file.cache_differs = true;
        }
    }

    fn style(&self, rng: &mut Rng) -> Style {
        let files = self.inodes.values().filter_map(|inode| match &inode.body {
            Body::File(file) => Some(file.pending.iter().map(|pending| pending.at)),
            Body::Dir(_) => None,
        });
        let all: Vec<u64> = files.flatten().chain(self.naming.iter().map(|naming| naming.at)).collect();
        let moment = if all.is_empty() { 0 } else { rng.pick(&all) };
        match rng.below(10) {
            0 => Style::Nothing,
            1 => Style::Everything,
            2 | 3 => Style::Before(moment),
            4 => Style::After(moment),
            5..=7 => Style::Sectors(rng.pick(&[10, 50, 90])),
            _ => Style::Writes(rng.pick(&[10, 50, 90])),
        }
    }
}

/// Returns the operations on names that happened, in order.
fn surviving_names(naming: Vec<Naming>, style: Style, rng: &mut Rng) -> Vec<Naming> {
    let in_order = rng.once_in(2);
    let cut = if naming.is_empty() { 0 } else { rng.below(naming.len() as u64 + 1) as usize };
    let chance = rng.pick(&[10, 50, 90]);
    let mut dropped = BTreeSet::new();
    let mut kept = Vec::new();
    for (index, naming) in naming.into_iter().enumerate() {
        let keep = match style {
            Style::Nothing => false,
            Style::Everything => true,
            Style::Before(moment) => naming.at <= moment,
            _ if in_order => index < cut,
            _ => rng.below(100) < chance,
        };
        let names: Vec<_> = naming.edits.iter().map(|edit| (edit.dir, edit.name.clone())).collect();
        // An operation that shares a name with one that did not happen cannot have happened after it.
        if keep && !names.iter().any(|name| dropped.contains(name)) {
            kept.push(naming);
        } else {
            dropped.extend(names);
        }
    }
    kept
}

/// Reduces the file to its durable bytes and those pending changes that survive.
fn lose(file: &mut File, style: Style, sector_bytes: u64, rng: &mut Rng) {
    let mut survived = file.durable.clone();
    let mut pending = std::mem::take(&mut file.pending);
    // If a cut survived, so did every change before it.
    if let Some(cut) = last_surviving_cut(&survived, &mut pending, style, rng) {
        let mut before = File { durable: survived, pending: pending.drain(..=cut).collect(), ..File::default() };
        before.flush();
        survived = before.durable;
    }
    lose_writes(&mut survived, &pending, style, sector_bytes, rng);
    file.durable = survived.clone();
    file.live = survived;
    file.cache_differs = false;
}

/// Returns the index of the last cut that survived. The first cut that did not survive is removed, with everything
/// after it.
fn last_surviving_cut(durable: &Image, pending: &mut Vec<Pending>, style: Style, rng: &mut Rng) -> Option<usize> {
    let (mut size, mut last) = (durable.size(), None);
    for index in 0..pending.len() {
        match &pending[index].change {
            Change::Write { offset, bytes } => size = size.max(offset + bytes.len() as u64),
            Change::Size(to) if *to < size => {
                let keep = match style {
                    Style::Nothing => false,
                    Style::Everything | Style::After(_) => true,
                    Style::Before(moment) => pending[index].at <= moment,
                    Style::Sectors(chance) | Style::Writes(chance) => rng.below(100) < chance,
                };
                if !keep {
                    pending.truncate(index);
                    return last;
                }
                size = *to;
                last = Some(index);
            }
            Change::Size(to) => size = *to,
        }
    }
    last
}

/// Applies the surviving ones of `pending` to `image`. `pending` contains writes and growth, and no cut.
fn lose_writes(image: &mut Image, pending: &[Pending], style: Style, sector_bytes: u64, rng: &mut Rng) {
    let by_write: Vec<bool> = pending.iter().map(|_| matches!(style, Style::Writes(c) if rng.below(100) < c)).collect();
    let mut sectors: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let (mut sizes, mut size) = (Vec::new(), image.size());
    for (index, Pending { change, .. }) in pending.iter().enumerate() {
        let end = match change {
            Change::Write { offset, bytes } => {
                let end = offset + bytes.len() as u64;
                for sector in offset / sector_bytes..end.div_ceil(sector_bytes) {
                    sectors.entry(sector).or_default().push(index);
                }
                end
            }
            Change::Size(to) => *to,
        };
        if end > size {
            size = end;
            sizes.push((index, end));
        }
    }
    let survivors = |versions: &[usize], rng: &mut Rng| match style {
        Style::Nothing => 0,
        Style::Everything => versions.len(),
        Style::Before(moment) => versions.iter().take_while(|index| pending[**index].at <= moment).count(),
        Style::After(moment) if versions.last().is_some_and(|last| pending[*last].at >= moment) => versions.len(),
        Style::After(_) => 0,
        Style::Sectors(chance) if rng.below(100) < chance => versions.len(),
        Style::Sectors(_) => rng.below(versions.len() as u64 + 1) as usize,
        Style::Writes(_) => versions.iter().take_while(|index| by_write[**index]).count(),
    };
    let (before, mut reached) = (image.size(), image.size());
    for (sector, versions) in &sectors {
        let (from, to) = (sector * sector_bytes, (sector + 1) * sector_bytes);
        for index in &versions[..survivors(versions, rng)] {
            if let Change::Write { offset, bytes } = &pending[*index].change {
                let end = (offset + bytes.len() as u64).min(to);
                let start = from.max(*offset);
                image.put(start, &bytes[(start - offset) as usize..(end - offset) as usize]);
                reached = reached.max(end);
            }
        }
    }
    let indexes: Vec<usize> = sizes.iter().map(|(index, _)| *index).collect();
    let grown = survivors(&indexes, rng).checked_sub(1).map_or(before, |last| sizes[last].1);
    // The size changes together with the bytes, as on ext4, or on its own.
    let size = if rng.once_in(2) { reached } else { grown };
    let size = match style {
        Style::Nothing | Style::Everything => grown,
        _ => size,
    };
    image.set_size(image.size().max(reached).max(grown));
    image.set_size(size.max(before));
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::super::tree::ROOT;
    use super::*;

    fn one_file() -> (Tree, u64) {
        let mut tree = Tree::new(1 << 30);
        let ino = tree.create(ROOT, OsStr::new("a"), false).unwrap();
        tree.sync_dir(ROOT).unwrap();
        tree.write(ino, 0, &[1; 10_000]).unwrap();
        tree.sync_file(ino).unwrap();
        (tree, ino)
    }

    #[test]
    fn what_was_flushed_survives_every_loss() {
        for seed in 0..200 {
            let (mut tree, ino) = one_file();
            tree.write(ino, 12_000, &[2; 9000]).unwrap();
            let late = tree.create(ROOT, OsStr::new("b"), false).unwrap();
            tree.write(late, 0, &[3; 100]).unwrap();
            tree.sync_pages(late, 0, 100).unwrap();
            tree.lose_power(&mut Rng::new(seed));
            assert_eq!(tree.lookup(ROOT, OsStr::new("a")), Ok(ino));
            assert_eq!(tree.file(ino).unwrap().live.read(0, 10_000), vec![1; 10_000], "seed={seed}");
            if tree.lookup(ROOT, OsStr::new("b")).is_ok() {
                assert_eq!(tree.file(late).unwrap().live.read(0, 1000), vec![3; 100], "seed={seed}");
            }
            assert!(tree.naming.is_empty());
        }
    }

    #[test]
    fn what_was_not_flushed_is_lost_kept_torn_and_reordered() {
        let (mut lost, mut kept, mut torn, mut reordered, mut longer) = (0, 0, 0, 0, 0);
        for seed in 0..500 {
            let (mut tree, ino) = one_file();
            tree.write(ino, 0, &[2; 4096]).unwrap();
            tree.write(ino, 4096, &[3; 4096]).unwrap();
            tree.write(ino, 10_000, &[4; 4096]).unwrap();
            tree.lose_power(&mut Rng::new(seed));
            let image = &tree.file(ino).unwrap().live;
            let (first, second) = (image.read(0, 4096), image.read(4096, 4096));
            lost += u64::from(first[0] == 1 && second[0] == 1);
            kept += u64::from(first == [2; 4096] && second == [3; 4096]);
            torn += u64::from(first.contains(&1) && first.contains(&2));
            reordered += u64::from(first[0] == 1 && second[0] == 3);
            longer += u64::from(image.size() > 10_000 && image.read(10_000, 1) == [0]);
            assert!(first.iter().all(|byte| [1, 2].contains(byte)) && (10_000..=14_096).contains(&image.size()));
        }
        for (count, what) in
            [(lost, "lost"), (kept, "kept"), (torn, "torn"), (reordered, "reordered"), (longer, "longer")]
        {
            assert!(count > 5, "{what} in {count} of 500");
        }
    }

    #[test]
    fn a_rename_happens_wholly_or_not_at_all_and_only_a_flushed_one_must() {
        let (mut before, mut after) = (0, 0);
        for seed in 0..200 {
            let (mut tree, old) = one_file();
            let new = tree.create(ROOT, OsStr::new("tmp"), false).unwrap();
            tree.sync_dir(ROOT).unwrap();
            tree.rename((ROOT, OsStr::new("tmp")), (ROOT, OsStr::new("a"))).unwrap();
            if seed % 2 == 0 {
                tree.sync_dir(ROOT).unwrap();
            }
            tree.lose_power(&mut Rng::new(seed));
            let (a, tmp) = (tree.lookup(ROOT, OsStr::new("a")), tree.lookup(ROOT, OsStr::new("tmp")));
            if a == Ok(new) {
                after += 1;
                assert!(tmp.is_err());
            } else {
                before += 1;
                assert!(seed % 2 == 1 && a == Ok(old) && tmp == Ok(new), "seed={seed}");
            }
        }
        assert!(before > 5 && after > 105, "before={before} after={after}");
    }

    #[test]
    fn a_flushed_file_keeps_its_name_where_the_file_system_says_so() {
        for keeps in [false, true] {
            let mut lost = 0;
            for seed in 0..200 {
                let (mut tree, old) = one_file();
                tree.flush_keeps_names = keeps;
                let new = tree.create(ROOT, OsStr::new("tmp"), false).unwrap();
                tree.sync_file(new).unwrap();
                tree.rename((ROOT, OsStr::new("tmp")), (ROOT, OsStr::new("a"))).unwrap();
                tree.lose_power(&mut Rng::new(seed));
                let (a, tmp) = (tree.lookup(ROOT, OsStr::new("a")), tree.lookup(ROOT, OsStr::new("tmp")));
                assert!(a == Ok(new) || a == Ok(old), "seed={seed}");
                lost += u64::from(a == Ok(old) && tmp.is_err());
            }
            assert_eq!(lost > 5, !keeps, "lost={lost}");
        }
    }

    #[test]
    fn a_failed_flush_is_not_made_up_for_by_the_next() {
        let (mut tree, ino) = one_file();
        tree.write(ino, 0, &[2; 4096]).unwrap();
        tree.fail_sync(ino, 0, &mut Rng::new(1));
        assert_eq!(tree.file(ino).unwrap().live.read(0, 1), [2], "the page cache still has it");
        tree.sync_file(ino).unwrap();
        assert_eq!(tree.file(ino).unwrap().durable.read(0, 1), [1]);
        tree.write(ino, 4096, &[5]).unwrap();
        tree.drop_caches();
        assert_eq!(tree.file(ino).unwrap().live.read(0, 1), [1], "and then it has not");
        assert_eq!(tree.file(ino).unwrap().live.read(4096, 1), [5], "what came later is still there");
    }
}
