// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pacing of the guest's messages: when its socket counts as dry, and when reading it is paused. `shell` calls this
//! part.
//!
//! QEMU queues posted stores without bound, and the board reads them at once: back-pressure stops the guest's
//! processes, not the socket (`docs/architecture.md`, "Back-pressure"). However, a server process that was not
//! scheduled for seconds finds all that the guest has posted meanwhile. While the board's reserve is nearly full, the
//! socket is therefore not read, so that stores enter only as fast as the network takes them. A load may wait behind
//! these stores. It is no older than the last moment at which the socket was seen empty, so the pause ends while there
//! is still time to read the remaining messages and to serve the load.

/// QEMU's `x-msg-timeout` in microseconds. QEMU disables a device that answers a load later than this.
const MESSAGE_TIMEOUT: u64 = 5_000_000;
/// The part of it that is reserved for reading the messages that have queued up: more than a million.
const CATCH_UP: u64 = 1_500_000;
/// Guest messages that always fit into the socket between QEMU and the board. If fewer have been read since it was last
/// empty, QEMU's own queue is empty, too.
const SOCKET_MESSAGES: u32 = 128;
/// Otherwise the socket counts as dry only when it has been empty for this long (microseconds), since QEMU refills it
/// from its own queue one wake-up later.
const DRY_AFTER: u64 = 2_000;

/// The intake of one client. Times are microseconds of a monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Intake {
    /// Guest messages since the socket was last dry.
    since_dry: u32,
    /// When the last guest message came.
    last_message: u64,
    /// When the socket was last dry.
    dry_at: u64,
    /// The longest pause after that.
    longest_pause: u64,
}

impl Intake {
    /// For a client that has just connected. Its loads take up to `load_limit` microseconds.
    pub(crate) fn new(now: u64, load_limit: u64) -> Intake {
        let longest_pause = MESSAGE_TIMEOUT.saturating_sub(CATCH_UP).saturating_sub(load_limit);
        Intake { since_dry: 0, last_message: now, dry_at: now, longest_pause }
    }

    /// Records that a message has been read.
    pub(crate) fn message(&mut self, now: u64) {
        self.since_dry = self.since_dry.saturating_add(1);
        self.last_message = now;
    }

    /// Records that the socket was found empty. True if it is dry now and was not before.
    pub(crate) fn drained(&mut self, now: u64) -> bool {
        self.since_dry < SOCKET_MESSAGES && self.dry(now)
    }

    /// Records that nothing was read in this turn. True if the socket is dry now and was not before.
    pub(crate) fn idle(&mut self, now: u64) -> bool {
        self.since_dry > 0 && now >= self.last_message + DRY_AFTER && self.dry(now)
    }

    /// Records that the socket is dry. False if it was dry already.
    fn dry(&mut self, now: u64) -> bool {
        self.dry_at = now;
        std::mem::take(&mut self.since_dry) > 0
    }

    /// Until when the socket must be left unread; `None` if it may be read now. `nearly_full` is the state of the
    /// board's reserve.
    pub(crate) fn pause(&self, now: u64, nearly_full: bool) -> Option<u64> {
        let until = self.dry_at.saturating_add(self.longest_pause);
        (nearly_full && now < until).then_some(until)
    }

    /// When [`Intake::idle`] must be called; `None` if it need not be.
    pub(crate) fn deadline(&self) -> Option<u64> {
        (self.since_dry > 0).then(|| self.last_message + DRY_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_leaves_a_load_its_time() {
        for load_limit in [0, 1_000_000, 3_000_000, 10_000_000] {
            let mut intake = Intake::new(10, load_limit);
            assert!(!intake.drained(20), "it was dry already");
            // Messages posted since then may have a load behind them.
            for now in (20..8_000_000).step_by(1000) {
                intake.message(now);
                if let Some(until) = intake.pause(now, true) {
                    assert!(until + CATCH_UP + load_limit <= 20 + MESSAGE_TIMEOUT);
                }
                assert_eq!(intake.pause(now, false), None);
            }
            assert_eq!(intake.pause(8_000_000, true), None);
        }
    }

    #[test]
    fn a_socket_that_is_refilled_is_not_dry() {
        let mut intake = Intake::new(0, 1_000_000);
        (0..SOCKET_MESSAGES - 1).for_each(|_| intake.message(5));
        assert!(intake.drained(6) && !intake.drained(7));
        (0..SOCKET_MESSAGES).for_each(|_| intake.message(8));
        assert!(!intake.drained(9));
        assert_eq!(intake.deadline(), Some(8 + DRY_AFTER));
        assert!(!intake.idle(8 + DRY_AFTER - 1) && intake.idle(8 + DRY_AFTER) && !intake.idle(9 + DRY_AFTER));
        assert_eq!(intake.deadline(), None);
    }
}
