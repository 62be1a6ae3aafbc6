// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes and limits of one board, and the deliberate bugs of the feature `bugs`.

use telegraphos_wire::{Class, NodeId, WindowLayout};

pub use telegraphos_wire::context::MAX_COPY;

/// Maximum number of contexts of one board: an argument names a context in 8 bits
/// ([`telegraphos_wire::context::Argument`]).
pub const MAX_CONTEXTS: u16 = telegraphos_wire::context::COUNT as u16;
/// Maximum number of blocks of copies in flight to one destination.
pub const BLOCKS: u32 = 16;
/// Maximum number of bytes in those blocks: what a store waits for that is sent behind them.
pub const BLOCK_BYTES: u64 = 512 << 10;
/// Bytes of blocks that may be moved before other events are served: less than 100 microseconds of copying.
pub const TURN_BYTES: u64 = 512 << 10;
/// What a shorter block counts as: sending one costs as much time as copying so many bytes.
pub const SHORT_BLOCK: u64 = 16 << 10;
/// Maximum number of status words of one context that are reserved or wait to be written: twice the number of slots,
/// since a refused launch needs one as well.
pub const STATUS_WORDS: u64 = 2 * telegraphos_wire::context::SLOT_COUNT;
/// Number of wrong keys through one import after which the import is disabled for good.
pub const KEY_ATTEMPTS: u32 = 16;

/// How the board attributes a store to the argument aperture to a process.
#[cfg(feature = "bugs")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Launching {
    /// Telegraphos II, the only style offered to guests: the data names a context and carries its key.
    #[default]
    Keys,
    /// SHRIMP's command pages: a store of the length to the destination's address, then a load from the source's
    /// address, start a copy. The board keeps one half-issued command; the operating system must discard it (by a write
    /// to PROCESS) when it switches processes.
    CommandPages,
    /// FLASH's process id register: arguments belong to the context in PROCESS, which the system must write when it
    /// switches processes.
    ProcessRegister,
}

/// Sizes and limits of one board. The defaults are those of the command line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HibConfig {
    /// Id of this node.
    pub node: NodeId,
    /// Window layout, the same on every node.
    pub window: WindowLayout,
    /// Maximum time to complete a load, in microseconds (contract 4: well under QEMU's 5 s).
    pub load_limit: u64,
    /// Maximum age of a request that a node has not answered, in microseconds, counted from when it was sent. Beyond it
    /// all imports from the node end with [`telegraphos_wire::Status::Timeout`] (`docs/security.md`, "Silent nodes").
    /// Elements have none: a full queue holds them for as long as its reader takes.
    pub answer_limit: u64,
    /// Maximum number of requests in flight to one destination.
    pub outstanding: u32,
    /// Waiting stores of one import at which the import becomes congested.
    pub congest_at: u32,
    /// Waiting stores of one import at which its congestion ends.
    pub clear_at: u32,
    /// Maximum number of waiting stores of the whole board (the reserve), 40 bytes each. Half of it is divided among
    /// the open imports; a store beyond its import's share puts the import in error state.
    pub reserve: u32,
    /// Guest messages since the socket was last empty at which the importing processes are stopped.
    pub intake_limit: u32,
    /// Bytes of unfinished copies of one context at which it becomes congested.
    pub copies_congest_at: u64,
    /// Bytes of unfinished copies of one context at which its congestion ends.
    pub copies_clear_at: u64,
    /// Maximum bytes of unfinished copies of one context; a further copy is refused with
    /// [`telegraphos_wire::Status::NoSpace`].
    pub copies_limit: u64,
    /// Credits of each class that this board offers to the switch; see [`HibConfig::offered`].
    pub credits: [u32; 4],
    /// Use MSI-X instead of MSI.
    pub msix: bool,
    /// Number of contexts; [`MAX_CONTEXTS`] if more are configured.
    pub contexts: u16,
    /// Number of imports.
    pub imports: u16,
    /// Number of export pages.
    pub export_pages: u32,
    /// Number of runs of all granted ranges together, 16 bytes each.
    pub runs: u32,
    /// Number of page access counters.
    pub counters: u16,
    /// Receive credits of one import of a queue of this node: elements that it may have unacknowledged.
    pub hold: u32,
    /// Receive credits of all queues of this node together.
    pub holds: u32,
    /// Number of pending-write counters: aligned 8-byte words of replicated pages with stores of this node that have
    /// not returned from their home (SPEC item 26).
    pub pending_writes: u16,
    /// If true, a multicast to all copies of a page is one packet, which the switch replicates; else one packet for
    /// each copy.
    pub fanout_by_switch: bool,
    /// Maximum time for a copy to acknowledge a packet of its home, and for a home to fill a copy, in microseconds
    /// (`docs/replication.md`, "Silent copies and homes").
    pub replica_limit: u64,
    /// The number by which the driver finds the memory device of this board; 0 if it has none.
    pub direct_pair: u64,
    /// How arguments are attributed to processes.
    #[cfg(feature = "bugs")]
    pub launching: Launching,
    /// The deliberate bug to enable; a check must find it.
    #[cfg(feature = "bugs")]
    pub bug: Option<Bug>,
}

