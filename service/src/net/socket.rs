//! Permission to connect to a Unix socket: the mode and the group of its file.
//!
//! Owns: the spelling of both, and the check that the group exists and may be given to a file. Must not: touch a
//! socket. Runs on `main`.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::{Gid, Group, getegid, getgroups};
use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};

/// Permissions of a socket's file; the configuration writes them in octal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketMode(u32);

impl SocketMode {
    /// Only the owner may connect.
    pub const OWNER: Self = Self(0o600);

    /// Owner and group may connect.
    pub const OWNER_AND_GROUP: Self = Self(0o660);

    pub fn bits(self) -> u32 {
        self.0
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl From<SocketMode> for String {
    fn from(mode: SocketMode) -> Self {
        mode.to_string()
    }
}

impl FromStr for SocketMode {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let bits = u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o777);
        bits.map(Self)
            .with_context(|| format!("not permissions: mode={text:?} expected=octal up to 0777, such as 0660"))
    }
}

impl TryFrom<String> for SocketMode {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

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
    pub mode: SocketMode,
    /// Group of the socket's file; `None` leaves the service's own.
    pub group: Option<SocketGroup>,
}

impl SocketAccess {
    /// Only the owner may connect, and the group is the service's own.
    pub const OWNER: Self = Self { mode: SocketMode::OWNER, group: None };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_modes_are_octal() {
        let parse = |text: &str| serde_json::from_value::<SocketMode>(text.into());
        assert_eq!(parse("0600").unwrap().bits(), 0o600);
        for wrong in ["0888", "1777", "rw", ""] {
            assert!(parse(wrong).unwrap_err().to_string().contains("octal"), "{wrong}");
        }
    }

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
