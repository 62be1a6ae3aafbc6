// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simulator of the sharing ring of Galactica Net (SPEC item 28; s1, «Related work»), which Telegraphos does not use.
//! It shows that a third node can read 1, 2, 1, which the home's order prevents.
//!
//! The nodes with copies of a word form a ring. A store goes to the node's own copy and then around the ring: each node
//! stores it and forwards it, until it returns. Two nodes that store at about the same time detect it, because each
//! receives the other's update while its own is in flight. «Then, the lowest priority processor will back off»: it
//! takes the other's value. The paper does not say how nodes that have stored the loser's value after the winner's are
//! corrected; both ways are tried ([`Mends`]), with the same result.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

const NODES: usize = 3;

/// The node that corrects the loser's update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mends {
    /// The winner sends its value around once more.
    Winner,
    /// The loser sends the winner's value around, once its own has returned.
    Loser,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Update {
    writer: usize,
    value: u8,
}

/// A node's own update that has not returned yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    /// It has met an update of a node with lower priority.
    won: bool,
    /// It has met an update of a node with higher priority, with this value.
    lost: Option<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    copy: u8,
    /// All values of the copy.
    had: Vec<u8>,
    /// The remaining stores of its program.
    to_store: Vec<u8>,
    under_way: Option<UnderWay>,
    /// The updates on the link to the next node of the ring.
    link: VecDeque<Update>,
}

