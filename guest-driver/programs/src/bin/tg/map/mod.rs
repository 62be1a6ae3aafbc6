// SPDX-License-Identifier: MIT OR Apache-2.0
//! A map of 300 JPEG images in the memory of several nodes, which decode and scale what a viewer asks for: the case
//! study of s4 (§7).
//!
//! ```text
//!   viewer: a thread for each tile ──► 4 ports ──► server of each node: threads that receive as one, decode, scale
//!           (loader.rs)                            (server.rs; images.rs)
//!     puts tiles together (picture.rs), and compares with what threads of its own process make of its own images
//! ```

#![forbid(unsafe_code)]

mod image;
mod images;
mod loader;
mod picture;
mod plan;
mod protocol;
mod server;
mod terrain;
mod viewer;

use plan::{Scale, Tile};
use server::Faults;
use std::time::Duration;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};
use viewer::View;

pub(crate) const USAGE: &str = "\
tg-map: a map of 15 x 20 JPEG images over the memory of nodes, and pictures of it

Usage: tg-map serve NAME [OPTIONS]  keeps images that it is sent, and scales down those that it is asked for, in
                                    --threads threads; until a viewer has ended
       tg-map view NAME NODES [OPTIONS]
                                    draws the map, spreads it over such servers on nodes 0 to NODES-1, and has 1 to
                                    NODES of them draw pictures of 600 x 600 pixels, which must be those that --threads
                                    threads of this process draw; how long all took
       tg-map alone [OPTIONS]       draws the map, and the pictures, in this process only; needs no board
       tg-map ask NODE NAME COLUMN ROW SCALE [OPTIONS]
                                    asks such a server for a tile

Options: --scales 1,2,4             pictures that are drawn, of 1, 2, 4, 5, 8, 10, 16: by default all
         --rounds N                 times that each picture is drawn in each way (1)
         --threads N                threads that decode in one process (2)
         --seed N                   another country
         --png FILE                 writes the last picture
         --patience SECONDS         how long a server is waited for, and each of its answers (120)

For tests: --broken COLUMN,ROW      the memory of that image changes after it came to this server
           --shifted COLUMN,ROW     this server gives out that tile's pixels beside their places

Exit codes: 0 done, 1 a picture differs, an image is broken or a server failed, 2 usage, 3 refused.
";

/// Threads that decode, at most: each has the pixels of a whole image, and answers under way.
const MOST_THREADS: usize = 16;

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let mut faults = Faults::default();
    let mut view = View {
        seed: 5,
        scales: Scale::ALL.into(),
        threads: 2,
        rounds: 1,
        patience: Duration::from_secs(120),
        png: None,
    };
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "scales" => view.scales = line.text()?.split(',').map(scale).collect::<Outcome<_>>()?,
            "rounds" => view.rounds = at_least_one("--rounds", line.number("--rounds")?)?,
            "threads" => view.threads = at_least_one("--threads", line.number("--threads")?)?,
            "seed" => view.seed = line.number("--seed")?,
            "png" => view.png = Some(line.text()?.into()),
            "patience" => view.patience = line.seconds("--patience")?,
            "broken" => faults.broken = Some(tile("--broken", &line.text()?)?),
            "shifted" => faults.shifted = Some(tile("--shifted", &line.text()?)?),
            _ => return Err(cli::unknown(&option)),
        }
    }
    cli::must(view.threads <= MOST_THREADS, Failure::Usage, || {
        format!("--threads is {}: expected at most {MOST_THREADS}", view.threads)
    })?;
    let words = line.words();
    match words[..] {
        ["serve", name] => server::serve(name, view.threads, faults),
        ["view", name, nodes] => viewer::view(&view, name, at_least_one("NODES", cli::number("NODES", nodes)?)?),
        ["alone"] => viewer::alone(&view),
        ["ask", node, name, column, row, scale] => {
            let place = (cli::number("COLUMN", column)?, cli::number("ROW", row)?);
            let (node, scale) = (cli::number("NODE", node)?, cli::number("SCALE", scale)?);
            viewer::request(node, name, place, scale, view.patience)
        }
        _ => Err(Failure::Usage(format!("arguments {words:?}: expected a command and what it needs"))),
    }
}

fn at_least_one<T: From<u8> + PartialOrd>(what: &str, number: T) -> Outcome<T> {
    match number >= T::from(1) {
        true => Ok(number),
        false => Err(Failure::Usage(format!("{what} is 0: expected at least 1"))),
    }
}

fn scale(text: &str) -> Outcome<Scale> {
    Scale::new(cli::number("--scales", text)?).map_err(Failure::Usage)
}

fn tile(what: &str, text: &str) -> Outcome<Tile> {
    let Some((column, row)) = text.split_once(',') else {
        return Err(Failure::Usage(format!("{what} is {text:?}: expected COLUMN,ROW")));
    };
    Tile::new(cli::number(what, column)?, cli::number(what, row)?).map_err(Failure::Usage)
}
