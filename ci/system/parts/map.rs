// SPDX-License-Identifier: MIT OR Apache-2.0
//! The case study of s4 (§7): a map over the memory of four nodes.

use crate::help::{LIMIT, STOP, Start};
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use telegraphos_cluster::{Cluster, Guest, Running};
use telegraphos_testkit::Scale;

fn serving(node: &Guest, words: &[&str]) -> Result<Running> {
    node.argv(&[&["tg-map", "serve"], words].concat()).until("serving")
}

/// Servers on all nodes; one of them with more options.
fn servers(cluster: &Cluster, name: &str, unlike: usize, options: &[&str]) -> Result<Vec<Running>> {
    let words = |node: &Guest| [&[name][..], if node.node() == unlike { options } else { &[] }].concat();
    cluster.guests().iter().map(|node| serving(node, &words(node))).collect()
}

/// Checksums of pictures, by their scale.
fn checksums(said: &str) -> Vec<(&str, &str)> {
    said.lines().filter_map(|line| Some((line.split(':').nth(1)?, line.split("checksum ").nth(1)?.get(..8)?))).collect()
}

/// One to four nodes make the pictures of 2 to 6 images (full: 300) that threads of one process make, bit for bit;
/// what is wrong with a tile is found.
pub(crate) fn case_study(cluster: &Cluster, scale: Scale) -> Result<()> {
    pictures(cluster, scale)?;
    a_wrong_tile_is_found(cluster)?;
    bad_input(cluster)?;
    servers_fail(cluster)
}

fn pictures(cluster: &Cluster, scale: Scale) -> Result<()> {
    let servers = servers(cluster, "map", 0, &[])?;
    let rounds = scale.pick(1, 3).to_string();
    // The viewer draws and packs the images that they need, which takes emulated processors minutes for all 300.
    let scales = scale.pick("1,2", "1,2,4,5,8,10,16");
    let viewer = cluster.node(0).argv(&["tg-map", "view", "map", "4", "--rounds", &rounds, "--scales", scales]);
    let said = viewer.limit(u32::from(scale.pick(1_u8, 10)) * LIMIT).check()?;
    println!("{said}");
    let pictures = checksums(&said);
    ensure!(pictures.len() == scale.pick(2, 7), "{} pictures of scales {scales}", pictures.len());
    for server in servers {
        let output = server.check(LIMIT)?;
        ensure!(output.stderr.is_empty(), "a server: {}", output.stderr);
    }
    // A process of another node, which draws its own map, makes the same; and another map is another picture.
    let alone = |scales: &str, seed: &[&str]| {
        let words = [&["tg-map", "alone", "--scales", scales], seed].concat();
        cluster.node(3).argv(&words).limit(LIMIT).check()
    };
    let (same, other) = (alone("1,2", &[])?, alone("1", &["--seed", "6"])?);
    ensure!(checksums(&same) == pictures[..2], "{same}: expected {:?}", &pictures[..2]);
    let others = checksums(&other);
    ensure!(others.len() == 1 && others.iter().all(|picture| !pictures.contains(picture)), "{other}");
    Ok(())
}

/// The comparison would fail if a tile were wrong: one server gives one out whose pixels are beside their places.
fn a_wrong_tile_is_found(cluster: &Cluster) -> Result<()> {
    // Of two nodes, the second has the tiles with an odd sum of column and row.
    let _servers = servers(cluster, "wrong", 1, &["--shifted", "1,2"])?;
    refused(
        cluster,
        &["view", "wrong", "4", "--scales", "2"],
        &["the picture of 2 servers is not that of one process", "pixels differ at 1:2", "in tile 1,2"],
    )
}

/// A viewer that ends in an error, with these words.
fn refused(cluster: &Cluster, words: &[&str], expected: &[&str]) -> Result<()> {
    let begun = Instant::now();
    let output = cluster.node(0).argv(&[&["tg-map"], words].concat()).limit(LIMIT).run()?;
    let (code, said) = (output.status.code(), output.stderr.trim());
    println!("  {words:?}: {said} ({:.1} s)", begun.elapsed().as_secs_f64());
    ensure!(matches!(code, 1..=3), "{words:?}: {}: {}{said}", output.status, output.stdout);
    for words in expected {
        ensure!(said.contains(words), "{said}: expected {words:?}");
    }
    Ok(())
}

/// Each ends with an error that says what it is, and at once.
fn bad_input(cluster: &Cluster) -> Result<()> {
    let server = serving(cluster.node(1), &["bad", "--broken", "1,1"])?;
    let ask = |words: &[&str], expected: &str| refused(cluster, &[&["ask"], words].concat(), &[expected]);
    ask(&["1", "bad", "15", "0", "1"], "tile 15,0 is outside of the map: expected columns 0 to 14 and rows 0 to 19")?;
    ask(&["1", "bad", "0", "20", "1"], "tile 0,20 is outside of the map")?;
    ask(&["1", "bad", "0", "0", "3"], "scale 3 does not exist: expected 1, 2, 4, 5, 8, 10 or 16")?;
    ask(&["1", "bad", "0", "0", "1"], "tile 0,0 is not here")?;
    ask(&["1", "none", "0", "0", "1", "--patience", "1"], "no process of node 1")?;
    ask(&["60", "bad", "0", "0", "1", "--patience", "1"], "no process of node 60")?;
    refused(cluster, &["view", "bad", "4", "--patience", "1"], &["no process of node 0"])?;
    refused(cluster, &["view", "bad", "0"], &["NODES is 0: expected at least 1"])?;
    refused(cluster, &["alone", "--scales", "1,3"], &["scale 3 does not exist"])?;

    drop(server);

    // An image whose memory has changed. Of two nodes, the second has it.
    let _servers = servers(cluster, "broken", 1, &["--broken", "1,2"])?;
    refused(
        cluster,
        &["view", "broken", "2", "--scales", "2"],
        &["the server of node 1: tile 1,2: the JPEG is broken", "its memory has changed"],
    )
}

/// A server that dies, or stops, while it is asked again and again: the viewer says so, and does not wait for ever.
fn servers_fail(cluster: &Cluster) -> Result<()> {
    for (name, expected) in [("dies", ["the other process has gone", "is not reached"]), ("stops", ["within 5s"; 2])] {
        let mut running = servers(cluster, name, 0, &[])?;
        let words = ["tg-map", "view", name, "3", "--scales", "2", "--rounds", "100000", "--patience", "5"];
        let viewer =
            cluster.node(3).argv(&words).spawn_until(LIMIT, |line| line.contains("the same from 1 to 3 servers"))?;
        let server = running.remove(2);
        let stopped = match name {
            "stops" => server.signal(STOP).map(|()| Some(server))?,
            _ => {
                // Killed.
                drop(server);
                None
            }
        };
        let output = viewer.wait_for(Duration::from_secs(60))?;
        drop(stopped);
        println!("  a server {name}: {}", output.stderr.trim());
        let told = output.stderr.contains("the server of node 2: ")
            && expected.iter().any(|words| output.stderr.contains(words));
        ensure!(matches!(output.status.code(), 1..=3) && told, "{name}: {}: {}", output.status, output.stderr);
    }
    Ok(())
}
