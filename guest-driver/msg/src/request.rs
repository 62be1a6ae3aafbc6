// SPDX-License-Identifier: MIT OR Apache-2.0
//! A send or a receive: the memory that it uses, and what its thread waits for.

use crate::grant::Grant;
use crate::memory::Memory;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use telegraphos::{NodeId, Registration};
use telegraphos_msg_core::{Failure, Place, Process, Received, TransferId};

/// Memory of a request, until that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    at: *mut u8,
    length: u64,
}

// SAFETY: it is accessed with a lease, or by its own thread.
unsafe impl Send for Buffer {}
// SAFETY: the same.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Memory that is read only.
    pub(crate) fn of(bytes: &[u8]) -> Buffer {
        Buffer { at: bytes.as_ptr().cast_mut(), length: bytes.len() as u64 }
    }

    pub(crate) fn of_mut(bytes: &mut [u8]) -> Buffer {
        Buffer { at: bytes.as_mut_ptr(), length: bytes.len() as u64 }
    }

    /// Its address, and its bytes.
    pub(crate) fn range(self) -> (u64, u64) {
        (self.at as u64, self.length)
    }

    /// Its beginning.
    pub(crate) fn cut(self, length: u64) -> Buffer {
        Buffer { length: self.length.min(length), ..self }
    }

    /// What follows its first bytes, of which there are so many at least.
    pub(crate) fn beyond(self, offset: u64) -> Buffer {
        let offset = offset.min(self.length);
        Buffer { at: self.at.wrapping_add(offset as usize), length: self.length - offset }
    }

    /// Its first bytes as a slice, to be registered.
    pub(crate) fn first(self, length: u64) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.at, self.length.min(length) as usize)
    }

    /// `length` bytes of it.
    ///
    /// # Safety
    /// Its request has not ended, and nothing writes them.
    unsafe fn part<'a>(self, offset: u64, length: u64) -> &'a [u8] {
        // The engine names no bytes beyond it.
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length));
        // SAFETY: within the memory, as was just checked, which is lent until the request ends.
        unsafe { std::slice::from_raw_parts(self.at.add(offset as usize), length as usize) }
    }

    /// The same, to be written.
    ///
    /// # Safety
    /// Its request has not ended, and nothing else accesses them: a receive has one message.
    unsafe fn part_mut<'a>(self, offset: u64, length: u64) -> &'a mut [u8] {
        // The engine names no bytes beyond it.
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length));
        // SAFETY: within the memory, as was just checked, which is lent until the request ends.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(offset as usize), length as usize) }
    }

    /// Appends bytes of it to `words`, with zeros behind them.
    ///
    /// # Safety
    /// Its request has not ended.
    pub(crate) unsafe fn read(self, offset: u64, length: u32, words: &mut Vec<u64>) {
        // SAFETY: as promised.
        let chunks = unsafe { self.part(offset, length.into()) }.chunks_exact(8);
        let rest = chunks.remainder();
        // Eight bytes each.
        words.extend(chunks.map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap_or_default())));
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            words.push(u64::from_le_bytes(word));
        }
    }

    /// A copy of bytes of it.
    ///
    /// # Safety
    /// Its request has not ended.
    pub(crate) unsafe fn bytes(self, offset: u64, length: u32) -> Vec<u8> {
        // SAFETY: as promised.
        unsafe { self.part(offset, length.into()) }.to_vec()
    }

    /// Writes bytes to it.
    ///
    /// # Safety
    /// Its request has not ended.
    pub(crate) unsafe fn write_bytes(self, offset: u64, bytes: &[u8]) {
        // SAFETY: as promised.
        unsafe { self.part_mut(offset, bytes.len() as u64) }.copy_from_slice(bytes);
    }

    /// Writes `length` bytes, of the words that `word` returns one by one.
    ///
    /// # Safety
    /// Its request has not ended.
    pub(crate) unsafe fn write(self, offset: u64, length: u32, mut word: impl FnMut() -> u64) {
        // SAFETY: as promised.
        let mut chunks = unsafe { self.part_mut(offset, length.into()) }.chunks_exact_mut(8);
        for chunk in &mut chunks {
            chunk.copy_from_slice(&word().to_le_bytes());
        }
        let rest = chunks.into_remainder();
        if !rest.is_empty() {
            rest.copy_from_slice(&word().to_le_bytes()[..rest.len()]);
        }
    }
}

