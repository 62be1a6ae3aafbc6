// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which of QEMU's machines a guest is.

use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// A machine, as `--machine` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Machine {
    /// PCI Express, with a root port for the board.
    #[default]
    Q35,
    /// PCI without Express: the board is on the first bus.
    Pc,
}

impl Machine {
    /// QEMU's `-machine`, with the memory backend `ram` and without what guests do not use.
    pub(crate) fn option(self) -> String {
        format!("{self},memory-backend=ram,hpet=off,smm=off,vmport=off,usb=off,sata=off,smbus=off")
    }

    /// QEMU's name of its first PCI bus.
    pub fn bus(self) -> &'static str {
        match self {
            Machine::Q35 => "pcie.0",
            Machine::Pc => "pci.0",
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Machine::Q35 => "q35",
            Machine::Pc => "pc",
        })
    }
}

impl FromStr for Machine {
    type Err = Error;

    fn from_str(text: &str) -> Result<Machine> {
        match text {
            "q35" => Ok(Machine::Q35),
            "pc" => Ok(Machine::Pc),
            "microvm" => Err(Error::Usage(
                "the machine microvm is not supported: its guests do not come up reliably with PCI (pcie=on), and the \
                 agent needs a second serial port, which it has not; give q35 or pc"
                    .into(),
            )),
            _ => Err(Error::Usage(format!("unknown machine {text:?}; expected q35 or pc"))),
        }
    }
}

crate::error::read_as_text!(Machine);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_known_by_name_and_others_refused_with_the_reason() {
        for machine in [Machine::Q35, Machine::Pc] {
            assert_eq!(machine.to_string().parse::<Machine>().unwrap(), machine);
            assert!(machine.option().starts_with(&format!("{machine},memory-backend=ram,")));
        }
        for (wrong, words) in
            [("microvm", "do not come up"), ("microvm", "serial"), ("isapc", "\"isapc\""), ("", "q35 or pc")]
        {
            let text = wrong.parse::<Machine>().unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
    }
}
