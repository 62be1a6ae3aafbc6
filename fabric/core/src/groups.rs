// SPDX-License-Identifier: MIT OR Apache-2.0
//! The groups that a node has named for its multicasts, on its account: setting one costs the same however many there
//! are.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use telegraphos_accounts::{Account, Exhausted, Shares};
use telegraphos_wire::NodeId;
use telegraphos_wire::link::{MAX_GROUPS, MAX_MEMBERSHIPS};

use crate::Violation;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Unit {
    Group,
    Membership,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Groups {
    /// By page: members in ascending order, never none.
    members: BTreeMap<u32, Arc<[NodeId]>>,
    groups: Account<Unit>,
    memberships: Account<Unit>,
}

impl Default for Groups {
    fn default() -> Groups {
        Groups {
            members: BTreeMap::new(),
            groups: Account::new(Shares::single(MAX_GROUPS as u64)),
            memberships: Account::new(Shares::single(MAX_MEMBERSHIPS as u64)),
        }
    }
}

/// The accounts follow from the members.
impl Serialize for Groups {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.members.iter().map(|(page, members)| (page, &members[..])))
    }
}

impl<'de> Deserialize<'de> for Groups {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Groups, D::Error> {
        let mut groups = Groups::default();
        for (page, members) in BTreeMap::<u32, Vec<NodeId>>::deserialize(deserializer)? {
            groups.groups.take(Unit::Group, 1).map_err(D::Error::custom)?;
            groups.memberships.take(Unit::Membership, members.len() as u64).map_err(D::Error::custom)?;
            groups.members.insert(page, members.into());
        }
        Ok(groups)
    }
}

impl Groups {
    /// The members of the group of a page.
    pub(crate) fn of(&self, page: u32) -> Option<&Arc<[NodeId]>> {
        self.members.get(&page)
    }

    /// From now on these are the members of the group of a page; none ends it.
    pub(crate) fn set(&mut self, page: u32, members: Vec<NodeId>) -> Result<(), Violation> {
        if let Some(ended) = self.members.remove(&page) {
            self.groups.give(&Unit::Group, 1);
            if !bug!(LeakMemberships) {
                self.memberships.give(&Unit::Membership, ended.len() as u64);
            }
        }
        if members.is_empty() {
            return Ok(());
        }
        let unlimited = bug!(UnlimitedGroups);
        let over = |e: Exhausted| (e.held + e.requested, e.limit);
        match self.groups.take(Unit::Group, 1).map_err(over) {
            Err((count, limit)) if !unlimited => return Err(Violation::Groups { count, limit }),
            _ => {}
        }
        match self.memberships.take(Unit::Membership, members.len() as u64).map_err(over) {
            Err((count, limit)) if !unlimited => return Err(Violation::Memberships { count, limit }),
            _ => {}
        }
        self.members.insert(page, Arc::from(members));
        Ok(())
    }

    /// Ends all of them.
    pub(crate) fn clear(&mut self) {
        *self = Groups::default();
    }

    /// Whether what is counted is what is there, and within its bounds; see `Switch::audit`.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let members: usize = self.members.values().map(|group| group.len()).sum();
        let counted = (self.groups.total(), self.memberships.total());
        if counted != (self.members.len() as u64, members as u64) {
            return Err(format!("{} groups with {members} members, on the account {counted:?}", self.members.len()));
        }
        if members > MAX_MEMBERSHIPS || self.members.values().any(|group| group.is_empty()) {
            return Err(format!("{members} members, or a group without any"));
        }
        Ok(())
    }
}
