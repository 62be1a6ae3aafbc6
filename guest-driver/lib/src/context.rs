// SPDX-License-Identifier: MIT OR Apache-2.0
//! A context of the board: what all clones of a node, and all that was made from them, share.

use crate::backoff::CopyPace;
use crate::completion::CompletionChannel;
use crate::destination::Destinations;
use crate::device::Device;
use crate::error::Result;
use crate::launch_style::LaunchStyle;
use crate::slots::Slots;
use std::sync::atomic::{AtomicU8, Ordering};
use telegraphos_wire::{NodeId, context};

/// An open board with the state of its context. It ends, and with it the context, with the last owner.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) device: Device,
    /// This node's id.
    pub(crate) id: NodeId,
    /// Bytes of the unit in which the board counts memory.
    pub(crate) unit: u64,
    number: u8,
    key: Key,
    style: AtomicU8,
    pub(crate) slots: Slots,
    pub(crate) completions: CompletionChannel,
    pub(crate) destinations: Destinations,
    pub(crate) pace: CopyPace,
}

/// The context's key, a secret between this process and the board: never in a log.
#[derive(Clone, Copy)]
struct Key(u64);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Context {
    /// The context of this number and key, with its two pages mapped in `slots`; `unit` is in bytes.
    pub(crate) fn new(device: Device, id: NodeId, unit: u64, number: u8, key: u64, slots: Slots) -> Context {
        Context {
            device,
            id,
            unit,
            number,
            key: Key(key),
            style: AtomicU8::new(LaunchStyle::default() as u8),
            slots,
            completions: CompletionChannel::default(),
            destinations: Destinations::default(),
            pace: CopyPace::default(),
        }
    }

    /// The name of the trust group of this node, if it is in one.
    pub(crate) fn trust_group(&self) -> Result<Option<String>> {
        let info = self.device.info("asking for the trust group")?;
        let name = info.group.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok((!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned()))
    }

    /// How its operations are launched.
    pub(crate) fn launch_style(&self) -> LaunchStyle {
        LaunchStyle::from_u32(self.style.load(Ordering::Relaxed).into()).unwrap_or_default()
    }

    /// How its operations are launched from now on.
    pub(crate) fn set_launch_style(&self, style: LaunchStyle) {
        self.style.store(style as u8, Ordering::Relaxed);
    }

    /// The word that, stored to the argument aperture, passes an address to a slot: the target (`which` 0) or a copy's
    /// source (1).
    pub(crate) fn argument(&self, slot: u32, which: u8) -> u64 {
        context::Argument { context: self.number, slot: slot as u8, which, key: self.key.0 }.encode()
    }

    /// For tests of what does not reach the board: node 0, context 5, pages of memory.
    #[cfg(test)]
    pub(crate) fn without_board() -> Context {
        use crate::sys::Mapping;
        let slots = Slots::new(Mapping::anonymous(4096), Mapping::anonymous(4096));
        Context::new(Device::without_board(), 0, 65536, 5, 0x0123_4567_89ab, slots)
    }
}
