// SPDX-License-Identifier: MIT OR Apache-2.0
//! What bytes there and back take: through a channel whose ends look, through one whose ends sleep, and through a bare
//! ring in memory in common, which is the floor. In turn, in the same two processes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telegraphos::{Node, Remote, Segment};
use telegraphos_channel::{Carrier, Channel, Options};
use telegraphos_guest_tests::cli::{self, Outcome};
use telegraphos_guest_tests::patience::{ABSENT, MILLISECOND, patiently};
use telegraphos_guest_tests::stats::Summary;

const SIZES: [usize; 4] = [8, 64, 1024, 65_536];
/// Bytes before the ring of the bare one.
const HEADER: usize = 4096;
/// An end that looks does so for longer than anything here takes.
const LOOKING: Duration = Duration::from_secs(5);
/// Bytes of an order to the partner: way, size, count.
const ORDER: usize = 24;

/// The ways that are measured.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Looking,
    Asleep,
    Bare,
}

const WAYS: [Way; 3] = [Way::Looking, Way::Asleep, Way::Bare];

/// A bare ring: a number, and bytes behind it, in either's memory.
struct Bare {
    mine: Segment,
    theirs: Remote,
    turn: u64,
}

impl Bare {
    /// With the process of a channel; `None` if that has no memory in common.
    fn open(node: &Node, channel: &Channel, name: &str) -> Outcome<Option<Bare>> {
        let (peer, group) = (channel.peer(), node.trust_group()?.unwrap_or_default());
        if channel.carriers() != (Carrier::Direct, Carrier::Direct) {
            return Ok(None);
        }
        let size = (HEADER + SIZES[3]) as u64;
        let mine = node.export(&format!("{name}.{}", node.id()), size).direct(&group).create()?;
        let passes = |error: &telegraphos::Error| error.status().is_some_and(|status| ABSENT.contains(&status));
        let import = || node.import(peer, &format!("{name}.{peer}")).rights(telegraphos::READ_WRITE).open();
        let theirs = patiently(super::PATIENCE, 10 * MILLISECOND, passes, import)?;
        Ok(theirs.state()?.direct.then_some(Bare { mine, theirs, turn: 0 }))
    }

    fn number(at: *mut u8) -> &'static AtomicU64 {
        // SAFETY: both memories begin with a page of words that are accessed by atomics only, and are mapped as long as
        // the ring, which outlives each use of this.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    fn put(&mut self, bytes: &[u8]) {
        let at = self.theirs.as_ptr();
        // SAFETY: direct memory, of `HEADER` bytes and the longest of SIZES; the other end reads it after the number.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.add(HEADER), bytes.len()) };
        Bare::number(at).store(self.turn, Ordering::Release);
    }

    fn take(&mut self, bytes: &mut [u8]) {
        let at = self.mine.as_ptr();
        while Bare::number(at).load(Ordering::Acquire) < self.turn {
            std::hint::spin_loop();
        }
        // SAFETY: as above; the other end has stored it before the number.
        unsafe { std::ptr::copy_nonoverlapping(at.add(HEADER), bytes.as_mut_ptr(), bytes.len()) };
    }
}

/// The name of the channel of a way.
fn named(name: &str, way: Way) -> String {
    format!("{name}.{way:?}")
}

fn options(options: Options, way: Way) -> Options {
    Options { look: if way == Way::Asleep { Duration::ZERO } else { LOOKING }, ..options }
}

