// SPDX-License-Identifier: MIT OR Apache-2.0
//! What comes of a child's action that does not succeed.

use telegraphos::Error;

/// Exit code of a child whose action was refused; the errno is its last line.
pub(crate) const REFUSED: i32 = 10;
/// Exit code of a child that found something wrong.
pub(crate) const WRONG: i32 = 11;

pub(crate) enum Trouble {
    Refused(Error),
    Wrong(String),
}

impl From<String> for Trouble {
    fn from(text: String) -> Trouble {
        Trouble::Wrong(text)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Refused(error)
    }
}

pub(crate) fn number(text: &str) -> Result<u64, Trouble> {
    text.parse().map_err(|_| Trouble::Wrong(format!("{text:?} is no number")))
}
