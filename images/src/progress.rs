// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports on stderr what takes time: a bar on a terminal, else a plain line now and then.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How much progress is reported on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// Bars on a terminal, else plain lines.
    #[default]
    Auto,
    /// Plain lines: at the begin and the end of a step, and its details every ten seconds.
    Plain,
    Silent,
}

/// One step in progress; its bar is removed when it is dropped.
#[derive(Debug)]
pub struct Step {
    text: String,
    begun: Instant,
    bar: Option<ProgressBar>,
    plain: bool,
    /// When a detail was printed last.
    last: Instant,
}

impl Progress {
    /// Begins a step. `bytes` is the number of bytes it will move, if known.
    pub fn step(self, text: impl Into<String>, bytes: Option<u64>) -> Step {
        let text = text.into();
        let fancy = self == Progress::Auto && std::io::stderr().is_terminal();
        let plain = !fancy && self != Progress::Silent;
        let bar = fancy.then(|| {
            let (bar, template) = match bytes {
                Some(n) => (ProgressBar::new(n), "{spinner} {msg} [{bar:30}] {bytes}/{total_bytes} {elapsed}"),
                None => (ProgressBar::new_spinner(), "{spinner} {msg} {elapsed}"),
            };
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(text.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        if plain {
            eprintln!("{text} ...");
        }
        Step { text, begun: Instant::now(), bar, plain, last: Instant::now() }
    }
}

impl Step {
    /// Sets the number of bytes moved so far.
    pub(crate) fn at(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
    }

    /// Shows how far the step is.
    pub fn detail(&mut self, detail: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{}: {detail}", self.text));
        }
        if self.plain && self.last.elapsed() > Duration::from_secs(10) {
            eprintln!("{}: {detail}", self.text);
            self.last = Instant::now();
        }
    }

    /// Ends the step as successful.
    pub fn done(self) {
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
