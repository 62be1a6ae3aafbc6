// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ping-pong of 64 bytes between two threads that sleep in poll: each transport against a raw socket pair, interleaved.
//!
//! `cargo run --release -p telegraphos-fabric --example ping [ROUNDS]`

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use telegraphos_fabric::transports::{Address, Options, connect, listen};
use telegraphos_transport::{InProcess, Received, Transport};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Messages in one sample.
const BATCH: usize = 2000;
const LEN: usize = 64;

/// Waits until a whole message is there.
fn take(end: &mut dyn Transport, clock: Instant) -> Result<(), Failure> {
    let mut buffer = [0; LEN];
    let mut got = 0;
    while got < LEN {
        let now = clock.elapsed().as_micros() as u64;
        match end.receive(now, &mut buffer[got..])? {
            Received::Bytes(n) => got += n,
            Received::Nothing => {
                poll(&mut [PollFd::from_borrowed_fd(end.fd(), PollFlags::IN)], None)?;
            }
            Received::End => return Err("the other end has gone".into()),
        }
    }
    Ok(())
}

fn give(end: &mut dyn Transport) -> Result<(), Failure> {
    // The buffer is empty: it takes 64 bytes.
    end.send(0, &[1; LEN])?;
    end.flush(0)?;
    Ok(())
}

/// Microseconds for one message there and back.
fn over_transport(mut a: Box<dyn Transport>, mut b: Box<dyn Transport>) -> Result<f64, Failure> {
    let clock = Instant::now();
    let echo = std::thread::spawn(move || -> Result<Box<dyn Transport>, Failure> {
        for _ in 0..BATCH {
            take(&mut *b, clock)?;
            give(&mut *b)?;
        }
        Ok(b)
    });
    for _ in 0..BATCH {
        give(&mut *a)?;
        take(&mut *a, clock)?;
    }
    let elapsed = clock.elapsed().as_secs_f64() * 1e6 / BATCH as f64;
    drop(echo.join().map_err(|_| "the echo panicked")??);
    Ok(elapsed)
}

/// The same with nothing but poll, read and write.
fn over_sockets() -> Result<f64, Failure> {
    let (mut a, mut b) = UnixStream::pair()?;
    let clock = Instant::now();
    fn take(end: &mut UnixStream) -> Result<(), Failure> {
        poll(&mut [PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN)], None)?;
        Ok(end.read_exact(&mut [0; LEN])?)
    }
    let echo = std::thread::spawn(move || -> Result<(), Failure> {
        for _ in 0..BATCH {
            take(&mut b)?;
            b.write_all(&[1; LEN])?;
        }
        Ok(())
    });
    for _ in 0..BATCH {
        a.write_all(&[1; LEN])?;
        take(&mut a)?;
    }
    let elapsed = clock.elapsed().as_secs_f64() * 1e6 / BATCH as f64;
    echo.join().map_err(|_| "the echo panicked")??;
    Ok(elapsed)
}

fn addressed(address: &Address, options: &Options) -> Result<f64, Failure> {
    let mut acceptor = listen(address, options)?;
    let mut a = connect(address, options)?;
    let b = acceptor.accept(0)?.ok_or("no peer has connected")?;
    // A ring's greeting.
    a.receive(0, &mut [0; LEN])?;
    over_transport(a, b)
}

fn main() -> Result<(), Failure> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(15), |text| text.parse())?;
    let path = std::env::temp_dir().join(format!("telegraphos-ping-{}", std::process::id()));
    let path = path.display();
    let usual = Options::default();
    let common = telegraphos_transport::Options { spin: 100, ..telegraphos_transport::Options::default() };
    let spinning = Options { common, ..Options::default() };
    let names = ["raw sockets", "unix", "in-process", "ring", "ring, spin 100 us"];
    let mut samples: [Vec<f64>; 5] = Default::default();
    for _ in 0..rounds.max(1) {
        samples[0].push(over_sockets()?);
        samples[1].push(addressed(&format!("unix:{path}").parse()?, &usual)?);
        let (a, b) = InProcess::pair(&usual.common)?;
        samples[2].push(over_transport(Box::new(a), Box::new(b))?);
        samples[3].push(addressed(&format!("ring:{path}").parse()?, &usual)?);
        samples[4].push(addressed(&format!("ring:{path}").parse()?, &spinning)?);
    }
    let raw = summary(&mut samples[0])[1];
    println!(
        "{:20} {:>9} {:>9} {:>9} {:>7}   {rounds} rounds of {BATCH}",
        "64 bytes and back", "least", "median", "most", "ratio"
    );
    for (name, sample) in names.iter().zip(&mut samples) {
        let [least, median, most] = summary(sample);
        println!("{name:20} {least:>6.1} us {median:>6.1} us {most:>6.1} us {:>7.2}", median / raw);
    }
    Ok(())
}

/// Least, median, most.
fn summary(sample: &mut [f64]) -> [f64; 3] {
    sample.sort_by(f64::total_cmp);
    [sample[0], sample[sample.len() / 2], sample[sample.len() - 1]]
}
