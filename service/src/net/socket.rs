//! Permission to connect to a Unix socket: the mode and the group of its file.
//!
//! Owns: both, and the check that the group exists and may be given to a file. Must not: touch a
//! socket. Runs on `main`.

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::{Gid, Group, getegid, getgroups};
use rustix::thread::{CapabilitySet, capabilities};
use serde::Serialize;

/// A group that the system knows. The configuration shows it as it was given, by name or number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct SocketGroup {
    name: String,
    gid: u32,
}

impl From<SocketGroup> for String {
    fn from(group: SocketGroup) -> Self {
        group.name
    }
}

impl SocketGroup {
    /// Looks up the group that the setting `key` names; `None` if the setting is left out.
    ///
    /// # Errors
    /// The system does not know the group, or the lookup failed.
    pub(crate) fn resolve(key: &str, name: Option<String>) -> Result<Option<Self>> {
        let Some(name) = name else { return Ok(None) };
        let gid = match name.parse() {
            Ok(number) => Some(number),
            Err(_) => {
                let found = Group::from_name(&name);
                found.with_context(|| format!("cannot look up {key}={name}"))?.map(|group| group.gid.as_raw())
            }
        };
        let Some(gid) = gid else {
            bail!(
                "{key}={name}: there is no such group on this machine: create it (groupadd {name}) or correct the name"
            );
        };
        Ok(Some(Self { name, gid }))
    }

    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// Checks that this process may give a file to the group, as a member of it or with the capability CHOWN.
    ///
    /// # Errors
    /// The process may not; the error names the setting `key`.
    pub fn check_may_give(&self, key: &str) -> Result<()> {
        let (name, gid) = (&self.name, Gid::from_raw(self.gid));
        let member = getegid() == gid || getgroups().context("cannot list the groups of this process")?.contains(&gid);
        let privileged = || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::CHOWN));
        ensure!(
            member || privileged(),
            "{key}={name}: the service's user is not a member of this group: make it one (usermod -aG {name} USER, or \
             SupplementaryGroups={name} in the unit)"
        );
        Ok(())
    }
}

/// Permissions and group of a socket's file, which decide who may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    /// Permissions of the socket's file.
    pub mode: u32,
    /// Group of the socket's file; `None` leaves the service's own.
    pub group: Option<SocketGroup>,
}

impl SocketAccess {
    /// Only the owner may connect, and the group is the service's own.
    pub const OWNER: Self = Self { mode: 0o600, group: None };

    /// The mode with which owner and group may connect.
    pub(crate) const OWNER_AND_GROUP: u32 = 0o660;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_known_by_name_or_number_or_is_named_in_the_error() {
        let group = |name: &str| SocketGroup::resolve("shm_group", Some(name.to_owned()));
        let own = Group::from_gid(getegid()).unwrap().expect("a group with a name");
        for name in [own.name.as_str(), &getegid().to_string()] {
            let found = group(name).unwrap().unwrap();
            assert_eq!((found.gid(), String::from(found.clone()).as_str()), (getegid().as_raw(), name));
            found.check_may_give("shm_group").unwrap();
        }
        let missing = group("no-such-group").unwrap_err().to_string();
        assert!(missing.contains("shm_group=no-such-group") && missing.contains("groupadd"), "{missing}");
        assert_eq!(SocketGroup::resolve("shm_group", None).unwrap(), None);
    }
}
