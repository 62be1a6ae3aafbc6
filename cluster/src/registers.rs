// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registers of a guest's board.

use crate::{Error, Guest, Result};
use serde_json::json;
use telegraphos_wire::regs::Register;

/// Prints the line of BAR0 of the board's device, which begins with its address.
const FIND: &str =
    "for d in /sys/bus/pci/devices/*; do [ \"$(cat $d/vendor)\" = 0x7e1e ] && head -n 1 $d/resource; done";

impl Guest {
    /// Registers of its board, read as QEMU reads them for the guest's processors: the guest notices nothing.
    pub fn registers<const N: usize>(&self, registers: [Register; N]) -> Result<[u64; N]> {
        let failed = |command: &str, said: &str| Error::Command {
            node: self.label().clone(),
            command: command.into(),
            why: format!("expected the address or value of a register, found {said:?}"),
        };
        let resource = self.sh(FIND).check()?;
        let base = resource.split_whitespace().next().and_then(hex).ok_or_else(|| failed(FIND, &resource))?;
        let mut values = [0; N];
        for (value, register) in values.iter_mut().zip(registers) {
            let line = format!("xp /1gx {:#x}", base + register.offset());
            let said = self.qmp("human-monitor-command", json!({ "command-line": line }))?;
            let said = said.as_str().unwrap_or_default();
            *value = said.split_whitespace().nth(1).and_then(hex).ok_or_else(|| failed(&line, said))?;
        }
        Ok(values)
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}