/// While it exists, memory of this thread may be accessed by others, so nothing may unwind through it.
pub(crate) struct Lent;

impl Drop for Lent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// What is to be done with bytes of a request's buffer, and of another process's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Move {
    /// This board fetches them from a place.
    Fetch(Place),
    /// It stores them, from this byte on, to a place.
    Store(Place, u64),
    /// The other's board is to store them, from this byte on.
    Offer(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) id: TransferId,
    pub(crate) what: Move,
    pub(crate) other: Process,
    pub(crate) length: u64,
}

/// Of a send without what is received.
pub(crate) type Outcome = Result<Option<Received>, Failure>;

/// What a request's thread is to do next.
#[derive(Debug)]
pub(crate) enum Event {
    Transfer(Transfer),
    /// Nothing accesses the buffer any more, except a board that stores to its place.
    Ended(Outcome),
}

#[derive(Debug, Default)]
struct Inner {
    /// Leases of the buffer.
    leases: u32,
    transfer: Option<Transfer>,
    outcome: Option<Outcome>,
    owned: Owned,
}

/// Memory that another's board stores a message into.
#[derive(Clone, Debug)]
pub(crate) struct Writable {
    pub(crate) registration: Arc<Registration>,
    pub(crate) place: Place,
}

impl From<(Arc<Registration>, Place)> for Writable {
    fn from((registration, place): (Arc<Registration>, Place)) -> Writable {
        Writable { registration, place }
    }
}

/// Registrations of a request, and memory that is not its thread's.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    /// By which another's board stores to it. Closed before the memory is used.
    pub(crate) writable: Option<Writable>,
    /// By which another's board reads it. The same.
    pub(crate) grant: Option<Grant>,
    pub(crate) memory: Option<Memory>,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) buffer: Buffer,
    /// The buffer's, if it is registered for longer than this request.
    pub(crate) own: Option<Arc<Registration>>,
    /// Another thread than the one that waits runs transfers: perhaps none waits.
    pub(crate) has_handle: bool,
    inner: Mutex<Inner>,
    wake: Condvar,
}

impl Request {
    /// Of a thread that waits for its end.
    pub(crate) fn of_thread(buffer: Buffer, writable: Option<Writable>) -> Arc<Request> {
        let inner = Inner { owned: Owned { writable, ..Owned::default() }, ..Inner::default() };
        Arc::new(Request { buffer, own: None, has_handle: false, inner: Mutex::new(inner), wake: Condvar::new() })
    }

    /// Of a handle, with its memory.
    pub(crate) fn of_handle(
        mut memory: Memory,
        own: Option<Arc<Registration>>,
        writable: Option<Writable>,
        grant: Option<Grant>,
    ) -> Arc<Request> {
        let buffer = Buffer::of_mut(&mut memory);
        let inner = Inner { owned: Owned { writable, grant, memory: Some(memory) }, ..Inner::default() };
        Arc::new(Request { buffer, own, has_handle: true, inner: Mutex::new(inner), wake: Condvar::new() })
    }

    /// Whether another's board finds its memory there.
    pub(crate) fn is_at(&self, place: Place) -> bool {
        self.place() == Some(place)
    }

    /// Where another's board stores to, if that is prepared.
    pub(crate) fn place(&self) -> Option<Place> {
        self.lock().owned.writable.as_ref().map(|writable| writable.place)
    }

    /// Another's board is to store there instead. Nothing refers to the old registration any more: it may take a while
    /// to end it.
    pub(crate) fn replace(&self, writable: Option<Writable>) {
        let before = std::mem::replace(&mut self.lock().owned.writable, writable);
        drop(before);
    }

