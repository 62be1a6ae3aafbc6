// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate bugs that the checks must find; `tests/bugs.rs` names the check of each.

/// Deliberate bugs behind the `bugs` feature: for each rule one that makes its check fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(not(feature = "bugs"), expect(unreachable_pub, reason = "exported with the feature only"))]
pub enum Bug {
    /// Records: the head is stored before the bytes.
    HeadFirst,
    /// Records: the word behind a record is left as it was.
    KeepOldWord,
    /// Credits: the sender stores where the receiver has not taken yet.
    IgnoreCredits,
    /// Credits: what was taken is never reported.
    KeepCredits,
    /// Sleep: no fence between the store of a head, or of a credit, and the load of the other end's word.
    WakerWithoutFence,
    /// Sleep: no fence between the store of an end's word and its last look.
    SleeperWithoutFence,
    /// Sleep: all sleeps have the same number.
    SameSleep,
    /// Lies: a head of any length is believed.
    BelieveHead,
    /// Lies: a credit for anything is believed.
    BelieveCredit,
}

#[cfg(feature = "bugs")]
pub(crate) type Bugs = Option<Bug>;

/// Whether this deliberate bug is on: never without the feature.
macro_rules! has_bug {
    ($self:ident, $bug:ident) => {{
        #[cfg(feature = "bugs")]
        let has = $self.bug == Some(crate::bugs::Bug::$bug);
        #[cfg(not(feature = "bugs"))]
        let has = {
            let _ = crate::bugs::Bug::$bug;
            false
        };
        has
    }};
}
pub(crate) use has_bug;
