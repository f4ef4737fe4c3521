//! Token accounts that become something else, and the keys that leave the map for that, under each selection of
//! accounts.

use loadgen::stream::account::{Account, Extract, SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM};
use proto::v1::kv_client::KvClient;
use proto::v1::{Commitment, GetManyRequest};

use crate::scripted::{Scripted, Slot};
use crate::support::{BASE_SLOT, Service, client_runtime, columns, wait_for};

/// Value of every case's key before the change.
const OLD: [u8; 32] = [1; 32];
/// Value of the key after the change, in the cases that set one.
const NEW: [u8; 32] = [2; 32];

/// Cases whose old value stays forever with follow = "wallets".
const WALLETS: [&str; 6] = [
    "closed, and a mint in the same slot",
    "closed, and another program's in the same slot",
    "moved to another program",
    "a multisig",
    "a Token-2022 mint with an extension",
    "uninitialised",
];
/// Cases whose old value stays forever with follow = "closed".
const CLOSED: [&str; 8] = [
    "closed and funded again in the same slot",
    "closed, and a mint in the same slot",
    "closed, and another program's in the same slot",
    "moved to another program",
    "moved to System with lamports",
    "a multisig",
    "a Token-2022 mint with an extension",
    "uninitialised",
];

/// A case: the changes of a token account in one slot and in the next, and the value of its key afterwards.
struct Case {
    name: &'static str,
    writes: Vec<Account>,
    next: Vec<Account>,
    holds: Option<[u8; 32]>,
}

/// Returns data that look like a token account in every place that the length allows.
fn data(len: usize, state: u8, kind: u8) -> Vec<u8> {
    let mut data = vec![7; len];
    for (at, byte) in [(108, state), (165, kind)] {
        data.get_mut(at).into_iter().for_each(|place| *place = byte);
    }
    data
}

fn cases(extract: Extract) -> Vec<Case> {
    let closed = Account::closed;
    let wallet = || Account::of(5, SYSTEM_PROGRAM, Vec::new());
    let token = |key: u8, value: &[u8; 32]| Account::open(extract, &[key; 32], value, 1);
    let token_2022 = Account::of(5, TOKEN_2022_PROGRAM, token(1, &NEW).data().to_vec());
    let without_lamports = |data: Vec<u8>| Account::of(0, TOKEN_PROGRAM, data);
    let mut cases = Vec::new();
    let mut case = |name, writes, next, holds| cases.push(Case { name, writes, next, holds });
    case("closed and funded again in the same slot", vec![closed(), wallet()], vec![], None);
    let mint = Account::of(5, TOKEN_PROGRAM, data(82, 1, 0));
    case("closed, and a mint in the same slot", vec![closed(), mint], vec![], None);
    let others = || Account::of(5, [9; 32], data(165, 1, 0));
    case("closed, and another program's in the same slot", vec![closed(), others()], vec![], None);
    case("moved to another program", vec![others()], vec![], None);
    case("moved to System with lamports", vec![wallet()], vec![], None);
    case("a multisig", vec![Account::of(5, TOKEN_2022_PROGRAM, data(355, 1, 2))], vec![], None);
    let mint = Account::of(5, TOKEN_2022_PROGRAM, data(234, 1, 1));
    case("a Token-2022 mint with an extension", vec![mint], vec![], None);
    case("uninitialised", vec![Account::of(5, TOKEN_PROGRAM, data(165, 0, 0))], vec![], None);
    case("without lamports and data, and still Token's", vec![without_lamports(vec![])], vec![], None);
    case("closed in one slot and funded in the next", vec![closed()], vec![wallet()], None);
    case("moved from Token to Token-2022", vec![token_2022], vec![], Some(NEW));
    case("closed, funded, a token account again", vec![closed(), wallet(), token(12, &NEW)], vec![], Some(NEW));
    case("without lamports, and whole", vec![without_lamports(data(165, 1, 0))], vec![], None);
    cases
}

