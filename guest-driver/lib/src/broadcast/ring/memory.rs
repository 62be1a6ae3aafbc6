// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a ring, as its algorithms need it.

/// A copy of the ring's words. Each call is one access, and one step of a model.
///
/// ```
/// use std::cell::RefCell;
/// use std::convert::Infallible;
/// use telegraphos::broadcast::ring::{Consumer, Found, Joined, Memory, Producer, Shape};
///
/// /// One copy for all.
/// struct Model(RefCell<Vec<u64>>);
///
/// impl Memory for Model {
///     type Error = Infallible;
///     fn load(&self, word: u32) -> Result<u64, Infallible> {
///         Ok(self.0.borrow()[word as usize])
///     }
///     fn store(&self, word: u32, value: u64) -> Result<(), Infallible> {
///         self.0.borrow_mut()[word as usize] = value;
///         Ok(())
///     }
///     fn compare_swap(&self, word: u32, expected: u64, new: u64) -> Result<u64, Infallible> {
///         let word = &mut self.0.borrow_mut()[word as usize];
///         let before = *word;
///         *word = if before == expected { new } else { before };
///         Ok(before)
///     }
///     fn quiet(&self) -> Result<(), Infallible> {
///         Ok(())
///     }
/// }
///
/// let shape = Shape::new(4, 16, 2).unwrap();
/// let memory = Model(RefCell::new(vec![0; shape.bytes() as usize / 8]));
/// let Ok(mut producer) = Producer::create(shape, &memory);
/// let Ok(Joined::Consumer(mut consumer)) = Consumer::join(&memory, shape.bytes()) else { panic!("no place") };
/// producer.look(&memory)?; // gives it its number
/// assert!(producer.push(&memory, b"ready")?);
/// let mut message = Vec::new();
/// assert_eq!(consumer.pop(&memory, &mut message)?, Found::Message);
/// assert_eq!(message, b"ready");
/// # Ok::<(), Infallible>(())
/// ```
pub trait Memory {
    /// The error of a failed access.
    type Error;

    /// Loads a word of this node's copy (acquire). It may miss this process's own last store, which the ring never
    /// loads.
    fn load(&self, word: u32) -> Result<u64, Self::Error>;

    /// Stores a word (release), to all copies.
    fn store(&self, word: u32, value: u64) -> Result<(), Self::Error>;

    /// Compare-and-swap: returns the previous word. When it returns, all copies have its result.
    fn compare_swap(&self, word: u32, expected: u64, new: u64) -> Result<u64, Self::Error>;

    /// Returns when all copies have every earlier store.
    fn quiet(&self) -> Result<(), Self::Error>;
}
