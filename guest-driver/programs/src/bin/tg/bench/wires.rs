// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ways from one guest to the other and back. Both nodes have the same list: one sends and waits, the other waits and
//! sends.

use super::doorbell::Doorbell;
use super::network::{Bulk, Network};
use super::pair::Lead;
use super::shared::{Shared, poll};
use super::{Round, batch, nanoseconds};
use std::rc::Rc;
use std::time::{Duration, Instant};
use telegraphos::{FULL, Node, NodeId, Queue, Remote, Segment};
use telegraphos_agent::bench::shared;
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_guest_tests::peers::import_patiently;
use telegraphos_guest_tests::raw;

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Round trips before those that count.
const WARMING: u64 = 3;

/// What a node offers to the other one.
pub(crate) struct Exports {
    word: Segment,
    queue: Queue,
    /// In the memory of the trust group, if there is one.
    _direct: Option<Segment>,
}

impl Exports {
    pub(crate) fn new(node: &Node) -> Outcome<Exports> {
        let direct = |group: String| node.export("bench-direct", 4096).owner(FULL).others(FULL).direct(&group).create();
        Ok(Exports {
            _direct: node.trust_group()?.map(direct).transpose()?,
            word: node.export("bench-echo", 4096).owner(FULL).others(FULL).create()?,
            queue: Queue::create(node, "bench-echo-queue").wide().mode(0o606).create()?,
        })
    }
}

/// Devices, ready on this node.
pub(crate) struct Prepared {
    shared: Outcome<Rc<Shared>>,
    doorbell: Outcome<Doorbell>,
    virtio: Outcome<Network>,
    board: Outcome<Network>,
}

/// `place` is 0 on the node that measures, 1 on the other.
pub(crate) fn prepare(own: NodeId, other: NodeId, place: usize) -> Prepared {
    let shared = Shared::open();
    // The doorbell's own memory is the same file.
    let doorbell = shared.clone().and_then(|shared| Doorbell::open(shared, place));
    Prepared { shared, doorbell, virtio: Network::of_virtio(place), board: Network::of_board(own, other, place) }
}

type Step<'a> = Box<dyn FnMut(u64) -> Outcome<()> + 'a>;

struct Wire<'a> {
    name: &'static str,
    /// What to send with and to wait with; or why there is nothing.
    ends: Outcome<(Step<'a>, Step<'a>)>,
}

pub(crate) struct Wires<'a> {
    shared: Option<Rc<Shared>>,
    list: Vec<Wire<'a>>,
    bulk: [Bulk; 2],
}

/// Orders from this one on are for much data: two for each of [`Wires::bulk`].
const BULK: u64 = 500;

fn boxed<'a>(
    send: impl FnMut(u64) -> Outcome<()> + 'a,
    wait: impl FnMut(u64) -> Outcome<()> + 'a,
) -> (Step<'a>, Step<'a>) {
    (Box::new(send), Box::new(wait))
}

/// The same where sending is one store, or a few, which cannot fail.
fn stored<'a>(mut store: impl FnMut(u64) + 'a, wait: impl FnMut(u64) -> Outcome<()> + 'a) -> (Step<'a>, Step<'a>) {
    let send = move |value| {
        store(value);
        Ok(())
    };
    boxed(send, wait)
}

/// All of them, when both nodes are prepared.
pub(crate) fn all<'a>(
    exports: &'a Exports,
    node: &Node,
    other: NodeId,
    place: usize,
    prepared: Prepared,
    patience: Duration,
) -> Outcome<Wires<'a>> {
    let far = Rc::new(import_patiently(node, other, "bench-echo", patience)?);
    let queue = Queue::import(node, other, "bench-echo-queue").open()?;
    let Prepared { shared, doorbell, virtio, board } = prepared;
    let put = {
        let far = far.clone();
        // SAFETY: the first word of a mapped segment.
        move |value| unsafe { raw::store::<u64>(far.as_ptr(), 0, value) }
    };
    let word = &exports.word;
    let look = move |value: u64| {
        // SAFETY: the first word of this node's segment.
        poll(PATIENCE, "a store of the other node", || unsafe { raw::load::<u64>(word.as_ptr(), 0) } == value)
    };
    let mut list = vec![Wire { name: "roundtrip_poll", ends: Ok(stored(put.clone(), look)) }];
    let asleep = move |value: u64| loop {
        match exports.queue.pop_wait(Some(PATIENCE))? {
            Some(found) if found == value => return Ok(()),
            // Of an order that was abandoned.
            Some(_) => {}
            None => return Err(Failure::Refused(format!("no notification has come in {PATIENCE:?}"))),
        }
    };
    list.push(Wire { name: "roundtrip_sleep", ends: Ok(boxed(move |value| Ok(queue.enqueue(value)?), asleep)) });
    // One way by the board, and back by the fastest there is.
    let oneway = shared.clone().map(|shared| match place {
        0 => stored(put, move |value| shared.until(shared::BACK, value, PATIENCE)),
        _ => stored(move |value| shared.store(shared::BACK, value), look),
    });
    list.push(Wire { name: "oneway", ends: oneway });
    let plain = shared.clone().map(|back| {
        let there = back.clone();
        let [mine, theirs] = if place == 0 { shared::PING } else { [shared::PING[1], shared::PING[0]] };
        stored(move |value| there.store(theirs, value), move |value| back.until(mine, value, PATIENCE))
    });
    list.push(Wire { name: "ivshmem_roundtrip", ends: plain });
    let doorbell = doorbell.map(Rc::new);
    let looking = doorbell.clone().map(|wait| {
        let ring = wait.clone();
        stored(move |_| ring.ring(0), move |_| wait.look(PATIENCE))
    });
    let asleep = doorbell.and_then(|ring| {
        let mut sleeper = ring.sleeper()?;
        Ok(stored(move |_| ring.ring(1), move |_| sleeper.wait(PATIENCE)))
    });
    list.push(Wire { name: "doorbell_roundtrip_looking", ends: looking });
    list.push(Wire { name: "doorbell_roundtrip_asleep", ends: asleep });
    let virtio = sockets(virtio, ["udp_roundtrip", "tcp_roundtrip"], ["tcp_8m", "tcp_8m_both"], &mut list);
    let board =
        sockets(board, ["net_udp_roundtrip", "net_tcp_roundtrip"], ["net_tcp_8m", "net_tcp_8m_both"], &mut list);
    Ok(Wires { shared: shared.ok(), list, bulk: [virtio, board] })
}