/// Returns three slots. In the first every case's account is a token account, in the second each becomes something
/// else, and the third has the further changes.
fn slots(cases: &[Case], extract: Extract, confirmed: bool) -> Vec<Slot> {
    let keyed = |of: fn(&Case) -> &[Account]| {
        let writes = cases.iter().enumerate();
        writes.flat_map(|(at, case)| of(case).iter().map(move |account| (key(at), account.clone()))).collect()
    };
    let opened = (0..cases.len()).map(|at| (key(at), Account::open(extract, &key(at), &OLD, 1))).collect();
    // At processed, all writes of an account in one transaction are sent as one. Here each case is one transaction.
    let changed = match confirmed {
        true => keyed(|case| &case.writes),
        false => keyed(|case| &case.writes[case.writes.len() - 1..]),
    };
    vec![
        Slot { number: BASE_SLOT + 1, confirmed: true, writes: opened },
        Slot { number: BASE_SLOT + 2, confirmed, writes: changed },
        Slot { number: BASE_SLOT + 3, confirmed, writes: keyed(|case| &case.next) },
    ]
}

fn key(case: usize) -> [u8; 32] {
    [case as u8 + 1; 32]
}

/// Plays the cases to a service. Returns the names of those whose key keeps its old value.
#[track_caller]
fn kept(extract: Extract, follow: &str, commitment: Commitment) -> Vec<&'static str> {
    let cases = cases(extract);
    let server = Scripted::start(slots(&cases, extract, commitment == Commitment::Confirmed));
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("store");
    let options = columns().remove(0);
    crate::support::load(&dir, &options, &loadgen::stream::options("--pairs 1").unwrap().0);
    let name = if extract == Extract::TokenMint { "token-mint" } else { "token-owner" };
    let args = ["--processed", "--extract", name, "--follow", follow];
    let mut service = Service::start(&dir, &options, &server.url(), &args);
    service.wait_for_slot(BASE_SLOT + 1);
    let request = || GetManyRequest {
        keys: (0..cases.len()).map(|at| key(at).to_vec().into()).collect(),
        commitment: commitment as i32,
        min_context_slot: Some(BASE_SLOT + 3),
        ..Default::default()
    };
    let address = format!("http://{}", service.listen);
    let runtime = client_runtime();
    let reply = wait_for("the last slot", || {
        runtime.block_on(async { KvClient::connect(address.clone()).await.ok()?.get_many(request()).await.ok() })
    });
    let reply = reply.into_inner();
    assert_eq!(reply.slot, Some(BASE_SLOT + 3));
    let mut kept = Vec::new();
    for (case, entry) in cases.iter().zip(reply.entries) {
        let held = entry.value.map(|value| <[u8; 32]>::try_from(&value[..]).unwrap());
        match held {
            held if held == case.holds => {}
            Some(OLD) => kept.push(case.name),
            other => panic!("{}: {other:?} at {commitment:?}", case.name),
        }
    }
    assert!(service.terminate().success());
    kept
}

#[test]
fn exactly_followed_every_account_that_leaves_takes_its_key_with_it() {
    for extract in [Extract::TokenOwner, Extract::TokenMint] {
        for commitment in [Commitment::Confirmed, Commitment::Processed] {
            assert_eq!(kept(extract, "exact", commitment), [""; 0], "{extract:?} at {commitment:?}");
        }
    }
}

#[test]
fn what_narrower_subscriptions_miss_is_what_is_said_of_them() {
    for commitment in [Commitment::Confirmed, Commitment::Processed] {
        assert_eq!(kept(Extract::TokenOwner, "wallets", commitment), WALLETS, "{commitment:?}");
        assert_eq!(kept(Extract::TokenOwner, "closed", commitment), CLOSED, "{commitment:?}");
    }
}

#[test]
fn check_config_names_what_is_missed_and_an_engine_without_a_filter() {
    let temp = tempfile::tempdir().unwrap();
    let checked = |engine: &str, follow: &str| {
        let line = format!("check-config --create-empty --geyser http://h:1 --extract token-owner --engine {engine}");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_service"));
        command.args(line.split(' ')).args(["--follow", follow, "--dir"]).arg(temp.path().join("store"));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    for options in columns() {
        let engine = options.engine.as_str();
        let (exact, wallets) = (checked(engine, "exact"), checked(engine, "wallets"));
        let reads = exact.contains("# follow:") && exact.contains("follow = \"wallets\"");
        assert_eq!(reads, engine != "strata", "{exact}");
        assert!(wallets.contains("# follow:") && wallets.contains("keeps the old value"), "{wallets}");
    }
    if !engines::compiled().contains(&engines::EngineKind::Rocksdb) {
        return;
    }
    // The caution about cost is printed also for a store that does not exist yet.
    let bloom = checked("rocksdb --bloom 20", "exact");
    let said = "# engine: rocksdb keeps filters and indexes in memory outside of --memory: bloom=20 bytes_a_pair=2.8";
    assert!(bloom.contains(said), "{bloom}");
}
