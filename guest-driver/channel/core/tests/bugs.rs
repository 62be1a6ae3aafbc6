// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of each deliberate bug: the check that must find it.

telegraphos_testkit::bug_table! {
    bugs of telegraphos_channel_core::Bug;
    HeadFirst => "model", "other bytes";
    KeepOldWord => "model", "never sent";
    IgnoreCredits => "model", "other end";
    KeepCredits => "model", "sleeps for ever";
    WakerWithoutFence => "model", "sleeps for ever";
    SleeperWithoutFence => "model", "sleeps for ever";
    SameSleep => "model", "sleeps for ever";
    BelieveHead => "lies", "beyond";
    BelieveCredit => "lies", "overflow";
}
