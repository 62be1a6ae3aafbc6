// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of each deliberate bug: the check that must find it.

telegraphos_testkit::bug_table! {
    bugs of telegraphos_sockets_core::Bug;
    ForgetOwed => "random", "exact";
    IgnoreHead => "random", "exact";
    ReturnEarly => "random", "exact";
    ReadOn => "random", "rules";
    ConsumeEarly => "random", "readable";
    MissFrame => "random", "exact";
}
