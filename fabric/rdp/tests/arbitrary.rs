// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any input, damaged or forged with the right checksum and ids: no panic, no growth without
//! bound, no end of datagrams that never comes.

use proptest::prelude::*;
use telegraphos_rdp_core::{Config, Connection, Datagram, Identity, Kind, Listener, Sequence};

const CLIENT: Identity = Identity { id: 11, sequence: u32::MAX - 2 };

#[derive(Clone, Debug)]
enum Op {
    Raw(Vec<u8>),
    Made { kind: u8, ids: u8, sequence: u32, acknowledge: u32, echo: u32, round: u16, flags: u8, payload: Vec<u8> },
    Send(usize),
    Receive(usize),
    Pass(u64),
    Close,
    Abandon,
}

fn near() -> impl Strategy<Value = u32> {
    prop_oneof![4 => (0u32..40).prop_map(|n| n.wrapping_sub(20)), 1 => any::<u32>()]
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let payload = prop_oneof![prop::collection::vec(any::<u8>(), 0..200), prop::collection::vec(any::<u8>(), 12)];
    let made = (1u8..=10, any::<u8>(), near(), near(), any::<u32>(), 0u16..4, 0u8..4, payload);
    let made = made.prop_map(|(kind, ids, sequence, acknowledge, echo, round, flags, payload)| Op::Made {
        kind,
        ids,
        sequence,
        acknowledge,
        echo,
        round,
        flags,
        payload,
    });
    let op = prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..100).prop_map(Op::Raw),
        8 => made,
        2 => (0usize..3000).prop_map(Op::Send),
        2 => (0usize..3000).prop_map(Op::Receive),
        2 => prop_oneof![0u64..5_000, 0u64..3_000_000, Just(u64::MAX / 2)].prop_map(Op::Pass),
        1 => Just(Op::Close),
        1 => Just(Op::Abandon),
    ];
    prop::collection::vec(op, 1..80)
}

fn kind(number: u8) -> Kind {
    use Kind::*;
    [Open, Accept, Data, Finish, Acknowledge, NackSequence, NackCapacity, Room, Probe, Reset]
        [usize::from(number.saturating_sub(1)) % 10]
}

/// A datagram with the right checksum and often the right ids.
fn encode(op: &Op, to: u64, from: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    match op {
        Op::Raw(raw) => bytes.clone_from(raw),
        Op::Made { kind: number, ids, sequence, acknowledge, echo, round, flags, payload } => {
            let kind = kind(*number);
            Datagram {
                kind,
                to: if kind == Kind::Open { 0 } else { to + u64::from(ids & 7 == 1) },
                from: from + u64::from(ids & 56 == 8),
                sequence: Sequence(*sequence),
                acknowledge: Sequence(*acknowledge),
                stamp: 1,
                echo: *echo,
                round: *round,
                ask: flags & 1 != 0,
                deliberate: flags & 2 != 0,
                payload: match kind {
                    Kind::Open | Kind::Accept => payload.get(..12).unwrap_or(&[9; 12]),
                    Kind::Data => payload,
                    _ => &[],
                },
            }
            .encode(&mut bytes);
        }
        _ => {}
    }
    bytes
}

fn config() -> Config {
    Config { window: 8, mtu: 100, send_buffer: 1000, receive_buffer: 1000, connections: 4, ..Config::default() }
}

fn use_it(connection: &mut Connection, op: &Op) {
    match op {
        Op::Send(count) => {
            let room = connection.room();
            assert_eq!(connection.send(&vec![1; *count]), room.min(*count));
        }
        Op::Receive(count) => {
            let available = connection.available();
            assert_eq!(connection.receive(&mut vec![0; *count]), available.min(*count));
        }
        Op::Close => connection.close(),
        Op::Abandon => connection.abandon(),
        _ => {}
    }
}

fn bounded(connection: &Connection) {
    assert!(connection.available() <= 1000);
    assert!(connection.outstanding() <= 1000 + 8 * 100);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if full() { 100_000 } else { 2_000 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_comes_harms_a_client(ops in ops(), accept in any::<bool>()) {
        let (mut now, mut out) = (0u64, Vec::new());
        let mut client = Connection::open(config(), CLIENT, 0, now).unwrap();
        if accept {
            let greeting = [8, 0, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            let accept = Datagram {
                kind: Kind::Accept, to: 11, from: 22, sequence: Sequence(u32::MAX - 5),
                acknowledge: Sequence(CLIENT.sequence), stamp: 1, echo: 1, round: 0, ask: false, deliberate: false,
                payload: &greeting,
            };
            accept.encode(&mut out);
            client.datagram(now, &out);
        }
        for op in &ops {
            match op {
                Op::Raw(_) | Op::Made { .. } => client.datagram(now, &encode(op, 11, 22)),
                Op::Pass(time) => {
                    now = now.saturating_add(*time);
                    client.timer(now);
                }
                _ => use_it(&mut client, op),
            }
            bounded(&client);
            let mut count = 0;
            while client.poll_transmit(now, &mut out) {
                prop_assert!(Datagram::parse(&out).is_ok());
                count += 1;
                prop_assert!(count < 50, "no end of datagrams");
            }
            client.timer(now);
        }
    }

    #[test]
    fn nothing_that_comes_harms_a_listener(ops in ops()) {
        let (mut now, mut out, mut next) = (0u64, Vec::new(), 100);
        let mut listener = Listener::new(config()).unwrap();
        for op in &ops {
            match op {
                Op::Raw(_) | Op::Made { .. } => {
                    // To the newest connection, from one of two addresses.
                    let to = listener.keys().last().unwrap_or(99);
                    let address = if let Op::Made { ids, .. } = op { ids >> 6 } else { 0 };
                    next += 1;
                    let fresh = Identity { id: next, sequence: u32::MAX };
                    listener.datagram(now, &address, &encode(op, to, 22), fresh);
                }
                Op::Pass(time) => {
                    now = now.saturating_add(*time);
                    listener.timer(now);
                }
                _ => {
                    let key = listener.keys().next();
                    if let Some(connection) = key.and_then(|key| listener.connection_mut(key)) {
                        use_it(connection, op);
                    }
                }
            }
            let keys: Vec<_> = listener.keys().collect();
            prop_assert!(keys.len() <= 4);
            keys.iter().filter_map(|key| listener.connection(*key)).for_each(bounded);
            let mut count = 0;
            while listener.poll_transmit(now, &mut out).is_some() {
                prop_assert!(Datagram::parse(&out).is_ok());
                count += 1;
                prop_assert!(count < 200, "no end of datagrams");
            }
            for key in listener.accepted().collect::<Vec<_>>() {
                prop_assert!(listener.connection(key).is_some());
            }
        }
    }
}

fn full() -> bool {
    telegraphos_testkit::scale(false, true)
}
