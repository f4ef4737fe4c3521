//! Torture of loads: they are killed, their spills damaged, their sources replaced, their stores removed, their disks
//! full, their memory small.
//!
//! A load either ends right, with the digest of the source that it was last given, or it reports the problem. Then its
//! exit code is not zero, and its message names a file or directory. The spill is given back only as far as the store
//! goes, so no load misses a part of its spill unless its store was removed. Every life follows from a seed, and in
//! each life half of the disturbances are switched off. `make torture TOPIC=load LIVES=1000` runs more lives. A violation
//! prints the command that repeats it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use conformance::{Ability, able};
use torture::{Disk, Fault, FaultKind, Notice, Rng};

use crate::archive::{self, Made};
use crate::{Map, command, digest, engines, limits, str, text};

/// Number of lives in an ordinary run of the tests.
const LIVES: u64 = 24;
/// Largest number of processes in a life. The last of them have no faults.
const TURNS: u64 = 7;
/// Time after which a load counts as hung. A usual load takes a second.
const PATIENCE: Duration = Duration::from_secs(240);
/// Size of a life's disk, enough for all its stores and spills.
const DISK_BYTES: u64 = 1 << 30;
/// Slot of the archives among the sources.
const ARCHIVE_SLOT: u64 = 200;

#[test]
fn loads_end_right_or_name_what_is_wrong() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let one = number("TORTURE_SEED");
    let lives = one.map_or_else(|| number("TORTURE_LIVES").unwrap_or(LIVES), |_| 1);
    // Without it there are no full disks and no losses of power.
    let fuse = able(Ability::Fuse, torture::can_lose_power()).is_some();
    let clock = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let mut seeds = Rng::new(clock);
    let mut totals = Totals::default();
    for life in 0..lives {
        let seed = one.unwrap_or_else(|| seeds.next() >> 24);
        // The engines take turns, each in both orders. Engine and order follow from the seed, so the seed alone repeats
        // a life.
        let wanted = life % (2 * engines().count() as u64);
        let seed = if one.is_some() { seed } else { seed / 8 * 8 + wanted };
        let mut life = Life::new(seed, fuse);
        if let Err(violation) = life.run(&mut totals) {
            panic!("VIOLATION: {violation}\nagain: make torture TOPIC=load SEED={seed}\n{}", life.log.join("\n"));
        }
    }
    println!("{lives} lives, no violation: {totals:?}");
}

/// Number of disturbances and outcomes so far, by name.
#[derive(Debug, Default)]
struct Totals(BTreeMap<&'static str, u64>);

impl Totals {
    fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }
}

/// The source that a life's loads are given.
struct Input {
    /// The source's file; `None` for synthetic pairs of that seed.
    file: Option<PathBuf>,
    seed: u64,
    records: Vec<([u8; 32], [u8; 32])>,
}

impl Input {
    fn map(&self) -> Map {
        self.records.iter().copied().collect()
    }

    fn is_archive(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.extension().is_some_and(|ending| ending == "tar"))
    }

    /// Writes the source's file, if it has one.
    fn write(&self) {
        let Some(file) = &self.file else { return };
        if self.is_archive() {
            // One file of accounts: the last version of a key counts, as in the other files with --on-duplicate last.
            let version = |(key, value): &([u8; 32], [u8; 32])| Made::open(ARCHIVE_SLOT, *key, *value);
            let versions: Vec<Made> = self.records.iter().map(version).collect();
            assert_eq!(&archive::write_archive(file.parent().unwrap(), ARCHIVE_SLOT, &versions), file);
            return;
        }
        let text = |bytes: &[u8; 32]| bs58::encode(bytes).into_string();
        let bytes: Vec<u8> = if file.extension().is_some_and(|ending| ending == "csv") {
            self.records.iter().flat_map(|(k, v)| format!("{},{}\n", text(k), text(v)).into_bytes()).collect()
        } else {
            self.records.iter().flat_map(|(k, v)| [*k, *v].concat()).collect()
        };
        fs::write(file, bytes).unwrap();
    }
}

/// Reasons for which the next load may fail.
#[derive(Clone, Copy, Debug, Default)]
struct Excuses {
    /// A file of the spill was damaged.
    damaged: bool,
    /// The source was replaced after a load had begun.
    replaced: bool,
    /// The disk has a fault, or had one while this process ran.
    disk: bool,
    /// The memory cap may be too small.
    cap: bool,
}

