// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory for locks.

use crate::error::Result;
use crate::quiet::Scope;
use crate::remote::Remote;
use crate::replicated::Replicated;
use crate::word_wait::WordWait;
use telegraphos_wire::{Rights, Status};

pub(super) mod sealed {
    use crate::error::Result;
    use crate::word_wait::WordWait;
    use telegraphos_wire::{Rights, Status};

    /// Words that several nodes share. Offsets are in bytes.
    pub trait Words {
        /// Loads are of this node's memory.
        const IS_HERE: bool;
        fn size(&self) -> u64;
        fn rights(&self) -> Rights;
        fn what(&self) -> String;
        /// Loads a word; all ones may mean that it failed.
        fn load_word(&self, offset: u64) -> Result<u64>;
        /// Stores a word.
        fn store_word(&self, offset: u64, value: u64) -> Result<()>;
        /// Fetch-and-increment.
        fn draw(&self, offset: u64) -> Result<u64>;
        /// Compare-and-swap: the previous word.
        fn exchange(&self, offset: u64, expected: u64, value: u64) -> Result<u64>;
        /// Returns when all stores of the context have arrived, on any node.
        fn quiet(&self) -> Result<()>;
        /// The latched error, and whether the memory is gone for good.
        fn failure(&self) -> Result<(Option<Status>, bool)>;
        /// Operations of the context in flight.
        fn unfinished(&self) -> u32;
        /// Pauses before the next poll of a word; false at the limit of `wait`. Fails when the memory is gone.
        #[allow(private_interfaces, reason = "the trait is sealed")]
        fn pause(&self, offset: u64, wait: &mut WordWait) -> Result<bool>;
    }
}

/// Memory that a lock may lie in: a [`Remote`], or a [`Replicated`] segment.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::{Replicated, Result, sync::{LockMemory, TicketLock}};
///
/// /// Adds one to a counter of this process under a lock that may lie in either kind of memory.
/// fn count(memory: &impl LockMemory, counter: &mut u64) -> Result<()> {
///     let guard = TicketLock::new(memory, 0)?.lock()?;
///     *counter += 1;
///     guard.unlock()
/// }
/// let mut counter = 0;
/// count(&node.import(0, "shared").open()?, &mut counter)?;
/// count(&Replicated::join(&node, 0, "board").open()?, &mut counter)?;
/// # Ok(()) }
/// ```
pub trait LockMemory: sealed::Words {}
impl LockMemory for Remote {}
impl LockMemory for Replicated {}

/// The accesses of a type by its own methods; the second half is what differs.
macro_rules! words {
    ($type:ident: load $load:ident, store $store:ident, window $window:expr, here $here:literal; $($failure:tt)*) => {
        impl sealed::Words for $type {
            const IS_HERE: bool = $here;

            fn size(&self) -> u64 {
                $type::size(self)
            }

            fn rights(&self) -> Rights {
                $type::rights(self)
            }

            fn what(&self) -> String {
                $type::what(self)
            }

            fn load_word(&self, offset: u64) -> Result<u64> {
                self.$load(offset)
            }

            fn store_word(&self, offset: u64, value: u64) -> Result<()> {
                self.$store(offset, value)
            }

            fn draw(&self, offset: u64) -> Result<u64> {
                self.fetch_inc(offset)
            }

            fn exchange(&self, offset: u64, expected: u64, value: u64) -> Result<u64> {
                self.compare_swap(offset, expected, value)
            }

            fn quiet(&self) -> Result<()> {
                $window(self).handle.context.quiet(Scope::All, None)
            }

            fn unfinished(&self) -> u32 {
                $window(self).handle.context.slots.unfinished()
            }

            $($failure)*
        }
    };
}

words! { Remote: load get, store put, window std::convert::identity, here false;
    fn failure(&self) -> Result<(Option<Status>, bool)> {
        let state = self.state()?;
        Ok((state.error, state.dead))
    }

    #[allow(private_interfaces, reason = "the trait is sealed")]
    fn pause(&self, _: u64, wait: &mut WordWait) -> Result<bool> {
        // A poll that fails says so itself.
        wait.pause(&self.handle.context, || Ok(false), || Ok(()))
    }
}

words! { Replicated: load load, store store, window Replicated::remote, here true;
    fn failure(&self) -> Result<(Option<Status>, bool)> {
        let state = self.state()?;
        Ok((state.orphan.or(state.window.error), state.orphan.is_some() || state.window.dead))
    }

    #[allow(private_interfaces, reason = "the trait is sealed")]
    fn pause(&self, offset: u64, wait: &mut WordWait) -> Result<bool> {
        wait.pause(&self.remote().handle.context, || self.arm_word(offset), || self.check_alive())
    }
}
