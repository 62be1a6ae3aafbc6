// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captures of what goes into the switches and what comes out, with a note of each fault on purpose.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use log::{info, warn};
use telegraphos_capture::{CaptureError, CaptureOptions, Link, Recorder};
use telegraphos_fabric_core::SwitchConfig;
use telegraphos_topology::SwitchId;
use telegraphos_transport::faults::{FaultEvent, FaultSink};

use super::Fabric;

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

impl Fabric {
    /// Begins a capture; an earlier one ends.
    pub(super) fn start_capture(&mut self, mut options: CaptureOptions) -> Result<(), CaptureError> {
        self.stop_capture();
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
        options.epoch = i64::try_from(epoch).unwrap_or(i64::MAX).saturating_sub_unsigned(self.clock());
        options.late = self.wakeups > 0;
        let (file, links) = (options.file.clone(), options.links.clone());
        let switches: Vec<(SwitchId, &SwitchConfig)> =
            self.switches.iter().map(|hosted| (hosted.id, hosted.switch.config())).collect();
        let mut recorder = Recorder::create(options, &switches)?;
        if self.wakeups > 0 {
            // No event is half done here.
            self.switches.iter().for_each(|hosted| recorder.state(hosted.id, &hosted.switch, self.now));
        }
        let notes = Arc::new(Notes::default());
        for link in self.faults.all() {
            link.report_to(Some(notes.clone()));
        }
        let mut places = BTreeMap::new();
        for (name, switch, link) in self.named_links() {
            // Of a trunk with both ends here, the first end makes the faults.
            places.entry(name).or_insert((switch, link));
        }
        info!("capturing to {}", file.display());
        self.capturing = Some(Capturing { recorder, file, links, notes, places });
        self.observations_changed();
        Ok(())
    }

    /// Ends the capture, if there is one.
    pub(super) fn stop_capture(&mut self) {
        let Some(capturing) = self.capturing.take() else { return };
        self.observations_changed();
        for link in self.faults.all() {
            link.report_to(None);
        }
        match capturing.recorder.finish(self.now) {
            Ok(counted) => info!("captured {} records, {} bytes", counted.records, counted.bytes),
            Err(why) => warn!("{why}"),
        }
    }

    /// From here on the capture has everything.
    pub(super) fn note_rings_withdrawn(&mut self) {
        let Some(capturing) = &mut self.capturing else { return };
        let text = "complete from here on: what was requested before may have passed by rings";
        for (switch, link) in capturing.places.values() {
            capturing.recorder.comment(*switch, *link, text, self.now);
        }
    }

    /// Writes down what happened to links, and says so if the capture has stopped by itself.
    pub(super) fn tend_capture(&mut self) {
        let Some(capturing) = &mut self.capturing else { return };
        let notes = std::mem::take(&mut *capturing.notes.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (name, now, text) in notes {
            if let Some((switch, link)) = capturing.places.get(&name) {
                capturing.recorder.comment(*switch, *link, &text, now);
            }
        }
        if let Some(why) = capturing.recorder.stopped() {
            warn!("{why}");
        }
    }
}