    /// Lets a node store the first bytes of its memory, until that is taken.
    pub(crate) fn open_to(&self, node: NodeId, length: u64) -> telegraphos::Result<()> {
        let writable = self.lock().owned.writable.clone();
        writable.map_or(Ok(()), |writable| writable.registration.open_gate(node, length))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn run(&self, transfer: Transfer) {
        self.lock().transfer = Some(transfer);
        self.wake.notify_all();
    }

    /// The first end counts.
    pub(crate) fn end(&self, outcome: Outcome) {
        self.lock().outcome.get_or_insert(outcome);
        self.wake.notify_all();
    }

    fn of_inner(inner: &mut Inner) -> Option<Event> {
        if let Some(transfer) = inner.transfer.take() {
            return Some(Event::Transfer(transfer));
        }
        let ended = inner.outcome.filter(|_| inner.leases == 0);
        ended.map(Event::Ended)
    }

    /// The next event, if there is one.
    pub(crate) fn try_next(&self) -> Option<Event> {
        Request::of_inner(&mut self.lock())
    }

    /// Whether there is an event; it stays.
    pub(crate) fn has_ended(&self) -> bool {
        let inner = self.lock();
        inner.outcome.is_some() && inner.leases == 0
    }

    /// Waits for the next event until `limit`.
    pub(crate) fn next(&self, limit: Option<Instant>) -> Option<Event> {
        let mut inner = self.lock();
        loop {
            let event = Request::of_inner(&mut inner);
            if event.is_some() {
                return event;
            }
            let Some(limit) = limit else {
                inner = self.wake.wait(inner).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            inner = self.wake.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What belongs to it, when it has ended: its registrations are ended before its memory is used.
    pub(crate) fn take_owned(&self) -> Owned {
        std::mem::take(&mut self.lock().owned)
    }
}

/// While there is one, a request has not ended for its thread, so that its buffer may be used.
#[derive(Debug)]
pub(crate) struct Lease(Arc<Request>);

impl Lease {
    pub(crate) fn of(request: &Arc<Request>) -> Lease {
        request.lock().leases += 1;
        Lease(request.clone())
    }

    pub(crate) fn request(&self) -> &Arc<Request> {
        &self.0
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.leases -= 1;
        if inner.leases == 0 && inner.outcome.is_some() {
            self.0.wake.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn bytes_go_through_words_unchanged() {
        let from: Vec<u8> = (0..100).collect();
        for (offset, length) in [(0, 0), (0, 1), (3, 8), (5, 95), (99, 1), (0, 100)] {
            let (mut words, mut to) = (Vec::new(), [0u8; 100]);
            // SAFETY: both are here.
            unsafe {
                Buffer::of(&from).read(offset, length, &mut words);
                let mut words = words.into_iter();
                Buffer::of_mut(&mut to).write(offset, length, || words.next().unwrap_or(0));
            }
            let range = offset as usize..offset as usize + length as usize;
            assert_eq!(to[range.clone()], from[range]);
            assert_eq!(to.iter().filter(|byte| **byte != 0).count(), {
                let part = &from[offset as usize..offset as usize + length as usize];
                part.iter().filter(|byte| **byte != 0).count()
            });
        }
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn bytes_beyond_it_are_not_read() {
        // SAFETY: it panics before.
        unsafe { Buffer::of(&[1, 2, 3]).read(1, 3, &mut Vec::new()) };
    }

    #[test]
    fn a_request_that_is_used_has_not_ended() {
        let request = Request::of_thread(Buffer::of(&[]), None);
        let leases = [Lease::of(&request), Lease::of(&request)];
        request.end(Ok(None));
        request.end(Err(Failure::Gone));
        for lease in leases {
            assert!(!request.has_ended());
            assert!(request.next(Some(Instant::now() + Duration::from_millis(1))).is_none());
            drop(lease);
        }
        assert!(request.has_ended());
        assert!(matches!(request.next(None), Some(Event::Ended(Ok(None)))), "the first end counts");
    }

    #[test]
    fn the_last_lease_wakes_who_waits() {
        let request = Request::of_thread(Buffer::of(&[]), None);
        let lease = Lease::of(&request);
        request.end(Ok(None));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| request.next(None));
            drop(lease);
            assert!(matches!(waiting.join(), Ok(Some(Event::Ended(Ok(None))))));
        });
    }
}
