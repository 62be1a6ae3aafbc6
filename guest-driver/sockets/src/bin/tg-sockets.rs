// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a program whose connections to other nodes go through the boards: with `libtelegraphos-preload.so`.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const HELP: &str = "\
Runs a program whose TCP connections to other nodes go through their memory, where much is sent.

Usage: tg-sockets [OPTIONS] PROGRAM [ARGUMENT...]

The program needs no change. Both ends must run under tg-sockets for a connection to go through memory; all other
connections, and everything else, are the system's. Programs that it starts run under it, too.

Options:
  -v, --verbose      Say on the standard error what becomes of connections
  -a, --after BYTES  What is sent in one direction before it goes through memory [default: 4194304]
  -r, --ring BYTES   Memory for each direction, locked (ulimit -l), at each receiver; an eighth of it
                     where there is not as much [default: 1048576]
  -h, --help         Print this

Examples:
  tg-sockets iperf3 -s
  tg-sockets iperf3 -c node1
  tg-sockets --verbose python3 server.py

Exit codes: that of the program; 126 or 127 if it cannot be run; 2 for a wrong use.
";

const LIBRARY: &str = "libtelegraphos-preload.so";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err((code, message)) => {
            eprintln!("tg-sockets: {message}");
            ExitCode::from(code)
        }
    }
}

fn run() -> Result<ExitCode, (u8, String)> {
    let usage = |what: String| (2, format!("{what}; see tg-sockets --help"));
    let mut arguments = env::args_os().skip(1).peekable();
    let mut settings: Vec<(&str, OsString)> = Vec::new();
    let program = loop {
        let argument = arguments.next().ok_or_else(|| usage("no program is named".into()))?;
        match argument.to_str() {
            Some("-h" | "--help") => {
                print!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            Some("-v" | "--verbose") => settings.push(("TELEGRAPHOS_SOCKETS_LOG", "1".into())),
            Some(option @ ("-a" | "--after" | "-r" | "--ring")) => {
                let value = arguments.next().ok_or_else(|| usage(format!("{option} has no value")))?;
                if value.to_str().and_then(|value| value.parse::<u64>().ok()).is_none_or(|value| value == 0) {
                    return Err(usage(format!("{option} {}: expected a number of bytes", value.to_string_lossy())));
                }
                let after = option.ends_with("after") || option == "-a";
                settings.push((if after { "TELEGRAPHOS_SOCKETS_AFTER" } else { "TELEGRAPHOS_SOCKETS_RING" }, value));
            }
            Some("--") => break arguments.next().ok_or_else(|| usage("no program is named".into()))?,
            Some(option) if option.starts_with('-') => return Err(usage(format!("unknown option {option}"))),
            _ => break argument,
        }
    };
    let mut command = Command::new(&program);
    command.args(arguments).envs(settings);
    let found = find(&program);
    match found.as_deref().map(|path| obstacle(path, 0)) {
        Some(Some(why)) => {
            eprintln!("tg-sockets: {} {why}: it runs without, over the system's sockets", program.to_string_lossy());
        }
        _ => {
            let library = library().map_err(|why| (126, why))?;
            command.env("LD_PRELOAD", preload(&library, env::var_os("LD_PRELOAD")));
        }
    }
    let error = command.exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    Err((code, format!("cannot run {}: {error}", program.to_string_lossy())))
}

/// What LD_PRELOAD is to be: ours first, behind it what was there.
fn preload(library: &Path, before: Option<OsString>) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        all.push(" ");
        all.push(before);
    }
    all
}

/// The library: beside this program, or where guest images have it.
fn library() -> Result<PathBuf, String> {
    let own = env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    let places = ["../usr/lib/telegraphos", "../lib/telegraphos", "."].map(|place| directory.join(place).join(LIBRARY));
    let library = places.iter().find(|place| place.is_file()).ok_or_else(|| {
        let list = places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ");
        format!("no {LIBRARY}; looked for {list}")
    })?;
    library.canonicalize().map_err(|e| format!("{}: {e}", library.display()))
}

