// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pictures from servers, against those from threads of one process (s4 §7.3).

use super::images::Map;
use super::loader::{Loader, Servers, Threads, ask};
use super::picture::Picture;
use super::plan::{Scale, Tile};
use super::protocol::{self, REASON, Request, SERVER};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_guest_tests::messages::{find, open};
use telegraphos_guest_tests::stats::Summary;
use telegraphos_msg::{Config, Endpoint, Thread};

/// What the command line of a viewer sets.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) seed: u64,
    pub(crate) scales: Vec<Scale>,
    /// Threads of a process that decodes images.
    pub(crate) threads: usize,
    /// Times that each picture is made in each way.
    pub(crate) rounds: u32,
    /// How long an answer is waited for.
    pub(crate) patience: Duration,
    /// Where the last picture goes.
    pub(crate) png: Option<PathBuf>,
}

/// All images that these pictures need.
fn tiles(scales: &[Scale]) -> Vec<Tile> {
    // Windows have one corner in common, so that one shows all that the others do, at least.
    scales.iter().map(|scale| scale.tiles()).max_by_key(Vec::len).unwrap_or_default()
}

fn draw_map(view: &View) -> Outcome<Map> {
    let begun = Instant::now();
    let map = Map::draw(view.seed, &tiles(&view.scales))?;
    let (images, bytes) = map.size();
    println!("{images} images drawn, {} KiB of JPEG, in {:.1} s", bytes >> 10, begun.elapsed().as_secs_f64());
    Ok(map)
}

fn write_png(view: &View, last: Option<&Picture>) -> Outcome<()> {
    match (&view.png, last) {
        (Some(path), Some(picture)) => picture.write_png(path),
        _ => Ok(()),
    }
}

/// One process, and no messages.
pub(crate) fn alone(view: &View) -> Outcome<()> {
    let map = draw_map(view)?;
    let mut last = None;
    for scale in &view.scales {
        let picture = Picture::draw(&Threads { map: &map, count: view.threads }, *scale)?;
        println!("{scale}: {} tiles, checksum {:08x}", scale.tiles().len(), picture.checksum());
        last = Some(picture);
    }
    write_png(view, last.as_ref())
}

/// Sends each server what it is to have in a cluster of any size up to theirs.
fn spread(view: &View, map: &Map, thread: &Thread<'_>, servers: &[Endpoint]) -> Outcome<()> {
    let begun = Instant::now();
    let (mut sent, mut bytes) = (0_u64, 0_u64);
    for tile in tiles(&view.scales) {
        let (tag, request) = Request::Keep { tile, jpeg: map.image(tile)?.jpeg() }.encode();
        for (n, server) in servers.iter().enumerate() {
            if (1..=servers.len()).any(|count| tile.server(count) == n) {
                ask(thread, *server, tag, &request, &mut [0; REASON], view.patience)?;
                (sent, bytes) = (sent + 1, bytes + request.len() as u64);
            }
        }
    }
    println!("{sent} images spread, {} KiB, in {:.1} s", bytes >> 10, begun.elapsed().as_secs_f64());
    Ok(())
}

/// Draws all pictures in all ways, in turn, and compares them; then says how long they took.
pub(crate) fn view(view: &View, name: &str, nodes: u16) -> Outcome<()> {
    let messages = open(Config::default())?;
    let thread = messages.thread(0)?;
    let servers =
        (0..nodes).map(|node| Ok(Endpoint { process: find(&messages, node, name, view.patience)?, thread: SERVER }));
    let servers = servers.collect::<Outcome<Vec<_>>>()?;
    let map = draw_map(view)?;
    spread(view, &map, &thread, &servers)?;

    let threads = Threads { map: &map, count: view.threads };
    let clusters: Vec<_> = (1..=servers.len())
        .map(|count| Servers { messages: &messages, servers: &servers[..count], patience: view.patience })
        .collect();
    let mut times = vec![vec![Vec::new(); 1 + clusters.len()]; view.scales.len()];
    let mut last = None;
    for round in 0..view.rounds {
        for (scale, times) in view.scales.iter().zip(&mut times) {
            let timed = |loader: &dyn Loader, times: &mut Vec<f64>| {
                let begun = Instant::now();
                let picture = Picture::draw(loader, *scale)?;
                times.push(begun.elapsed().as_secs_f64() * 1e3);
                Ok::<_, Failure>(picture)
            };
            let expected = timed(&threads, &mut times[0])?;
            for (count, (cluster, times)) in (1..).zip(clusters.iter().zip(&mut times[1..])) {
                let picture = timed(cluster, times)?;
                picture.compare(&expected, *scale).map_err(|failure| {
                    Failure::Check(format!("the picture of {count} servers is not that of one process: {failure}"))
                })?;
                last = Some(picture);
            }
            if round == 0 {
                let (tiles, checksum) = (scale.tiles().len(), expected.checksum());
                println!("{scale}: {tiles} tiles, checksum {checksum:08x}, the same from 1 to {nodes} servers");
            }
        }
    }
    table(view, &times, messages.ports());
    write_png(view, last.as_ref())?;
    for server in &servers {
        let (tag, end) = Request::End.encode();
        ask(&thread, *server, tag, &end, &mut [0; REASON], view.patience)?;
    }
    Ok(())
}

/// Medians, a line for each scale.
fn table(view: &View, times: &[Vec<Vec<f64>>], ports: usize) {
    println!(
        "milliseconds, medians of {} rounds: {} threads alone, and servers of as many; {ports} ports",
        view.rounds, view.threads
    );
    let ways = times.first().map_or(0, |ways| ways.len().saturating_sub(1));
    let heads: String = (1..=ways).map(|servers| format!(" {:>10}", format!("on {servers}"))).collect();
    println!("{:>5} {:>5} {:>10}{heads}", "scale", "tiles", "threads");
    for (scale, ways) in view.scales.iter().zip(times) {
        let medians = ways.iter().map(|times| Summary::of(times).map_or(f64::NAN, |summary| summary.median));
        let medians: String = medians.map(|median| format!(" {median:>10.0}")).collect();
        println!("{:>5} {:>5}{medians}", scale.to_string(), scale.tiles().len());
    }
}

/// Sends a request for a tile, whether there is one or not; what the server says.
pub(crate) fn request(node: u16, name: &str, place: (u16, u16), scale: u32, patience: Duration) -> Outcome<()> {
    let messages = open(Config::default())?;
    let thread = messages.thread(0)?;
    let server = Endpoint { process: find(&messages, node, name, patience)?, thread: SERVER };
    let (tag, bytes) = protocol::scaled(place.0, place.1, scale);
    let mut answer = vec![0; Scale::ALL[0].bytes()];
    let length = ask(&thread, server, tag, &bytes, &mut answer, patience)?;
    println!("{length} bytes of pixels, checksum {:08x}", crc32c::crc32c(&answer[..length]));
    Ok(())
}
