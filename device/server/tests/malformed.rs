// SPDX-License-Identifier: MIT OR Apache-2.0
//! Malformed streams: the server survives all of them, and serves the next client normally.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

use crate::support::{PATIENCE, RawClient, Server, assert_healthy, memfd};
use proptest::prelude::*;
use telegraphos_device::vfio::message::{Access, HEADER_LEN, Header, SmallWrite, command};

/// One server for all cases, so that the effects of one case would show in the next.
fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(Server::start)
}

fn message(command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = (HEADER_LEN + body.len()) as u32;
    let mut bytes = bytemuck::bytes_of(&Header { id: 7, command, size, flags, error: 0 }).to_vec();
    bytes.extend_from_slice(body);
    bytes
}

/// A body that is nearly valid for its command.
fn body() -> BoxedStrategy<(u16, Vec<u8>)> {
    let access = (0u32..10, prop_oneof![0u64..0x200, any::<u64>()], prop_oneof![1u32..9, any::<u32>()])
        .prop_map(|(region, offset, count)| Access { offset, region, count });
    let write = (access.clone(), any::<u64>()).prop_map(|(access, data)| {
        let count = access.count.min(8);
        let mut bytes = bytemuck::bytes_of(&Access { count, ..access }).to_vec();
        bytes.extend_from_slice(&data.to_le_bytes()[..count as usize]);
        bytes
    });
    let multi = proptest::collection::vec((access.clone(), any::<[u8; 8]>()), 0..5).prop_map(|writes| {
        let mut bytes = (writes.len() as u64).to_le_bytes().to_vec();
        for (access, data) in writes {
            bytes.extend_from_slice(bytemuck::bytes_of(&SmallWrite { access, data }));
        }
        bytes
    });
    prop_oneof![
        access.prop_map(|access| (command::REGION_READ, bytemuck::bytes_of(&access).to_vec())),
        write.prop_map(|body| (command::REGION_WRITE, body)),
        multi.prop_map(|body| (command::REGION_WRITE_MULTI, body)),
        any::<[u8; 32]>().prop_map(|body| (command::DMA_MAP, body.to_vec())),
        (0u32..4, 0u64..4, 0u64..4).prop_map(|(flags, address, size)| {
            let mut body = [32u32, flags].map(u32::to_le_bytes).concat();
            body.extend([0, address << 12, size << 12].map(u64::to_le_bytes).concat());
            (command::DMA_MAP, body)
        }),
        any::<[u8; 24]>().prop_map(|body| (command::DMA_UNMAP, body.to_vec())),
        proptest::collection::vec(0u8..48, 20..24).prop_map(|body| (command::DEVICE_SET_IRQS, body)),
        Just((command::DEVICE_RESET, Vec::new())),
        proptest::collection::vec(any::<u8>(), 0..64).prop_map(|body| (command::VERSION, body)),
        (any::<u16>(), proptest::collection::vec(any::<u8>(), 0..64)),
    ]
    .boxed()
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![Just(0u32), Just(0x10), any::<u32>()];
    let sensible = proptest::collection::vec((body(), flags), 1..20).prop_map(|messages| {
        let mut bytes = message(command::VERSION, 0, b"\0\0\0\0{}\0");
        for ((command, body), flags) in messages {
            bytes.extend(message(command, flags, &body));
        }
        bytes
    });
    let sensible = sensible.boxed();
    let mutated = (sensible.clone(), proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8))
        .prop_map(|(mut bytes, changes)| {
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes
        });
    let cut = (sensible.clone(), any::<prop::sample::Index>()).prop_map(|(mut bytes, at)| {
        bytes.truncate(at.index(bytes.len()));
        bytes
    });
    prop_oneof![
        2 => sensible,
        3 => mutated,
        1 => cut,
        1 => proptest::collection::vec(any::<u8>(), 0..300),
    ]
}

/// Sends in pieces, sometimes with descriptors, while it reads and discards the replies.
fn send(bytes: &[u8], piece: usize, fds: usize) {
    let mut client = RawClient::connect(&server().socket());
    let mut replies: UnixStream = client.stream.try_clone().unwrap();
    let drain = std::thread::spawn(move || {
        let mut sink = [0; 65536];
        while matches!(replies.read(&mut sink), Ok(n) if n > 0) {}
    });
    let file = memfd(1 << 16);
    for (n, piece) in bytes.chunks(piece.max(1)).enumerate() {
        let attached = if n % 3 == 0 { fds } else { 0 };
        // The server may have closed the connection.
        if client.send(piece, &vec![file.as_fd(); attached]).is_err() {
            break;
        }
    }
    let _ = client.stream.flush();
    let _ = client.stream.shutdown(std::net::Shutdown::Write);
    // The server answers the valid messages, then closes: it does not hang.
    drain.join().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 200, ..ProptestConfig::default() })]
    #[test]
    fn no_byte_sequence_harms_the_server(bytes in stream(), piece in 1usize..400, fds in 0usize..4) {
        send(&bytes, piece, fds);
        assert_healthy(&server().socket());
    }
}

#[test]
fn a_stream_that_stops_in_the_middle_delays_no_other() {
    let server = Server::start();
    for cut in [1, 15, 16, 20, 31] {
        let mut client = RawClient::new(&server.socket());
        let body = bytemuck::bytes_of(&Access { offset: 0, region: 0, count: 8 }).to_vec();
        let bytes = client.message(command::REGION_READ, 0, &body);
        client.send(&bytes[..cut], &[]).unwrap();
        client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        drop(client);
        assert_healthy(&server.socket());
    }
}