/// The file of a program, as `execvp` finds it.
fn find(program: &OsString) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|file| file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0))
}

/// Why a library cannot be preloaded into a program, if so.
fn obstacle(path: &Path, depth: u32) -> Option<String> {
    let data = fs::metadata(path).ok()?;
    if data.mode() & 0o6000 != 0 && !rustix::process::geteuid().is_root() {
        return Some("runs with the rights of its owner".into());
    }
    let mut file = File::open(path).ok()?;
    let mut head = Vec::new();
    file.by_ref().take(512).read_to_end(&mut head).ok()?;
    if let Some(line) = head.strip_prefix(b"#!") {
        // A script runs as its interpreter.
        let line = line.split(|byte| *byte == b'\n').next()?;
        let interpreter = line.split(|byte| byte.is_ascii_whitespace()).find(|word| !word.is_empty())?;
        return if depth < 4 {
            obstacle(Path::new(&OsString::from_vec(interpreter.to_vec())), depth + 1)
        } else {
            None
        };
    }
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    let number = |at: usize, length: usize| {
        let bytes = head.get(at..at + length)?;
        Some(bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)))
    };
    if number(4, 1)? != 2 || number(18, 2)? != 62 {
        return Some("is a program for another machine".into());
    }
    // Program headers: where, how long, how many.
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    const INTERPRETER: u32 = 3;
    for n in 0..count {
        let mut header = [0; 40];
        file.seek(SeekFrom::Start(table.checked_add(n * size)?)).ok()?;
        file.read_exact(&mut header).ok()?;
        let word = |at: usize| header[at..at + 8].iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        if word(0) as u32 == INTERPRETER {
            let (place, length) = (word(8), word(32));
            let mut name = Vec::new();
            file.seek(SeekFrom::Start(place)).ok()?;
            file.take(length.min(4096)).read_to_end(&mut name).ok()?;
            return of_another_library(&String::from_utf8_lossy(&name));
        }
    }
    Some("is linked statically".into())
}

/// Whose dynamic loader a program names, if not glibc's, of which the library is.
fn of_another_library(loader: &str) -> Option<String> {
    let name = loader.trim_end_matches('\0').rsplit('/').next().unwrap_or_default();
    (!name.starts_with("ld-linux")).then(|| format!("has a C library that is not glibc (its loader is {name})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_preloaded_is_known() {
        let own = env::current_exe().unwrap();
        assert_eq!(obstacle(&own, 0), None);
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        fs::write(&script, format!("#! {} -x\n", own.display())).unwrap();
        assert_eq!(obstacle(&script, 0), None);
        assert_eq!(of_another_library("/nix/store/x-glibc/lib/ld-linux-x86-64.so.2\0"), None);
        let musl = of_another_library("/lib/ld-musl-x86_64.so.1\0").unwrap();
        assert!(musl.contains("not glibc (its loader is ld-musl-x86_64.so.1)"), "{musl}");
        // The same without an interpreter: its program header is of another kind.
        let mut bytes = fs::read(&own).unwrap();
        let table = usize::try_from(u64::from_le_bytes(bytes[32..40].try_into().unwrap())).unwrap();
        for n in 0..usize::from(bytes[56]) {
            if bytes[table + 56 * n] == 3 {
                bytes[table + 56 * n] = 4;
            }
        }
        let fixed = directory.path().join("static");
        fs::write(&fixed, &bytes).unwrap();
        assert_eq!(obstacle(&fixed, 0).unwrap(), "is linked statically");
        fs::write(&script, format!("#!{}\n", fixed.display())).unwrap();
        assert_eq!(obstacle(&script, 0).unwrap(), "is linked statically");
        fs::write(&fixed, b"\x7fELF").unwrap();
        assert_eq!(obstacle(&fixed, 0), None, "cut off: exec says what is wrong");
    }

    #[test]
    fn what_was_preloaded_stays() {
        assert_eq!(preload(Path::new("/a.so"), None), "/a.so");
        assert_eq!(preload(Path::new("/a.so"), Some("/b.so:/c.so".into())), "/a.so /b.so:/c.so");
    }
}
