// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells the user what takes time, on stderr: one line that changes on a terminal, else a plain line now and then.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

pub use telegraphos_images::Progress as Mode;

/// How progress is told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress(pub(crate) Mode);

/// One step in progress.
pub(crate) struct Step {
    text: String,
    begun: Instant,
    bar: Option<ProgressBar>,
    plain: bool,
    last: Option<Instant>,
}

impl Progress {
    pub(crate) fn step(self, text: impl Into<String>) -> Step {
        let text = text.into();
        let fancy = self.0 == Mode::Auto && std::io::stderr().is_terminal();
        let plain = !fancy && self.0 != Mode::Silent;
        let bar = fancy.then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_message(text.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        if plain {
            eprintln!("{text} ...");
        }
        Step { text, begun: Instant::now(), bar, plain, last: None }
    }
}

impl Step {
    /// More about it; without a terminal told every ten seconds.
    pub(crate) fn detail(&mut self, detail: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}: {detail}", self.text));
        }
        let last = self.last.unwrap_or(self.begun);
        if self.plain && last.elapsed() > Duration::from_secs(10) {
            eprintln!("{}: {detail}", self.text);
            self.last = Some(Instant::now());
        }
    }

    /// The step has come to its good end.
    pub(crate) fn done(self) {
        let took = self.begun.elapsed().as_secs_f64();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if self.bar.is_some() || (self.plain && took > 2.0) {
            eprintln!("{}: done ({took:.1} s)", self.text);
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
