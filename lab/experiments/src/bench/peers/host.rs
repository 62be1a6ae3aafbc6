// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is measured on the host, in the middle of a guest's round: copies by the processor and by the kernel, and round
//! trips over a Unix stream.

use super::memory::Mapping;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;
use telegraphos_agent::bench::command;

/// The longest copy.
const MOST: usize = 16 << 20;
/// Round trips before those that count.
const WARMING: u64 = 3;

/// Memory for copies, made when the first one is asked for.
#[derive(Debug, Default)]
pub(super) struct Host(Option<(Vec<u8>, Mapping)>);

impl Host {
    /// Nanoseconds of a command; `u64::MAX` if it cannot be measured.
    pub(super) fn measure(&mut self, word: u64) -> u64 {
        let argument = word & ((1 << command::SHIFT) - 1);
        let result = match word >> command::SHIFT {
            command::MEMCPY => self.copies(argument, |source, target| {
                target.copy_from(source);
                Ok(())
            }),
            command::WRITEV => self.copies(argument, writev),
            command::UNIX_BLOCKED => round_trips(argument, false),
            command::UNIX_SPINNING => round_trips(argument, true),
            other => Err(io::Error::other(format!("command {other} is unknown"))),
        };
        result.unwrap_or_else(|e| {
            eprintln!("cannot measure {word:#x}: {e}");
            u64::MAX
        })
    }

    fn copies(&mut self, bytes: u64, copy: impl Fn(&[u8], &mut Mapping) -> io::Result<()>) -> io::Result<u64> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes > MOST {
            return Err(io::Error::other(format!("{bytes} bytes: expected at most {MOST}")));
        }
        if self.0.is_none() {
            let mut target = Mapping::new(MOST)?;
            let source = vec![0x5a; MOST];
            target.copy_from(&source);
            self.0 = Some((source, target));
        }
        let Some((source, target)) = &mut self.0 else { return Err(io::Error::other("no memory")) };
        // As often as the guest repeats its own.
        let count = (64 << 10 >> bytes.max(1).ilog2()).clamp(1, 16);
        let begun = Instant::now();
        for _ in 0..count {
            copy(&source[..bytes], target)?;
        }
        Ok((begun.elapsed().as_nanos() / count) as u64)
    }
}

/// By the kernel, as into another process: that it is this one changes nothing of what the call does.
fn writev(source: &[u8], target: &mut Mapping) -> io::Result<()> {
    match target.write_by_kernel(source)? {
        written if written == source.len() => Ok(()),
        written => Err(io::Error::other(format!("process_vm_writev wrote {written} of {} bytes", source.len()))),
    }
}

fn round_trips(count: u64, spin: bool) -> io::Result<u64> {
    let (mut here, mut there) = UnixStream::pair()?;
    for end in [&here, &there] {
        end.set_nonblocking(spin)?;
    }
    let echo = std::thread::spawn(move || {
        (0..WARMING + count).try_for_each(|_| {
            let value = receive(&mut there)?;
            there.write_all(&value)
        })
    });
    let mut begun = Instant::now();
    for index in 0..WARMING + count {
        if index == WARMING {
            begun = Instant::now();
        }
        here.write_all(&index.to_le_bytes())?;
        receive(&mut here)?;
    }
    let took = begun.elapsed().as_nanos() as u64 / count.max(1);
    echo.join().map_err(|_| io::Error::other("the echo has panicked"))??;
    Ok(took)
}

/// Eight bytes; polls for them if the socket does not block.
fn receive(socket: &mut UnixStream) -> io::Result<[u8; 8]> {
    let mut bytes = [0; 8];
    loop {
        match socket.read_exact(&mut bytes) {
            Ok(()) => return Ok(bytes),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_measured_or_refused() {
        let mut host = Host::default();
        let measure = |host: &mut Host, command: u64, argument| host.measure(command << command::SHIFT | argument);
        for (command, argument) in [
            (command::MEMCPY, 4096),
            (command::MEMCPY, MOST as u64),
            (command::WRITEV, 4096),
            (command::WRITEV, MOST as u64),
            (command::UNIX_BLOCKED, 2),
            (command::UNIX_SPINNING, 2),
        ] {
            let ns = measure(&mut host, command, argument);
            assert!(ns > 0 && ns < u64::MAX, "{command} {argument}: {ns}");
        }
        assert_eq!(measure(&mut host, command::MEMCPY, MOST as u64 + 1), u64::MAX);
        assert_eq!(measure(&mut host, command::WRITEV, MOST as u64 + 1), u64::MAX);
        assert_eq!(measure(&mut host, 9, 1), u64::MAX);
    }
}
