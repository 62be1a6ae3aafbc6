// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tells the user what takes time: a bar when stderr is a terminal, else one line a step.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How much to say on stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// Bars on a terminal, else plain lines.
    #[default]
    Auto,
    /// One plain line a step.
    Plain,
    /// Nothing.
    Silent,
}

/// One step in progress; its end is told when it is dropped.
pub(crate) struct Step {
    text: String,
    begun: Instant,
    bar: Option<ProgressBar>,
    plain: bool,
}

impl Progress {
    /// Begins a step. `bytes` is the number of bytes it will move, if known.
    pub(crate) fn step(self, text: impl Into<String>, bytes: Option<u64>) -> Step {
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
        Step { text, begun: Instant::now(), bar, plain }
    }
}

impl Step {
    pub(crate) fn at(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
    }

    /// The step has come to its good end.
    pub(crate) fn done(self) {
        let took = self.begun.elapsed();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            eprintln!("{} ({:.1} s)", self.text, took.as_secs_f64());
        } else if self.plain && took > Duration::from_secs(2) {
            eprintln!("{} done ({:.1} s)", self.text, took.as_secs_f64());
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