struct Life {
    rng: Rng,
    engine: &'static str,
    order: &'static str,
    /// Disturbances of this life. Each of these six is on in half of the lives.
    kills: bool,
    damages: bool,
    replaces: bool,
    removes: bool,
    faults: bool,
    caps: bool,
    home: tempfile::TempDir,
    disk: Option<(Disk, Receiver<Notice>)>,
    input: Input,
    batch: &'static str,
    /// Value of --on-duplicate for the next process.
    rule: &'static str,
    /// Whether the store was removed, so that the spill may lack a part.
    is_removed: bool,
    /// Reasons that apply now. The test keeps them as an operator would who repairs the damage.
    excuses: Excuses,
    log: Vec<String>,
}

impl Life {
    fn new(seed: u64, fuse: bool) -> Self {
        let mut rng = Rng::of(seed, 1);
        let columns: Vec<_> = engines().flat_map(|engine| [(engine, "sorted"), (engine, "shuffled")]).collect();
        let (engine, order) = columns[(seed % 8) as usize % columns.len()];
        let home = tempfile::tempdir().unwrap();
        let point = home.path().join("disk");
        fs::create_dir(&point).unwrap();
        let disk = (fuse && rng.once_in(2)).then(|| {
            torture::own_mounts().unwrap();
            let disk = Disk::new(&point, DISK_BYTES, rng.next()).unwrap();
            if engine == "rocksdb" {
                disk.keep_flushed_names();
            }
            let (notices, trapped) = channel();
            disk.gate().notify(notices);
            (disk, trapped)
        });
        let count = rng.pick(&[1, 3000, 9000, 16_000, 32_000]) + rng.below(3000);
        let archive = archive::full_name(ARCHIVE_SLOT);
        let file = rng.pick(&[None, Some("pairs.bin"), Some("pairs.csv"), Some(archive.as_str())]);
        let file = file.map(|name| home.path().join(name));
        let mut input = Input { file, seed: rng.below(1 << 30), records: Vec::new() };
        fill(&mut input, count, &mut rng);
        input.write();
        let mut on = || rng.once_in(2);
        let (kills, damages, replaces, removes, faults, caps) = (on(), on(), on(), on(), on(), on());
        let batch = rng.pick(&["200", "1000", "10000"]);
        // A load that stops at a key with two values leaves the spill of its whole source, which can be damaged.
        let rule = if damages { "error" } else { "last" };
        let (excuses, log) = (Excuses::default(), Vec::new());
        Self {
            rng,
            engine,
            order,
            kills,
            damages,
            replaces,
            removes,
            faults,
            caps,
            home,
            disk,
            input,
            batch,
            rule,
            is_removed: false,
            excuses,
            log,
        }
    }

    fn store(&self) -> PathBuf {
        self.home.path().join("disk/store")
    }

    fn work(&self) -> PathBuf {
        self.home.path().join("disk/store.work")
    }

    fn run(&mut self, totals: &mut Totals) -> Result<(), String> {
        let (engine, order, disk) = (self.engine, self.order, self.disk.is_some());
        let (archive, records) = (self.input.is_archive(), self.input.records.len());
        self.say(format!("engine={engine} order={order} disk={disk} archive={archive} records={records}"));
        if self.input.is_archive() {
            totals.count("from an archive");
        }
        totals.count(if disk { "on a disk that loses power" } else { "on a plain disk" });
        for turn in 0..TURNS + 4 {
            let last = turn >= TURNS;
            if !last {
                self.between(totals);
            }
            match self.load(last, totals)? {
                End::Complete => {
                    totals.count("complete");
                    return self.after(totals);
                }
                End::Killed => totals.count("killed"),
                End::Refused(said) => {
                    totals.count("refused by name");
                    self.make_good(&said)?;
                }
            }
        }
        Err("nothing is wrong any more, and the load does not end".to_owned())
    }

    /// Damages or replaces files while no process runs.
    fn between(&mut self, totals: &mut Totals) {
        if self.damages && self.damage() {
            totals.count("damaged");
        }
        if self.replaces && self.rng.once_in(4) {
            totals.count("replaced");
            self.replace();
        }
        if self.removes && self.store().exists() && self.rng.once_in(4) {
            totals.count("removed");
            fs::remove_dir_all(self.store()).unwrap();
            self.is_removed = true;
            self.say("remove: the store".to_owned());
        }
    }

    fn damage(&mut self) -> bool {
        let entries = fs::read_dir(self.work()).into_iter().flatten().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries.filter(|file| !file.ends_with("LOCK")).collect();
        files.sort();
        if files.is_empty() {
            return false;
        }
        let file = files[self.rng.below(files.len() as u64) as usize].clone();
        let mut bytes = fs::read(&file).unwrap();
        let at = self.rng.below(bytes.len().max(1) as u64) as usize;
        let how = self.rng.pick(&["flip", "flip", "cut", "cut at a record", "empty", "remove", "swap", "grow"]);
        match how {
            "flip" if !bytes.is_empty() => bytes[at] ^= 1 << self.rng.below(8),
            "cut" => bytes.truncate(at),
            "cut at a record" => bytes.truncate(at.saturating_sub(40) / 72 * 72 + 40),
            "empty" => bytes.clear(),
            "swap" => bytes = fs::read(&files[self.rng.below(files.len() as u64) as usize]).unwrap(),
            _ => bytes.extend_from_within(bytes.len().saturating_sub(72)..),
        }
        self.say(format!("damage: {how} file={}", file.display()));
        if how == "remove" {
            fs::remove_file(&file).unwrap()
        } else {
            fs::write(&file, bytes).unwrap()
        }
        self.excuses.damaged = true;
        true
    }

