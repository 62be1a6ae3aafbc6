// SPDX-License-Identifier: MIT OR Apache-2.0
//! The log of a server: filtered by `env_logger`'s filters, which can be changed while it runs; as text for people, or
//! one JSON object per line for machines (`docs/monitoring.md`).

use std::borrow::Cow;
use std::cell::Cell;
use std::io::Write;
use std::sync::{PoisonError, RwLock};

use log::kv::{Error as KvError, Key, Value, VisitSource};
use log::{LevelFilter, Log, Metadata, Record};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// What is logged by default.
pub const DEFAULT_FILTER: &str = "info";

struct State {
    logger: env_logger::Logger,
    filter: String,
    format: LogFormat,
    node: Option<u16>,
}

impl State {
    fn new(filter: &str, format: LogFormat, node: Option<u16>) -> State {
        let mut builder = env_logger::Builder::new();
        builder.parse_filters(filter);
        if format == LogFormat::Json {
            builder.format(move |out, record| {
                let time = out.timestamp_micros().to_string();
                writeln!(out, "{}", json(&time, NODE.get().or(node), record))
            });
        }
        State { logger: builder.build(), filter: filter.to_owned(), format, node }
    }
}

struct ServerLog(RwLock<Option<State>>);

static LOG: ServerLog = ServerLog(RwLock::new(None));

thread_local! {
    /// The node whose server this thread runs, in a process with several.
    static NODE: Cell<Option<u16>> = const { Cell::new(None) };
}

/// From now on, lines of this thread are those of the server of `node`, which they name; with `None` again those of the
/// process.
pub fn of_node(node: Option<u16>) {
    NODE.set(node);
}

impl Log for ServerLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let state = self.0.read().unwrap_or_else(PoisonError::into_inner);
        state.as_ref().is_some_and(|s| s.logger.enabled(metadata))
    }

    fn log(&self, record: &Record<'_>) {
        if let Some(state) = &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            let text = Some(record.args()).filter(|_| state.format == LogFormat::Text);
            let message = text.and_then(|args| match (escaped(args), NODE.get()) {
                (escaped, None) => escaped,
                (Some(message), Some(node)) => Some(format!("node {node}: {message}")),
                (None, Some(node)) => Some(format!("node {node}: {args}")),
            });
            match message {
                None => state.logger.log(record),
                Some(message) => state.logger.log(
                    &Record::builder()
                        .metadata(record.metadata().clone())
                        .args(format_args!("{message}"))
                        .module_path(record.module_path())
                        .file(record.file())
                        .line(record.line())
                        .build(),
                ),
            }
        }
    }

    fn flush(&self) {}
}

/// A message with its control characters escaped, if it has any: names come from guests and peers, and a line of the
/// log is one line.
fn escaped(message: &std::fmt::Arguments<'_>) -> Option<String> {
    let text = match message.as_str() {
        Some(text) => text.into(),
        None => Cow::from(message.to_string()),
    };
    match printable(&text, &[]) {
        Cow::Owned(safe) => Some(safe),
        Cow::Borrowed(_) => None,
    }
}

/// A text with its control characters escaped, but for those that are `kept`: what guests and peers have written is not
/// to move the cursor of a terminal, nor to hide or reorder anything.
pub fn printable<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    let hidden = |c: char| {
        (c.is_control() && !kept.contains(&c))
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(hidden) {
        return text.into();
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if hidden(c) { safe.extend(c.escape_unicode()) } else { safe.push(c) }
    }
    safe.into()
}

fn install(state: State) {
    log::set_max_level(state.logger.filter());
    *LOG.0.write().unwrap_or_else(PoisonError::into_inner) = Some(state);
}

/// Starts the log of this process. `node` is put into each JSON line of a server that is one node's. A logger that is
/// there already (another command runs us) stays.
pub fn start(filter: Option<&str>, format: LogFormat, node: Option<u16>) {
    if log::set_logger(&LOG).is_ok() {
        install(State::new(filter.unwrap_or(DEFAULT_FILTER), format, node));
    }
}

/// The filter in force; empty where another logger is installed.
pub fn filter() -> String {
    LOG.0.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(|s| s.filter.clone()).unwrap_or_default()
}

/// Changes what is logged from now on. Errors name what was not understood.
pub fn set_filter(filter: &str) -> Result<(), String> {
    check(filter)?;
    let (format, node) = match &*LOG.0.read().unwrap_or_else(PoisonError::into_inner) {
        Some(state) => (state.format, state.node),
        None => return Err("the log belongs to another program that runs this server: change its level there".into()),
    };
    install(State::new(filter, format, node));
    Ok(())
}

/// `env_logger` takes a word that is no level for the name of a module and silences all others: more often it is a
/// slip.
fn check(filter: &str) -> Result<(), String> {
    let refuse = |part: &str| {
        Err(format!(
            "{part:?} is no log level: expected off, error, warn, info, debug or trace, or TARGET=LEVEL, with commas"
        ))
    };
    for part in filter.split('/').next().unwrap_or("").split(',') {
        let level = match part.rsplit_once('=') {
            Some((target, level)) if !target.trim().is_empty() => level,
            Some(_) => return refuse(part),
            None => part,
        };
        if level.trim().parse::<LevelFilter>().is_err() {
            return refuse(part);
        }
    }
    Ok(())
}

