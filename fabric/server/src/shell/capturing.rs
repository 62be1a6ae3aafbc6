// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captures of what goes into the switches and what comes out, with a note of each fault on purpose.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use log::{info, warn};
use telegraphos_capture::{CaptureError, CaptureOptions, Link, Recorder};
use telegraphos_fabric_core::{Action, Event, PortId, SwitchConfig};
use telegraphos_topology::SwitchId;
use telegraphos_transport::faults::{FaultEvent, FaultSink, Faults};

use super::ports::Ports;
use super::switches::Switches;
use super::trunks::Trunks;

/// Faults between two rounds of the loop that are noted; more are only counted.
const MOST_NOTES: usize = 1024;

/// Faults as they happen, until the loop writes them down.
#[derive(Debug, Default)]
pub(super) struct Notes(Mutex<Vec<(String, u64, String)>>);

impl FaultSink for Notes {
    fn fault(&self, event: &FaultEvent<'_>) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < MOST_NOTES {
            let what = format!("fault: {} of number {}, {:?}", event.kind.name(), event.number, event.direction);
            notes.push((event.link.to_owned(), event.now, what));
        }
    }
}

/// A capture that is going on.
#[derive(Debug)]
pub(super) struct Capturing {
    pub(super) recorder: Recorder,
    pub(super) file: PathBuf,
    /// What is captured; none means all.
    pub(super) links: Vec<Link>,
    notes: Arc<Notes>,
    /// By the name of a link or trunk: where its notes belong.
    places: BTreeMap<String, (SwitchId, Link)>,
}

impl Capturing {
    /// Begins a capture; `late` if the switches have done anything before.
    pub(super) fn begin(
        mut options: CaptureOptions,
        ports: &Ports,
        switches: &Switches,
        trunks: &Trunks,
        faults: &Faults,
        late: bool,
    ) -> Result<Capturing, CaptureError> {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        options.epoch = i64::try_from(epoch).unwrap_or(i64::MAX).saturating_sub_unsigned(ports.clock());
        options.late = late;
        let (file, links) = (options.file.clone(), options.links.clone());
        let configs: Vec<(SwitchId, &SwitchConfig)> =
            switches.0.iter().map(|hosted| (hosted.id, hosted.switch.config())).collect();
        let mut recorder = Recorder::create(options, &configs)?;
        if late {
            // No event is half done here.
            switches.0.iter().for_each(|hosted| recorder.state(hosted.id, &hosted.switch, ports.now));
        }
        let notes = Arc::new(Notes::default());
        for link in faults.all() {
            link.report_to(Some(notes.clone()));
        }
        let mut places = BTreeMap::new();
        for (name, switch, link) in trunks.named(switches) {
            // Of a trunk with both ends here, the first end makes the faults.
            places.entry(name).or_insert((switch, link));
        }
        info!("capturing to {}", file.display());
        Ok(Capturing { recorder, file, links, notes, places })
    }

    /// Ends it.
    pub(super) fn end(self, faults: &Faults, now: u64) {
        for link in faults.all() {
            link.report_to(None);
        }
        match self.recorder.finish(now) {
            Ok(counted) => info!("captured {} records, {} bytes", counted.records, counted.bytes),
            Err(why) => warn!("{why}"),
        }
    }

    /// Records what a switch is about to handle. What was no frame is recorded with its bytes, where they are known.
    pub(super) fn event(&mut self, switch: SwitchId, event: &Event, now: u64) {
        if !matches!(event, Event::Malformed { .. }) {
            self.recorder.event(switch, event, now);
        }
    }

    /// Records what it has done about it.
    pub(super) fn actions(&mut self, switch: SwitchId, actions: &[Action], now: u64) {
        actions.iter().for_each(|action| self.recorder.action(switch, action, now));
    }

    /// Records bytes of a connection that are no frame.
    pub(super) fn malformed(&mut self, ports: &Ports, switch: SwitchId, port: PortId) {
        if let Some(connection) = ports.get(port) {
            self.recorder.malformed(switch, port, connection.unread(), ports.now);
        }
    }

    /// From here on it has everything.
    pub(super) fn rings_withdrawn(&mut self, now: u64) {
        let text = "complete from here on: what was requested before may have passed by rings";
        for (switch, link) in self.places.values() {
            self.recorder.comment(*switch, *link, text, now);
        }
    }

    /// Writes down what happened to links, and says so if it has stopped by itself.
    pub(super) fn tend(&mut self) {
        let notes = std::mem::take(&mut *self.notes.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (name, now, text) in notes {
            if let Some((switch, link)) = self.places.get(&name) {
                self.recorder.comment(*switch, *link, &text, now);
            }
        }
        if let Some(why) = self.recorder.stopped() {
            warn!("{why}");
        }
    }
}
