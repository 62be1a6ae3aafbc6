// SPDX-License-Identifier: MIT OR Apache-2.0

use telegraphos_rdp_core::{Config, Connection, Datagram, Identity, Kind, Listener, Sequence};

use crate::input::Input;

const CLIENT: Identity = Identity { id: 11, sequence: u32::MAX - 2 };
/// The name under which the other side of the client's connection goes.
const SERVER: u64 = 22;
const BUFFER: usize = 1000;
/// Steps of one input.
const STEPS: usize = 2000;

fn config() -> Config {
    Config { window: 8, mtu: 100, send_buffer: BUFFER, receive_buffer: BUFFER, connections: 4, ..Config::default() }
}

/// Steps of a listener and of a client. A step is a byte that says what happens, and what that takes (little-endian):
///
/// | Byte modulo 8 | What happens | Takes |
/// |---|---|---|
/// | 0 | a datagram comes | its length (2), its bytes |
/// | 1, 2 | a datagram with the right checksum arrives | kind (1), ids (1), sequence, acknowledge, echo (4 each), round (2), flags (1), length (1), payload |
/// | 3 | time passes | microseconds (4) |
/// | 4 | bytes are sent | how many (2) |
/// | 5 | bytes are received | how many (2) |
/// | 6 | the connection is closed | |
/// | 7 | the connection is abandoned | |
///
/// With bit 7 of the byte it happens to the client, else to the listener. Bit 6 chooses one of two addresses.
pub fn rdp(data: &[u8]) {
    let Ok(listener) = Listener::new(config()) else { return };
    let Ok(client) = Connection::open(config(), CLIENT, 0, 0) else { return };
    let mut ends = Ends { now: 0, out: Vec::new(), fresh: 100, listener, client };
    let mut input = Input(data);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        ends.step(&mut input);
    }
}

struct Ends {
    now: u64,
    out: Vec<u8>,
    /// Ids of the listener's connections.
    fresh: u64,
    listener: Listener<u8>,
    client: Connection,
}

impl Ends {
    fn step(&mut self, input: &mut Input<'_>) {
        let what = input.u8();
        let (client, address) = (what & 0x80 != 0, what >> 6 & 1);
        match what & 7 {
            0 => {
                let length = input.u16().into();
                let bytes = input.bytes(length);
                self.comes(client, address, bytes);
            }
            1 | 2 => {
                let to = if client { CLIENT.id } else { self.listener.keys().last().unwrap_or(99) };
                let bytes = sealed(input, to);
                self.comes(client, address, &bytes);
            }
            3 => {
                self.now = self.now.saturating_add(input.u32().into());
                self.listener.timer(self.now);
                self.client.timer(self.now);
            }
            _ => {
                let count = if what & 7 < 6 { usize::from(input.u16()) % 4000 } else { 0 };
                let key = self.listener.keys().next();
                let connection =
                    if client { Some(&mut self.client) } else { key.and_then(|key| self.listener.connection_mut(key)) };
                if let Some(connection) = connection {
                    used(connection, what & 7, count);
                }
            }
        }
        self.transmit();
    }

    fn comes(&mut self, client: bool, address: u8, bytes: &[u8]) {
        if client {
            self.client.datagram(self.now, bytes);
        } else {
            self.fresh += 1;
            self.listener.datagram(self.now, &address, bytes, Identity { id: self.fresh, sequence: u32::MAX });
        }
    }

    /// Everything that is to be sent, which comes to an end.
    fn transmit(&mut self) {
        let mut count = 0;
        while self.client.poll_transmit(self.now, &mut self.out) {
            assert!(Datagram::parse(&self.out).is_ok(), "sends what it would discard");
            count += 1;
            assert!(count < 50, "no end of datagrams");
        }
        self.client.timer(self.now);
        while self.listener.poll_transmit(self.now, &mut self.out).is_some() {
            assert!(Datagram::parse(&self.out).is_ok(), "sends what it would discard");
            count += 1;
            assert!(count < 250, "no end of datagrams");
        }
        let accepted: Vec<_> = self.listener.accepted().collect();
        assert!(accepted.iter().all(|key| self.listener.connection(*key).is_some()));
        assert!(self.listener.keys().count() <= config().connections);
        let connections = self.listener.keys().filter_map(|key| self.listener.connection(key));
        for connection in connections.chain([&self.client]) {
            assert!(connection.available() <= BUFFER, "{} bytes received", connection.available());
            assert!(connection.outstanding() <= BUFFER + 8 * 100, "{} bytes to send", connection.outstanding());
        }
    }
}

fn used(connection: &mut Connection, what: u8, count: usize) {
    match what {
        4 => {
            let room = connection.room();
            assert_eq!(connection.send(&vec![1; count]), room.min(count));
        }
        5 => {
            let available = connection.available();
            assert_eq!(connection.receive(&mut vec![0; count]), available.min(count));
        }
        6 => connection.close(),
        _ => connection.abandon(),
    }
}

/// A datagram with the right checksum and mostly the right ids.
fn sealed(input: &mut Input<'_>, to: u64) -> Vec<u8> {
    use Kind::*;
    const KINDS: [Kind; 10] = [Open, Accept, Data, Finish, Acknowledge, NackSequence, NackCapacity, Room, Probe, Reset];
    let kind = KINDS[usize::from(input.u8()) % KINDS.len()];
    let ids = input.u8();
    let (sequence, acknowledge, echo, round, flags) = (input.u32(), input.u32(), input.u32(), input.u16(), input.u8());
    let length = input.u8().into();
    let payload = input.bytes(length);
    let datagram = Datagram {
        kind,
        to: if kind == Open { 0 } else { to + u64::from(ids & 7 == 1) },
        from: SERVER + u64::from(ids & 56 == 8),
        sequence: Sequence(sequence),
        acknowledge: Sequence(acknowledge),
        stamp: 1,
        echo,
        round,
        ask: flags & 1 != 0,
        deliberate: flags & 2 != 0,
        payload,
    };
    let mut bytes = Vec::new();
    datagram.encode(&mut bytes);
    bytes
}
