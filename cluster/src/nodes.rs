// SPDX-License-Identifier: MIT OR Apache-2.0
//! The nodes of a cluster: their names, and what each is like.

use crate::node_name::NodeLabel;
use crate::{Error, Result, Settings};

/// Bytes of all names together: guests have them on the command line of their kernels.
const MAX_NAMES: usize = 512;

/// The number of the node that is wanted by its number, its own name or `nodeN`; or why there is none.
pub(crate) fn number(wanted: &str, names: &[String]) -> Result<usize, String> {
    let is_it = |n: &usize| wanted == n.to_string() || wanted == names[*n] || wanted == format!("node{n}");
    (0..names.len()).find(is_it).ok_or_else(|| {
        let last = names.len().saturating_sub(1);
        format!("there is no node {wanted:?}; expected a number from 0 to {last} or one of {}", names.join(", "))
    })
}

impl Settings {
    /// How many nodes there are.
    pub fn node_count(&self) -> usize {
        self.nodes.unwrap_or(if self.node.is_empty() { 2 } else { self.node.len() })
    }

    pub fn label(&self, number: usize) -> NodeLabel {
        NodeLabel { number, name: self.node.get(number).and_then(|node| node.name.clone()) }
    }

    /// The names of all nodes.
    pub fn node_names(&self) -> Vec<String> {
        (0..self.node_count()).map(|number| self.label(number).host_name()).collect()
    }

    /// The nodes that gdb may debug.
    pub(crate) fn debugged(&self) -> Result<Vec<usize>> {
        let names = self.node_names();
        self.gdb.iter().map(|node| number(node, &names).map_err(|why| Error::Usage(format!("--gdb: {why}")))).collect()
    }

    /// What one node is like: the cluster's settings with those of its table.
    pub(crate) fn of_node(&self, number: usize) -> Settings {
        let mut all = Settings { node: Vec::new(), ..self.clone() };
        let Some(node) = self.node.get(number).cloned() else { return all };
        let add = |first: Option<String>, then: Option<String>| match (first, then) {
            (Some(first), Some(then)) => Some(format!("{first} {then}")),
            (first, then) => first.or(then),
        };
        if node.kernel.is_some() {
            (all.kernel, all.modules, all.initrd) = (node.kernel, None, None);
        }
        all.modules = node.modules.or(all.modules);
        all.initrd = node.initrd.or(all.initrd);
        all.root = node.root.or(all.root);
        all.machine = node.machine.or(all.machine);
        all.cpus = node.cpus.or(all.cpus);
        all.memory_mib = node.memory_mib.or(all.memory_mib);
        all.append = add(all.append, node.append);
        all.share.extend(node.share);
        all.qemu_arg.extend(node.qemu_arg);
        all
    }

    /// Refuses names that two nodes have, and tables of no node.
    pub(crate) fn check_nodes(&self) -> Result<()> {
        let count = self.node_count();
        if self.node.len() > count {
            return Err(Error::Usage(format!(
                "there are {} tables [[node]] for {count} nodes; give --nodes {} or remove some",
                self.node.len(),
                self.node.len()
            )));
        }
        let names = self.node_names();
        for (number, name) in names.iter().enumerate() {
            if let Some(other) = names[..number].iter().position(|other| other == name) {
                return Err(Error::Usage(format!(
                    "node {other} and node {number} are both named {name}; give each a name of its own"
                )));
            }
            // A node that has another name is also found as nodeN.
            if let Some(Ok(other)) = name.strip_prefix("node").map(str::parse::<usize>) {
                if other != number && name == &format!("node{other}") {
                    return Err(Error::Usage(format!(
                        "node {number} is named {name}, which is node {other}; give it another name"
                    )));
                }
            }
        }
        self.debugged()?;
        let bytes: usize = self.name_words().iter().map(String::len).sum();
        if bytes > MAX_NAMES {
            return Err(Error::Usage(format!(
                "the names of nodes take {bytes} bytes of the kernel's command line: at most {MAX_NAMES} are possible; \
                 give shorter names, or names to fewer nodes"
            )));
        }
        for number in 0..self.node.len() {
            let checked = self.of_node(number).check_one();
            checked.map_err(|e| Error::Usage(format!("node {}: {e}", self.label(number))))?;
        }
        Ok(())
    }

