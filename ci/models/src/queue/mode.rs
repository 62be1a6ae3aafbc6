// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a consumer does next.

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mode {
    /// A pass, with the results so far.
    Pass(Vec<u64>),
    /// Another consumer was inside. It retries when that one has left.
    Spin,
    /// To call the driver; `seen` is what it will arm the queue with when that returns.
    Call {
        seen: Option<u32>,
    },
    /// It waits in the driver for the consumer that is inside.
    Wait {
        seen: Option<u32>,
    },
    /// It acts in the driver, with the mutex.
    Act {
        seen: Option<u32>,
    },
    /// To arm the queue, when its last store has arrived.
    Arm {
        seen: u32,
    },
    /// It sleeps until a CONTEXT event.
    Sleep,
    /// It has received all elements that it takes.
    Done,
    Dead,
}
