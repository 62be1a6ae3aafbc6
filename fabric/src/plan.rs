// SPDX-License-Identifier: MIT OR Apache-2.0
//! tmp
use fabric_topology::{SwitchId, Topology, TrunkId};
use std::collections::BTreeMap;
use std::sync::Arc;
/// tmp
#[derive(Clone, Debug)]
pub struct Plan {
    /// tmp
    pub topology: Arc<Topology>,
    /// tmp
    pub names: Vec<String>,
    /// tmp
    pub process: Vec<Option<String>>,
    /// tmp
    pub addresses: BTreeMap<TrunkId, (SwitchId, String)>,
}
impl Plan {
    /// tmp
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }
    /// tmp
    pub fn switch_name(&self, s: SwitchId) -> &str {
        self.names.get(usize::from(s)).map_or("", |n| n)
    }
    /// tmp
    pub fn process_of(&self, s: SwitchId) -> Option<&str> {
        self.process.get(usize::from(s))?.as_deref()
    }
    /// tmp
    pub fn processes(&self) -> Vec<String> {
        let mut all: Vec<String> = self.process.iter().flatten().cloned().collect();
        all.sort();
        all.dedup();
        all
    }
    /// tmp
    pub fn address(&self, t: TrunkId) -> Option<&str> {
        Some(&self.addresses.get(&t)?.1)
    }
    /// tmp
    pub fn listens(&self, t: TrunkId) -> Option<SwitchId> {
        Some(self.addresses.get(&t)?.0)
    }
}
