// SPDX-License-Identifier: MIT OR Apache-2.0

use crate::input::Input;
use std::collections::BTreeSet;
use telegraphos_msg_core::far::{Body, Far, Frame, Passage, Step, Why};
use telegraphos_msg_core::routes::{MOST_HOPS, StreamId};
use telegraphos_msg_core::{Config, Place, Process};

/// Streams to neighbours, which are processes 1 to so many.
const STREAMS: u64 = 3;
/// Sessions that there may be.
const PEERS: u32 = 4;
/// Steps of one input.
const STEPS: usize = 500;

fn process(number: u64) -> Process {
    Process { node: number as u16, number: 0 }
}

/// Steps of a gateway, process 0, whose neighbours say anything. A step is a byte that says what happens, and what
/// that takes:
///
/// | Byte modulo 8 | What happens | Takes |
/// |---|---|---|
/// | 0 to 3 | a neighbour sends a frame | its length (1), the frame |
/// | 4 | a session with a process is begun | which (1) |
/// | 5 | something is said in it, and it is ended | which (1) |
/// | 6 | time passes | |
/// | 7 | a stream ends, or begins again | |
///
/// Bits 3 and 4 choose the stream. What is passed on goes to the next process of its path, which has no circle; each
/// announced route begins here; sessions begin before they end, and there are not more than may be.
pub fn routes(data: &[u8]) {
    let mut input = Input(data);
    let config = Config { peers: PEERS, ..Config::default() };
    let mut world = World { far: Far::new(&config, process(0), true, 100), up: BTreeSet::new() };
    (0..STREAMS).for_each(|stream| world.far.join(StreamId(stream), process(stream + 1)));
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let step = input.u8();
        let stream = u64::from(step >> 3 & 3) % STREAMS;
        let id = StreamId(stream);
        match step & 7 {
            0..=3 => {
                let length = input.u8();
                // Else it is not one, and its stream ends.
                let frame = postcard::from_bytes::<Frame>(input.bytes(length.into()));
                if !frame.is_ok_and(|frame| world.far.frame(id, frame).is_ok()) {
                    world.far.leave(id);
                }
            }
            4 => _ = world.far.open(process(input.u8().into())),
            5 => {
                let with = process(input.u8().into());
                world.far.say(with, Body::Read { number: 1, at: Place(2), offset: 3, length: 4 });
                if world.far.close(with, Why::Ended) {
                    world.up.remove(&with);
                }
            }
            6 => world.far.tick(),
            _ if world.far.routes().neighbour(id).is_some() => world.far.leave(id),
            _ => world.far.join(id, process(stream + 1)),
        }
        world.perform();
    }
    (0..STREAMS).for_each(|stream| world.far.leave(StreamId(stream)));
    for _ in 0..20 {
        world.far.tick();
    }
    world.perform();
    assert!(world.up.is_empty(), "sessions over no stream: {:?}", world.up);
}

struct World {
    far: Far,
    up: BTreeSet<Process>,
}

impl World {
    fn perform(&mut self) {
        while let Some(step) = self.far.step() {
            match step {
                Step::Say { over, frame, .. } => self.said(over, frame),
                Step::Up(with) => assert!(self.up.insert(with), "{with} is up twice"),
                // One that has not begun may end, too.
                Step::Gone(with, _) => _ = self.up.remove(&with),
                Step::Body(from, _) => assert!(self.up.contains(&from), "{from} is not up, and says something"),
            }
            assert!(self.up.len() <= PEERS as usize, "{} sessions", self.up.len());
        }
    }

    fn said(&self, over: StreamId, frame: Frame) {
        match frame {
            Frame::Alive => {}
            Frame::News(news) => {
                for route in news.routes {
                    assert!(route.path.len() <= MOST_HOPS && route.path.first() == Some(&process(0)), "{route:?}");
                }
            }
            Frame::Passage(Passage { path, at, .. }) => {
                let at = usize::from(at);
                let different = path.iter().collect::<BTreeSet<_>>().len() == path.len();
                assert!(different && path.len() <= MOST_HOPS + 1 && at >= 1, "{path:?} at {at}");
                // It may have ended since.
                let next = self.far.routes().neighbour(over);
                let leads =
                    path.get(at - 1) == Some(&process(0)) && next.is_none_or(|next| path.get(at) == Some(&next));
                assert!(leads, "{path:?} at {at} over {over:?}");
            }
        }
    }
}
