// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client of QEMU's machine protocol: one JSON object a line.

use crate::node_name::NodeLabel;
use crate::{Error, Result, interrupt};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest line QEMU may send; the longest we ask for are well below.
const LONGEST: usize = 1 << 20;
/// Events kept for [`Qmp::wait_event`]; older ones are forgotten.
const EVENTS: usize = 256;

/// A connection to one QEMU.
#[derive(Debug)]
pub(crate) struct Qmp {
    node: NodeLabel,
    socket: BufReader<UnixStream>,
    /// The beginning of a line.
    line: Vec<u8>,
    events: VecDeque<Value>,
    serial: u64,
}

impl Qmp {
    /// Connects and leaves negotiation mode.
    pub(crate) fn connect(node: NodeLabel, path: &Path, limit: Duration) -> Result<Qmp> {
        let socket = UnixStream::connect(path).map_err(Error::io("cannot connect to QEMU at", path))?;
        Qmp::over(node, socket, limit)
    }

    fn over(node: NodeLabel, socket: UnixStream, limit: Duration) -> Result<Qmp> {
        let socket = BufReader::new(socket);
        let mut qmp = Qmp { node: node.clone(), socket, line: Vec::new(), events: VecDeque::new(), serial: 0 };
        let io = |e: std::io::Error| Error::Qmp { node: node.clone(), command: "(connect)".into(), why: e.to_string() };
        qmp.socket.get_ref().set_read_timeout(Some(Duration::from_millis(50))).map_err(io)?;
        let end = Instant::now() + limit;
        while qmp.receive("(greeting)", end)?.is_none_or(|m| m.get("QMP").is_none()) {
            if Instant::now() >= end {
                return Err(qmp.fail("(greeting)", "QEMU does not greet".into()));
            }
        }
        qmp.execute("qmp_capabilities", json!({}), limit)?;
        Ok(qmp)
    }

    fn fail(&self, command: &str, why: String) -> Error {
        Error::Qmp { node: self.node.clone(), command: command.into(), why }
    }

    /// The next object, or nothing at `end`.
    fn receive(&mut self, command: &str, end: Instant) -> Result<Option<Value>> {
        loop {
            interrupt::check()?;
            let left = (LONGEST + 1).saturating_sub(self.line.len()) as u64;
            match (&mut self.socket).take(left).read_until(b'\n', &mut self.line) {
                Ok(_) if self.line.ends_with(b"\n") => {
                    let message = serde_json::from_slice(&std::mem::take(&mut self.line));
                    return message.map(Some).map_err(|e| self.fail(command, format!("bad JSON: {e}")));
                }
                Ok(_) if self.line.len() > LONGEST => {
                    return Err(self.fail(command, format!("a line longer than {LONGEST} bytes")));
                }
                Ok(_) => return Err(self.fail(command, "QEMU closed the connection".into())),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if Instant::now() >= end {
                        return Ok(None);
                    }
                }
                Err(e) => return Err(self.fail(command, e.to_string())),
            }
        }
    }

    fn keep(&mut self, message: Value) {
        if message.get("event").is_some() {
            self.events.push_back(message);
            if self.events.len() > EVENTS {
                self.events.pop_front();
            }
        }
    }

    /// Executes one command; its return value.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value, limit: Duration) -> Result<Value> {
        self.serial += 1;
        let id = self.serial;
        let mut line = json!({"execute": command, "arguments": arguments, "id": id}).to_string();
        line.push('\n');
        self.socket.get_mut().write_all(line.as_bytes()).map_err(|e| self.fail(command, e.to_string()))?;
        let end = Instant::now() + limit;
        while let Some(mut message) = self.receive(command, end)? {
            if message.get("id") != Some(&json!(id)) {
                self.keep(message);
                continue;
            }
            if let Some(error) = message.get("error") {
                let why = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given").to_owned();
                return Err(self.fail(command, why));
            }
            return Ok(message.get_mut("return").map(Value::take).unwrap_or_default());
        }
        Err(self.fail(command, format!("no answer within {limit:?}")))
    }

    /// Forgets the events that have come so far.
    pub(crate) fn forget_events(&mut self) {
        self.events.clear();
    }

    /// Waits for an event of that name; `wanted` sees its data.
    pub(crate) fn wait_event(&mut self, name: &str, limit: Duration, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let end = Instant::now() + limit;
        let hit = |m: &Value| m.get("event") == Some(&json!(name)) && wanted(m.get("data").unwrap_or(&Value::Null));
        loop {
            if let Some(at) = self.events.iter().position(hit) {
                return Ok(self.events.remove(at).unwrap_or_default());
            }
            match self.receive(name, end)? {
                Some(message) => self.keep(message),
                None => return Err(self.fail(name, format!("the event did not come within {limit:?}"))),
            }
        }
    }
}

