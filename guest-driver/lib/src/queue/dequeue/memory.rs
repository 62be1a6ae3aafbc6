// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a queue, as the dequeue needs it.

use std::sync::atomic::Ordering;

/// Memory that consumers, board and driver share. Each call is one access, and one step of a model.
///
/// ```
/// use std::convert::Infallible;
/// use std::ops::ControlFlow;
/// use telegraphos::queue::dequeue::{Dequeue, Found, Memory, Pass};
/// use telegraphos_wire::queue::Shape;
///
/// /// A model of a queue's memory.
/// struct Model { arena: [u64; 8], state: u64 }
///
/// impl Memory for Model {
///     type Stop = Infallible;
///     fn load(&mut self, word: u32) -> Result<u64, Infallible> {
///         Ok(self.arena[word as usize])
///     }
///     fn store(&mut self, word: u32, value: u64) -> Result<(), Infallible> {
///         self.arena[word as usize] = value;
///         Ok(())
///     }
///     fn state(&mut self) -> Result<u64, Infallible> {
///         Ok(self.state)
///     }
///     fn enter(&mut self, expected: u64, new: u64) -> Result<Result<u64, u64>, Infallible> {
///         let before = self.state;
///         if before != expected {
///             return Ok(Err(before));
///         }
///         self.state = new;
///         Ok(Ok(before))
///     }
///     fn leave(&mut self, mask: u64) -> Result<u64, Infallible> {
///         let before = self.state;
///         self.state &= mask;
///         Ok(before)
///     }
/// }
///
/// // One element: the tail is behind it, the head at it.
/// let mut model = Model { arena: [8 << 16 | 4, 8 << 16 | 3, 0, 42, 0, 0, 0, 0], state: 0 };
/// let dequeue = Dequeue::new(Shape::new(8, 4).unwrap(), 0, 1);
/// let mut taken = Vec::new();
/// let Ok(pass) = dequeue.pass(&mut model, |element| {
///     taken.push(element);
///     ControlFlow::Continue(())
/// });
/// assert_eq!(pass, Pass::Left { found: Ok(Found::Took { count: 1 }), call: false });
/// assert_eq!((taken, model.arena[1]), (vec![42], 8 << 16 | 4));
/// // It is empty now, and no other owner has been inside since.
/// assert_eq!(dequeue.look(&mut model), Ok(Some(8 << 16 | 4)));
/// ```
pub trait Memory {
    /// Ends a pass in its middle, for a model's scheduler; [`Infallible`](std::convert::Infallible) for real memory.
    type Stop;

    /// Loads a word of the arena (acquire). Words count from the first buffer's word 0, in the queue's word width.
    fn load(&mut self, word: u32) -> Result<u64, Self::Stop>;

    /// Stores a word of the arena (release).
    fn store(&mut self, word: u32, value: u64) -> Result<(), Self::Stop>;

    /// Loads the control page's `state` (acquire).
    fn state(&mut self) -> Result<u64, Self::Stop>;

    /// Compare-and-swap of `state` (acquire), which fails only if it is not `expected`: `Ok` and `Err` hold the word
    /// before.
    fn enter(&mut self, expected: u64, new: u64) -> Result<Result<u64, u64>, Self::Stop>;

    /// Atomic *and* of `state` (acquire and release): the word before.
    fn leave(&mut self, mask: u64) -> Result<u64, Self::Stop>;
}

/// The memory ordering of each access (SPEC I11). Real memory has [`Orders::SOUND`]; tests show that each is needed.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use telegraphos::queue::dequeue::Orders;
///
/// // A wrong variant, for a test that shows what it loses.
/// let wrong = Orders { store: Ordering::Relaxed, ..Orders::SOUND };
/// assert_ne!(wrong, Orders::SOUND);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orders {
    /// Of [`Memory::load`]: stores of the board that precede a tail are seen after it.
    pub load: Ordering,
    /// Of [`Memory::store`]: an element is read before the head that frees its place is seen.
    pub store: Ordering,
    /// Of [`Memory::state`].
    pub state: Ordering,
    /// Of [`Memory::enter`], when it succeeds: the accesses of the previous consumer inside are seen.
    pub enter: Ordering,
    /// Of [`Memory::leave`].
    pub leave: Ordering,
}

impl Orders {
    /// Acquire for loads, release for stores.
    pub const SOUND: Orders = Orders {
        load: Ordering::Acquire,
        store: Ordering::Release,
        state: Ordering::Acquire,
        enter: Ordering::Acquire,
        leave: Ordering::AcqRel,
    };
}
