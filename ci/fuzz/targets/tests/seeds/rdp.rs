// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scripts for the target `rdp`; its documentation describes them.

use telegraphos_rdp_core::{Config, Connection, Datagram, Identity, Kind, Sequence};

const OPEN: u8 = 0;
const ACCEPT: u8 = 1;
const DATA: u8 = 2;
const FINISH: u8 = 3;
const ACKNOWLEDGE: u8 = 4;
const NACK_SEQUENCE: u8 = 5;
const NACK_CAPACITY: u8 = 6;
const ROOM: u8 = 7;
const PROBE: u8 = 8;
const CLIENT: u8 = 0x80;
const GREETING: [u8; 12] = [8, 0, 100, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A datagram with a right checksum.
fn made(at: u8, kind: u8, sequence: u32, acknowledge: u32, payload: &[u8]) -> Vec<u8> {
    let numbers = [sequence, acknowledge, 1].map(u32::to_le_bytes).concat();
    [&[1 | at, kind, 0][..], &numbers, &[0, 0, 0, payload.len() as u8], payload].concat()
}

fn raw(bytes: &[u8]) -> Vec<u8> {
    [&[0][..], &(bytes.len() as u16).to_le_bytes(), bytes].concat()
}

fn pass(microseconds: u32) -> Vec<u8> {
    [&[3][..], &microseconds.to_le_bytes()].concat()
}

fn counted(what: u8, count: u16) -> Vec<u8> {
    [&[what][..], &count.to_le_bytes()].concat()
}

pub(super) fn scripts() -> Vec<(&'static str, Vec<u8>)> {
    // What the listener counts from, and the client.
    let (near, far) = (u32::MAX, 7u32);
    let opened = [made(0, OPEN, far, 0, &GREETING), made(0, ACKNOWLEDGE, far, near, &[])].concat();
    let served = [
        opened,
        made(0, DATA, far, near, b"hello"),
        counted(5, 10),
        counted(4, 250),
        made(0, ACKNOWLEDGE, far + 1, near.wrapping_add(2), &[]),
        pass(30_000),
        made(0, DATA, far + 2, near.wrapping_add(2), b"out of order"),
        made(0, NACK_SEQUENCE, far + 1, near.wrapping_add(2), &[]),
        made(0, NACK_CAPACITY, far + 1, near.wrapping_add(2), &[]),
        made(0, ROOM, far + 1, near.wrapping_add(2), &[]),
        made(0, PROBE, far + 1, near.wrapping_add(3), &[]),
        made(0, FINISH, far + 1, near.wrapping_add(3), &[]),
        vec![6],
        pass(2_000_000),
    ];
    // The client's first number is two below the last.
    let first = u32::MAX - 2;
    let called = [
        made(CLIENT, ACCEPT, 500, first, &GREETING),
        counted(4 | CLIENT, 900),
        made(CLIENT, DATA, 500, first.wrapping_add(3), &[9; 100]),
        counted(5 | CLIENT, 50),
        pass(600_000),
        made(CLIENT, ACKNOWLEDGE, 501, first.wrapping_add(9), &[]),
        pass(11_000_000),
        vec![7 | CLIENT],
    ];
    // Without the script: what a client says first, and a datagram that is damaged.
    let mut datagram = Vec::new();
    Connection::open(Config::default(), Identity { id: 7, sequence: 1000 }, 99, 0)
        .unwrap()
        .poll_transmit(0, &mut datagram);
    let mut bytes = Vec::new();
    let reset = Datagram {
        kind: Kind::Reset,
        to: 101,
        from: 7,
        sequence: Sequence(1),
        acknowledge: Sequence(1),
        stamp: 1,
        echo: 0,
        round: 0,
        ask: false,
        deliberate: true,
        payload: &[],
    };
    reset.encode(&mut bytes);
    let mut damaged = datagram.clone();
    damaged[20] ^= 1;
    let whole = [raw(&datagram), raw(&damaged), raw(&bytes), pass(100_000)].concat();
    vec![("listener", served.concat()), ("client", called.concat()), ("whole-datagrams", whole)]
}