/// How often a guest that was up has reset its machine by itself: not by QMP, as [`crate::Guest::reset`] does. Firmware
/// resets once more after a reset, whatever its cause, and a kernel that fails at boot does so again and again: these
/// are not counted.
#[derive(Debug)]
pub(crate) struct Resets(Arc<AtomicU64>);

impl Resets {
    /// Counts from now on, over a connection of its own; `boots` are those of the guest so far.
    pub(crate) fn watch(
        node: &NodeLabel,
        path: &Path,
        limit: Duration,
        boots: impl Fn() -> u64 + Send + 'static,
    ) -> Result<Resets> {
        Resets::over(Qmp::connect(node.clone(), path, limit)?, boots)
    }

    fn over(mut qmp: Qmp, boots: impl Fn() -> u64 + Send + 'static) -> Result<Resets> {
        let what = format!("the reader of QEMU's events of node {}", qmp.node);
        let failed = |source| Error::Spawn { what: what.clone(), source };
        // It is woken by QEMU only; the end of QEMU is that of the connection.
        qmp.socket.get_ref().set_read_timeout(None).map_err(failed)?;
        let count = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&count);
        let name = format!("events {}", qmp.node.number);
        let read = move || {
            let mut before = 0;
            // After the answer to the first command there are events only.
            while let Ok(Some(message)) = qmp.receive("(events)", Instant::now()) {
                if message["event"] != "RESET" {
                    continue;
                }
                let now = boots();
                let was_up = std::mem::replace(&mut before, now) != now;
                if was_up && message["data"]["guest"] == true {
                    counter.fetch_add(1, Ordering::Release);
                }
            }
        };
        std::thread::Builder::new().name(name).spawn(read).map_err(failed)?;
        Ok(Resets(count))
    }

    /// What the guest wrote before the last of them is on its console.
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    /// A QEMU that answers each command with what `answer` makes of it.
    fn qemu(answer: impl Fn(&Value) -> Vec<Value> + Send + 'static) -> Qmp {
        let (here, mut there) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            there.write_all(b"{\"QMP\": {}}\r\n").unwrap();
            for line in BufReader::new(there.try_clone().unwrap()).lines().map_while(std::result::Result::ok) {
                let request: Value = serde_json::from_str(&line).unwrap();
                for mut message in answer(&request) {
                    if message.get("event").is_none() {
                        message["id"] = request["id"].clone();
                    }
                    there.write_all(format!("{message}\r\n").as_bytes()).unwrap();
                }
            }
        });
        Qmp::over(3.into(), here, SOON).unwrap()
    }

    #[test]
    fn events_between_are_kept_for_those_who_wait() {
        let mut qmp = qemu(|request| match request["execute"].as_str() {
            Some("device_del") => vec![
                json!({"event": "RESUME"}),
                json!({"return": {}}),
                json!({"event": "DEVICE_DELETED", "data": {"device": "hib"}}),
            ],
            _ => vec![json!({"return": {"n": 5}})],
        });
        assert_eq!(qmp.execute("query", json!({}), SOON).unwrap(), json!({"n": 5}));
        qmp.execute("device_del", json!({"id": "hib"}), SOON).unwrap();
        qmp.wait_event("DEVICE_DELETED", SOON, |d| d["device"] == "hib").unwrap();
        qmp.wait_event("RESUME", SOON, |_| true).unwrap();
        let text = qmp.wait_event("RESUME", Duration::from_millis(60), |_| true).unwrap_err().to_string();
        assert!(text.contains("node 3: QMP RESUME"), "{text}");
    }

    #[test]
    fn only_resets_by_a_guest_that_was_up_are_counted() {
        let reset = |guest| json!({"event": "RESET", "data": {"guest": guest, "reason": "x"}});
        // Of so many boots when each comes.
        let boots = [0, 1, 1, 2, 2, 3];
        let events = [reset(true), reset(false), reset(true), reset(true), reset(true), reset(true)];
        let mut qmp = qemu(move |request| match request["execute"].as_str() {
            Some("query") => [vec![json!({"return": {}})], events.to_vec(), vec![json!({"event": "STOP"})]].concat(),
            _ => vec![json!({"return": {}})],
        });
        qmp.execute("query", json!({}), SOON).unwrap();
        let seen = AtomicU64::new(0);
        let resets = Resets::over(qmp, move || boots[seen.fetch_add(1, Ordering::Relaxed) as usize]).unwrap();
        let begun = Instant::now();
        while resets.count() < 2 && begun.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(resets.count(), 2);
    }

    #[test]
    fn a_refusal_is_reported_with_qemus_words() {
        let mut qmp = qemu(|request| match request["execute"].as_str() {
            Some("qmp_capabilities") => vec![json!({"return": {}})],
            _ => vec![json!({"error": {"class": "GenericError", "desc": "Bus 'rp9' not found"}})],
        });
        let text = qmp.execute("device_add", json!({}), SOON).unwrap_err().to_string();
        assert_eq!(text, "node 3: QMP device_add: Bus 'rp9' not found");
    }
}