    /// Replaces the source under the same name: one record corrected at the same length, more records, or all new ones.
    fn replace(&mut self) {
        let how = self.rng.pick(&["corrected", "grown", "new"]);
        let count = self.input.records.len() as u64;
        let modified = self.input.file.as_ref().map(|file| fs::metadata(file).unwrap().modified().unwrap());
        match (how, &self.input.file) {
            ("corrected", Some(_)) => {
                let at = self.rng.below(count) as usize;
                self.input.records[at].1[7] ^= 0x40;
            }
            ("grown", _) => fill(&mut self.input, count + 50, &mut self.rng),
            _ => {
                self.input.seed += 1;
                fill(&mut self.input, count, &mut self.rng);
            }
        }
        self.input.write();
        if let (Some(file), Some(modified), true) = (&self.input.file, modified, self.rng.once_in(2)) {
            fs::File::options().write(true).open(file).unwrap().set_modified(modified).unwrap();
        }
        self.say(format!("replace: {how}"));
        self.excuses.replaced = true;
    }

    fn args(&self) -> Vec<String> {
        let store = self.store();
        let mut args = vec!["--engine", self.engine, "--dir", str(&store), "--order", self.order, "--resume"];
        args.extend(["--sort-memory", "1MiB", "--skip-disk-check"]);
        if self.input.file.is_some() {
            args.extend(["--on-duplicate", self.rule]);
        }
        if self.input.is_archive() {
            args.extend(["--extract", "token-owner"]);
        }
        if self.order == "shuffled" {
            args.extend(["--batch", self.batch]);
        }
        let mut args: Vec<String> = args.into_iter().map(str::to_owned).collect();
        match &self.input.file {
            Some(file) => args.extend(["--input".to_owned(), str(file).to_owned()]),
            None => {
                let (count, seed) = (self.input.records.len().to_string(), self.input.seed.to_string());
                args.extend(["--pairs".to_owned(), count, "--seed".to_owned(), seed]);
            }
        }
        args
    }

    /// Runs one load, with its faults and kills, and judges its end.
    fn load(&mut self, last: bool, totals: &mut Totals) -> Result<End, String> {
        self.excuses.disk = false;
        let args = self.args();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        if !last && self.caps && self.disk.is_none() && self.rng.once_in(4) {
            let cap = self.rng.pick(&[40, 70, 100, 160, 256]);
            if let Some((code, said)) = limits::capped(cap << 20, &args) {
                totals.count("capped");
                self.say(format!("cap={cap}MiB code={code:?} {said}"));
                self.excuses.cap = true;
                return self.judge(code, said);
            }
        }
        self.excuses.cap = false;
        let fault = !last && self.faults && self.rng.once_in(2);
        let trap = (!last && self.kills && self.rng.once_in(2)).then(|| self.rng.below(400));
        if let Some((disk, trapped)) = &self.disk {
            // Drop the notices of the process before.
            while trapped.try_recv().is_ok() {}
            disk.gate().set_trap(trap);
            let kind =
                self.rng.pick(&[FaultKind::Full, FaultKind::FullUnseen, FaultKind::WriteError, FaultKind::SyncError]);
            let from = self.rng.below(if kind == FaultKind::SyncError { 20 } else { 300 });
            let fault = fault.then_some(Fault { kind, from, count: 1_000_000 });
            self.excuses.disk = fault.is_some();
            disk.gate().set_faults(fault.into_iter().collect(), self.rng.next());
        }
        let mut child = command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let kill_at =
            (!last && self.kills && self.disk.is_none()).then(|| Duration::from_micros(self.rng.below(400_000)));
        let power = self.rng.once_in(2);
        let killed = self.wait(&mut child, kill_at, power)?;
        let output = child.wait_with_output().unwrap();
        self.say(format!("trap={trap:?} killed={killed} {} {}", output.status, text(&output)));
        if text(&output).contains("the rest of the spill is used again") {
            totals.count("went on with the rest of a spill");
        }
        if text(&output).contains("a part of its spill was given back") {
            totals.count("spilled again");
            if !self.is_removed {
                return Err(format!("the spill lacks a part that the store does not hold: {}", text(&output)));
            }
        }
        if let Some((disk, trapped)) = &mut self.disk {
            if disk.gate().take_hits().values().sum::<u64>() > 0 {
                totals.count("disk faults");
            }
            disk.gate().set_faults(Vec::new(), 0);
            disk.gate().set_trap(None);
            if killed && power {
                totals.count("power lost");
                disk.lose_power(self.rng.next()).unwrap();
                let (notices, next) = channel();
                disk.gate().notify(notices);
                *trapped = next;
                self.log.push("power lost".to_owned());
            }
        }
        if output.status.signal() == Some(9) && killed {
            return Ok(End::Killed);
        }
        self.judge(output.status.code(), text(&output))
    }

