// SPDX-License-Identifier: MIT OR Apache-2.0
//! A node whose board answers probes, lookups and loads and returns credits, and acknowledges no store and no part of
//! a copy: what it writes to the fabric passes a relay here, which holds those answers back. It passes them on, late,
//! when the silence ends: a link loses nothing, and an answer that never came would keep its place in a window and a
//! credit of its board's for as long as that board is up.

use crate::help::{plug, plug_anew};
use crate::net::{comes_to_reach, insert};
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use telegraphos_cluster::{Cluster, Guest};
use telegraphos_wire::link::Frame;
use telegraphos_wire::{Body, Packet};

/// What a part of this may take that waits for no other node.
const PROMPT: Duration = Duration::from_secs(30);

/// The socket of the fabric, which a HIB names on its command line.
fn fabric_socket(guest: &Guest) -> Result<PathBuf> {
    let lines = guest.pids().into_iter().filter_map(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).ok());
    for line in lines {
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        if let Some(at) = words.iter().position(|word| *word == b"--fabric") {
            let path = words.get(at + 1).context("--fabric has no value")?;
            return Ok(PathBuf::from(std::str::from_utf8(path)?));
        }
    }
    anyhow::bail!("no process of node {} has --fabric", guest.node())
}

/// One direction of a connection. Only whole frames are written, by either thread.
struct Way {
    to: UnixStream,
    /// The answers of a silent node.
    held: Vec<u8>,
}

/// Passes frames on until either end closes; `up` from a board to the fabric. Answers of a silent node are held.
fn pass(mut from: UnixStream, way: &Mutex<Way>, up: bool, silent: &AtomicBool) -> Result<()> {
    let (mut read, mut part) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let count = from.read(&mut part)?;
        read.extend_from_slice(&part[..count]);
        let mut way = way.lock().map_err(|_| anyhow::anyhow!("another thread of the relay panicked"))?;
        if count == 0 {
            return Ok(way.to.shutdown(std::net::Shutdown::Both)?);
        }
        let (mut at, mut out) = (0, Vec::new());
        while let Some((frame, length)) = Frame::decode(&read[at..]).map_err(|e| anyhow::anyhow!("{e}"))? {
            let bytes = &read[at..at + length];
            match frame {
                // Its board's stores to its own memory pass no fabric.
                Frame::Packet(Packet { body: Body::WriteAck { .. } | Body::WriteAcks { .. }, .. })
                    if up && silent.load(SeqCst) =>
                {
                    way.held.extend_from_slice(bytes);
                }
                // The descriptors of a ring do not pass the relay.
                Frame::Ring { .. } if !up => {}
                _ => out.extend_from_slice(bytes),
            }
            at += length;
        }
        read.drain(..at);
        way.to.write_all(&out)?;
    }
}

/// In the place of the fabric's socket, until it is dropped. Boards that are connected stay so.
struct Relay {
    place: PathBuf,
    behind: PathBuf,
    silent: Arc<AtomicBool>,
    /// Both directions of each connection.
    ways: Arc<Mutex<Vec<Arc<Mutex<Way>>>>>,
}

impl Relay {
    fn before(place: &Path) -> Result<Relay> {
        let behind = place.with_extension("real");
        std::fs::rename(place, &behind).with_context(|| place.display().to_string())?;
        let listener = UnixListener::bind(place)?;
        let relay = Relay { place: place.to_owned(), behind, silent: Arc::default(), ways: Arc::default() };
        let (behind, silent, ways) = (relay.behind.clone(), Arc::clone(&relay.silent), Arc::clone(&relay.ways));
        std::thread::spawn(move || {
            for board in listener.incoming() {
                let connect = || -> std::io::Result<()> {
                    let board = board?;
                    let fabric = UnixStream::connect(&behind)?;
                    for (from, to, up) in [(&board, &fabric, true), (&fabric, &board, false)] {
                        let way = Arc::new(Mutex::new(Way { to: to.try_clone()?, held: Vec::new() }));
                        if let Ok(mut ways) = ways.lock() {
                            ways.push(Arc::clone(&way));
                        }
                        let (from, silent) = (from.try_clone()?, Arc::clone(&silent));
                        // An end that closes is an end of the test, or of a board.
                        std::thread::spawn(move || pass(from, &way, up, &silent).ok());
                    }
                    Ok(())
                };
                if let Err(e) = connect() {
                    eprintln!("the relay: {e}");
                }
            }
        });
        Ok(relay)
    }

    /// The end of a silence passes on what was held.
    fn be_silent(&self, silent: bool) {
        self.silent.store(silent, SeqCst);
        if !silent {
            self.each(|way| {
                let held = std::mem::take(&mut way.held);
                // That of a board which has left is closed.
                let _ = way.to.write_all(&held);
            });
        }
    }

    fn each(&self, act: impl Fn(&mut Way)) {
        for way in self.ways.lock().iter().flat_map(|ways| ways.iter()) {
            if let Ok(mut way) = way.lock() {
                act(&mut way);
            }
        }
    }
}

impl Drop for Relay {
    /// The boards behind it join the fabric again by themselves.
    fn drop(&mut self) {
        if let Err(e) = std::fs::rename(&self.behind, &self.place) {
            eprintln!("{}: {e}", self.behind.display());
        }
        self.each(|way| {
            // It may be closed already.
            let _ = way.to.shutdown(std::net::Shutdown::Both);
        });
    }
}

/// Frames of both kinds to a node that acknowledges none of them, so that something is under way. Those that are stores
/// arrive; a copy that is not acknowledged is not announced.
fn send(from: &Guest, to: &Guest) -> Result<()> {
    for size in ["40", "8900"] {
        let name = format!("node{}", to.node());
        let ping = from.argv(&["ping", "-c", "3", "-i", "0.1", "-w", "1", "-s", size, &name]).as_root();
        let said = ping.limit(PROMPT).run()?;
        let copied = size == "8900";
        ensure!(!(copied && said.status.success()), "node {} answers:\n{}", to.node(), said.stdout);
    }
    Ok(())
}

/// The device goes down, the module goes, the board is unplugged, each while stores and copies to the silent node are
/// under way: none waits for it. Then it answers again, and is a node like others.
pub(crate) fn of_a_node_hangs_no_other(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let relay = Relay::before(&fabric_socket(b)?)?;
    plug_anew(b)?;
    let again = || comes_to_reach(a, b);
    again().context("by the relay")?;

    relay.be_silent(true);
    send(a, b)?;
    a.sh("ip link set tg0 down").as_root().limit(PROMPT).check().context("tg0 down")?;
    // Nothing of the connection is in the way of the next one, if the node answers.
    relay.be_silent(false);
    a.sh("ip link set tg0 up").as_root().limit(PROMPT).check()?;
    again().context("after tg0 was down")?;

    relay.be_silent(true);
    send(a, b)?;
    a.argv(&["rmmod", "telegraphos_net"]).as_root().limit(PROMPT).check().context("rmmod")?;
    relay.be_silent(false);
    insert(a)?;
    again().context("after rmmod")?;

    relay.be_silent(true);
    send(a, b)?;
    a.device_del().context("unplug")?;
    relay.be_silent(false);
    plug(a)?;
    again().context("after unplug")?;
    drop(relay);
    again().context("by the fabric")
}
