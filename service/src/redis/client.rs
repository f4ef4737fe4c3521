//! One connection's state, and the answer to each of its requests.
//!
//! Owns: the token, version and commitment that a connection has named, and the gets that are looked up together. Must
//! not: decide who gets an answer; `ask` does. Threads: the network edge.
//!
//! Gets that a client sends one after another without waiting are looked up together, from one state.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine_api::{Key, Value};
use proto::v1::GET_MANY_KEYS_MAX;

use super::answer::{Answers, Version};
use super::command::{self, Kind};
use super::name::Name;
use super::{options, request};
use crate::ask::budget::Peer;
use crate::ask::refusal::{Cause, Refusal};
use crate::ask::wait::Wanted;
use crate::ask::{Ask, refuse_other_map};
use crate::base::chain::Commitment;
use crate::base::figure::count;
use crate::net::Access;
use crate::net::connection::UnderWay;
use crate::status::Status;
use options::Options;

/// Maximum number of gets that are looked up together: as many reads as strata keeps in flight.
const TOGETHER_MAX: usize = 64;

/// Number of keys of a value in an answer, if the client names none.
const KEYS_DEFAULT: u64 = 1000;

/// Number of a batch's keys that are read or answered at once, before the other connections of the thread have their turn.
const PIECE_KEYS: usize = 256;

/// How a client sends a token.
const TOKEN_HOW: &str = "send AUTH TOKEN";

/// Version of Redis whose commands these are; some clients look for it.
const REDIS_VERSION: &str = "7.0.0";

/// State that all connections of the protocol share.
pub(super) struct Shared {
    pub(super) ask: Ask,
    pub(super) status: Status,
    pub(super) access: Arc<Access>,
    pub(super) request_timeout: Duration,
    pub(super) newest_id: AtomicU64,
    /// Number of keys that were found, and that were not, over this protocol.
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
}

/// A connection, as far as its requests know it.
pub(super) struct Client {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    id: u64,
    token: Option<Vec<u8>>,
    name: Vec<u8>,
    commitment: Commitment,
    gets: Vec<Name>,
    pub(super) answers: Answers,
    /// Whether the connection ends after the answers so far.
    pub(super) is_over: bool,
}

impl Client {
    pub(super) fn new(shared: Arc<Shared>, peer: Arc<Peer>) -> Self {
        // ORDERING: Relaxed: a number, and nothing else.
        let id = shared.newest_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (token, name, commitment) = (None, Vec::new(), Commitment::default());
        let (gets, answers) = (Vec::new(), Answers::default());
        Self { shared, peer, id, token, name, commitment, gets, answers, is_over: false }
    }

    /// Whether the client may send large requests: it needs no token, or has sent one that was known.
    pub(super) fn is_known(&self) -> bool {
        self.token.is_some() || !self.needs_token()
    }

    fn needs_token(&self) -> bool {
        self.peer.from.is_some() && self.shared.access.tokens.is_some()
    }

