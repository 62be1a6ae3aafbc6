// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages of a process.

use super::{EagerRecord, OptionsRecord, ProcessRecord};
use crate::messages::{Messages, Name};
use crate::options::Options;
use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::time::Duration;
use telegraphos::ffi::boundary::{call, fill, free, give, given, given_as, name_of, offer, taken};
use telegraphos::{Node, c_functions};
use telegraphos_msg_core::Error as Refused;

/// Messages in C, which its threads keep open.
#[derive(Debug)]
pub struct SharedMessages(pub(super) Arc<Messages>);

c_functions! { MESSAGES;
    /// Opens messages for this process, which is another one each time. Processes of the same user, on any node, with
    /// equal options, can send to it. The node belongs to them from now on, and is closed if this fails: for everything
    /// else, open another one. options may be NULL.
    fn tg_msg_open(node: *mut Node, options: *const OptionsRecord, messages: *mut *mut SharedMessages) -> c_int = {
        let node = taken(node);
        give(messages, || {
            let node = node?;
            let options = options.as_ref().map_or(Ok(Options::default()), |options| options.options())?;
            Ok(SharedMessages(Arc::new(Messages::open(node, options)?)))
        })
    };

    /// Closes messages. Threads of them that are open keep them open. Sends and receives that have not ended end then.
    fn tg_msg_close(messages: *mut SharedMessages) -> () = free(messages);

    /// Fills options with those of s4: 32 fragments of blocks of 64 KiB less a header of 40 bytes, no longer message.
    fn tg_msg_paper_options(options: *mut OptionsRecord) -> c_int =
        fill(options, "the place for the options", || Ok(OptionsRecord::paper()));

    /// This process.
    fn tg_msg_process_of(messages: *const SharedMessages, process: *mut ProcessRecord) -> c_int =
        fill(process, "the place for the process", || Ok(given(messages)?.0.process().into()));

    /// The number of ports that have been opened, or a negative errno.
    fn tg_msg_ports(messages: *const SharedMessages) -> c_int =
        // At most 64.
        call(messages, |m| Ok(m.0.ports() as c_int));

    /// Gives this process a name on its node, by which others find it.
    fn tg_msg_publish(messages: *const SharedMessages, name: *const c_char, published: *mut *mut Name) -> c_int =
        give(published, || given(messages)?.0.publish(name_of(name)?));

    /// Takes a name back.
    fn tg_msg_unpublish(published: *mut Name) -> () = free(published);

    /// The process of that name on a node; -ENOENT if there is none. process may be NULL.
    fn tg_msg_find(
        messages: *const SharedMessages, node: u16, name: *const c_char, process: *mut ProcessRecord
    ) -> c_int = call(messages, |m| offer(process, m.0.find(node, name_of(name)?)?.into()));

    /// Connects to a process, for at most so many nanoseconds. The first message to it does so, too, for at most 10
    /// seconds.
    fn tg_msg_connect(messages: *const SharedMessages, process: *const ProcessRecord, nanoseconds: u64) -> c_int =
        call(messages, |m| {
            let process = given_as(process, "the process")?.process()?;
            m.0.connect(process, Duration::from_nanos(nanoseconds))
        });

    /// Which messages to a process go to slots now; -ECONNRESET if it is not connected. eager may be NULL.
    fn tg_msg_eager_to(
        messages: *const SharedMessages, process: *const ProcessRecord, eager: *mut EagerRecord
    ) -> c_int = call(messages, |m| {
        let process = given_as(process, "the process")?.process()?;
        offer(eager, m.0.eager(process).ok_or(Refused::NoProcess(process))?.into())
    });
}
