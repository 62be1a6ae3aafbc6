// SPDX-License-Identifier: MIT OR Apache-2.0
//! Figures as Markdown: the table of a run, and what has changed since an earlier one.

use super::catalog::Target;
use super::result::Measure;
use std::collections::BTreeMap;

/// Three significant digits, or more before the point.
pub(super) fn digits(value: f64) -> String {
    match value.abs() {
        a if a >= 100.0 => format!("{value:.0}"),
        a if a >= 10.0 => format!("{value:.1}"),
        a if a >= 1.0 => format!("{value:.2}"),
        a if a >= 0.001 || a == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), digits)
}

/// Rows under a head, padded so that the text is a table without a renderer, too.
fn aligned(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).chain([head[column].len(), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let head: Vec<String> = head.iter().map(|&text| text.to_owned()).collect();
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut out = line(&head) + &line(&rule);
    rows.iter().for_each(|row| out += &line(row));
    out
}

/// All figures. `targets` are those of some of them, by name.
pub(super) fn markdown(list: &[Measure], targets: &BTreeMap<String, Target>) -> String {
    let row = |m: &Measure| {
        let target = targets.get(&m.measure).map_or_else(String::new, |target| {
            let verdict = m.ratio.or(m.median).map_or("not measured", |x| if target.met(x) { "met" } else { "missed" });
            format!("{target} {verdict}")
        });
        vec![
            m.measure.clone(),
            cell(m.median),
            m.unit.clone(),
            format!("{} to {}", cell(m.p10), cell(m.p90)),
            m.n.to_string(),
            cell(m.ratio),
            m.baseline.clone().unwrap_or_default(),
            target,
            m.marks.join("; "),
        ]
    };
    let rows: Vec<Vec<String>> = list.iter().map(row).collect();
    aligned(&["measure", "median", "unit", "p10 to p90", "n", "ratio", "to", "target", "marks"], &rows)
}

/// Both runs, by what can be compared between runs: the ratio where there is one, else the median. Machines and loads
/// differ, so a change is reported only if the tenths of the two runs do not overlap.
pub(super) fn comparison(old: &[Measure], new: &[Measure]) -> String {
    let value = |m: &Measure| m.ratio.or(m.median);
    let mut rows = Vec::new();
    for m in new {
        let before = old.iter().find(|o| o.measure == m.measure);
        let same = before.is_none_or(|o| o.unit == m.unit && o.baseline == m.baseline);
        let note = match before {
            None => "not in the earlier file".to_owned(),
            Some(_) if !same => "compared with something else then".to_owned(),
            Some(o) => changed(o, m),
        };
        let (then, now) = (before.filter(|_| same).and_then(value), value(m));
        let change = then.zip(now).filter(|(then, _)| *then != 0.0).map(|(then, now)| now / then);
        rows.push(vec![m.measure.clone(), cell(then), cell(now), cell(change), note]);
    }
    for o in old.iter().filter(|o| new.iter().all(|m| m.measure != o.measure)) {
        rows.push(vec![o.measure.clone(), cell(value(o)), "-".into(), "-".into(), "not measured now".into()]);
    }
    aligned(&["measure (ratio, or median)", "then", "now", "now / then", "remark"], &rows)
}

fn changed(old: &Measure, new: &Measure) -> String {
    // Tenths of the ratio itself are known for figures that are ratios.
    let ends = |m: &Measure| Some((m.p10?, m.p90?));
    match (ends(old), ends(new)) {
        (Some((_, high)), Some((low, _))) if low > high => "above all but a tenth of then".into(),
        (Some((low, _)), Some((_, high))) if high < low => "below all but a tenth of then".into(),
        (Some(_), Some(_)) => String::new(),
        _ => "not measured in both".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, values: &[f64]) -> Measure {
        Measure::of(name, "us", values).against("bare", Some(values[0] / 2.0))
    }

    #[test]
    fn the_table_shows_everything() {
        let targets = [("load".to_owned(), Target::AtMost(1.05)), ("gone".to_owned(), Target::AtLeast(4.0))];
        let list = [of("load", &[2.0, 2.0, 1234.0]), Measure::of("gone", "x", &[]).marked(["no device".into()])];
        let text = markdown(&list, &targets.into());
        let words = |n: usize| text.lines().nth(n).unwrap().split('|').map(str::trim).collect::<Vec<_>>();
        assert_eq!(words(2), ["", "load", "2.00", "us", "2.00 to 988", "3", "1.00", "bare", "<= 1.05 met", "", ""]);
        assert_eq!(words(3), ["", "gone", "-", "x", "- to -", "0", "-", "", ">= 4 not measured", "no device", ""]);
        assert!(text.lines().all(|line| line.len() == text.lines().next().unwrap().len()), "{text}");
    }

    #[test]
    fn a_change_is_reported_when_the_tenths_do_not_overlap() {
        let old = [of("load", &[2.0; 9]), of("same", &[2.0; 9]), of("gone", &[1.0; 9]), of("other", &[1.0; 9])];
        let mut other = of("other", &[1.0; 9]);
        other.baseline = Some("another".into());
        let new = [of("load", &[3.0; 9]), of("same", &[2.0, 2.0, 9.0]), of("new", &[1.0; 9]), other];
        let text = comparison(&old, &new);
        let row = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!("| {name} "))).unwrap();
            line.split('|').skip(2).map(str::trim).collect::<Vec<_>>().join(" ").trim().to_owned()
        };
        assert_eq!(row("load"), "1.00 1.50 1.50 above all but a tenth of then");
        assert_eq!(row("same"), "1.00 1.00 1.00");
        assert_eq!(row("new"), "- 0.500 - not in the earlier file");
        assert_eq!(row("other"), "- 0.500 - compared with something else then");
        assert_eq!(row("gone"), "0.500 - - not measured now");
        assert!(comparison(&new, &old).contains("below all but a tenth of then"));
    }
}
