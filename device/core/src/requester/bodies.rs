// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boxes for the content of requests that wait to be sent, used again: a load or an atomic allocates no memory.
//!
//! A waiting store has its fields in its entry of the send queue. Other requests are up to six times as large: they are
//! in boxes, so that what waits most, stores, stays small.

use crate::loan::{Content, Loan};
use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use telegraphos_wire::{Body, Status};

/// Empty boxes that are kept, at most: as many requests rarely wait at the same time for longer than a turn.
const KEPT: usize = 64;

/// See the module. Not part of the state that is hashed and shown: boxes behave the same wherever they are from.
#[derive(Clone, Default)]
pub(super) struct Bodies {
    #[allow(clippy::vec_box, reason = "the boxes are what is kept")]
    empty: Vec<Box<Content>>,
}

impl Hash for Bodies {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Debug for Bodies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bodies")
    }
}

impl Bodies {
    /// Boxes the content of a request.
    pub(super) fn put(&mut self, body: Body, loan: Option<Loan>) -> Box<Content> {
        match self.empty.pop() {
            Some(mut empty) => {
                empty.body = body;
                // An empty box has none.
                if loan.is_some() {
                    empty.loan = loan;
                }
                empty
            }
            None => Box::new(Content { body, loan }),
        }
    }

    /// Takes the content of a request out of its box, and keeps that.
    pub(super) fn take(&mut self, mut full: Box<Content>) -> (Body, Option<Loan>) {
        let body = std::mem::replace(&mut full.body, Body::WriteAck { status: Status::Ok });
        let loan = full.loan.take();
        if self.empty.len() < KEPT {
            self.empty.push(full);
        }
        (body, loan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(n: u16) -> Body {
        Body::CopyAck { status: if n % 2 == 0 { Status::Ok } else { Status::Bounds } }
    }

    #[test]
    fn a_box_is_used_again_and_not_more_are_kept_than_said() {
        let mut bodies = Bodies::default();
        let first = bodies.put(body(1), None);
        let place: *const Content = &*first;
        assert_eq!(bodies.take(first), (body(1), None));
        let again = bodies.put(body(2), None);
        assert_eq!((&*again as *const Content, &again.body), (place, &body(2)));
        let many: Vec<_> = (0..2 * KEPT as u16).map(|n| bodies.put(body(n), None)).collect();
        for (n, full) in (0..).zip(many) {
            assert_eq!(bodies.take(full), (body(n), None));
        }
        assert_eq!(bodies.empty.len(), KEPT);
    }
}
