// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that exchange messages are killed, and nodes lose their power, in each state: what waits for them is
//! notified in bounded time, and nothing of theirs is left.

use crate::help::{CONT, KILL, LIMIT, STOP, Start, tables, within, without_power};
use crate::processes::{nothing_is_left_at, nothing_is_left_of, serving};
use anyhow::{Context, Result, ensure};
use std::thread::ScopedJoinHandle;
use std::time::Instant;
use telegraphos_cluster::{Cluster, Guest, GuestCommand, Output, Running};

/// With which code a program ends that waited for what has gone, and what it says, in one of these ways.
#[derive(Clone, Copy)]
pub(crate) struct Told(u8, &'static [&'static str]);

pub(crate) const GONE: Told = Told(1, &["the other process has gone"]);
/// Or another one, which was notified before, was closing its threads.
pub(crate) const GONE_OR_GOING: Told =
    Told(1, &["the other process has gone", "the thread that it is for is not there"]);
/// It was being connected to.
const NOT_REACHED: Told = Told(3, &["is not reached"]);

/// In which state a program waits, what is to be reported to it, and the program.
pub(crate) type Waiting = (String, Told, Running);

/// Each does not wait for ever, gets no signal, and says what happened then.
pub(crate) fn are_notified(waiting: Vec<Waiting>, begun: Instant) -> Result<()> {
    std::thread::scope(|scope| {
        all_of(waiting.into_iter().map(|one| scope.spawn(move || is_notified(one, begun))).collect())
    })
}

