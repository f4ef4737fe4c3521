//! The entry of the test binary's child processes: finds the work of the role that the supervisor has given.
//!
//! Owns: the list of roles. Must not: do the work of any. Runs on the child's test thread.

use crate::agent::Orders;
use crate::{Store, full, identity};

/// Becomes an agent if this process was started as one, and returns at once in an ordinary test run. `find` returns the
/// store with a given [`Store::name`].
pub fn enter<S: Store>(find: impl Fn(&str) -> Option<S>) {
    let Some(Orders { role, store: name, dir }) = Orders::of_this_process() else { return };
    let store = find(&name).unwrap_or_else(|| panic!("the test binary does not know the store name={name}"));
    match role.as_str() {
        "hold" => identity::hold(&store, &dir),
        "fill" => full::agent(&store, &dir),
        _ => panic!("no such role: {role}"),
    }
}
