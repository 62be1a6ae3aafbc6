// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that has images, and scales down those that it is asked for (s4's `imgDaemon`).

use super::image::Image;
use super::images::Map;
use super::plan::{PIXEL, Tile};
use super::protocol::{DONE, LONGEST, REASON, REFUSED, Request, SERVER};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use telegraphos_guest_tests::cli::Outcome;
use telegraphos_guest_tests::messages::open;
use telegraphos_msg::{Config, Error, Failure as Ended, Handle, Pattern, Received, Thread};

/// What a server does wrong on purpose, for tests of what finds it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// The memory of this image changes when it has come.
    pub(crate) broken: Option<Tile>,
    /// The pixels of this one are each taken from beside their place.
    pub(crate) shifted: Option<Tile>,
}

/// Serves under a name until a `Request::End` comes.
pub(crate) fn serve(name: &str, threads: usize, faults: Faults) -> Outcome<()> {
    let messages = open(Config::default())?;
    // All threads of the system receive as one of the messages': whichever is free takes the next request.
    let thread = messages.thread(SERVER)?;
    let server = Server { thread, map: Map::empty(), faults, running: AtomicUsize::new(threads) };
    let _name = messages.publish(name)?;
    println!("serving");
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // The others would wait for what it does not do any more.
                if let Err(failure) = server.run() {
                    eprintln!("tg-map: {failure}");
                    std::process::exit(1);
                }
            });
        }
    });
    let (images, bytes) = server.map.size();
    println!("{images} images of {} KiB", bytes >> 10);
    Ok(())
}

struct Server<'a> {
    thread: Thread<'a>,
    map: Map,
    faults: Faults,
    /// Threads that receive.
    running: AtomicUsize,
}

impl Server<'_> {
    fn run(&self) -> Outcome<()> {
        let mut buffer = vec![0; LONGEST];
        // The answer before may be under way while the next one is made, and no more than one: they need memory.
        let mut last = None;
        loop {
            let got = match self.thread.receive(Pattern::default(), &mut buffer) {
                // A viewer that has gone in the middle of it, or whose bytes have.
                Err(Error::Failed(Ended::Gone | Ended::Failed)) => continue,
                got => got?,
            };
            let answer = self.answer(&got, &buffer);
            let ends = matches!(answer, Ok(None));
            let (tag, bytes) = match answer {
                Ok(bytes) => (DONE, bytes.unwrap_or_default()),
                Err(reason) => (REFUSED, shortened(reason).into_bytes()),
            };
            let length = bytes.len();
            if let Some(last) = last.take() {
                wait(last);
            }
            // Nothing waits for an answer to what this process tells itself. A send to a viewer that has gone fails,
            // from which others must not suffer.
            let send = || self.thread.send_dma(got.from, tag, bytes, length).inspect_err(report).ok();
            last = if got.from == self.thread.endpoint() { None } else { send() };
            if ends {
                last.into_iter().for_each(wait);
                // The others wait for requests: this one sends the end to the next one.
                if self.running.fetch_sub(1, Ordering::Relaxed) > 1 {
                    let (end, bytes) = Request::End.encode();
                    self.thread.send(self.thread.endpoint(), end, &bytes)?;
                }
                return Ok(());
            }
        }
    }

    /// The bytes of an answer; `None` if the server is to end.
    fn answer(&self, got: &Received, buffer: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let bytes = buffer
            .get(..got.length as usize)
            .ok_or_else(|| format!("a request has {} bytes: expected at most {LONGEST}", got.length))?;
        match Request::decode(got.tag, bytes)? {
            Request::Keep { tile, jpeg } => {
                let mut image = Image::new(jpeg.to_vec());
                if self.faults.broken == Some(tile) {
                    image.damage();
                }
                self.map.keep(tile, image)?;
                Ok(Some(Vec::new()))
            }
            Request::Scaled { tile, scale } => {
                let mut pixels = self.map.scaled(tile, scale)?;
                if self.faults.shifted == Some(tile) {
                    pixels.rotate_left(PIXEL);
                }
                Ok(Some(pixels))
            }
            Request::End => Ok(None),
        }
    }
}

/// Waits for the end of an answer; not for ever for a viewer that does not receive it.
fn wait(answer: Handle) {
    const PATIENCE: Duration = Duration::from_secs(60);
    if !answer.wait_timeout(PATIENCE) {
        eprintln!("tg-map: a viewer has not received its answer within {PATIENCE:?}");
    } else if let Err(error) = answer.wait().outcome {
        report(&error);
    }
}

fn report(error: &Error) {
    eprintln!("tg-map: an answer is lost: {error}");
}

/// At most [`REASON`] bytes of it.
fn shortened(mut reason: String) -> String {
    let end = (0..=REASON).rev().find(|end| reason.is_char_boundary(*end)).unwrap_or(0);
    reason.truncate(end);
    reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_fit_their_answer() {
        assert_eq!(shortened("short".into()), "short");
        assert_eq!(shortened("x".repeat(REASON + 9)).len(), REASON);
        // A letter of two bytes across the end.
        assert_eq!(shortened(format!("x{}", "é".repeat(REASON))).len(), REASON - 1);
    }
}