    /// The names of nodes for the guests, as words of the kernel command line.
    pub(crate) fn name_words(&self) -> Vec<String> {
        let named = self.node.iter().enumerate().filter_map(|(n, node)| Some((n, node.name.as_ref()?)));
        named.map(|(n, name)| format!(" telegraphos.name={n}:{name}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_images::Machine;

    fn read(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    fn refused(text: &str) -> String {
        match toml::from_str::<Settings>(text) {
            Ok(settings) => {
                let e = settings.check().unwrap_err();
                assert_eq!(e.exit_code(), 2);
                e.to_string()
            }
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn a_node_is_what_its_table_says_and_else_what_the_cluster_is() {
        let text = "memory = 512\ncpus = 2\nappend = \"a\"\nkernel = \"/k\"\nmodules = \"/m\"\nqemu-arg = [\"-d\"]\n\
                    share = [\"/a:/a\"]\n[[node]]\nname = \"server\"\nmemory = \"1G\"\nappend = \"b\"\nshare = [\"/b:/b:ro\"]\n\
                    qemu-arg = [\"int\"]\nmachine = \"pc\"\nroot = \"host\"\n[[node]]\nkernel = \"6.1\"\ncpus = 1\n[fabric]\nrings = 0\n";
        let settings = read(text);
        settings.check().unwrap();
        assert_eq!((settings.node_count(), settings.node_names()), (2, vec!["server".to_owned(), "node1".into()]));
        let (first, second) = (settings.of_node(0), settings.of_node(1));
        assert_eq!((first.memory_mib, first.cpus, first.append.as_deref()), (Some(1024), Some(2), Some("a b")));
        assert_eq!((first.share.len(), first.qemu_arg), (2, vec!["-d".to_owned(), "int".into()]));
        assert_eq!((first.modules, first.root.is_some()), (Some("/m".into()), true));
        assert_eq!((first.machine, second.machine), (Some(Machine::Pc), None));
        assert_eq!((second.memory_mib, second.cpus, second.modules), (Some(512), Some(1), None));
        assert_eq!(second.kernel, Some("6.1".parse().unwrap()));
        assert_eq!(settings.label(0).to_string(), "0 (server)");
        assert_eq!((settings.label(1).to_string(), settings.label(1).short()), ("1".into(), "1".into()));
        assert_eq!(settings.name_words(), [" telegraphos.name=0:server"]);
        // Nodes without a table are like the cluster.
        let three = Settings { nodes: Some(3), ..settings };
        three.check().unwrap();
        assert_eq!((three.node_names().len(), three.of_node(2).memory_mib), (3, Some(512)));
    }

    #[test]
    fn nodes_are_found_by_number_and_both_names() {
        let names = ["server".to_owned(), "node1".into()];
        for (wanted, found) in [("0", 0), ("server", 0), ("node0", 0), ("1", 1), ("node1", 1)] {
            assert_eq!(number(wanted, &names), Ok(found));
        }
        let text = number("2", &names).unwrap_err();
        assert_eq!(text, "there is no node \"2\"; expected a number from 0 to 1 or one of server, node1");
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (text, words) in [
            ("[[node]]\nname = \"a\"\n[[node]]\nname = \"a\"\n", "node 0 and node 1 are both named a"),
            ("[[node]]\nname = \"node1\"\n[[node]]\n", "named node1"),
            ("[[node]]\nname = \"node7\"\n", "node 0 is named node7, which is node 7"),
            ("nodes = 1\n[[node]]\n[[node]]\n", "2 tables [[node]] for 1 nodes; give --nodes 2"),
            ("[[node]]\nname = \"b\"\nmemory = 1\n", "node 0 (b): memory is 1 MiB: expected 128"),
            ("[[node]]\nname = \"7\"\n", "\"7\" is no name of a node"),
            ("[[node]]\nname = \"localhost\"\n", "no name of a node"),
            ("[[node]]\nname = \"A b\"\n", "no name of a node"),
            ("[[node]]\nmemori = 5\n", "memori"),
            ("gdb = [\"2\"]\n", "--gdb: there is no node \"2\""),
            ("share = [\"/a:/x\"]\n[[node]]\nshare = [\"/b:/x\"]\n", "node 0: two shares are at /x"),
        ] {
            let said = refused(text);
            assert!(said.contains(words), "{text:?} is refused with {said:?}: expected {words:?}");
        }
        let many: String = (0..64).map(|n| format!("[[node]]\nname = \"a-rather-long-name-{n}\"\n")).collect();
        assert!(refused(&many).contains("at most 512"));
    }
}
