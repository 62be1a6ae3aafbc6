// SPDX-License-Identifier: MIT OR Apache-2.0
//! Command lines, and how a program ends.

use lexopt::{Arg, Parser, ValueExt};
use std::ffi::OsString;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

/// Why a program ends before its time.
#[derive(Clone, Debug)]
pub enum Failure {
    /// A check failed: exit code 1.
    Check(String),
    /// The command line is wrong: exit code 2.
    Usage(String),
    /// The board, the driver or a peer refused: exit code 3.
    Refused(String),
    /// Help was requested: exit code 0.
    Help,
    /// What there is to say has been said: this exit code.
    Code(i32),
}

/// Result of a program's parts.
pub type Outcome<T> = Result<T, Failure>;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Check(text) | Failure::Usage(text) | Failure::Refused(text) => f.write_str(text),
            Failure::Help | Failure::Code(_) => Ok(()),
        }
    }
}

/// What a check of this crate's library has found.
impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::Check(text)
    }
}

#[cfg(feature = "all")]
impl From<telegraphos_msg::Error> for Failure {
    fn from(error: telegraphos_msg::Error) -> Failure {
        match error {
            telegraphos_msg::Error::Failed(telegraphos_msg::Failure::Gone) => {
                Failure::Check("the other process has gone".into())
            }
            error => Failure::Refused(error.to_string()),
        }
    }
}

#[cfg(feature = "all")]
impl From<telegraphos_channel::Error> for Failure {
    fn from(error: telegraphos_channel::Error) -> Failure {
        use telegraphos_channel::Error::{Gone, TimedOut, Violation};
        match error {
            error @ (Gone { .. } | TimedOut { .. } | Violation { .. }) => Failure::Check(error.to_string()),
            error => Failure::Refused(error.to_string()),
        }
    }
}

impl From<telegraphos::Error> for Failure {
    fn from(error: telegraphos::Error) -> Failure {
        Failure::Refused(error.to_string())
    }
}

impl From<lexopt::Error> for Failure {
    fn from(error: lexopt::Error) -> Failure {
        Failure::Usage(error.to_string())
    }
}

/// Runs a program: its failure goes to stderr, `--help` to stdout.
pub fn main(name: &str, usage: &str, program: impl FnOnce(Line) -> Outcome<()>) -> ExitCode {
    let line = Line { parser: Parser::from_env(), words: Vec::new() };
    let (text, code) = match program(line) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Help) => {
            print!("{usage}");
            return ExitCode::SUCCESS;
        }
        Err(Failure::Code(code)) => return ExitCode::from(code as u8),
        Err(Failure::Usage(text)) => (format!("{text}; see `{name} --help`"), 2),
        Err(Failure::Check(text)) => (text, 1),
        Err(Failure::Refused(text)) => (text, 3),
    };
    eprintln!("{name}: {text}");
    ExitCode::from(code)
}

/// Command line of a program: positional arguments in order, options by name.
pub struct Line {
    parser: Parser,
    /// Arguments that are no options, of those before the option just seen.
    pub words: Vec<String>,
}

pub enum Word {
    /// An option without its dashes.
    Option(String),
    /// Not an option.
    Value(OsString),
}

impl Line {
    /// The next argument; `-h` and `--help` end the program.
    pub fn next_word(&mut self) -> Outcome<Option<Word>> {
        Ok(match self.parser.next()? {
            None => None,
            Some(Arg::Short('h') | Arg::Long("help")) => return Err(Failure::Help),
            Some(Arg::Short(letter)) => Some(Word::Option(letter.to_string())),
            Some(Arg::Long(name)) => Some(Word::Option(name.to_owned())),
            Some(Arg::Value(value)) => Some(Word::Value(value)),
        })
    }

    pub fn next_option(&mut self) -> Outcome<Option<String>> {
        while let Some(word) = self.next_word()? {
            match word {
                Word::Option(option) => return Ok(Some(option)),
                Word::Value(value) => self.words.push(text(value)?),
            }
        }
        Ok(None)
    }

    /// After the last option: the arguments that are none.
    pub fn words(&self) -> Vec<&str> {
        self.words.iter().map(String::as_str).collect()
    }

    /// The same where those of these names are needed, and no others.
    pub fn only<const N: usize>(&self, names: [&str; N]) -> Outcome<[&str; N]> {
        if let Some(word) = self.words.get(N) {
            return Err(Failure::Usage(format!("{word:?} is not expected")));
        }
        let missing = |words: Vec<&str>| Failure::Usage(format!("{} is missing", names[words.len()]));
        self.words().try_into().map_err(missing)
    }

