// SPDX-License-Identifier: MIT OR Apache-2.0
//! All links of a process, by name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::{FaultPlan, LinkFaults};
use crate::lock;

/// The links of a process and their faults. Clones are the same.
#[derive(Clone, Debug)]
pub struct Faults {
    seed: u64,
    links: Arc<Mutex<BTreeMap<String, LinkFaults>>>,
}

/// A name that no link has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no link {name:?}: expected * for all, or one of {known}")]
pub struct UnknownLink {
    pub name: String,
    pub known: String,
}

impl Faults {
    /// Without links. Their random numbers depend on `seed`.
    pub fn new(seed: u64) -> Faults {
        Faults { seed, links: Arc::default() }
    }

    /// The link of that name, which is created if it does not exist.
    pub fn link(&self, name: &str) -> LinkFaults {
        lock(&self.links).entry(name.to_owned()).or_insert_with(|| LinkFaults::new(name, self.seed)).clone()
    }

    /// The link of that name, if there is one.
    pub fn find(&self, name: &str) -> Option<LinkFaults> {
        lock(&self.links).get(name).cloned()
    }

    /// All links, by name.
    pub fn all(&self) -> Vec<LinkFaults> {
        lock(&self.links).values().cloned().collect()
    }

    /// Changes the plan of the link of that name, or by `*` of all there are.
    pub fn set(&self, name: &str, plan: FaultPlan) -> Result<(), UnknownLink> {
        if name == "*" {
            self.all().iter().for_each(|link| link.set(plan));
            return Ok(());
        }
        match self.find(name) {
            Some(link) => {
                link.set(plan);
                Ok(())
            }
            None => {
                let known: Vec<String> = lock(&self.links).keys().cloned().collect();
                Err(UnknownLink { name: name.to_owned(), known: known.join(", ") })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_by_name_and_changed_together() {
        let faults = Faults::new(1);
        let link = faults.link("a-b");
        faults.link("b-c");
        let plan: FaultPlan = "loss=1%".parse().unwrap();
        faults.set("a-b", plan).unwrap();
        assert_eq!(link.plan(), plan);
        assert_eq!(faults.link("b-c").plan(), FaultPlan::default());
        faults.set("*", "down".parse().unwrap()).unwrap();
        assert!(faults.all().iter().all(|link| link.plan().down));
        let error = faults.set("a-c", plan).unwrap_err().to_string();
        assert!(error.contains("\"a-c\"") && error.contains("a-b, b-c"), "{error}");
    }
}
