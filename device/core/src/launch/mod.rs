// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations launched by a process: atomics and block copies (SPEC items 17 to 20). `hib` passes in accesses to BAR2
//! and to the argument aperture, results of requests and of block steps.
//!
//! ```text
//!   argument aperture ─┐ (Telegraphos II: context, slot and key in the data)
//!   special mode ──────┼─► a slot's arguments ─┐
//!   context page ──────┘   and operands        ├─► Operation ─► requests behind the stores to the same node
//!   admin LAUNCH (plain ioctl) ────────────────┘        └─► done: value, then done[slot]; or an admin completion
//! ```
//!
//! Each import counts the unfinished operations that use it, so that closing waits for them; a quiet waits for those
//! that were unfinished when it was issued. An operation ends exactly once: performed, refused, or failed because its
//! node, import or grant is gone.
//!
//! A copy is split into blocks that cross no export page: of at most [`MAX_BLOCK`] bytes within a node and between
//! nodes of one process, of [`STREAM_BLOCK`] bytes between others. At most [`BLOCKS`] blocks and [`BLOCK_BYTES`] are in
//! flight to one destination, with the contexts in round-robin order, so that memory is bounded for any number of
//! copies. At most [`TURN_BYTES`] are moved before the shell has served other events ([`Action::Continue`]), so that a
//! turn of its loop is short. Blocks that are requested by others count as well, and each waiter gets a turn in the
//! order in which it came ([`Claim`](crate::ctx::Claim)).
//!
//! Within one process the shell may lend the near end instead of loading or storing it: the block then has no bytes,
//! and the other shell copies from one guest's memory to the other's, for a put when it stores the block, for a get
//! when it loads it. The loan is taken back ([`Action::Recall`]) when the grant of the memory is revoked, bus mastering
//! is switched off, or the board is reset; that of a get also when it ends without an answer, or the page becomes a
//! replicated one.
//!
//! The resources that a context uses are charged to it: the bytes of its unfinished copies, and its reserved status
//! words. A context with many bytes of unfinished copies, or with most of the stores since the guest's socket was last
//! empty, is *congested*: the driver unmaps its page from its processes until the congestion ends.

mod arguments;
mod congestion;
mod context_page;
mod copies;
mod fetch;
mod operation;
mod turns;
#[cfg(feature = "bugs")]
mod variants;

use self::turns::Destination;
use crate::by_node::ByNode;
use crate::counts::Counts;
use crate::ctx::Ctx;
use crate::grants::Grants;
use crate::keyed::{Key, Keyed};
use crate::numbered::ones;
use crate::replica::Replicas;
use crate::requester::Requester;
use crate::table::Table;
use crate::{HibConfig, Notice, Token};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};
use telegraphos_accounts::{Account, Shares};
use telegraphos_wire::ImportEpoch;
use telegraphos_wire::{NodeId, Status, context};

/// A location in an import's segment, as named by a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Location {
    import: u16,
    /// The opening of that import number: an old argument does not refer to a reopened import.
    opening: u64,
    offset: u64,
}

/// The launch registers of one slot.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(crate) struct LaunchRegisters {
    arguments: [Option<Location>; 2],
    operand: u64,
    compare: u64,
    length: u64,
}

impl LaunchRegisters {
    /// The arguments as byte addresses: adds the low 3 bits, which an aligned store cannot pass, from LENGTH.
    fn locations(&self) -> [Option<Location>; 2] {
        let mut locations = self.arguments;
        for (location, shift) in locations.iter_mut().zip([48, 52]) {
            if let Some(location) = location {
                location.offset += self.length >> shift & 7;
            }
        }
        locations
    }
}

/// The origin of an operation, which its completion goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Origin {
    Slot {
        context: u16,
        slot: u8,
        cookie: u64,
    },
    Admin {
        context: u16,
        slot: u32,
    },
    /// A load of FETCH. `token` is `None` after the load has been completed at its deadline.
    Load {
        context: u16,
        slot: u8,
        size: u8,
        token: Option<Token>,
        deadline: u64,
    },
}

impl Origin {
    /// The context that the operation is charged to.
    fn context(&self) -> u16 {
        match *self {
            Origin::Slot { context, .. } | Origin::Admin { context, .. } | Origin::Load { context, .. } => context,
        }
    }
}

#[derive(Clone, Copy, Debug, Hash)]
enum Kind {
    Atomic {
        value: u64,
    },
    Copy {
        /// The location that requests go to: the source of a get, the destination otherwise.
        far: Location,
        /// The location in this node's memory.
        near: Location,
        get: bool,
        length: u64,
        /// Bytes of the blocks that have been started.
        started: u64,
        /// Bytes of its longest block.
        limit: u64,
    },
    Gate,
}

#[derive(Clone, Debug, Hash)]
struct Operation {
    origin: Origin,
    notify: bool,
    node: NodeId,
    imports: [Option<u16>; 2],
    /// Epoch of the first import when the operation was launched.
    epoch: ImportEpoch,
    kind: Kind,
    /// Blocks in flight, or 1 for the request of an atomic, or a gate.
    parts: u32,
    /// The first error, and the import that it concerns.
    status: Status,
    failed_import: Option<u16>,
}

impl Operation {
    /// An operation with no part in flight and no error.
    fn new(
        origin: Origin,
        notify: bool,
        node: NodeId,
        imports: [Option<u16>; 2],
        epoch: ImportEpoch,
        kind: Kind,
    ) -> Operation {
        Operation { origin, notify, node, imports, epoch, kind, parts: 0, status: Status::Ok, failed_import: None }
    }
}

