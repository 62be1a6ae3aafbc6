// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of each deliberate bug: the check that must find it.

telegraphos_testkit::bug_table! {
    bugs of telegraphos_msg_core::Bug;
    TransferTwice => "random", "once";
    WithdrawMatched => "random", "once";
    RepeatPiece => "random", "once";
    ForgetOffset => "random", "once";
    ReturnEarly => "random", "end";
    KeepRefused => "rules", "freed";
    NewestFirst => "random", "order";
    ExactFirst => "random", "order";
    IgnoreSlots => "random", "rules";
    ForgetSends => "random", "freed";
    OwnPath => "far", "rules";
    KeepRoutes => "far", "table";
    CountNoFrames => "far", "order";
    DropSilently => "far", "told";
}
