// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which nodes are alive, in which incarnation (s3 §6.1).

use crate::types::Incarnation;
use std::collections::{BTreeMap, VecDeque};

/// Incarnations of a node that are remembered as dead.
const REMEMBERED: usize = 8;

/// The greatest load.
pub(crate) const MOST_LOAD: u32 = (1 << 24) - 1;

/// A node that has been heard of.
#[derive(Debug, Default)]
pub(crate) struct Member {
    pub(crate) incarnation: Incarnation,
    pub(crate) alive: bool,
    /// At most [`MOST_LOAD`], so that one task more can be added.
    pub(crate) load: u32,
    /// Periods since it was heard last.
    silent: u32,
    /// The number of the last letter of this incarnation.
    letter: u64,
    dead: VecDeque<Incarnation>,
}

/// What hearing a node means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It is alive as before.
    Again,
    /// It was not alive.
    Joined,
    /// Another incarnation was alive, which has died.
    Replaced,
    /// That incarnation is dead here.
    Dead,
}

/// All nodes that have been heard of.
#[derive(Debug, Default)]
pub(crate) struct Members(BTreeMap<u16, Member>);

impl Members {
    pub(crate) fn get(&self, node: u16) -> Option<&Member> {
        self.0.get(&node)
    }

    pub(crate) fn get_mut(&mut self, node: u16) -> Option<&mut Member> {
        self.0.get_mut(&node)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &Member)> {
        self.0.iter().map(|(node, member)| (*node, member))
    }

    pub(crate) fn alive(&self) -> impl Iterator<Item = (u16, &Member)> {
        self.iter().filter(|(_, member)| member.alive)
    }

    /// Whether that incarnation of a node is alive.
    pub(crate) fn is_alive(&self, node: u16, incarnation: Incarnation) -> bool {
        self.get(node).is_some_and(|member| member.alive && member.incarnation == incarnation)
    }

    /// What it means that a node has been heard. The caller ends what [`Heard::Replaced`] was, then calls
    /// [`Members::join`].
    pub(crate) fn hear(&mut self, node: u16, incarnation: Incarnation) -> Heard {
        let Some(member) = self.0.get_mut(&node) else { return Heard::Joined };
        match member.alive {
            true if member.incarnation == incarnation => {
                member.silent = 0;
                Heard::Again
            }
            _ if member.dead.contains(&incarnation) => Heard::Dead,
            true => Heard::Replaced,
            false => Heard::Joined,
        }
    }

    /// That incarnation of a node is alive. What it says of its load may be anything.
    pub(crate) fn join(&mut self, node: u16, incarnation: Incarnation, load: u32) {
        let member = self.0.entry(node).or_default();
        if member.incarnation != incarnation {
            member.letter = 0;
        }
        (member.incarnation, member.alive, member.silent) = (incarnation, true, 0);
        member.load = load.min(MOST_LOAD);
    }

    /// Whether a letter of the incarnation that is alive has not come before.
    pub(crate) fn is_new(&mut self, node: u16, letter: u64) -> bool {
        let Some(member) = self.0.get_mut(&node) else { return false };
        let new = letter > member.letter;
        member.letter = member.letter.max(letter);
        new
    }

    /// Marks the incarnation that was alive as dead, for good.
    pub(crate) fn die(&mut self, node: u16) -> Option<Incarnation> {
        let member = self.0.get_mut(&node).filter(|member| member.alive)?;
        member.alive = false;
        if member.dead.len() == REMEMBERED {
            member.dead.pop_front();
        }
        member.dead.push_back(member.incarnation);
        Some(member.incarnation)
    }

    /// Counts a period for all but `own`; those that have been silent for too long.
    pub(crate) fn tick(&mut self, own: u16, silence: u32) -> Vec<u16> {
        let mut lost = Vec::new();
        for (node, member) in self.0.iter_mut().filter(|(node, member)| **node != own && member.alive) {
            member.silent += 1;
            if member.silent >= silence {
                lost.push(*node);
            }
        }
        lost
    }
}
