// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the scaled images of a picture come from (s4's `imgLoader` and what is derived from it).

use super::images::Map;
use super::plan::{Scale, Tile};
use super::protocol::{DONE, REASON, REFUSED, Request, SERVER};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_msg::{Endpoint, Messages, Pattern, Thread};

/// What takes the pixels of each tile, in any order.
pub(crate) type Place<'a> = &'a (dyn Fn(Tile, &[u8]) -> Outcome<()> + Sync);

/// Loads images at a scale.
pub(crate) trait Loader {
    /// Ends when all tiles have been placed, or with the first failure.
    fn load(&self, scale: Scale, tiles: &[Tile], place: Place<'_>) -> Outcome<()>;
}

/// Threads of this process decode the images of its own map (`imgTLoader`).
///
/// There are a few, that take one tile after the other, and not one for each tile as in the paper: 300 at once would
/// need as many times the memory of a whole image.
pub(crate) struct Threads<'a> {
    pub(crate) map: &'a Map,
    pub(crate) count: usize,
}

impl Loader for Threads<'_> {
    fn load(&self, scale: Scale, tiles: &[Tile], place: Place<'_>) -> Outcome<()> {
        let next = AtomicUsize::new(0);
        at_once(self.count.min(tiles.len()), |_| {
            while let Some(tile) = tiles.get(next.fetch_add(1, Ordering::Relaxed)) {
                place(*tile, &self.map.scaled(*tile, scale)?)?;
            }
            Ok(())
        })
    }
}

/// Threads of this process ask those of servers, a thread for each tile (`imgCLoader`).
pub(crate) struct Servers<'a> {
    pub(crate) messages: &'a Messages,
    pub(crate) servers: &'a [Endpoint],
    /// How long an answer is waited for.
    pub(crate) patience: Duration,
}

impl Loader for Servers<'_> {
    fn load(&self, scale: Scale, tiles: &[Tile], place: Place<'_>) -> Outcome<()> {
        let threads = (1..).take(tiles.len()).map(|number| self.messages.thread(number));
        let threads = threads.collect::<Result<Vec<_>, _>>()?;
        at_once(tiles.len(), |n| {
            let (tile, thread) = (tiles[n], &threads[n]);
            let server = self.servers[tile.server(self.servers.len())];
            let mut answer = vec![0; scale.bytes().max(REASON)];
            let (tag, bytes) = Request::Scaled { tile, scale }.encode();
            let length = ask(thread, server, tag, &bytes, &mut answer, self.patience)?;
            place(tile, &answer[..length])
        })
    }
}

/// Runs something in so many threads at once; the first failure of all.
fn at_once(count: usize, run: impl Fn(usize) -> Outcome<()> + Sync) -> Outcome<()> {
    thread::scope(|scope| {
        let run = &run;
        let start = |n| {
            let started = thread::Builder::new().spawn_scoped(scope, move || run(n));
            started.map_err(|error| Failure::Refused(format!("thread {n} of {count} could not be started: {error}")))
        };
        // Those that were started end, too, where another one was not.
        let running: Vec<_> = (0..count).map(start).collect();
        let ended = running
            .into_iter()
            .map(|thread| thread?.join().map_err(|_| Failure::Check("a thread of the loader has panicked".into()))?);
        ended.fold(Ok(()), Result::and)
    })
}

fn of_node(server: Endpoint, what: impl std::fmt::Display) -> Failure {
    Failure::Check(format!("the server of node {}: {what}", server.process.node))
}

/// Asks a server, and waits for its answer, which goes to the buffer; its length. The thread has no other answer to
/// come.
pub(crate) fn ask(
    thread: &Thread<'_>,
    server: Endpoint,
    tag: u32,
    request: &[u8],
    answer: &mut [u8],
    patience: Duration,
) -> Outcome<usize> {
    let named = |error| of_node(server, Failure::from(error));
    let sent = thread.send_copy(server, tag, request).map_err(named)?;
    if !sent.wait_timeout(patience) {
        return Err(of_node(server, format!("it has not received a request within {patience:?}")));
    }
    sent.wait().outcome.map_err(named)?;
    let pattern = Pattern { process: Some(server.process), thread: Some(SERVER), tag: None };
    let got = thread.receive_timeout(pattern, answer, patience).map_err(named)?;
    let length = got.length as usize;
    match (got.tag, answer.get(..length)) {
        (DONE, Some(_)) => Ok(length),
        (REFUSED, Some(reason)) => Err(of_node(server, String::from_utf8_lossy(reason))),
        (tag, _) => {
            let most = answer.len();
            let what = format!("its answer has {length} bytes and tag {tag}: expected at most {most}, and 0 or 1");
            Err(of_node(server, what))
        }
    }
}
