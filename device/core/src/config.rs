// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes and limits of one board.

use telegraphos_wire::{Class, NodeId, WindowLayout};

/// Most contexts of one board: the word of an argument names a context in 8 bits
/// ([`telegraphos_wire::context::Argument`]).
pub const MAX_CONTEXTS: u16 = telegraphos_wire::context::COUNT as u16;

/// Sizes and limits of one board; the defaults are those of the command line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HibConfig {
    /// This node.
    pub node: NodeId,
    /// Window layout, the same on every node.
    pub window: WindowLayout,
    /// Longest time a load may wait, in microseconds (DESIGN contract 4: well under QEMU's 5 s).
    pub load_limit: u64,
    /// Requests in flight to one destination.
    pub outstanding: u32,
    /// Waiting stores of one import at which it becomes congested.
    pub congest_at: u32,
    /// Waiting stores of one import at which the congestion ends.
    pub clear_at: u32,
    /// Waiting stores of the whole board (the reserve), 40 bytes each, half of them divided among the open imports: a
    /// store beyond what its import may have cuts the import.
    pub reserve: u32,
    /// Guest messages without a dry socket at which the importing processes are stopped.
    pub intake_limit: u32,
    /// Bytes of unfinished copies of one context at which it becomes congested.
    pub copies_congest_at: u64,
    /// Bytes of unfinished copies of one context at which its congestion ends.
    pub copies_clear_at: u64,
    /// Bytes of unfinished copies of one context beyond which a further one is refused
    /// ([`telegraphos_wire::Status::NoSpace`]).
    pub copies_limit: u64,
    /// Packets of each class this board offers to take; see [`HibConfig::offered`].
    pub credits: [u32; 4],
    /// The board uses MSI-X instead of MSI.
    pub msix: bool,
    /// Number of contexts, at most [`MAX_CONTEXTS`]; a board that is configured with more has that many.
    pub contexts: u16,
    /// Number of imports.
    pub imports: u16,
    /// Number of export pages.
    pub export_pages: u32,
    /// Number of page access counters.
    pub counters: u16,
    /// Elements that one import of a queue of this node may have on their way.
    pub hold: u32,
    /// Elements of others that this node can hold in all.
    pub holds: u32,
    /// Pending-write counters: aligned 8-byte words of replicated pages with stores of this node that have not come
    /// back (SPEC item 26).
    pub pending_writes: u16,
    /// A multicast to all copies of a page is one packet, which the switch copies; else one packet for each copy.
    pub fanout_by_switch: bool,
    /// Longest time that a copy may take to acknowledge what its home has sent, and a home to fill a copy, in
    /// microseconds (`docs/replication.md`, "Silent copies and homes").
    pub replica_limit: u64,
    /// How arguments are told apart.
    #[cfg(feature = "bugs")]
    pub launching: crate::Launching,
    /// A deliberate bug that a check must find.
    #[cfg(feature = "bugs")]
    pub bug: Option<Bug>,
}

