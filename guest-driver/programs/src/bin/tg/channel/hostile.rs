// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that connects as it should, and then stores anything anywhere into the other one's memory.

use std::time::{Duration, Instant};
use telegraphos::{Node, Queue, Remote};
use telegraphos_channel_core::handshake::{ANSWER, Answer, CONTROL_SIZE, Hello, Offer, WAKE};
use telegraphos_channel_core::{ASLEEP, CONSUMED, END, Head, Layout, RING};
use telegraphos_guest_tests::cli::{self, Outcome};
use telegraphos_guest_tests::patience::{MILLISECOND, until};
use telegraphos_guest_tests::random;

/// Bytes of its own ring.
const BYTES: u64 = 1024;

/// How the memory is to be spoiled.
#[derive(Clone, Copy, Debug)]
enum Lie {
    /// A head that says more than a record can have.
    Length,
    /// A head out of order.
    Sequence,
    /// More is taken than was sent.
    Credit,
    /// It ends behind records that are not there.
    End,
    /// Anything, anywhere, for a while.
    Anything,
}

const LIES: [Lie; 5] = [Lie::Length, Lie::Sequence, Lie::Credit, Lie::End, Lie::Anything];

pub(super) fn lies(node: u16, name: &str, seed: u64) -> Outcome<()> {
    for (lie, number) in LIES.into_iter().zip(0..) {
        tell(node, name, lie, seed as u32 ^ number)?;
        println!("{lie:?} told");
    }
    Ok(())
}

fn tell(peer: u16, name: &str, lie: Lie, number: u32) -> Outcome<()> {
    let node = Node::open()?;
    let queue = Queue::import(&node, peer, &format!("ch.{name}")).soft().open()?;
    let base = format!("ch.{name}.{}.{number:x}", node.id());
    let mut group = [0; 64];
    if let Some(name) = node.trust_group()? {
        group[..name.len()].copy_from_slice(name.as_bytes());
    }
    let layout = Layout::new(BYTES).map_err(cli::refused)?;
    let control = node.export(&format!("{base}.c"), CONTROL_SIZE).create()?;
    for (at, word) in (Offer { layout, group }).words().rev() {
        control.store(at, word)?;
    }
    queue.enqueue(Hello { node: node.id(), number }.encode())?;
    let has_answered = || Ok(control.load::<u64>(ANSWER)? != 0);
    until(Duration::from_secs(20), MILLISECOND, has_answered, || cli::refused("it does not answer"))?;
    let import = |role: &str| node.import(peer, &format!("{base}{role}")).rights(telegraphos::READ_WRITE).soft().open();
    let (far_control, far): (Remote, Remote) = (import(".l")?, import(".lm")?);
    let _memory = node.export(&format!("{base}.cm"), layout.size()).create()?;
    far_control.put(ANSWER, Answer { direct: false }.encode())?;
    // An honest record first, which is sent back.
    let head = |length, number| Head { length, kind: 1, number }.encode();
    far.put(RING + 8, 7_u64)?;
    far.put(RING, head(8, 0))?;
    far_control.put(WAKE, 1_u64)?;
    std::thread::sleep(Duration::from_millis(100));
    match lie {
        Lie::Length => far.put(RING + 16, head(u32::MAX, 1))?,
        Lie::Sequence => far.put(RING + 16, head(8, 7))?,
        Lie::Credit => {
            far.put(CONSUMED, 1_u64 << 40)?;
            // It looks at credits when it needs one: records that it cannot send back all.
            for number in 1..200_u64 {
                far.put(RING + 16 * number + 8, number)?;
                far.put(RING + 16 * number, head(8, number))?;
            }
        }
        Lie::End => far.put(END, far.size() + 8)?,
        Lie::Anything => {
            let (begun, mut n) = (Instant::now(), 0);
            while begun.elapsed() < Duration::from_secs(1) {
                let word = random::word(u64::from(number), n);
                let at = match n % 4 {
                    0 => [CONSUMED, ASLEEP, END, RING + 16][(word >> 61) as usize % 4],
                    1 => RING + 8 * (word >> 50) % 256,
                    _ => (word >> 32) % (far.size() / 8) * 8,
                };
                far.put(at & !7, if n % 3 == 0 { word >> 40 } else { word })?;
                n += 1;
            }
        }
    }
    far_control.put(WAKE, 2_u64)?;
    // The other one must find it before this process, and its memory, is gone.
    std::thread::sleep(Duration::from_millis(500));
    Ok(())
}