/// Deliberate bugs behind the feature `bugs`: at least one for each invariant, which makes the check of that invariant
/// fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// I7: quiet completes without waiting for acknowledgements.
    QuietIgnoresOutstanding,
    /// I7, E19: quiet reports the errors present when it completes, not the losses since it was issued.
    QuietReadsPresentError,
    /// I8: a request of a source is performed before its earlier ones.
    ServeOutOfOrder,
    /// Protection: the generation of a grant is not checked.
    IgnoreGeneration,
    /// Protection: a block of a range is taken for adjacent to the end of its first run.
    IgnoreRunEnd,
    /// Protection: the revocation of a range is complete while a step of a copy is on its memory.
    ClearRangeAtOnce,
    /// Protection: of a range that is revoked, only what is lent of its first run is taken back.
    RecallFirstRun,
    /// Protection: a range admits the nodes that its gate can be opened to, whether it is open or not.
    GateAlwaysOpen,
    /// Protection: a gate is closed while an access through it is in flight.
    CloseGateAtOnce,
    /// Accounts: the runs of a context's ranges are not limited.
    UnboundedRuns,
    /// Back-pressure: a store beyond the window of outstanding requests is dropped silently.
    DropWhenFull,
    /// Loss: a store behind a lost one of the same import is sent.
    PassLostStore,
    /// Loads: a silent node stays marked as silent although it answers.
    SilentForEver,
    /// Silence: stores and parts of copies wait without limit for a node that does not answer them.
    AwaitAnswers,
    /// Silence: what a silent node was lent for a put, which has ended, stays lent.
    KeepLoansOfPuts,
    /// Accounts: what a silent node has not answered occupies its window no longer.
    ForgetAbandoned,
    /// Reserve: it is shared by the stores of all imports, without guaranteed shares.
    ShareWholeReserve,
    /// Credits: one destination that consumes nothing can occupy all of them.
    ShareAllCredits,
    /// I8, loss: a receiver performs stores behind one that it refused.
    ForgetRefusal,
    /// I7, E19: an acknowledgement of several requests covers one more.
    AckTwice,
    /// I7: a burst whose stores are performed one by one is answered with the first of them.
    AnswerBurstEarly,
    /// Turns: what was performed in a turn is not acknowledged at its end.
    KeepAcknowledgement,
    /// I7: a refusal is sent before the acknowledgements of what was performed before it.
    PassAcknowledgement,
    /// Events: a cause that occurs while the event queue is full is dropped.
    ForgetCause,
    /// Arm: the first of several elements that a consumer has armed for uses up all its wake-ups.
    WakeOnce,
    /// Events: the driver's count of events in memory is not read before an interrupt is left out.
    ForgetIndex,
    /// Direct aperture: the driver is not notified that the memory of its trust group has changed.
    ForgetDirect,
    /// Protection: memory that is revoked, or another guest's, stays lent to those who copy from it.
    KeepLoans,
    /// Reset: grants survive a reset.
    KeepGrantsOnReset,
    /// Atomics: the word is loaded and stored in two steps.
    SplitAtomic,
    /// I15: a page access counter at zero fires at each further access.
    CounterRepeats,
    /// I14: an argument for another process's context is accepted if its key is right.
    ForeignContext,
    /// I10: a queue commits the tail before the data.
    TailBeforeData,
    /// I10: a full queue does not stop and overwrites elements.
    NeverStop,
    /// I10, E2 read literally: a queue that resumes after an overflow drops its pending element.
    ForgetPending,
    /// I8: an element does not wait for the requests before it.
    EnqueuePassesRequests,
    /// Waiting: an arm is accepted without comparing the header words.
    ArmBlindly,
    /// Waiting: an arm compares the tail alone, which can wrap around to the same value.
    ArmByTail,
    /// Waiting: an arm of a word is accepted without comparing it.
    WatchBlindly,
    /// Protection: a context can watch pages that another one has granted.
    WatchForeign,
    /// I3 to I5: a copy applies a reflected write although the word has pending writes.
    IgnoreCounters,
    /// I7, E19: the home acknowledges a store before all copies have it.
    AcknowledgeEarly,
    /// I7, E19: the home acknowledges a store when it has returned to its writer.
    AcknowledgeReflected,
    /// I3: a pending-write counter that reaches zero keeps its entry.
    KeepCounters,
    /// I4, E22b: a store is counted as taken before it is in memory.
    TakenEarly,
    /// E18: one counter for all bytes of a word.
    CountWords,
    /// E19: the number of an abandoned multicast is reused at once.
    ReuseTags,
    /// I1: a multicast for some of the copies is sent to the whole group.
    StaleGroup,
    /// Credits: packets received over a lost link return credits to the next one.
    ChargeNextLink,
    /// I1, I2: a home that is moving continues to order stores.
    ServeWhileMoving,
    /// I7: a store that a copy has not applied, because its home is down, is acknowledged.
    AcknowledgeMissed,
    /// E19: an invalid copy is acknowledged while processors have it mapped.
    AcknowledgeMapped,
    /// E20: a page that is no longer replicated accepts stores and atomics until it is revoked.
    ServeResigned,
    /// E20: what a copy has refused before it left ends the one that its node joins with afterwards.
    RefusalEndsNextCopy,
    /// Silence: the home waits without limit for a copy that does not acknowledge.
    KeepSilentCopies,
    /// Silence: a copy waits without limit for a home that accepted a join and sends no content.
    KeepSilentHomes,
    /// Accounts: a new copy is filled as fast as memory is read, regardless of how much its node has received.
    FillAtOnce,
    /// Accounts: requests that wait for copies occupy the window that ordinary requests need.
    ForwardsShareWindow,
    /// Accounts: receive credits are granted first come, first served.
    UnsharedHolds,
    /// Accounts: the requester accepts any number of receive credits that the receiver grants to an import.
    AcceptAnyHolds,
    /// Accounts: a guest can publish any number of names.
    EndlessNames,
    /// Protection: a lookup reveals a segment to nodes that its grant does not admit.
    TellOfSegments,
    /// s1, "owner" without a local update: a copy's own store enters its memory when it returns, not before.
    NoLocalUpdate,
    /// Reset: a request whose page had work in progress stays at the head of its source's requests.
    ForgetWork,
    /// Turns: a copy within this node completes in one event.
    CopyAtOnce,
    /// Turns: a context with many copies gets more turns than one with few.
    TurnsByOperation,
    /// Turns: of those who wait for the next turn of the shell's loop all but the first are forgotten.
    ForgetClaims,
    /// Accounts: the bytes of a context's unfinished copies are not limited.
    UnboundedCopies,
    /// Accounts: status words that wait for bus mastering are not limited.
    UnboundedStatusWords,
    /// Congestion: the end of a context's congestion posts no event.
    ForgetContextClear,
    /// Contract 4: a load that performs an atomic is not completed at the time limit.
    FetchWithoutLimit,
    /// I14: a load that performs an atomic leaves its arguments for the next one.
    FetchKeepsArguments,
    /// I8: requests leave a withdrawn ring before those sent by it have arrived.
    LeaveRingAtOnce,
    /// Rings: what came by a ring is answered by the switch.
    AnswerBesideRing,
    /// Rings: what a peer writes is not checked.
    TrustRing,
}

impl HibConfig {
    /// The default configuration of a node.
    pub fn new(node: NodeId) -> HibConfig {
        HibConfig {
            node,
            window: WindowLayout::default(),
            load_limit: 1_000_000,
            answer_limit: 30_000_000,
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
            runs: 1 << 20,
            counters: 1024,
            hold: 32,
            holds: 8192,
            pending_writes: 32,
            fanout_by_switch: true,
            replica_limit: 5_000_000,
            direct_pair: 0,
            #[cfg(feature = "bugs")]
            launching: Launching::Keys,
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }

    /// Credits of each class that this board offers to the switch. Class `Enqueue` has at least [`HibConfig::holds`]:
    /// elements leave the input buffer at once and are answered later, and the switch bounds the replies of a node by
    /// the credits it offered.
    pub fn offered(&self) -> [u32; 4] {
        let mut credits = self.credits;
        let enqueues = &mut credits[Class::Enqueue as usize];
        *enqueues = self.holds.max(*enqueues);
        credits
    }

    /// Returns whether this deliberate bug is enabled. Always false without the feature `bugs`.
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