/// Deliberate bugs behind the `bugs` feature: for each invariant one that makes its check fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// I7: quiet completes without waiting for acknowledgements.
    QuietIgnoresOutstanding,
    /// I7, E19: quiet reports what is in error when it completes, not what was lost.
    QuietReadsPresentError,
    /// I8: a source's requests are performed without waiting for its earlier one.
    ServeOutOfOrder,
    /// Protection: grants are not checked for their generation.
    IgnoreGeneration,
    /// Back-pressure: a store beyond the window of outstanding requests is dropped silently.
    DropWhenFull,
    /// Loss: a store behind a lost one of the same import is still sent.
    PassLostStore,
    /// Loads: a node that was silent stays so, whatever it answers.
    SilentForEver,
    /// Reserve: it is the stores' of all imports, without shares.
    ShareWholeReserve,
    /// Credits: a destination that takes nothing may hold all of them.
    ShareAllCredits,
    /// I8, loss: the receiver of a store that it refuses performs those behind it.
    ForgetRefusal,
    /// Events: a cause that meets a full event queue is forgotten.
    ForgetCause,
    /// Reset: grants survive it.
    KeepGrantsOnReset,
    /// Atomics: the word is loaded and stored in two steps.
    SplitAtomic,
    /// I15: a page access counter at zero goes off at each further access.
    CounterRepeats,
    /// I14: an argument for another process's context is taken if its key is right.
    ForeignContext,
    /// I10: a queue commits the tail before the data.
    TailBeforeData,
    /// I10: a full queue does not stop.
    NeverStop,
    /// I10, E2 read literally: a queue that goes on after an overflow forgets its pending element.
    ForgetPending,
    /// I8: an element does not wait for the requests before it.
    EnqueuePassesRequests,
    /// Waiting: an arm is taken without a look at the queue.
    ArmBlindly,
    /// Waiting: an arm compares the tail alone, which can come round to the same value.
    ArmByTail,
    /// I3 to I5: a copy applies what comes back although it has pending writes.
    IgnoreCounters,
    /// I7, E19: the home acknowledges a store before all copies have it.
    AcknowledgeEarly,
    /// I7, E19: the home acknowledges a store when it has come back to its writer.
    AcknowledgeReflected,
    /// I3: a counter that has come down to zero keeps its entry.
    KeepCounters,
    /// I4, E22b: a store is counted as taken before it is in memory.
    TakenEarly,
    /// E18: one counter for all bytes of a word.
    CountWords,
    /// E19: the number of a multicast that was given up is used again at once.
    ReuseTags,
    /// I1: what is for some copies goes to the whole group.
    StaleGroup,
    /// Credits: what came over a lost link returns credits of the next one.
    ChargeNextLink,
    /// I1, I2: a home that is moving goes on to order stores.
    ServeWhileMoving,
    /// I7: a store that a copy has not taken, because its home has gone, is acknowledged.
    AcknowledgeMissed,
    /// E19: an invalid copy is acknowledged while processors have it mapped.
    AcknowledgeMapped,
    /// E20: a page that is replicated no more takes stores and atomics until it is revoked.
    ServeResigned,
    /// Silence: a copy that acknowledges nothing is waited for without limit.
    KeepSilentCopies,
    /// Silence: a home that has accepted a join and sends no content is waited for without limit.
    KeepSilentHomes,
    /// Accounts: a new copy is filled as fast as memory is read, whatever its node has taken.
    FillAtOnce,
    /// Accounts: requests that wait for copies take places of the window that ordinary requests need.
    ForwardsShareWindow,
    /// Accounts: hold slots are for those who ask first.
    UnsharedHolds,
    /// Accounts: the receiver's word is taken for how many elements an import may have on their way.
    BelieveHolds,
    /// Accounts: a guest publishes as many names as it likes.
    EndlessNames,
    /// Protection: a lookup says of a segment that it exists to nodes that no grant of it admits.
    TellOfSegments,
    /// s1, "owner" without a local update: a copy's own store is in its memory when it comes back, not before.
    NoLocalUpdate,
    /// Reset: a request whose page's work was under way stays at the head of its queue.
    ForgetWork,
    /// Turns: a copy within this node is made in one event.
    CopyAtOnce,
    /// Turns: copies of a context with many of them come before those of one with few.
    TurnsByOperation,
    /// Accounts: a context's unfinished copies are not counted.
    UnboundedCopies,
    /// Accounts: status words that wait for bus mastering are not counted.
    UnboundedStatusWords,
    /// Congestion: the end of a context's congestion is no event.
    ForgetContextClear,
    /// Contract 4: a load that performs an atomic is not answered at the limit.
    FetchWithoutLimit,
    /// I14: a load that performs an atomic leaves its arguments for the next.
    FetchKeepsArguments,
}

impl HibConfig {
    /// The defaults for a node.
    pub fn new(node: NodeId) -> HibConfig {
        HibConfig {
            node,
            window: WindowLayout::default(),
            load_limit: 1_000_000,
            outstanding: 64,
            congest_at: 1024,
            clear_at: 256,
            reserve: 1 << 20,
            intake_limit: 8192,
            copies_congest_at: 64 << 20,
            copies_clear_at: 16 << 20,
            copies_limit: 1 << 30,
            credits: [telegraphos_wire::link::DEFAULT_CREDITS; 4],
            msix: false,
            contexts: 256,
            imports: 1024,
            export_pages: 4096,
            counters: 1024,
            hold: 32,
            holds: 8192,
            pending_writes: 32,
            fanout_by_switch: true,
            replica_limit: 5_000_000,
            #[cfg(feature = "bugs")]
            launching: crate::Launching::Keys,
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }

    /// Credits of each class that this board offers to the switch. Of enqueues at least as many as it can hold: it
    /// takes them at once and answers them when it can, and the switch bounds the replies of a node by the credits it
    /// offered.
    pub fn offered(&self) -> [u32; 4] {
        let mut credits = self.credits;
        let enqueues = &mut credits[Class::Enqueue as usize];
        *enqueues = self.holds.max(*enqueues);
        credits
    }

    pub(crate) fn has(&self, bug: Bug) -> bool {
        #[cfg(feature = "bugs")]
        return self.bug == Some(bug);
        #[cfg(not(feature = "bugs"))]
        {
            let _ = bug;
            false
        }
    }
}
