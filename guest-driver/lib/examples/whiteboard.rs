// SPDX-License-Identifier: MIT OR Apache-2.0
//! A whiteboard: all nodes draw into one replicated page at the same time, over each other, by byte stores. In the end
//! all nodes see the same last value in each cell. And while they draw, no node sees a cell go back: its home
//! orders all stores, and counters of pending writes hide what is older than one's own (SPEC I1, I5).

mod common;

use common::{Failure, PATIENCE};
use std::process::ExitCode;
use std::time::Instant;
use telegraphos::sync::Barrier;
use telegraphos::{Node, NodeId, ReplicaMode, Replicated, Status};

pub(crate) const USAGE: &str = "\
A whiteboard that all nodes draw on at once

Usage: tg-whiteboard NODES [STROKES] [MODE] [MOVES]
       (on nodes 0 to NODES-1 at once, at most 26; STROKES of each node, or 2000; MODE is 3, with counters of pending writes, or 4,
       with copies that stores make invalid, or to see what goes wrong 2, without counters, or 1, without a home: then the copies
       differ in the end; in modes 2 and 3 each node takes the home to itself once in MOVES strokes, or 0, never)

Exit codes: 0 done, 1 the copies differ or went back, 2 usage, 3 the board, the driver or a peer refused.

Examples: telegraphos run --nodes 3 -- tg-whiteboard 3
          telegraphos run --nodes 3 -- tg-whiteboard 3 2000 3 100
";

const NAME: &str = "whiteboard";
const WIDTH: u64 = 64;
const HEIGHT: u64 = 16;
/// A word for each node behind the picture: what it sees in the end, as a number.
const SUMS: u64 = WIDTH * HEIGHT;
/// A word that all nodes store to, each with distinct numbers that it uses once.
const RACE: u64 = SUMS + 8 * 32;
const SIZE: u64 = RACE + 8;

pub(crate) fn main() -> ExitCode {
    common::main(USAGE, [None, Some(2000), Some(3), Some(0)], |[nodes, strokes, mode, moves]| {
        let mode = match mode {
            1 => ReplicaMode::Naive,
            2 => ReplicaMode::Owner,
            4 => ReplicaMode::Invalidate,
            _ => ReplicaMode::Counters,
        };
        draw(nodes.clamp(1, 26) as NodeId, strokes, mode, moves)
    })
}

fn draw(nodes: NodeId, strokes: u64, mode: ReplicaMode, moves: u64) -> Result<(), Failure> {
    let node = Node::open()?;
    let me = node.id();
    let everybody: Vec<NodeId> = (0..nodes).collect();
    let mut barrier;
    let board = if mode == ReplicaMode::Naive {
        let board = Replicated::create(&node, NAME, SIZE).replica_mode(mode).mode(0o606).create()?;
        barrier = Barrier::join(&node, "whiteboard-barrier", &everybody, me.into(), 0o606, PATIENCE)?;
        barrier.wait_timeout(PATIENCE)?;
        everybody.iter().filter(|peer| **peer != me).try_for_each(|peer| board.join_peer(*peer))?;
        board
    } else {
        let board = match me {
            0 => Replicated::create(&node, NAME, SIZE).replica_mode(mode).mode(0o606).create()?,
            // Should this node become the home, all other nodes have copies.
            _ => common::patiently(|| Replicated::join(&node, 0, NAME).replica_mode(mode).mode(0o606).open())?,
        };
        barrier = Barrier::join(&node, "whiteboard-barrier", &everybody, me.into(), 0o606, PATIENCE)?;
        board
    };
    barrier.wait_timeout(PATIENCE)?;

    let begun = Instant::now();
    let mut random = fastrand::Rng::with_seed(me.into());
    let (mut x, mut y) = (random.u64(0..WIDTH), random.u64(0..HEIGHT));
    let mut seen = Seen::default();
    let mut taken = 0;
    for stroke in 0..strokes {
        if moves != 0 && stroke % moves == u64::from(me) * moves / u64::from(nodes) {
            match board.take_home() {
                Ok(()) => taken += 1,
                // Another node is faster.
                Err(error) if matches!(error.status(), Some(Status::Busy | Status::NotHome)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // A walk in which every step leaves its letter.
        match random.u8(0..4) {
            0 => x = (x + 1) % WIDTH,
            1 => x = (x + WIDTH - 1) % WIDTH,
            2 => y = (y + 1) % HEIGHT,
            _ => y = (y + HEIGHT - 1) % HEIGHT,
        }
        board.store(y * WIDTH + x, b'a' + me as u8)?;
        board.store(RACE, (u64::from(me) + 1) << 48 | (stroke + 1))?;
        for _ in 0..4 {
            seen.look(board.load(RACE)?);
        }
    }
    // The barrier waits for quiet first: behind it, everybody has all stores of all.
    barrier.wait_timeout(PATIENCE)?;
    println!("node {me}: {strokes} strokes in {:.1?}, and {taken} times the home", begun.elapsed());

    let mut picture = [0u8; SUMS as usize];
    board.load_slice(0, &mut picture)?;
    let sum = picture
        .iter()
        .chain(&board.load::<u64>(RACE)?.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    board.store(SUMS + 8 * u64::from(me), sum)?;
    if me == 0 {
        for line in picture.chunks(WIDTH as usize) {
            println!(
                "{}",
                line.iter().map(|cell| if *cell == 0 { ' ' } else { char::from(*cell) }).collect::<String>()
            );
        }
    }
    barrier.wait_timeout(PATIENCE)?;

    let sums = everybody.iter().map(|id| board.load(SUMS + 8 * u64::from(*id))).collect::<Result<Vec<u64>, _>>()?;
    // No node takes the home while another still reads.
    barrier.wait_timeout(PATIENCE)?;
    if let Some(back) = seen.back {
        return Err(Failure::Wrong(format!("a word was {back:#x} again after another value")));
    }
    match sums.iter().position(|other| *other != sum) {
        Some(other) => Err(Failure::Wrong(format!("the copies of nodes {me} and {other} differ"))),
        None => Ok(()),
    }
}

/// The values that a word has had, each of which is stored once: those of one node must come in its order (I1), and
/// none come back (I5).
#[derive(Default)]
struct Seen {
    last: u64,
    latest: [u64; 32],
    back: Option<u64>,
}

impl Seen {
    fn look(&mut self, value: u64) {
        if value == self.last {
            return;
        }
        let (writer, number) = ((value >> 48) as usize % 32, value & 0xffff_ffff_ffff);
        if number <= self.latest[writer] {
            self.back = Some(value);
        }
        self.latest[writer] = self.latest[writer].max(number);
        self.last = value;
    }
}
