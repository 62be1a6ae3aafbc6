// SPDX-License-Identifier: MIT OR Apache-2.0
//! The second node, which does what the first one orders.

use super::notifying;
use super::pair::{DRAIN, END, MAIL, wait_for};
use super::wires::Wires;
use telegraphos::NodeId;
use telegraphos_guest_tests::cli::Outcome;
use telegraphos_guest_tests::peers::Peers;

/// Serves orders until the end.
pub(crate) fn partner(peers: &Peers, lead: NodeId, wires: &mut Wires<'_>, queues: &notifying::Exports) -> Outcome<()> {
    let mut receiver = queues.receiver()?;
    for epoch in 2.. {
        wait_for(peers, lead, epoch)?;
        if peers.at(lead)? == END {
            break;
        }
        let [what, count, first] = MAIL.map(|slot| peers.received(lead, slot));
        let (what, count, first) = (what?, count?, first?);
        let served = match what.checked_sub(DRAIN) {
            Some(method) => receiver.drain(method, count),
            None => wires.echo(what, first, count),
        };
        // The lead notices by itself what has not come, and marks it.
        if let Err(e) = served {
            eprintln!("tg-bench: order {what}: {e}");
        }
        peers.arrive(epoch)?;
    }
    Ok(())
}