/// Waits for all of them: the first error.
pub(crate) fn all_of(threads: Vec<ScopedJoinHandle<'_, Result<()>>>) -> Result<()> {
    threads.into_iter().try_for_each(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// Waits for the end of a program that waits for what has gone, and says how long that took.
pub(crate) fn told(what: &str, waiting: Running, begun: Instant) -> Result<Output> {
    let output = waiting.wait_for(LIMIT.saturating_sub(begun.elapsed())).with_context(|| what.to_owned())?;
    println!("  {what}: told after {:.1} s", begun.elapsed().as_secs_f64());
    Ok(output)
}

/// The same of one that says what has happened.
fn is_notified((what, Told(code, words), waiting): Waiting, begun: Instant) -> Result<()> {
    let output = told(&what, waiting, begun)?;
    let right = output.status.code() == code && words.iter().any(|words| output.stderr.contains(words));
    ensure!(right, "{what}: {}: {}{}: expected {code} and {words:?}", output.status, output.stdout, output.stderr);
    Ok(())
}

/// A state of two processes, as `tg-msg` calls it, or that they are connecting; and further words for both.
type State = (&'static str, &'static [&'static str]);

/// Those in which both wait, and one of them may be killed.
const STATES: [State; 5] =
    [("short", &[]), ("long", &[]), ("full", &[]), ("cleared", &["--way", "put"]), ("connecting", &[])];
/// How the bytes of a message go that takes a while.
const WAYS: [&[&str]; 3] = [&[], &["--way", "put"], &["--paper"]];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Receiver,
    Sender,
}

/// Stops a process: when this returns it does nothing any more.
fn stop(node: &Guest, process: &Running) -> Result<()> {
    process.signal(STOP)?;
    let stopped = format!("grep -q '^State:.T' /proc/{}/status", process.pid());
    within(|| Ok(node.sh(&stopped).check().map(drop)?))
}

/// Starts `tg-msg receiver` and `tg-msg sender`, and waits until what is sent has arrived.
pub(crate) fn arrived(receiver: GuestCommand, sender: GuestCommand) -> Result<(Running, Running)> {
    let mut receiver = receiver.keep_input_open().until("serving")?;
    let sender = sender.until("there")?;
    receiver.wait_for_line(LIMIT, |line| line == "there")?;
    Ok((receiver, sender))
}

/// The receiver waits for what the sender does not send, or cannot.
pub(crate) fn receives(receiver: &mut Running) -> Result<()> {
    receiver.write("\n")?;
    receiver.wait_for_line(LIMIT, |line| line == "waiting").map(drop).map_err(Into::into)
}

/// Root's: others may lock little memory.
fn commands(to: &Guest, from: &Guest, (state, options): State, gone: End) -> [GuestCommand; 2] {
    let (node, name) = (to.node().to_string(), format!("{state}{}-{gone:?}", options.concat()));
    let state = match (state, gone) {
        // As far as they are concerned: one of them is stopped before.
        ("connecting", _) => "short",
        ("amid", End::Receiver) => "amid-receiver-dies",
        ("amid", End::Sender) => "amid-sender-dies",
        _ => state,
    };
    [(to, vec!["receiver", &name]), (from, vec!["sender", &node, &name])]
        .map(|(guest, end)| guest.argv(&[&["tg-msg"], &end[..], &[state], options].concat()).as_root())
}

/// Brings two processes into a state: the end that is to go, and the other one.
fn begin(to: &Guest, from: &Guest, (state, options): State, gone: End) -> Result<(Running, Waiting)> {
    let options_of_both = options.join(" ");
    let what = format!("{state} {options_of_both} from node {} to {}, without its {gone:?}", from.node(), to.node());
    let (receiver, sender) = bring(to, from, (state, options), gone).with_context(|| what.clone())?;
    Ok(match (gone, state) {
        (End::Sender, _) => (sender, (what, GONE, receiver)),
        (End::Receiver, "connecting") => (receiver, (what, NOT_REACHED, sender)),
        (End::Receiver, _) => (receiver, (what, GONE, sender)),
    })
}

fn bring(to: &Guest, from: &Guest, state: State, gone: End) -> Result<(Running, Running)> {
    let [receiver, sender] = commands(to, from, state, gone);
    if state.0 == "connecting" {
        return connecting(to, receiver, from, sender);
    }
    let (mut receiver, mut sender) = arrived(receiver, sender)?;
    match state.0 {
        "amid" => return Ok((receiver, sender)),
        "endless" => {
            receiver.wait_for_line(LIMIT, |line| line == "waiting")?;
            return Ok((receiver, sender));
        }
        "full" => drop(sender.wait_for_line(LIMIT, |line| line == "full")?),
        "cleared" => stop(from, &sender)?,
        _ => {}
    }
    receives(&mut receiver)?;
    Ok((receiver, sender))
}

/// The receiver is stopped, and has no inbox for the sender, which has one for it.
fn connecting(to: &Guest, receiver: GuestCommand, from: &Guest, sender: GuestCommand) -> Result<(Running, Running)> {
    let receiver = receiver.keep_input_open().until("serving")?;
    stop(to, &receiver)?;
    let mut sender = sender.spawn()?;
    let said = sender.wait_for_line(LIMIT, |line| line.starts_with("connecting to "))?;
    let inbox = format!(".{}.{}", to.node(), said.rsplit(' ').next().unwrap_or_default());
    within(|| {
        let exports = tables(from, &["exports"])?;
        let is_there = exports.lines().any(|line| line.contains("\"msg.") && line.contains(&inbox));
        ensure!(is_there, "no inbox: {exports}");
        Ok(())
    })?;
    Ok((receiver, sender))
}

/// The sender has gone that was connecting: the receiver continues, and others connect to it.
fn others_connect(mut receiver: Running, sender: GuestCommand) -> Result<()> {
    receiver.signal(CONT)?;
    let _sender = sender.until("there")?;
    receiver.wait_for_line(LIMIT, |line| line == "there").map(drop).map_err(Into::into)
}

/// In each state each end dies: it is killed or, amid the bytes of a message, kills itself, since only it knows that it
/// is there. The other one is notified, and nothing is left.
pub(crate) fn process_dies(cluster: &Cluster) -> Result<()> {
    let (to, from) = (cluster.node(1), cluster.node(0));
    std::thread::scope(|scope| {
        let mut told = Vec::new();
        for state in STATES.into_iter().chain(WAYS.map(|options| ("amid", options))) {
            for gone in [End::Receiver, End::Sender] {
                let (dies, waiting) = begin(to, from, state, gone)?;
                let begun = ends(dies, state.0 == "amid").with_context(|| waiting.0.clone())?;
                match (gone, state.0) {
                    (End::Sender, "connecting") => {
                        let [_, sender] = commands(to, from, state, gone);
                        others_connect(waiting.2, sender)?;
                    }
                    (End::Sender, "amid") => sender_dies_amid(to, from, state, waiting, begun)?,
                    _ => {
                        // One that is stopped continues. Before the other one had gone, it would have reached that.
                        waiting.2.signal(CONT)?;
                        told.push(scope.spawn(move || is_notified(waiting, begun)));
                    }
                }
            }
        }
        all_of(told)
    })?;
    nothing_is_left_of(cluster, "msg")?;
    lives(cluster, "alive", "100000")
}

/// A sender learns by a message that some of its bytes are there. If that took longer than the rest of them, the
/// receiver says so, and both try again.
fn sender_dies_amid(to: &Guest, from: &Guest, state: State, waiting: Waiting, begun: Instant) -> Result<()> {
    let (mut waiting, mut begun) = (waiting, begun);
    for _ in 0..4 {
        let Err(error) = is_notified(waiting, begun) else { return Ok(()) };
        ensure!(error.to_string().contains("the receive has not failed"), error);
        println!("  again: {error}");
        let (dies, again) = begin(to, from, state, End::Sender)?;
        begun = ends(dies, true).with_context(|| again.0.clone())?;
        waiting = again;
    }
    is_notified(waiting, begun)
}

/// Waits for the end of a process, killed if it does not kill itself, and returns since when others may know.
fn ends(process: Running, by_itself: bool) -> Result<Instant> {
    let killed = Instant::now();
    if !by_itself {
        process.signal(KILL)?;
    }
    let output = process.wait_for(LIMIT)?;
    let right = output.status.signal() == Some(KILL) && (output.stdout == "amid\n") == by_itself;
    ensure!(right, "{}: {}{}", output.status, output.stdout, output.stderr);
    Ok(if by_itself { Instant::now() } else { killed })
}

/// A process receives what another one sends it.
fn lives(cluster: &Cluster, name: &str, bytes: &str) -> Result<()> {
    let mut server = serving(cluster.node(1), &["serve", name])?;
    let sender = cluster.node(0).argv(&["tg-msg", "send", "1", name, "3", bytes]).spawn()?;
    server.write("\n")?;
    server.wait_for_line(LIMIT, |line| line == format!("{bytes} bytes with tag 3"))?;
    sender.check(LIMIT)?;
    Ok(())
}

/// A node loses its power, and has processes in each state, as receivers and as senders: those of other nodes are
/// notified while it is off, and nothing of theirs is left. When it is there again, so are processes, of the same
/// names.
pub(crate) fn node_loses_its_power(cluster: &Cluster) -> Result<()> {
    let (other, lost) = (cluster.node(0), cluster.node(1));
    let states = STATES.into_iter().chain(WAYS.map(|options| ("endless", options)));
    let (mut gone, mut waiting, mut stopped) = (Vec::new(), Vec::new(), Vec::new());
    for state in states {
        for (to, from, end) in [(lost, other, End::Receiver), (other, lost, End::Sender)] {
            let is_stopped = match (end, state.0) {
                (End::Sender, "connecting") => continue,
                (End::Receiver, name) => name == "cleared",
                (End::Sender, _) => false,
            };
            let (goes, waits) = begin(to, from, state, end)?;
            gone.push(goes);
            if is_stopped { &mut stopped } else { &mut waiting }.push(waits);
        }
    }
    without_power(lost, |begun| {
        are_notified(waiting, begun)?;
        // They would have reached what had not gone yet.
        stopped.iter().try_for_each(|(.., sender)| sender.signal(CONT))?;
        are_notified(stopped, begun)?;
        nothing_is_left_at(cluster.guests().iter().filter(|guest| guest.node() != lost.node()), "msg")
    })?;
    within(|| lives(cluster, "endless", "10"))
}