    /// Waits for the process to end, or kills it; `true` if it was killed.
    fn wait(&mut self, child: &mut Child, kill_at: Option<Duration>, power: bool) -> Result<bool, String> {
        let began = Instant::now();
        while child.try_wait().unwrap().is_none() {
            let trapped = self
                .disk
                .as_ref()
                .is_some_and(|(_, notices)| notices.try_iter().any(|notice| matches!(notice, Notice::Trapped)));
            if trapped || kill_at.is_some_and(|at| began.elapsed() >= at) {
                child.kill().unwrap();
                if let Some((disk, _)) = &self.disk {
                    if power {
                        disk.gate().cut_power();
                    }
                    disk.gate().release();
                }
                return Ok(true);
            }
            if began.elapsed() > PATIENCE {
                child.kill().unwrap();
                return Err(format!("a load does not end: {:?}", self.log));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        Ok(false)
    }

    fn judge(&mut self, code: Option<i32>, said: String) -> Result<End, String> {
        if said.contains("a key is given twice with different values") && self.rule == "error" {
            self.rule = "last";
            return Ok(End::Refused(said));
        }
        let names_a_file = said.contains("file=") || said.contains("dir=");
        match code {
            Some(0) => Ok(End::Complete),
            Some(2) if self.excuses.cap && said.contains("the memory limit is too small") => Ok(End::Refused(said)),
            Some(1) if names_a_file && !said.contains("panicked") => Ok(End::Refused(said)),
            _ => Err(format!("neither right nor named: code={code:?} {said}")),
        }
    }

    /// Follows the advice of the message, if there is a reason for the failure.
    fn make_good(&mut self, said: &str) -> Result<(), String> {
        let remove = |dir: &Path| fs::remove_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()));
        if said.contains("the memory limit is too small") || said.contains("a key is given twice") {
            return Ok(());
        }
        if self.excuses.disk {
            return Ok(());
        }
        if said.contains("a file of the spill is damaged") && self.excuses.damaged {
            self.excuses.damaged = false;
            return remove(&self.work());
        }
        if said.contains("the store holds a load of another source") && self.excuses.replaced {
            (self.excuses.replaced, self.is_removed) = (false, true);
            return remove(&self.store());
        }
        Err(format!("refused without a reason: {:?} {said}", self.excuses))
    }

    /// Checks a complete load: it holds exactly its source, succeeds again with --resume, and refuses another source.
    fn after(&mut self, totals: &mut Totals) -> Result<(), String> {
        let info = command(&["info", "--dir", str(&self.store()), "--digest"]).output().unwrap();
        let (info, map) = (text(&info), self.input.map());
        if !info.contains(&digest(&map)) || !info.contains("load=complete") {
            return Err(format!("expected {} pairs={}: {info}", digest(&map), map.len()));
        }
        let work = self.work();
        match self.load(true, totals)? {
            End::Complete if !work.exists() => {}
            _ => return Err("a complete load is not started again well, or leaves its spill".to_owned()),
        }
        self.replace();
        match self.load(true, totals)? {
            End::Refused(said) if said.contains("the store holds a load of another source") => Ok(()),
            _ => Err("a complete load takes another source for its own".to_owned()),
        }
    }

    fn say(&mut self, what: String) {
        self.log.push(what);
    }
}

/// Outcome of one process of a life.
enum End {
    Complete,
    Killed,
    Refused(String),
}

/// Fills a source with `count` records. In a file some keys come again, with the same value or another one.
fn fill(input: &mut Input, count: u64, rng: &mut Rng) {
    let pairs = workload::Pairs::new(input.seed);
    input.records = (0..count).map(|at| (pairs.key(at), pairs.value(at, 0))).collect();
    if input.file.is_none() {
        return;
    }
    for _ in 0..rng.pick(&[0, 1, count / 20]) {
        let (from, to) = (rng.below(count) as usize, rng.below(count) as usize);
        input.records[to].0 = input.records[from].0;
        if rng.once_in(2) {
            input.records[to].1 = input.records[from].1;
        }
    }
}
