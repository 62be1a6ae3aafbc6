// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control socket without a fabric: what is said, and what clients that misbehave cost.

mod clients;
mod fake;
mod metrics;
mod protocol;
