// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of a benchmark: a list of figures, which is what the file of `--json` holds, and nothing else.
//!
//! Every figure has the medians and tenths of its values, and says with which other one it was compared. The ratio is
//! taken round by round, of values that were measured within the same second or two, and is the median of those. A
//! figure that could not be measured as it should stays in the list, with `marks` that say why.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use telegraphos_cluster::{Error, Result};

/// Changes when figures of the same name mean something else, or the fields do.
pub(crate) const FORMAT: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Measure {
    pub(crate) measure: String,
    /// Of median, p10 and p90: `us`, `x` (how many times the baseline), and so on.
    pub(crate) unit: String,
    /// `None` if there is no value at all, which the marks explain.
    pub(crate) median: Option<f64>,
    /// A tenth of the values is below.
    pub(crate) p10: Option<f64>,
    /// A tenth of the values is above.
    pub(crate) p90: Option<f64>,
    /// Number of values.
    pub(crate) n: usize,
    /// The name of what it is compared with.
    pub(crate) baseline: Option<String>,
    /// How many times the baseline.
    pub(crate) ratio: Option<f64>,
    /// What was wrong with the measurement.
    pub(crate) marks: Vec<String>,
    /// [`FORMAT`] of the program that wrote it.
    pub(crate) format: u32,
}

/// Median, and the values below and above which a tenth lies; nothing of no values, or of what is no number.
pub(crate) fn spread(values: &[f64]) -> Option<[f64; 3]> {
    let mut sorted = values.to_vec();
    if sorted.is_empty() || sorted.iter().any(|value| !value.is_finite()) {
        return None;
    }
    sorted.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let place = part * (sorted.len() - 1) as f64;
        let (low, high) = (place.floor() as usize, place.ceil() as usize);
        sorted[low] + (sorted[high] - sorted[low]) * (place - place.floor())
    };
    Some([at(0.5), at(0.1), at(0.9)])
}

/// To six significant digits: more are noise.
fn short(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

impl Measure {
    /// A figure of these values.
    pub(crate) fn of(measure: &str, unit: &str, values: &[f64]) -> Measure {
        let spread = spread(values).map(|values| values.map(short));
        Measure {
            measure: measure.to_owned(),
            unit: unit.to_owned(),
            median: spread.map(|[median, ..]| median),
            p10: spread.map(|[_, low, _]| low),
            p90: spread.map(|[.., high]| high),
            n: values.len(),
            format: FORMAT,
            ..Measure::default()
        }
    }

    /// The same, compared with `baseline`.
    pub(crate) fn against(mut self, baseline: &str, ratio: Option<f64>) -> Measure {
        self.baseline = Some(baseline.to_owned());
        self.ratio = ratio.map(short);
        self
    }

    pub(crate) fn marked(mut self, marks: impl IntoIterator<Item = String>) -> Measure {
        self.marks.extend(marks);
        self
    }
}

/// What a file of `--json` holds.
pub(crate) fn write(path: &Path, list: &[Measure]) -> Result<()> {
    let failed = |source: std::io::Error| Error::io("cannot write the figures to", path)(source);
    let mut text = String::from("[\n");
    for (index, measure) in list.iter().enumerate() {
        let line = serde_json::to_string(measure).map_err(|e| failed(e.into()))?;
        text += &format!("{line}{}\n", if index + 1 < list.len() { "," } else { "" });
    }
    fs::write(path, text + "]\n").map_err(failed)
}

/// An error unless a file can be written there; for the time before a long measurement. A file that is there stays as
/// it is.
pub(crate) fn writable(path: &Path) -> Result<()> {
    let there = path.exists();
    let opened = fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(Error::io("cannot write the figures to", path))?;
    if !there {
        fs::remove_file(path).map_err(Error::io("cannot replace", path))?;
    }
    Ok(())
}

/// Reads a file that [`write`] has written.
pub(crate) fn read(path: &Path) -> Result<Vec<Measure>> {
    let text = fs::read_to_string(path).map_err(Error::io("cannot read the earlier figures", path))?;
    parse(&text).map_err(|why| Error::Usage(format!("{}: {why}", path.display())))
}

fn parse(text: &str) -> std::result::Result<Vec<Measure>, String> {
    let again = "measure again with `telegraphos bench --json`";
    let value: serde_json::Value = serde_json::from_str(text)
        .map_err(|e| format!("no JSON: {e}; expected a file of `telegraphos bench --json`"))?;
    let list = value.as_array().ok_or("no list of figures; expected a file of `telegraphos bench --json`")?;
    for entry in list {
        let name = entry.get("measure").and_then(|name| name.as_str()).unwrap_or("a figure without a name");
        match entry.get("format").and_then(serde_json::Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => return Err(format!("{name} has format {format}, expected {FORMAT}; {again}")),
            None => return Err(format!("{name} has no format, expected {FORMAT}; {again}")),
        }
    }
    serde_json::from_value(value).map_err(|e| format!("{e}; {again}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_tenths() {
        let values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(spread(&values), Some([50.0, 10.0, 90.0]));
        assert_eq!(spread(&[1.0, 2.0]), Some([1.5, 1.1, 1.9]));
        assert_eq!(spread(&[3.0]), Some([3.0; 3]));
        assert_eq!((spread(&[]), spread(&[1.0, f64::NAN])), (None, None));
    }

    #[test]
    fn a_file_is_a_list_that_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("figures.json");
        let list = [
            Measure::of("load", "us", &[1.0, 2.0, 3.0]).against("bare", Some(1.234_567_89)),
            Measure::of("direct_load", "x", &[]).marked(["absent".to_owned()]),
        ];
        writable(&path).unwrap();
        assert!(!path.exists(), "nothing is left of the trial");
        write(&path, &list).unwrap();
        writable(&path).unwrap();
        assert_eq!(read(&path).unwrap(), list);
        let values: Vec<serde_json::Value> = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let fields = ["measure", "unit", "median", "p10", "p90", "n", "baseline", "ratio"];
        assert!(values.iter().all(|value| fields.iter().all(|field| value.get(*field).is_some())));
        assert_eq!(values[0]["ratio"], 1.23457);
        assert_eq!(values[1]["median"], serde_json::Value::Null);
    }

    #[test]
    fn what_is_no_such_file_is_named() {
        for (text, part) in [
            ("{", "no JSON"),
            ("{}", "no list of figures"),
            (r#"[{"measure":"load"}]"#, "load has no format, expected 1"),
            (r#"[{"measure":"load","format":9}]"#, "load has format 9, expected 1; measure again"),
            (r#"[{"measure":"load","format":1}]"#, "missing field"),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
        let missing = Path::new("/nonexistent/figures.json");
        for error in [read(missing).unwrap_err(), writable(missing).unwrap_err()] {
            assert!(error.to_string().contains("/nonexistent/figures.json"), "{error}");
        }
    }
}