    /// Adds the answer to a request, or keeps a get for the next call of [`Self::answer_gets`].
    pub(super) async fn take(&mut self, words: &[&[u8]], form: request::Form) {
        let Some((name, rest)) = words.split_first() else { return };
        let found = self.find(name, words.len());
        if let Ok(Kind::Get) = found
            && let Ok(name) = Name::read(rest[0])
        {
            self.gets.push(name);
            if self.gets.len() == TOGETHER_MAX {
                self.answer_gets().await;
            }
            return;
        }
        self.answer_gets().await;
        // What a client may not do does not keep its connection.
        let _under_way = self.is_known().then(|| UnderWay::new(&self.peer.seat));
        let before = self.answers.bytes.len();
        let answered = match found {
            Ok(kind) => self.answer(kind, rest).await,
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = answered {
            self.answers.refusal(&refusal);
        }
        // A web page can have a browser send lines to a port of its machine: none of them may be taken for a request.
        self.is_over |= form == request::Form::Line && self.answers.bytes.get(before) == Some(&b'-');
    }

    /// Returns the command of this name, if the client may use it with so many words.
    fn find(&self, name: &[u8], words: usize) -> Result<Kind, Refusal> {
        let shown = || String::from_utf8_lossy(&name[..name.len().min(64)]).into_owned();
        let Some(command) = command::find(name) else {
            let message = format!("unknown command '{}': the map is only read; COMMAND LIST has the commands", shown());
            return Err(Refusal::invalid(message));
        };
        // A client that needs no token settles with whatever it asks first. One whose token is known no more may send another.
        if !command.is_open || !self.needs_token() {
            self.peer.admit(&self.shared.access, self.token.as_deref(), TOKEN_HOW)?;
        }
        if !command.words.contains(&words) {
            return Err(Refusal::invalid(format!("wrong number of arguments for '{}' command", shown())));
        }
        Ok(command.kind)
    }

    /// Adds the answers to the gets that wait.
    pub(super) async fn answer_gets(&mut self) {
        let gets = std::mem::take(&mut self.gets);
        let _under_way = (!gets.is_empty()).then(|| UnderWay::new(&self.peer.seat));
        if let [one] = gets[..] {
            self.answer_get(one).await;
        } else if !gets.is_empty() {
            let keys = gets.iter().map(|name| name.key).collect();
            match self.get_many(keys, self.wanted(&Options::new(self.commitment))).await {
                Ok((values, _)) => {
                    gets.iter().zip(&values).for_each(|(name, value)| self.answers.value(value.as_ref(), name.form));
                }
                // One damaged page must not fail the others.
                Err(Refusal { cause: Cause::Damaged, .. }) => {
                    for name in &gets {
                        self.answer_get(*name).await;
                    }
                }
                Err(refusal) => gets.iter().for_each(|_| self.answers.refusal(&refusal)),
            }
        }
        self.gets = gets;
        self.gets.clear();
    }

    async fn answer_get(&mut self, name: Name) {
        match self.get(name.key, &Options::new(self.commitment)).await {
            Ok((value, _)) => self.answers.value(value.as_ref(), name.form),
            Err(refusal) => self.answers.refusal(&refusal),
        }
    }

    /// Adds the answer to a command with these words after its name.
    async fn answer(&mut self, kind: Kind, words: &[&[u8]]) -> Result<(), Refusal> {
        match kind {
            Kind::Auth => self.auth(words.last().copied().unwrap_or_default()).map(|()| self.answers.text("OK"))?,
            Kind::Client => self.client(words)?,
            Kind::Command => {
                if !command::answer(words, &mut self.answers) {
                    return Err(Refusal::invalid("use COMMAND, or COMMAND COUNT, INFO, LIST or DOCS"));
                }
            }
            Kind::Commitment => match words.first() {
                None => self.answers.text(self.commitment.name()),
                Some(word) => {
                    self.commitment = options::commitment(word)?;
                    self.answers.text("OK");
                }
            },
            Kind::Config => self.config(words)?,
            Kind::Hello => self.hello(words)?,
            Kind::Info => {
                let info = self.info();
                self.answers.bulk(info.as_bytes());
            }
            Kind::Ping => match words.first() {
                None => self.answers.text("PONG"),
                Some(word) => self.answers.bulk(word),
            },
            Kind::Quit => {
                self.answers.text("OK");
                self.is_over = true;
            }
            Kind::Select => {
                refuse_other_map(if words[0] == b"0" { "" } else { "other" })?;
                self.answers.text("OK");
            }
            Kind::Get => {
                let name = Name::read(words[0])?;
                self.answer_get(name).await;
            }
            Kind::Exists | Kind::MGet | Kind::MGetWithSlot => self.batch(kind, words).await?,
            Kind::GetWithSlot | Kind::GetAt | Kind::KeysOf => self.with_slot(kind, words).await?,
        }
        Ok(())
    }

    async fn batch(&mut self, kind: Kind, words: &[&[u8]]) -> Result<(), Refusal> {
        let has_slot = kind == Kind::MGetWithSlot;
        let known: &[&str] = if has_slot { &["COMMITMENT", "MINSLOT"] } else { &[] };
        let (words, options) = options::read(words, known, self.commitment)?;
        let count = words.len();
        if !(1..=GET_MANY_KEYS_MAX).contains(&count) {
            return Err(Refusal::invalid(format!("give 1 to {GET_MANY_KEYS_MAX} keys, ask in parts: got={count}")));
        }
        let mut names = Vec::with_capacity(count);
        for words in words.chunks(PIECE_KEYS) {
            for word in words {
                names.push(Name::read(word)?);
            }
            pause(count).await;
        }
        let keys = names.iter().map(|name| name.key).collect();
        let (values, slot) = self.get_many(keys, self.wanted(&options)).await?;
        if kind == Kind::Exists {
            self.answers.number(values.iter().flatten().count() as u64);
            return Ok(());
        }
        if has_slot {
            self.answers.array(2);
        }
        self.answers.array(values.len());
        for (names, values) in names.chunks(PIECE_KEYS).zip(values.chunks(PIECE_KEYS)) {
            names.iter().zip(values).for_each(|(name, value)| self.answers.value(value.as_ref(), name.form));
            pause(count).await;
        }
        if has_slot {
            self.answers.slot(slot);
        }
        Ok(())
    }

    async fn with_slot(&mut self, kind: Kind, words: &[&[u8]]) -> Result<(), Refusal> {
        let known: &[&str] = match kind {
            Kind::GetAt => &["COMMITMENT"],
            Kind::KeysOf => &["COMMITMENT", "MINSLOT", "LIMIT", "CURSOR"],
            _ => &["COMMITMENT", "MINSLOT"],
        };
        let (words, mut options) = options::read(words, known, self.commitment)?;
        match (kind, words) {
            (Kind::GetWithSlot, [key]) => {
                let name = Name::read(key)?;
                let (value, slot) = self.get(name.key, &options).await?;
                self.answers.array(2);
                self.answers.value(value.as_ref(), name.form);
                self.answers.slot(slot);
            }
            (Kind::GetAt, [key, slot]) => {
                let (name, slot) = (Name::read(key)?, options::number(slot, "the slot")?);
                // The map has to be there: a later change could be of the slot asked for.
                options.min_slot = Some(slot);
                let wanted = self.wanted(&options);
                let past = self.in_time(self.shared.ask.get_at(name.key, slot, &wanted, &self.peer)).await?;
                self.answers.array(3);
                self.answers.value(past.value.as_ref(), name.form);
                self.answers.slot(past.slot);
                self.answers.slot(past.until_slot);
            }
            (Kind::KeysOf, [value]) => {
                let (name, limit) = (Name::read(value)?, options.limit.unwrap_or(KEYS_DEFAULT));
                let wanted = self.wanted(&options);
                let asked = async {
                    let ask = &self.shared.ask;
                    ask.keys_of(name.key, options.cursor, limit, &wanted, &self.peer).await?.next().await
                };
                let keys = self.in_time(asked).await?;
                let keys =
                    keys.ok_or_else(|| Refusal::new(Cause::Internal, "an answer without a message: this is a bug"))?;
                self.answers.array(3);
                self.answers.array(keys.keys.len());
                keys.keys.iter().for_each(|key| self.answers.value(Some(key), name.form));
                self.answers.slot(keys.slot);
                match keys.cursor {
                    Some(cursor) => self.answers.bulk(bs58::encode(cursor).into_string().as_bytes()),
                    None => self.answers.null(),
                }
            }
            _ => return Err(Refusal::invalid(format!("unknown option: use {}", known.join(", ")))),
        }
        Ok(())
    }

    async fn get(&self, key: Key, options: &Options) -> Result<(Option<Value>, Option<u64>), Refusal> {
        let wanted = self.wanted(options);
        let answer = self.in_time(self.shared.ask.get(key, &wanted, &self.peer)).await?;
        self.count([answer.value]);
        Ok((answer.value, answer.slot))
    }

    async fn get_many(&self, keys: Vec<Key>, wanted: Wanted) -> Result<(Vec<Option<Value>>, Option<u64>), Refusal> {
        let answer = self.in_time(self.shared.ask.get_many(keys, &wanted, &self.peer)).await?;
        self.count(answer.value.iter().copied());
        Ok((answer.value, answer.slot))
    }

    fn count(&self, values: impl IntoIterator<Item = Option<Value>>) {
        let (mut hits, mut misses) = (0, 0);
        values.into_iter().for_each(|value| *if value.is_some() { &mut hits } else { &mut misses } += 1);
        count(&self.shared.hits, hits);
        count(&self.shared.misses, misses);
    }

    fn wanted(&self, options: &Options) -> Wanted {
        Wanted::new(options.commitment, options.min_slot, Some(self.shared.request_timeout))
    }

    async fn in_time<T>(&self, asked: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        let limit = self.shared.request_timeout;
        let overdue = |_| Refusal::new(Cause::Overdue, format!("not answered within limit={limit:?}"));
        tokio::time::timeout(limit, asked).await.map_err(overdue)?
    }

    /// Takes a token, if it is known; without tokens any is.
    fn auth(&mut self, token: &[u8]) -> Result<(), Refusal> {
        if self.needs_token() {
            self.peer.admit(&self.shared.access, Some(token), TOKEN_HOW)?;
            self.token = Some(token.to_owned());
        }
        Ok(())
    }

    fn hello(&mut self, words: &[&[u8]]) -> Result<(), Refusal> {
        let (mut version, mut words) = (self.answers.version, words);
        if let Some((wanted, rest)) = words.split_first() {
            (version, words) = match *wanted {
                b"2" => (Version::Two, rest),
                b"3" => (Version::Three, rest),
                _ => {
                    self.answers.error("NOPROTO", "unsupported protocol version: use 2 or 3");
                    return Ok(());
                }
            };
        }
        while let Some((option, rest)) = words.split_first() {
            words = match (option.to_ascii_uppercase().as_slice(), rest) {
                (b"AUTH", [_user, token, rest @ ..]) => {
                    self.auth(token)?;
                    rest
                }
                (b"SETNAME", [name, rest @ ..]) => {
                    self.name = name.to_vec();
                    rest
                }
                _ => return Err(Refusal::invalid("use HELLO 2 or 3, with AUTH USER TOKEN and SETNAME NAME")),
            };
        }
        if !self.is_known() {
            self.peer.admit(&self.shared.access, None, TOKEN_HOW)?;
        }
        self.answers.version = version;
        self.answers.map(7);
        for (name, value) in
            [("server", "solkv"), ("version", REDIS_VERSION), ("mode", "standalone"), ("role", "replica")]
        {
            self.answers.bulk(name.as_bytes());
            self.answers.bulk(value.as_bytes());
        }
        self.answers.bulk(b"proto");
        self.answers.number(if version == Version::Two { 2 } else { 3 });
        self.answers.bulk(b"id");
        self.answers.number(self.id);
        self.answers.bulk(b"modules");
        self.answers.array(0);
        Ok(())
    }

    fn client(&mut self, words: &[&[u8]]) -> Result<(), Refusal> {
        match (words[0].to_ascii_uppercase().as_slice(), &words[1..]) {
            (b"ID", []) => self.answers.number(self.id),
            (b"GETNAME", []) if self.name.is_empty() => self.answers.null(),
            (b"GETNAME", []) => self.answers.bulk(&self.name),
            (b"SETNAME", [name]) => {
                self.name = name.to_vec();
                self.answers.text("OK");
            }
            // The library's name and version, which nobody reads here.
            (b"SETINFO", [_, _]) => self.answers.text("OK"),
            _ => return Err(Refusal::invalid("use CLIENT ID, GETNAME, SETNAME NAME or SETINFO NAME VALUE")),
        }
        Ok(())
    }

    /// Answers with the settings that redis-benchmark and some libraries ask for.
    fn config(&mut self, words: &[&[u8]]) -> Result<(), Refusal> {
        let [get, names @ ..] = words else { return Err(Refusal::invalid("use CONFIG GET NAME")) };
        if !get.eq_ignore_ascii_case(b"get") || names.is_empty() {
            return Err(Refusal::invalid("use CONFIG GET NAME: the service's settings stand in its configuration"));
        }
        let settings = [("save", ""), ("appendonly", "no"), ("databases", "1")];
        let asked =
            |setting: &str| names.iter().any(|name| *name == b"*" || name.eq_ignore_ascii_case(setting.as_bytes()));
        let found: Vec<_> = settings.into_iter().filter(|(setting, _)| asked(setting)).collect();
        self.answers.map(found.len());
        for (setting, value) in found {
            self.answers.bulk(setting.as_bytes());
            self.answers.bulk(value.as_bytes());
        }
        Ok(())
    }

    fn info(&self) -> String {
        let status = self.shared.status.response();
        // ORDERING: Relaxed: statistics.
        let [hits, misses] = [&self.shared.hits, &self.shared.misses].map(|figure| figure.load(Ordering::Relaxed));
        let slot = status.checkpoint.and_then(|at| at.slot).map_or_else(|| "none".to_owned(), |slot| slot.to_string());
        format!(
            "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\nsolkv_version:{}\r\nsolkv_engine:{}\r\n\
             solkv_ready:{}\r\nsolkv_slot:{slot}\r\n\r\n# Persistence\r\nloading:0\r\n\r\n# Stats\r\nkeyspace_hits:{hits}\r\n\
             keyspace_misses:{misses}\r\n\r\n# Replication\r\nrole:replica\r\n\r\n# Keyspace\r\ndb0:keys={},expires=0,avg_ttl=0\r\n",
            env!("CARGO_PKG_VERSION"),
            status.engine,
            u8::from(status.ready),
            status.pairs_estimate,
        )
    }
}

/// Lets the other connections of the thread have their turn, if a batch is large.
async fn pause(keys: usize) {
    if keys > PIECE_KEYS {
        tokio::task::yield_now().await;
    }
}
