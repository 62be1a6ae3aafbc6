// SPDX-License-Identifier: MIT OR Apache-2.0
//! Subsets of the nodes, of which all daemons have the same (s3 §6.3).

use crate::types::{Partition, Refusal};
use std::collections::{BTreeMap, BTreeSet};

/// Names, at most, with those of partitions that have been deleted.
const MOST: usize = 256;

/// All partitions, and what is left of those that have been deleted: their version.
#[derive(Debug, Default)]
pub(crate) struct Partitions(BTreeMap<String, Partition>);

impl Partitions {
    /// Those that there are.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Partition> {
        self.0.values().filter(|partition| !partition.nodes.is_empty())
    }

    /// The same, and those that have been deleted.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Partition> {
        self.0.values()
    }

    /// The nodes of a partition.
    pub(crate) fn nodes(&self, name: &str) -> Result<&BTreeSet<u16>, Refusal> {
        self.iter().find(|partition| partition.name == name).map(|partition| &partition.nodes).ok_or_else(|| {
            let text = format!("there is no partition {name:?}; see tg-task partition list");
            Refusal::new(Refusal::ENOENT, text)
        })
    }

    /// Changes a partition on node `writer`. Returns what is to be sent to the other nodes.
    pub(crate) fn change(&mut self, name: &str, nodes: BTreeSet<u16>, writer: u16) -> Result<Partition, Refusal> {
        let version = self.0.get(name).map_or(0, |partition| partition.version);
        let version = version.checked_add(1).ok_or_else(|| {
            Refusal::new(
                Refusal::EAGAIN,
                format!("the partition {name:?} has been changed too often; use another name"),
            )
        })?;
        let partition = Partition { name: name.into(), version, writer, nodes };
        if !self.0.contains_key(name) && !self.make_room() {
            return Err(Refusal::new(Refusal::EAGAIN, format!("there are {MOST} partitions; delete one first")));
        }
        self.0.insert(name.into(), partition.clone());
        Ok(partition)
    }

    /// Takes what another daemon has, if that is newer: the greater version, and of two the greater writer. A writer
    /// that has died, and come back alone, may have made one version twice: then that of the greater nodes counts.
    pub(crate) fn merge(&mut self, other: Partition, always: bool) {
        let newer = match self.0.get(&other.name) {
            Some(own) => always || (other.version, other.writer, &other.nodes) > (own.version, own.writer, &own.nodes),
            None => self.make_room(),
        };
        if newer {
            self.0.insert(other.name.clone(), other);
        }
    }

    /// Room for one more name, if need be that of a partition which has been deleted.
    fn make_room(&mut self) -> bool {
        if self.0.len() < MOST {
            return true;
        }
        let deleted = self.0.values().filter(|partition| partition.nodes.is_empty());
        let Some(name) = deleted.min_by_key(|partition| partition.version).map(|partition| partition.name.clone())
        else {
            return false;
        };
        self.0.remove(&name).is_some()
    }
}
