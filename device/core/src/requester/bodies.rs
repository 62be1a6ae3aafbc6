// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boxes for the content of requests that wait to be sent, used again: a load or an atomic allocates no memory.
//!
//! A waiting store has its fields in its entry of the send queue. Other requests are up to six times as large: they are
//! in boxes, so that what waits most, stores, stays small.

use crate::kept::Kept;
use crate::loan::{Content, Loan};
use telegraphos_wire::{Body, Status};

/// See the module.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Bodies {
    empty: Kept<Box<Content>>,
}

impl Bodies {
    /// Boxes the content of a request.
    pub(super) fn put(&mut self, body: Body, loan: Option<Loan>) -> Box<Content> {
        match self.empty.take() {
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
        self.empty.put(full);
        (body, loan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::KEPT;

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
        assert_eq!(bodies.empty.all().len(), KEPT);
    }
}