struct Line<'a> {
    time: &'a str,
    node: Option<u16>,
    record: &'a Record<'a>,
}

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("time", self.time)?;
        map.serialize_entry("level", &self.record.level().as_str().to_ascii_lowercase())?;
        map.serialize_entry("target", self.record.target())?;
        map.serialize_entry("message", &self.record.args().to_string())?;
        let mut pairs =
            Pairs { map, failed: None, seen: vec!["time".into(), "level".into(), "target".into(), "message".into()] };
        if let Some(node) = self.node {
            pairs.entry("node", &node);
        }
        // It continues to the end: failures are kept.
        let _ = self.record.key_values().visit(&mut pairs);
        match pairs.failed {
            Some(e) => Err(e),
            None => pairs.map.end(),
        }
    }
}

/// The keys and values of a record, written as fields.
struct Pairs<M: SerializeMap> {
    map: M,
    failed: Option<M::Error>,
    /// A key is written once; the fields of every line come first.
    seen: Vec<String>,
}

impl<M: SerializeMap> Pairs<M> {
    fn entry(&mut self, key: &str, value: &impl Serialize) {
        if self.failed.is_none() && !self.seen.iter().any(|k| k == key) {
            self.seen.push(key.to_owned());
            self.failed = self.map.serialize_entry(key, value).err();
        }
    }
}

impl<'kvs, M: SerializeMap> VisitSource<'kvs> for Pairs<M> {
    /// Numbers and truth values are written as such, all else as text.
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), KvError> {
        let key = key.as_str();
        if let Some(number) = value.to_u64() {
            self.entry(key, &number);
        } else if let Some(number) = value.to_i64() {
            self.entry(key, &number);
        } else if let Some(number) = value.to_f64() {
            self.entry(key, &number);
        } else if let Some(truth) = value.to_bool() {
            self.entry(key, &truth);
        } else {
            self.entry(key, &value.to_string());
        }
        Ok(())
    }
}

/// One record as one JSON object.
fn json(time: &str, node: Option<u16>, record: &Record<'_>) -> String {
    // Keys are text and values are values: nothing there can fail.
    serde_json::to_string(&Line { time, node, record })
        .unwrap_or_else(|e| format!("{{\"level\":\"error\",\"message\":\"{e}\"}}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use log::Level;

    fn line(node: Option<u16>, args: std::fmt::Arguments<'_>, pairs: &dyn log::kv::Source) -> String {
        let record =
            Record::builder().level(Level::Warn).target("telegraphos_fabric").args(args).key_values(&pairs).build();
        json("2026-11-21T17:00:00.000001Z", node, &record)
    }

    #[test]
    fn a_line_is_one_object_with_its_keys_and_values() {
        let pairs = [("node", Value::from(3)), ("trunk", Value::from("0-1")), ("up", Value::from(true))];
        assert_eq!(
            line(None, format_args!("gone: \"x\"\n"), &&pairs[..]),
            r#"{"time":"2026-11-21T17:00:00.000001Z","level":"warn","target":"telegraphos_fabric","message":"gone: \"x\"\n","node":3,"trunk":"0-1","up":true}"#
        );
    }

    #[test]
    fn a_name_cannot_begin_a_line() {
        let name = "x\n[2026-11-22T00:00:00Z INFO  fabric] node 3 joined\u{1b}[2K\u{202e}";
        let message = escaped(&format_args!("no segment {name}")).unwrap();
        assert_eq!(message, "no segment x\\u{a}[2026-11-22T00:00:00Z INFO  fabric] node 3 joined\\u{1b}[2K\\u{202e}");
        assert_eq!(escaped(&format_args!("plain: \"ä\", {}", 5)), None);
        assert_eq!(printable("a\tb\nc\x1b[2Jd", &['\n', '\t']), "a\tb\nc\\u{1b}[2Jd");
    }

    #[test]
    fn no_key_comes_twice() {
        let pairs = [("message", Value::from("other")), ("node", Value::from(7)), ("link", Value::from(7))];
        let text = line(Some(2), format_args!("m"), &&pairs[..]);
        assert!(text.ends_with(r#""message":"m","node":2,"link":7}"#), "{text}");
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["message"], "m");
    }

    #[test]
    fn a_filter_is_checked_and_changed() {
        for good in ["info", "off", "WARN", "info,telegraphos_fabric::shell=debug", "debug/pattern"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["", "loud", "info,", "=debug", "telegraphos_fabric", "x=loud"] {
            let error = check(bad).unwrap_err();
            assert!(error.contains("expected off, error"), "{bad}: {error}");
        }
        // A logger of another library stays as it is.
        let before = log::max_level();
        if filter().is_empty() {
            assert!(set_filter("debug").is_err());
            assert_eq!(log::max_level(), before);
        }
        start(Some("warn"), LogFormat::Json, None);
        set_filter("debug,rustix=off").unwrap();
        assert_eq!((filter().as_str(), log::max_level()), ("debug,rustix=off", LevelFilter::Debug));
        set_filter("off").unwrap();
    }
}