    /// The same where as many are needed as `names` has, whatever they are.
    pub fn exactly<const N: usize>(&self, names: &str) -> Outcome<[&str; N]> {
        let wrong = |words: Vec<&str>| Failure::Usage(format!("{} arguments: expected {names}", words.len()));
        self.words().try_into().map_err(wrong)
    }

    /// The value of the option just seen.
    pub fn text(&mut self) -> Outcome<String> {
        Ok(self.parser.value()?.string()?)
    }

    /// A number as the value of the option just seen.
    pub fn number<T: TryFrom<u64>>(&mut self, what: &str) -> Outcome<T> {
        number(what, &self.text()?)
    }

    /// One of some words, which have these meanings, as the value of the option just seen.
    pub fn one_of<T, const N: usize>(&mut self, what: &str, words: [(&str, T); N], expected: &str) -> Outcome<T> {
        let text = self.text()?;
        let found = words.into_iter().find(|(word, _)| *word == text);
        found.map(|(_, meaning)| meaning).ok_or_else(|| bad(what, &text, expected))
    }

    /// Seconds as the value of the option just seen.
    pub fn seconds(&mut self, what: &str) -> Outcome<Duration> {
        let text = self.text()?;
        let seconds = text.parse::<f64>().ok().filter(|s| (0.0..1e9).contains(s));
        seconds.map(Duration::from_secs_f64).ok_or_else(|| bad(what, &text, "seconds, as 10 or 0.5"))
    }
}

fn bad(what: &str, found: &str, expected: &str) -> Failure {
    Failure::Usage(format!("{what} is {found:?}: expected {expected}"))
}

/// A number: decimal, `0x` hexadecimal, with `_` where one likes; K, M and G multiply by 1024.
pub fn number<T: TryFrom<u64>>(what: &str, text: &str) -> Outcome<T> {
    let clean = text.replace('_', "");
    let (digits, radix) = match clean.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (clean.as_str(), 10),
    };
    let (digits, shift) = match digits.char_indices().last() {
        Some((at, 'K' | 'k')) => (&digits[..at], 10),
        Some((at, 'M' | 'm')) => (&digits[..at], 20),
        Some((at, 'G' | 'g')) => (&digits[..at], 30),
        _ => (digits, 0),
    };
    let value = u64::from_str_radix(digits, radix).ok().and_then(|v| v.checked_mul(1 << shift));
    value.and_then(|v| T::try_from(v).ok()).ok_or_else(|| {
        let most = u64::MAX >> (64 - 8 * size_of::<T>().min(8));
        bad(what, text, &format!("a number up to {most}, as 4096, 0x1000 or 4K"))
    })
}

/// A positional argument as text.
pub fn text(value: OsString) -> Outcome<String> {
    Ok(value.string()?)
}

/// An option that a program does not know.
pub fn unknown(name: &str) -> Failure {
    let dashes = if name.len() == 1 { "-" } else { "--" };
    Failure::Usage(format!("option {dashes}{name} is unknown"))
}

/// What was refused, for a reason that says all.
pub fn refused(reason: impl fmt::Display) -> Failure {
    Failure::Refused(reason.to_string())
}

/// The same where the reason does not say of what.
pub fn failed<E: fmt::Display>(what: impl fmt::Display) -> impl Fn(E) -> Failure {
    move |reason| Failure::Refused(format!("{what}: {reason}"))
}

/// The lines of standard input.
pub fn lines() -> impl Iterator<Item = Outcome<String>> {
    std::io::stdin().lines().map(|line| line.map_err(failed("standard input")))
}

/// A check: `Err` with the message unless it holds.
pub fn check(holds: bool, message: impl FnOnce() -> String) -> Outcome<()> {
    must(holds, Failure::Check, message)
}

/// The same of what a command line must have, or the board or a peer must grant.
pub fn must(holds: bool, otherwise: fn(String) -> Failure, message: impl FnOnce() -> String) -> Outcome<()> {
    if holds { Ok(()) } else { Err(otherwise(message())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read() {
        for (text, value) in [("0", 0), ("4096", 4096), ("0x1000", 4096), ("4K", 4096), ("100_000", 100_000)] {
            assert_eq!(number::<u64>("x", text).unwrap(), value, "{text}");
        }
        assert_eq!(number::<u64>("x", "0xffffffffffffffff").unwrap(), u64::MAX);
        for bad in ["", "K", "-1", "0x", "1T", "16777216T", "17179869184G"] {
            assert!(number::<u64>("x", bad).is_err(), "{bad}");
        }
        let error = number::<u16>("node", "65536").unwrap_err().to_string();
        assert_eq!(error, "node is \"65536\": expected a number up to 65535, as 4096, 0x1000 or 4K");
    }
}
