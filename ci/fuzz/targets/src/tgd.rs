// SPDX-License-Identifier: MIT OR Apache-2.0

use telegraphos_daemon_core::protocol::{Answer, Checked, Envelope, Request, decode, encode, unframe};
use telegraphos_daemon_core::{Action, Config, Engine, Event, Exit, Refusal, User};

/// Letters on their way to one node, at most: requests, what it is owed, partitions, and that it is dead.
const ON_THEIR_WAY: usize = 1024 + 128 + (16 << 10) + 256 + 1;

/// The stream of a client of `tgd`, and the same bytes as a letter of another daemon, and as an answer. What is
/// decoded is within the limits of what may be encoded, and comes back as it was. Then the same bytes as a script of
/// all that a daemon takes, as `script` has them.
pub fn tgd(data: &[u8]) {
    let mut stream = data.to_vec();
    let mut left = stream.len();
    while let Ok(Some((ticket, request))) = unframe::<(u32, Request)>(&mut stream) {
        comes_back(&(ticket, request));
        assert!(stream.len() < left, "a message that takes no bytes");
        left = stream.len();
    }
    if let Ok(envelope) = decode::<Envelope>(data) {
        comes_back(&envelope);
    }
    if let Ok(answer) = decode::<(u32, Answer)>(data) {
        comes_back(&answer);
    }
    script(data);
}

fn comes_back<T: Checked + PartialEq + std::fmt::Debug>(message: &T) {
    // Its shortest encoding is no longer than the one that it came in.
    let back = encode(message).and_then(|bytes| decode::<T>(&bytes));
    assert_eq!(back.as_ref(), Ok(message), "comes back otherwise");
}

/// A daemon of node 0 with its clients and two other nodes. Of each step the first byte says what it is: `0` and `1`
/// (of four) the framed request of an ordinary user's client and of root's, `2` a framed letter of a node, `3` what the
/// shell reports. All that the daemon says in turn can be encoded, and what is on its way is bounded.
fn script(data: &[u8]) {
    let mut engine = Engine::new(Config::new(0, 1, 4));
    let mut tokens: Vec<u64> = Vec::new();
    for node in 1..=2 {
        engine.handle(Event::Heard { node, incarnation: 7, load: 0 });
    }
    let connected = |client: u64| {
        let uid = if client == 1 { 1000 } else { 0 };
        Event::Connected { client, pid: 50, user: User { uid, gid: uid } }
    };
    (1..=2).for_each(|client| drop(engine.handle(connected(client))));
    let mut stream = data.to_vec();
    while !stream.is_empty() {
        let step = stream.remove(0);
        let (kind, what) = (step % 4, step / 4);
        let token = || tokens.first().copied().unwrap_or_default();
        let event = match kind {
            0 | 1 => match unframe::<(u32, Request)>(&mut stream) {
                Ok(Some((id, request))) => Event::Request { client: 1 + u64::from(kind), id, request },
                _ => return,
            },
            2 => match unframe::<Envelope>(&mut stream) {
                Ok(Some(envelope)) => Event::Letter { from: u16::from(what % 4), envelope },
                _ => return,
            },
            _ => match what % 16 {
                0 => Event::Tick { running: u32::from(step) },
                1 => Event::Sent { node: 1 },
                2 => Event::Sent { node: 2 },
                3 => Event::Heard { node: 1, incarnation: 7, load: 9 },
                4 => Event::Heard { node: 2, incarnation: 8, load: u32::MAX },
                5 => Event::Started { token: token(), outcome: Ok(77) },
                6 => Event::Started { token: token(), outcome: Err(Refusal::new(Refusal::ENOENT, "none")) },
                7 => Event::Signalled { token: token(), outcome: Ok(()) },
                8 => Event::Exited { pid: 77, exit: Exit::Code(3) },
                9 => Event::Gone { client: 1 },
                10 => connected(1),
                11 => Event::Stop,
                12 => {
                    _ = tokens.drain(..tokens.len().min(1));
                    continue;
                }
                _ => Event::Tick { running: 0 },
            },
        };
        for action in engine.handle(event) {
            match action {
                Action::Send { envelope, .. } => assert!(encode(&envelope).is_ok(), "cannot be sent: {envelope:?}"),
                Action::Answer { id, answer, .. } => assert!(encode(&(id, answer)).is_ok(), "an answer cannot be sent"),
                Action::Start { token, .. } | Action::Signal { token, .. } => tokens.push(token),
                _ => {}
            }
        }
        for node in 0..4 {
            let count = engine.on_their_way(node);
            assert!(count <= ON_THEIR_WAY, "{count} letters are on their way to node {node}");
        }
    }
}
