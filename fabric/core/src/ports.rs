// SPDX-License-Identifier: MIT OR Apache-2.0
//! A map by connection. Each event looks its connection up, and a switch of a torus has five of them, so the numbers
//! lie together in one cache line and the values in another; numbers mostly grow, so few entries are moved.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::PortId;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "BTreeMap<PortId, T>", into = "BTreeMap<PortId, T>", bound(serialize = "T: Clone + Serialize"))]
pub(crate) struct PortMap<T> {
    ports: Vec<PortId>,
    /// By the index of their port.
    values: Vec<T>,
}

impl<T> Default for PortMap<T> {
    fn default() -> PortMap<T> {
        PortMap { ports: Vec::new(), values: Vec::new() }
    }
}

impl<T> From<BTreeMap<PortId, T>> for PortMap<T> {
    fn from(map: BTreeMap<PortId, T>) -> PortMap<T> {
        let (ports, values) = map.into_iter().unzip();
        PortMap { ports, values }
    }
}

impl<T> From<PortMap<T>> for BTreeMap<PortId, T> {
    fn from(map: PortMap<T>) -> BTreeMap<PortId, T> {
        map.ports.into_iter().zip(map.values).collect()
    }
}

impl<T> PortMap<T> {
    /// The value of a port.
    pub(crate) fn get(&self, port: PortId) -> Option<&T> {
        self.values.get(self.ports.binary_search(&port).ok()?)
    }

    pub(crate) fn get_mut(&mut self, port: PortId) -> Option<&mut T> {
        self.values.get_mut(self.ports.binary_search(&port).ok()?)
    }

    /// From now on this is the value of a port.
    pub(crate) fn insert(&mut self, port: PortId, value: T) {
        match self.ports.binary_search(&port) {
            Ok(index) => self.values[index] = value,
            Err(index) => {
                self.ports.insert(index, port);
                self.values.insert(index, value);
            }
        }
    }

    /// Removes a port; its value, if it had one.
    pub(crate) fn remove(&mut self, port: PortId) -> Option<T> {
        let index = self.ports.binary_search(&port).ok()?;
        self.ports.remove(index);
        Some(self.values.remove(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_map() {
        let (mut map, mut plain) = (PortMap::default(), BTreeMap::new());
        for step in 0..1000_u32 {
            let port = step * 37 % 11;
            if step % 3 == 0 {
                assert_eq!(map.remove(port), plain.remove(&port));
            } else {
                map.insert(port, step);
                plain.insert(port, step);
            }
            assert!((0..11).all(|port| map.get(port) == plain.get(&port) && map.get_mut(port) == plain.get_mut(&port)));
        }
        let text = serde_json::to_string(&map).unwrap();
        assert_eq!(text, serde_json::to_string(&plain).unwrap());
        assert_eq!(serde_json::from_str::<PortMap<u32>>(&text).unwrap(), map);
    }
}