/// Round trips by UDP and TCP, and much data by the same connection.
fn sockets(
    network: Outcome<Network>,
    [of_udp, of_tcp]: [&'static str; 2],
    bulk: [&'static str; 2],
    list: &mut Vec<Wire<'_>>,
) -> Bulk {
    let (udp, tcp) = match network {
        Ok(network) => (Ok(Rc::new(network.udp)), network.tcp.connected().map(Rc::new)),
        Err(e) => (Err(e.clone()), Err(e)),
    };
    let udp = udp.map(|to| {
        let from = to.clone();
        boxed(move |value| to.send(value), move |value| from.wait(value))
    });
    list.push(Wire { name: of_udp, ends: udp });
    let ends = tcp.clone().map(|to| {
        let from = to.clone();
        boxed(move |value| to.send(value), move |value| from.wait(value))
    });
    list.push(Wire { name: of_tcp, ends });
    Bulk { names: bulk, tcp }
}

impl Wires<'_> {
    pub(crate) fn shared(&self) -> Option<Rc<Shared>> {
        self.shared.clone()
    }

    pub(crate) fn echo(&mut self, index: u64, first: u64, count: u64) -> Outcome<()> {
        if let Some(which) = index.checked_sub(BULK) {
            let bulk = usize::try_from(which / 2).ok().and_then(|which| self.bulk.get(which));
            let bulk = bulk.ok_or_else(|| Failure::Usage(format!("there is no order of number {index}")))?;
            return bulk.answer(which % 2 == 1, first);
        }
        let wire = usize::try_from(index).ok().and_then(|index| self.list.get_mut(index));
        let wire = wire.ok_or_else(|| Failure::Usage(format!("there is no way of number {index}")))?;
        let (send, wait) = wire.ends.as_mut().map_err(|e| Failure::Refused(format!("{}: {e}", wire.name)))?;
        for value in first..first + count {
            wait(value)?;
            send(value)?;
        }
        Ok(())
    }

    /// Round trips of every kind; `oneway` is one way only.
    pub(crate) fn round(&mut self, lead: &mut Lead<'_>, pings: u64, values: &mut Round<'_>) -> Outcome<()> {
        for (index, Wire { name, ends }) in self.list.iter_mut().enumerate() {
            let Some((send, wait)) = values.usable(name, ends.as_mut().map_err(|e| e.clone())) else { continue };
            let first = lead.order(index as u64, WARMING + pings)?;
            values.part(name, |ns| {
                let mut begun = Instant::now();
                for value in first..first + WARMING + pings {
                    if value == first + WARMING {
                        begun = Instant::now();
                    }
                    send(value)?;
                    wait(value)?;
                }
                Ok(_ = ns.insert((*name).into(), nanoseconds(begun, pings)))
            });
            lead.wait()?;
        }
        for (which, bulk) in (0..).zip(&self.bulk) {
            bulk.round(lead, BULK + 2 * which, values)?;
        }
        Ok(())
    }

    /// Single loads and stores of shared memory, and of a segment that is accessed directly, by the same instructions.
    pub(crate) fn local_round(&self, direct: &Outcome<Remote>, values: &mut Round<'_>) {
        /// Turns of each kind of memory, and accesses in each. A turn's first access of a kind fills the TLB; reading
        /// the clock takes as long as a hundred loads.
        const TURNS: u32 = 16;
        const COUNT: u64 = 4096;
        let mut kinds = Vec::new();
        match direct {
            Ok(direct) => kinds.push(("direct_store", "direct_load", direct.as_ptr(), 0)),
            Err(why) => {
                values.exclude("direct_store", &why.to_string());
                values.exclude("direct_load", &why.to_string());
            }
        }
        match &self.shared {
            Some(shared) => kinds.push(("ivshmem_store", "ivshmem_load", shared.at(), shared::FREE)),
            None => {
                values.exclude("ivshmem_store", "there is no ivshmem-plain");
                values.exclude("ivshmem_load", "there is no ivshmem-plain");
            }
        }
        for _ in 0..TURNS {
            for &(store, load, at, first) in &kinds {
                // SAFETY: places are aligned and in the segment, or the mapped BAR.
                let stored = batch(COUNT, |i| unsafe { raw::store::<u64>(at, first + i % 512 * 8, i) });
                // SAFETY: as above.
                let loaded = batch(COUNT, |i| _ = unsafe { raw::load::<u64>(at, first + i % 512 * 8) });
                for (name, each) in [(store, stored), (load, loaded)] {
                    *values.ns.entry(name.into()).or_default() += each / f64::from(TURNS);
                }
            }
        }
    }
}