/// The unfinished operations by the context of their imports, ascending. An empty list keeps its memory until its
/// context is closed; it is not part of the state.
#[derive(Clone, Default)]
struct ByContext(Table<Vec<Key>>);

impl ByContext {
    fn state(&self) -> impl Iterator<Item = (u32, &Vec<Key>)> {
        self.0.iter().filter(|(_, operations)| !operations.is_empty())
    }
}

impl Hash for ByContext {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.state().for_each(|entry| entry.hash(state));
    }
}

impl fmt::Debug for ByContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.state()).finish()
    }
}

/// The number of a slot of a context among all slots of the board.
fn slot_number(context: u16, slot: u8) -> u32 {
    u32::from(context) * context::SLOT_COUNT as u32 + u32::from(slot)
}

/// The parts that the launcher uses, as the argument of its methods.
pub(crate) struct Below<'a> {
    pub(crate) ctx: &'a mut Ctx,
    pub(crate) requester: &'a mut Requester,
    pub(crate) grants: &'a mut Grants,
    pub(crate) replicas: &'a Replicas,
}

/// State of the other launch styles.
#[cfg(feature = "bugs")]
#[derive(Clone, Debug, Default, Hash)]
struct Variants {
    /// The value of the PROCESS register.
    process: u16,
    /// The first half of a command: destination and length.
    command: Option<(Location, u64)>,
}

/// The launcher of the board; see the module documentation.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Launcher {
    operations: Keyed<Operation>,
    by_context: ByContext,
    /// The unfinished operation of each slot ([`slot_number`]).
    slots: Table<Key>,
    /// By slot ([`slot_number`]).
    registers: Table<LaunchRegisters>,
    /// Loads of FETCH that are not complete: deadline and operation, both ascending, since all have the same limit.
    fetches: VecDeque<(u64, Key)>,
    /// Special mode: context, slot, number of arguments passed so far.
    special: Option<(u16, u8, usize)>,
    #[cfg(feature = "bugs")]
    variants: Variants,
    /// Copies to or from each node.
    destinations: ByNode<Destination>,
    /// Account of the bytes of unfinished copies, by context.
    bytes: Account<u16>,
    /// Contexts congested by their copies.
    congested: BTreeSet<u16>,
    throttled: BTreeSet<u16>,
    /// Stores to context pages by context, since the guest's socket was last empty or contexts were last throttled.
    stores: Counts,
}

impl Launcher {
    /// No operations, nothing charged.
    pub(crate) fn new(config: &HibConfig) -> Launcher {
        let contexts = u64::from(config.contexts);
        let each = |units: u64| Account::new(Shares::equal(contexts.saturating_mul(units), contexts));
        Launcher {
            operations: Keyed::default(),
            by_context: ByContext::default(),
            slots: Table::default(),
            registers: Table::default(),
            fetches: VecDeque::new(),
            special: None,
            #[cfg(feature = "bugs")]
            variants: Variants::default(),
            destinations: ByNode::new(config.window.nodes(), Destination::default()),
            bytes: each(config.copies_limit),
            congested: BTreeSet::new(),
            throttled: BTreeSet::new(),
            stores: Counts::default(),
        }
    }

    /// Removes the state of a closed context. Returns whether the context was congested.
    pub(crate) fn forget_context(&mut self, number: u16) -> bool {
        for slot in 0..context::SLOT_COUNT as u8 {
            self.registers.remove(slot_number(number, slot));
        }
        self.by_context.0.remove(number);
        if self.special.is_some_and(|(context, ..)| context == number) {
            self.special = None;
        }
        self.stores.reset(number);
        let stopped = self.is_stopped(number);
        self.congested.remove(&number);
        self.throttled.remove(&number);
        stopped
    }

    /// Returns whether the driver must stop the processes of a context.
    fn is_stopped(&self, context: u16) -> bool {
        self.congested.contains(&context) || self.throttled.contains(&context)
    }

    /// Returns whether a context is congested.
    pub(crate) fn any_stopped(&self) -> bool {
        !self.congested.is_empty() || !self.throttled.is_empty()
    }

    /// The earliest deadline of a load of FETCH.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.fetches.front().map(|(at, _)| *at)
    }

    /// Removes a finished operation from the set of its context.
    fn forget_operation(&mut self, context: u16, number: Key) {
        if let Some(operations) = self.by_context.0.get_mut(context) {
            if let Ok(at) = operations.binary_search(&number) {
                operations.remove(at);
            }
        }
    }

    /// The unfinished operations of a context that use an import for which `selects` is true, ascending.
    pub(crate) fn operations_using(&self, context: u16, selects: impl Fn(u16) -> bool) -> Vec<Key> {
        let uses = |number: &Key| {
            let operation = self.operations.get(*number);
            operation.is_some_and(|operation| operation.imports.into_iter().flatten().any(&selects))
        };
        self.by_context.0.get(context).into_iter().flatten().copied().filter(uses).collect()
    }

    /// Clears all tables on reset. Loads of FETCH complete with all ones. Operation numbers are not reused.
    pub(crate) fn reset(&mut self, ctx: &mut Ctx) {
        for (_, number) in std::mem::take(&mut self.fetches) {
            let Some(operation) = self.operations.get(number) else { continue };
            if let Origin::Load { size, token: Some(token), .. } = operation.origin {
                ctx.notice(Notice::FailedLoad { node: operation.node, status: Status::Reset });
                ctx.read_done(token, ones(u32::from(size)));
            }
        }
        *self = Launcher { operations: self.operations.emptied(), ..Launcher::new(&ctx.config) };
    }
}