impl Node {
    fn store(&mut self, value: u8) {
        self.copy = value;
        if self.had.last() != Some(&value) {
            self.had.push(value);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The program of a node stores.
    Store(usize),
    /// A node takes an update from the previous one.
    Take(usize),
}

/// The ring, with the `priority` of each node: when two nodes store at the same time, the greatest wins.
#[derive(Clone, Debug)]
struct Ring {
    priority: [u8; NODES],
    mends: Mends,
}

type State = [Node; NODES];

impl Ring {
    fn before(node: usize) -> usize {
        (node + NODES - 1) % NODES
    }

    fn steps(state: &State) -> Vec<Step> {
        let store = |n: &usize| !state[*n].to_store.is_empty() && state[*n].under_way.is_none();
        let take = |n: &usize| !state[Ring::before(*n)].link.is_empty();
        (0..NODES).filter(store).map(Step::Store).chain((0..NODES).filter(take).map(Step::Take)).collect()
    }

    fn issue(node: &mut Node, writer: usize, value: u8) {
        node.store(value);
        node.under_way = Some(UnderWay { won: false, lost: None });
        node.link.push_back(Update { writer, value });
    }

    fn next(&self, state: &State, step: Step) -> (State, String) {
        let mut next = state.clone();
        match step {
            Step::Store(n) => {
                let value = next[n].to_store.remove(0);
                Ring::issue(&mut next[n], n, value);
                (next, format!("node {n} stores {value} and sends it round"))
            }
            Step::Take(n) => {
                let Some(update) = next[Ring::before(n)].link.pop_front() else { return (next, String::new()) };
                let Update { writer, value } = update;
                let text = self.take(&mut next[n], n, update);
                (next, format!("node {n} is passed {value} of node {writer}: {text}"))
            }
        }
    }

    fn take(&self, node: &mut Node, n: usize, update: Update) -> String {
        let Update { writer, value } = update;
        if writer == n {
            let ended = node.under_way.take().unwrap_or(UnderWay { won: false, lost: None });
            let again = match self.mends {
                Mends::Winner => (ended.won && ended.lost.is_none()).then_some(value),
                Mends::Loser => ended.lost,
            };
            return match again {
                Some(value) => {
                    Ring::issue(node, n, value);
                    format!("its own is back; it sends {value} round, for those that have another value")
                }
                None => "its own is back".into(),
            };
        }
        let text = match &mut node.under_way {
            Some(own) if self.priority[writer] < self.priority[n] => {
                own.won = true;
                "its own goes first, it passes it on only".into()
            }
            Some(own) => {
                own.lost = Some(value);
                node.store(value);
                "it backs off".into()
            }
            None => {
                node.store(value);
                format!("it has {:?} now", node.had)
            }
        };
        node.link.push_back(update);
        text
    }

    /// All reachable states, those at rest, and the path to each.
    fn explore(&self, programs: [Vec<u8>; NODES]) -> Explored {
        let first: State = programs.map(|to_store| Node { to_store, ..Node::default() });
        let mut explored = Explored { ways: BTreeMap::new(), rest: Vec::new() };
        let mut queue = VecDeque::from([first.clone()]);
        explored.ways.insert(first, None);
        while let Some(state) = queue.pop_front() {
            assert!(explored.ways.len() < 1_000_000, "{self:?} does not come to rest");
            let steps = Ring::steps(&state);
            if steps.is_empty() {
                explored.rest.push(state.clone());
            }
            for step in steps {
                let (next, text) = self.next(&state, step);
                if !explored.ways.contains_key(&next) {
                    explored.ways.insert(next.clone(), Some((state.clone(), text)));
                    queue.push_back(next);
                }
            }
        }
        explored
    }
}

struct Explored {
    /// By state: the previous one, and the step.
    ways: BTreeMap<State, Option<(State, String)>>,
    rest: Vec<State>,
}

impl Explored {
    fn way(&self, state: &State) -> Vec<String> {
        let mut way = Vec::new();
        let mut at = state;
        while let Some(Some((before, text))) = self.ways.get(at) {
            way.push(text.clone());
            at = before;
        }
        way.reverse();
        way
    }

    fn check_rest(&self, ring: &Ring) {
        assert!(!self.rest.is_empty());
        for state in &self.rest {
            let equal = state.iter().all(|node| node.copy == state[0].copy && node.under_way.is_none());
            assert!(equal, "{ring:?} ends with {state:?}:\n  {}", self.way(state).join("\n  "));
        }
    }
}

/// Whether a value returns after another one.
fn comes_again(had: &[u8]) -> bool {
    (0..had.len()).any(|i| had[i + 1..].contains(&had[i]))
}

#[test]
fn i5_the_ring_protocol_shows_a_third_node_1_2_1() {
    for mends in [Mends::Winner, Mends::Loser] {
        // Nodes 0 and 1 store at the same time, node 2 only reads.
        let mut seen = BTreeMap::new();
        for priority in [[2, 1, 0], [1, 2, 0]] {
            let ring = Ring { priority, mends };
            let explored = ring.explore([vec![2], vec![1], vec![]]);
            explored.check_rest(&ring);
            println!(
                "{ring:?}: {} states, {} at rest, the copies equal in all",
                explored.ways.len(),
                explored.rest.len()
            );
            let third: BTreeSet<Vec<u8>> = explored.rest.iter().map(|state| state[2].had.clone()).collect();
            println!("  node 2 sees one of {third:?}");
            if let Some(state) = explored.rest.iter().find(|state| state[2].had == [1, 2, 1]) {
                println!(
                    "  1, 2, 1, «a sequence that is not a valid program sequence under any memory consistency model»:"
                );
                println!("    {}", explored.way(state).join("\n    "));
            }
            seen.insert(priority, third);
        }
        // Where the winner's update reaches node 2 first, and only there.
        assert!(seen[&[1, 2, 0]].contains(&vec![1, 2, 1]), "{mends:?}: {seen:?}");
        assert!(!seen[&[2, 1, 0]].iter().any(|had| comes_again(had)), "{mends:?}: {seen:?}");
    }
}

/// The ring's guarantee: in every run the copies are equal in the end.
#[test]
fn i2_the_ring_protocol_converges() {
    let programs: [[Vec<u8>; NODES]; 3] =
        [[vec![1], vec![2], vec![]], [vec![1, 3], vec![2, 4], vec![]], [vec![1], vec![2], vec![3]]];
    for programs in programs {
        for priority in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let ring = Ring { priority, mends: Mends::Winner };
            ring.explore(programs.clone()).check_rest(&ring);
        }
    }
}
