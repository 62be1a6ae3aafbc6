// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of a process.

use crate::error::{Error, Result};
use crate::neighbours;
use crate::options::Options;
use crate::shared::Shared;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use telegraphos::{Node, Rights, Segment};
use telegraphos_msg_core::routes::Route;
use telegraphos_msg_core::{Eager, Process};
use telegraphos_wire::names;

/// The messages of a process.
#[derive(Debug)]
pub struct Messages {
    pub(crate) shared: Arc<Shared>,
}

/// A name of a process, until it is dropped.
#[derive(Debug)]
pub struct Name {
    segment: Option<Segment>,
    name: String,
    shared: Arc<Shared>,
}

impl Drop for Name {
    fn drop(&mut self) {
        if self.shared.here().is_err() {
            // The opener's.
            std::mem::forget((self.segment.take(), self.shared.clone()));
            return;
        }
        self.shared.has_name(&self.name, false);
    }
}

impl Messages {
    /// Opens messages for this process, which is another [`Process`] each time. Processes of the same user, on any
    /// node, with an equal configuration, can send to it.
    pub fn open(node: Node, options: impl Into<Options>) -> Result<Messages> {
        let options = options.into();
        let listener = neighbours::listener(&options)?;
        let listens_at = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let messages = Messages { shared: Shared::open(node, options, listens_at)? };
        neighbours::start(&messages.shared, listener)?;
        Ok(messages)
    }

    /// This process.
    pub fn process(&self) -> Process {
        self.shared.me
    }

    /// [Ports](Options::ports) that have been opened.
    pub fn ports(&self) -> usize {
        self.shared.open_ports().count()
    }

    /// Gives this process a name on its node, by which others find it. Processes beyond the cluster do if it takes part
    /// in [routing](crate::Routing), and has not more than 64 names of up to 200 bytes.
    pub fn publish(&self, name: &str) -> Result<Name> {
        self.shared.here()?;
        let segment = self.shared.node.export(&names::of_process(name), 8).mode(0o400).create()?;
        // With a bit more, so that 0 is not there yet.
        segment.store(0, u64::from(self.shared.me.number) | 1 << 32)?;
        self.shared.has_name(name, true);
        Ok(Name { segment: Some(segment), name: name.to_owned(), shared: self.shared.clone() })
    }

    /// The process of that name on a node.
    ///
    /// # Errors
    ///
    /// [`Error::NoName`].
    pub fn find(&self, node: u16, name: &str) -> Result<Process> {
        self.shared.here()?;
        let none = || Error::NoName { node, name: name.to_owned() };
        let Some(local) = self.shared.nodes.local(node) else {
            return self.shared.find_far(node, name).ok_or_else(none);
        };
        let import = self.shared.node.import(local, &names::of_process(name)).rights(Rights::READ).soft().open();
        let word = import.map_err(|_| none())?.get64(0)?;
        if word >> 32 != 1 {
            return Err(none());
        }
        Ok(Process { node, number: word as u32 })
    }

    /// Processes that are reached over streams, with the paths that lead there and their names.
    pub fn routes(&self) -> Vec<Route> {
        self.shared.routes()
    }

    /// Where neighbours connect to, if they may.
    pub fn listens_at(&self) -> Option<SocketAddr> {
        self.shared.listens_at
    }

    /// Connects to a process, for at most this time. The first message to it does so, too.
    ///
    /// # Errors
    ///
    /// [`Error::NotReached`], [`Error::NoAnswer`], [`Error::Unlike`].
    pub fn connect(&self, process: Process, time: Duration) -> Result<()> {
        self.shared.here()?;
        self.shared.connect(process, time)
    }

    /// Which messages to a process go to slots now, if it is connected:
    /// [`Config::eager_floor`](crate::Config::eager_floor) and [`Config::eager`](crate::Config::eager)
    /// are the bounds.
    pub fn eager(&self, process: Process) -> Option<Eager> {
        self.shared.lock().engine.eager(process)
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        if self.shared.here().is_err() {
            // The opener closes what is open.
            std::mem::forget(self.shared.clone());
            return;
        }
        self.shared.close();
        self.shared.join();
    }
}