pub(super) fn partner(given: Options, name: &str) -> Outcome<()> {
    let node = Node::open()?;
    let listen = |way| Channel::listen(&node, &named(name, way), options(given, way));
    let (looking, asleep) = (listen(Way::Looking)?, listen(Way::Asleep)?);
    // Orders come by a channel of their own, which sleeps.
    let orders = Channel::listen(&node, name, options(given, Way::Asleep))?;
    println!("serving");
    let gone = || cli::refused("no process connects");
    let mut accept = [&orders, &looking, &asleep].into_iter().map(|listener| {
        listener.accept(Some(super::PATIENCE)).map_err(cli::refused).and_then(|channel| channel.ok_or_else(gone))
    });
    let mut next = || accept.next().unwrap_or_else(|| Err(gone()));
    let (mut orders, mut looking, mut asleep) = (next()?, next()?, next()?);
    let mut bare = Bare::open(&node, &looking, &format!("{name}.ring"))?;
    let mut buffer = vec![0; SIZES[3]];
    let mut order = [0; ORDER];
    while orders.recv(&mut order)?.is_some() {
        let word = |n: usize| u64::from_le_bytes(std::array::from_fn(|byte| order[8 * n + byte]));
        let (way, size, count) = (WAYS[word(0) as usize % 3], word(1) as usize % (SIZES[3] + 1), word(2));
        orders.send(b"go")?;
        for _ in 0..count {
            match (way, &mut bare) {
                (Way::Bare, Some(bare)) => {
                    bare.turn += 1;
                    bare.take(&mut buffer[..size]);
                    bare.put(&buffer[..size]);
                }
                (Way::Bare, None) => {}
                (Way::Looking, _) => reply(&mut looking, &mut buffer)?,
                (Way::Asleep, _) => reply(&mut asleep, &mut buffer)?,
            }
        }
    }
    Ok(())
}

fn reply(channel: &mut Channel, buffer: &mut [u8]) -> Outcome<()> {
    let length = channel.recv(buffer)?.ok_or_else(|| cli::refused("the other end has closed"))?;
    Ok(channel.send(&buffer[..length])?)
}

pub(super) fn bench(given: Options, peer: u16, name: &str, rounds: u64) -> Outcome<()> {
    let node = Node::open()?;
    let mut orders = Channel::connect(&node, peer, name, options(given, Way::Asleep))?;
    let mut looking = Channel::connect(&node, peer, &named(name, Way::Looking), options(given, Way::Looking))?;
    let mut asleep = Channel::connect(&node, peer, &named(name, Way::Asleep), options(given, Way::Asleep))?;
    let mut bare = Bare::open(&node, &looking, &format!("{name}.ring"))?;
    let is_direct = bare.is_some();
    println!("carriers: {:?}", looking.carriers());
    let (sent, mut buffer) = (vec![5; SIZES[3]], vec![0; SIZES[3]]);
    for size in SIZES {
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            for (way, times) in WAYS.into_iter().zip(&mut times) {
                if way == Way::Bare && bare.is_none() {
                    continue;
                }
                let count: u64 = match (way, is_direct, size) {
                    (Way::Asleep, ..) | (Way::Looking, false, _) => 20,
                    (.., 65_536) => 40,
                    _ => 400,
                };
                let order: Vec<u8> = [way as u64, size as u64, count].iter().flat_map(|n| n.to_le_bytes()).collect();
                orders.send(&order)?;
                orders.recv_timeout(&mut [0; 8], super::PATIENCE)?;
                for _ in 0..count {
                    let begun = Instant::now();
                    match (way, &mut bare) {
                        (Way::Bare, Some(bare)) => {
                            bare.turn += 1;
                            bare.put(&sent[..size]);
                            bare.take(&mut buffer[..size]);
                        }
                        (Way::Looking, _) => exchange(&mut looking, &sent[..size], &mut buffer)?,
                        _ => exchange(&mut asleep, &sent[..size], &mut buffer)?,
                    }
                    times.push(begun.elapsed().as_nanos() as f64 / 1e3);
                }
                cli::check(buffer[..size] == sent[..size], || format!("{way:?}: other bytes came back"))?;
                buffer.fill(0);
            }
        }
        for (way, times) in WAYS.into_iter().zip(&times) {
            if let Some(Summary { median, low, high }) = Summary::of(times) {
                println!("{way:?} {size} B: median {median:.2} us, tenths {low:.2} to {high:.2}");
            }
        }
        let median = |way: Way| Summary::of(&times[way as usize]).map(|summary| summary.median);
        if let (Some(channel), Some(bare)) = (median(Way::Looking), median(Way::Bare)) {
            println!("channel_roundtrip_{size} {:.2}", channel / bare);
        }
    }
    Ok(())
}

fn exchange(channel: &mut Channel, bytes: &[u8], buffer: &mut [u8]) -> Outcome<()> {
    channel.send(bytes)?;
    let length = channel.recv_timeout(buffer, super::PATIENCE)?;
    cli::check(length == Some(bytes.len()), || format!("{length:?} instead of {} bytes", bytes.len()))
}
