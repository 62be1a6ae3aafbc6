// SPDX-License-Identifier: MIT OR Apache-2.0
//! The link to the switch: whether it is up, and the credits of both directions.
//!
//! A packet of a class is sent only with a credit of that class. [`Link::spend`] is the only place that takes credits,
//! for every sender. [`Link::consumed`] counts packets that leave the board's input buffers; their credits are returned
//! in batches of a quarter of a buffer.

use crate::{Action, HibConfig};
use telegraphos_accounts::Shares;
use telegraphos_wire::Class;

/// State of a link that is up.
#[derive(Clone, Debug, Hash)]
struct Up {
    /// Credits of each class that are left.
    credits: [u32; 4],
    /// Credits of each class when the link came up: the total.
    given: [u32; 4],
    /// How the credits of classes `Enqueue` and `Request` are divided among the present destinations.
    shares: [Shares; 2],
    /// Number of nodes that the fabric serves.
    nodes: u32,
}

/// The link of the board; see the module documentation.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Link {
    up: Option<Up>,
    /// Packets of each class that have left the board's input buffers since credits were last returned.
    returned: [u32; 4],
    /// Some of these are to be returned.
    due: bool,
}

impl Link {
    /// The board joined a fabric of `nodes` nodes, with these credits.
    pub(crate) fn come_up(&mut self, credits: [u32; 4], nodes: u32) {
        let up = Up { credits, given: credits, shares: [Shares::single(0); 2], nodes };
        *self = Link { up: Some(up), ..Link::default() };
    }

    /// The link and its credits are lost. Returns false if the link was down already.
    pub(crate) fn go_down(&mut self) -> bool {
        self.up.take().is_some()
    }

    /// Returns whether the board has joined the fabric.
    pub(crate) fn is_up(&self) -> bool {
        self.up.is_some()
    }

    /// Number of nodes that the fabric serves; `None` while the link is down.
    pub(crate) fn nodes(&self) -> Option<u32> {
        self.up.as_ref().map(|up| up.nodes)
    }

    /// Divides the credits of requests and elements among this many destinations.
    pub(crate) fn divide(&mut self, destinations: u64) {
        let Some(up) = &mut self.up else { return };
        for class in [Class::Enqueue, Class::Request] {
            let granted = up.given[class as usize].into();
            up.shares[class as usize] = Shares::half_guaranteed(granted, destinations, u64::MAX);
        }
    }

    /// The switch returned `count` credits.
    pub(crate) fn credit(&mut self, class: Class, count: u32) {
        if let Some(up) = &mut self.up {
            let credits = &mut up.credits[class as usize];
            *credits = credits.saturating_add(count);
        }
    }

    /// Returns whether a credit of the class is left, regardless of shares.
    pub(crate) fn has_credit(&self, class: Class) -> bool {
        self.up.as_ref().is_some_and(|up| up.credits[class as usize] > 0)
    }

    /// Returns whether another request or element may be sent to a destination that has this many unanswered. The
    /// switch returns credits without naming a destination, at the latest when the packet is answered; therefore the
    /// unanswered packets count as the credits of the destination.
    pub(crate) fn admits(&self, class: Class, unanswered: u32) -> bool {
        let Some(up) = &self.up else { return false };
        let free = up.credits[class as usize];
        up.shares.get(class as usize).is_some_and(|shares| shares.admits(free.into(), unanswered.into()))
    }

    /// Takes a credit for a packet that is sent now. Returns false if none is left.
    pub(crate) fn spend(&mut self, class: Class) -> bool {
        let credits = self.up.as_mut().map(|up| &mut up.credits[class as usize]);
        match credits {
            Some(credits @ 1..) => {
                *credits -= 1;
                true
            }
            _ => false,
        }
    }

    /// A packet received from the switch has left this board's input buffer. Returns whether credits are to be
    /// [returned](Link::return_credits): of a quarter of the buffer that was offered or more at a time, so that the
    /// switch does not run out of them, and the number of frames stays low.
    pub(crate) fn consumed(&mut self, config: &HibConfig, class: Class) -> bool {
        self.returned[class as usize] += 1;
        let due = self.is_due(config, class);
        self.due |= due;
        due
    }

    /// Returns whether credits of this class are to be returned.
    fn is_due(&self, config: &HibConfig, class: Class) -> bool {
        let returned = self.returned[class as usize];
        returned > 0 && returned >= config.offered()[class as usize] / 4
    }

    /// Emits the return of the credits that are due.
    pub(crate) fn return_credits(&mut self, config: &HibConfig, out: &mut Vec<Action>) {
        if !std::mem::take(&mut self.due) || self.up.is_none() {
            return;
        }
        for class in Class::ALL {
            if self.is_due(config, class) {
                let count = std::mem::take(&mut self.returned[class as usize]);
                out.push(Action::Credit { class, count });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_consumed_of_a_link_that_is_gone_is_not_returned_to_the_next() {
        let (mut link, mut out) = (Link::default(), Vec::new());
        let config = HibConfig { credits: [8; 4], holds: 8, ..HibConfig::new(0) };
        link.come_up([8; 4], 2);
        (0..7).for_each(|n| assert_eq!(link.consumed(&config, Class::Request), n > 0));
        assert!(link.go_down() && !link.go_down());
        link.return_credits(&config, &mut out);
        link.come_up([8; 4], 2);
        link.consumed(&config, Class::Request);
        link.return_credits(&config, &mut out);
        assert_eq!(out, []);
        link.consumed(&config, Class::Request);
        link.return_credits(&config, &mut out);
        assert_eq!(out, [Action::Credit { class: Class::Request, count: 2 }]);
    }

    #[test]
    fn no_more_is_spent_than_was_given() {
        let mut link = Link::default();
        assert!(!link.spend(Class::Request));
        link.come_up([0, 2, 0, 0], 2);
        assert!(link.spend(Class::Request) && link.spend(Class::Request));
        assert!(!link.spend(Class::Request) && !link.has_credit(Class::Request));
        link.credit(Class::Request, u32::MAX);
        assert!(link.spend(Class::Request));
    }
}
