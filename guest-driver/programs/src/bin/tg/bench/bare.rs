// SPDX-License-Identifier: MIT OR Apache-2.0
//! The floor: a device behind vfio-user that has a register and nothing else, served by a bare loop that sleeps or
//! polls, or by the crate `vfio_user`. Its server also measures on the host, so that such figures are of the same
//! rounds.

use super::shared::Shared;
use super::{Options, Round, batch, nanoseconds};
use std::rc::Rc;
use std::time::{Duration, Instant};
use telegraphos_agent::bench::{command, register, shared};
use telegraphos_guest_tests::cli::{self, Failure, Outcome};
use telegraphos_guest_tests::pci::{Bar, Device};
use telegraphos_guest_tests::raw;

pub(crate) struct Bare {
    bar: Outcome<Bar>,
    shared: Option<Rc<Shared>>,
    sequence: u64,
}

/// How long a value may take to come back.
const PATIENCE: Duration = Duration::from_secs(5);

impl Bare {
    pub(crate) fn open(slot: u8, shared: Option<Rc<Shared>>) -> Bare {
        let bar = Device::enabled_at(slot, "such device").and_then(|device| device.map(0));
        Bare { bar, shared, sequence: 0 }
    }

    fn store(&self, at: u64, value: u64) {
        if let Ok(bar) = &self.bar {
            // SAFETY: registers are aligned and in the mapped BAR.
            unsafe { raw::store::<u64>(bar.at(), at, value) };
        }
    }

    fn load(&self, at: u64) -> u64 {
        // SAFETY: as above.
        self.bar.as_ref().map_or(u64::MAX, |bar| unsafe { raw::load::<u64>(bar.at(), at) })
    }

    fn present(&self) -> Outcome<()> {
        self.bar.as_ref().map(drop).map_err(Failure::clone)
    }

    /// One store, with an idle server before it; a stream until all of it has been served; a load.
    fn accesses(&self, options: &Options) -> Outcome<[f64; 3]> {
        self.present()?;
        let mut isolated = 0.0;
        for index in 0..options.singles {
            let begun = Instant::now();
            self.store(register::DATA, index);
            isolated += nanoseconds(begun, 1);
            self.load(register::DATA);
        }
        let begun = Instant::now();
        for index in 0..options.stream {
            self.store(register::DATA, index);
        }
        let last = self.load(register::DATA);
        let drained = nanoseconds(begun, options.stream);
        cli::check(last == options.stream - 1, || format!("it holds {last}: expected {}", options.stream - 1))?;
        let load = batch(options.singles, |_| _ = self.load(register::DATA));
        Ok([isolated / options.singles as f64, drained, load])
    }

    /// A store until the server's store to shared memory is seen.
    fn oneway(&mut self, options: &Options) -> Outcome<f64> {
        let Some(memory) = self.shared.clone() else {
            return Err(Failure::Refused("there is no ivshmem-plain".into()));
        };
        let mut total = 0.0;
        for _ in 0..options.pings {
            self.sequence += 1;
            let begun = Instant::now();
            self.store(register::DATA, self.sequence);
            memory.until(shared::BARE, self.sequence, PATIENCE)?;
            total += nanoseconds(begun, 1);
            // The server has gone to sleep again, if it sleeps.
            self.load(register::DATA);
        }
        Ok(total / options.pings as f64)
    }

    pub(crate) fn round(&mut self, values: &mut Round<'_>, options: &Options) {
        let names = [
            ["bare_blocked_store_isolated", "bare_blocked_store_drained", "bare_blocked_load", "bare_blocked_oneway"],
            [
                "bare_spinning_store_isolated",
                "bare_spinning_store_drained",
                "bare_spinning_load",
                "bare_spinning_oneway",
            ],
        ];
        for (spin, [isolated, drained, load, oneway]) in names.into_iter().enumerate() {
            self.store(register::SPIN, spin as u64);
            self.three(values, options, [isolated, drained, load]);
            values.part(oneway, |ns| Ok(_ = ns.insert(oneway.into(), self.oneway(options)?)));
            self.store(register::SPIN, 0);
        }
        for (name, command) in [
            ("host_unix_roundtrip_blocked", command::UNIX_BLOCKED),
            ("host_unix_roundtrip_spinning", command::UNIX_SPINNING),
        ] {
            values.part(name, |ns| Ok(_ = ns.insert(name.into(), self.on_host(command, options.pings)?)));
        }
    }

    pub(crate) fn crate_round(&mut self, values: &mut Round<'_>, options: &Options) {
        self.three(values, options, ["crate_store_isolated", "crate_store_drained", "crate_load"]);
    }

    fn three(&self, values: &mut Round<'_>, options: &Options, names: [&'static str; 3]) {
        let why = match self.accesses(options) {
            Ok(found) => {
                values.ns.extend(names.into_iter().map(str::to_owned).zip(found));
                return;
            }
            Err(why) => why.to_string(),
        };
        names.into_iter().for_each(|name| values.exclude(name, &why));
    }

    /// Nanoseconds that the server measures.
    pub(crate) fn on_host(&self, command: u64, argument: u64) -> Outcome<f64> {
        self.present()?;
        self.store(register::COMMAND, command << command::SHIFT | argument);
        match self.load(register::RESULT) {
            u64::MAX => Err(Failure::Refused(format!("the host could not measure (command {command})"))),
            ns => Ok(ns as f64),
        }
    }
}
