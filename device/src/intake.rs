// SPDX-License-Identifier: MIT OR Apache-2.0
//! How fast the guest's messages are taken in: when its socket has run dry, and when it is left alone for a while.
//!
//! QEMU queues posted stores without bound, and the board takes them in at once: it stops the guest, not the socket
//! (`docs/architecture.md`, "Back-pressure"). A process that was not scheduled for seconds finds all that the guest has
//! posted meanwhile, though. While its reserve is nearly full, the socket is not read, so that the network's pace is
//! the intake's; but a load may wait behind the stores: it is no older than the last moment at which the socket was
//! seen empty. So the pause ends while there is still time to take in the rest and to serve a load.

/// QEMU's `x-msg-timeout` in microseconds: a load that is answered later ends the device.
const MESSAGE_TIMEOUT: u64 = 5_000_000;
/// Of that, what taking in the rest may take: more than a million messages.
const REST: u64 = 1_500_000;
/// Guest messages that fit into the socket between QEMU and the board at least: fewer than these since it was last seen
/// empty means that QEMU holds none back.
const SOCKET_MESSAGES: u32 = 128;
/// After more than that, the socket counts as dry only when it has been empty for this long (microseconds): QEMU
/// refills it from a queue of its own a wake-up later.
const DRY_AFTER: u64 = 2_000;

/// The intake of one client. Times are microseconds of a monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Intake {
    /// Guest messages since the socket was last dry.
    since_dry: u32,
    /// When the last guest message came.
    last_message: u64,
    /// When the socket was last known to be dry.
    dry_at: u64,
    /// How long after that it may be left unread.
    patience: u64,
}

impl Intake {
    /// A client that has just connected; its loads take up to `load_limit`.
    pub(crate) fn new(now: u64, load_limit: u64) -> Intake {
        let patience = MESSAGE_TIMEOUT.saturating_sub(REST).saturating_sub(load_limit);
        Intake { since_dry: 0, last_message: now, dry_at: now, patience }
    }

    /// A message has been taken in.
    pub(crate) fn message(&mut self, now: u64) {
        self.since_dry = self.since_dry.saturating_add(1);
        self.last_message = now;
    }

    /// The socket has been found empty; whether it is dry, and was not.
    pub(crate) fn drained(&mut self, now: u64) -> bool {
        self.since_dry < SOCKET_MESSAGES && self.dry(now)
    }

    /// Nothing has come in this turn; whether the socket is dry by now, and was not.
    pub(crate) fn idle(&mut self, now: u64) -> bool {
        self.since_dry > 0 && now >= self.last_message + DRY_AFTER && self.dry(now)
    }

    fn dry(&mut self, now: u64) -> bool {
        self.dry_at = now;
        std::mem::take(&mut self.since_dry) > 0
    }

    /// Until when the socket is to be left unread, if it is now.
    pub(crate) fn pause(&self, now: u64, nearly_full: bool) -> Option<u64> {
        let until = self.dry_at.saturating_add(self.patience);
        (nearly_full && now < until).then_some(until)
    }

    /// When [`Intake::idle`] is to be asked, if ever.
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
            // All that was posted since then may have a load behind it.
            for now in (20..8_000_000).step_by(1000) {
                intake.message(now);
                if let Some(until) = intake.pause(now, true) {
                    assert!(until + REST + load_limit <= 20 + MESSAGE_TIMEOUT);
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
