// SPDX-License-Identifier: MIT OR Apache-2.0
//! Structures in memory whose page faults the process itself handles (userfaultfd): the driver reads and writes them as
//! late as the process likes. Meanwhile others continue, and nothing is to be had early.

use super::tables::{Tables, others_continue};
use super::watch::{PATIENCE, step};
use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::time::Duration;
use telegraphos_guest_tests::child::{Child, say};
use telegraphos_guest_tests::cli::{self, Failure, Outcome, failed};
use telegraphos_guest_tests::interface::call::{self, Answer, PAGE, Pages, expect, raw, sane, sized};
use telegraphos_guest_tests::interface::rows::{self, Row, World, handle};
use telegraphos_guest_tests::patience::{YIELD, becomes};
use telegraphos_guest_tests::userfault::{Accesses, Faults};
use telegraphos_wire::uapi::{Direction, Ioctl};

/// Handles the faults of a page.
struct Holder {
    faults: Faults,
    pages: Pages,
}

/// When the driver is held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// While it reads the structure.
    Read,
    /// While it writes it back.
    Written,
}

impl Holder {
    fn new(when: When, structure: &[u8]) -> Outcome<Holder> {
        let pages = Pages::new(1)?;
        let range = std::ptr::slice_from_raw_parts_mut(pages.at(0), PAGE);
        let faults = match when {
            When::Read => Faults::of(range, Accesses::Missing).map_err(failed("userfaultfd"))?,
            When::Written => {
                pages.put(0, structure);
                let faults = Faults::of(range, Accesses::Writes).map_err(failed("userfaultfd"))?;
                faults.protect(true).map_err(failed("userfaultfd"))?;
                faults
            }
        };
        Ok(Holder { faults, pages })
    }

    /// Waits until the driver is held, or the call has ended otherwise.
    fn wait(&self, ended: impl Fn() -> bool) -> Outcome<bool> {
        let look = || Ok((self.faults.any(Duration::from_millis(10)).map_err(failed("userfaultfd"))?, ended()));
        let late = |_: &_| Failure::Check("neither a page fault nor an answer within a minute".into());
        let (held, _) = becomes(Duration::from_secs(60), YIELD, look, |(held, ended)| *held || *ended, late)?;
        Ok(held)
    }

    fn release(&self, when: When, structure: &[u8]) -> Outcome<()> {
        let released = match when {
            When::Written => self.faults.protect(false),
            When::Read => {
                let mut page = [0; PAGE];
                page[..structure.len()].copy_from_slice(structure);
                self.faults.supply_with(0, &page)
            }
        };
        released.map_err(failed("userfaultfd"))
    }

    fn bytes(&self, size: usize) -> Vec<u8> {
        // SAFETY: the page is there, and nothing writes to it now.
        unsafe { std::slice::from_raw_parts(self.pages.at(0), size) }.to_vec()
    }
}

/// Calls with a structure that is held; what happens meanwhile, and the answer with what was written back. `None` if it
/// has not come so far.
fn while_held(
    file: &File,
    (ioctl, made, when): (&Ioctl, &[u8], When),
    meanwhile: impl FnOnce() -> Outcome<()>,
) -> Outcome<(bool, Answer, Vec<u8>)> {
    let holder = Holder::new(when, made)?;
    let at = holder.pages.at(0) as usize;
    std::thread::scope(|scope| {
        // SAFETY: the holder's page, which the kernel alone uses.
        let thread = scope.spawn(move || unsafe { raw(file, ioctl.request(), at as *mut u8) });
        let held = holder.wait(|| thread.is_finished());
        let done = match held {
            Ok(true) => meanwhile(),
            _ => Ok(()),
        };
        // Whatever came of it: the thread must end.
        let held = held?;
        if held {
            holder.release(when, made)?;
        }
        let answer = thread.join().map_err(|_| Failure::Check("a thread panicked".into()))?;
        done?;
        let bytes = if held || when == When::Written { holder.bytes(ioctl.structure.size) } else { Vec::new() };
        Ok((held, answer, bytes))
    })
}

/// What the end of each handle answers that is none of the world's own. Imports that belong to another object of the
/// world end with that one (EBUSY).
pub(crate) fn guesses(world: &World, end: &str) -> Outcome<Vec<(u32, Answer)>> {
    let mine = world.objects().map(|(_, number)| number);
    let others = (0..64).filter(|number| !mine.contains(number));
    others.map(|number| Ok((number, sized(&world.file, call::of(end)?, &mut handle(number))))).collect()
}

/// Guesses handles: what is being made has none that works, or is known at all, before the structure is written back.
fn guess(world: &World, end: &str, before: &[(u32, Answer)]) -> Outcome<()> {
    for ((number, answer), (_, before)) in guesses(world, end)?.into_iter().zip(before) {
        let expected = before.err().filter(|errno| *errno == libc::EBUSY).unwrap_or(libc::EBADF);
        expect(format!("{end} for the guessed handle {number}"), answer, &[expected])?;
    }
    Ok(())
}

/// The ioctl that ends what this one makes.
fn end_of(row: &Row) -> Option<&'static str> {
    Some(match row.name {
        "TG_IOCTL_EXPORT" => "TG_IOCTL_UNEXPORT",
        "TG_IOCTL_IMPORT" => "TG_IOCTL_UNIMPORT",
        "TG_IOCTL_QUEUE_CREATE" => "TG_IOCTL_QUEUE_DESTROY",
        "TG_IOCTL_REPLICATE" => "TG_IOCTL_REPLICA_LEAVE",
        "TG_IOCTL_REGISTER" => "TG_IOCTL_UNREGISTER",
        _ => return None,
    })
}

pub(crate) fn every(world: &World) -> Outcome<u64> {
    let (mut calls, before) = (0, Tables::now()?);
    for (ioctl, row) in rows::all()? {
        for when in [When::Read, When::Written] {
            let word = if when == When::Read { "read" } else { "written back" };
            let what = step(format!("{}, held while its structure is {word}", ioctl.name));
            let made = row.make(world)?;
            let end = end_of(row).filter(|_| when == When::Written);
            let before = end.map(|end| guesses(world, end)).transpose()?;
            let meanwhile = || match end.zip(before) {
                Some((end, before)) => guess(world, end, &before).and_then(|()| others_continue()),
                None => others_continue(),
            };
            let (held, answer, bytes) = while_held(&world.file, (ioctl, &made, when), meanwhile)?;
            expect(&what, answer, row.answers)?;
            let writes = ioctl.direction == Direction::InOut && answer == Ok(());
            let expected = when == When::Read && answer != Err(libc::ENOTTY) || when == When::Written && writes;
            let right = held == expected || answer != Ok(());
            cli::check(right, || format!("{what}: held is {held}: expected {expected}"))?;
            row.undo(world, &made, &bytes, answer)?;
            calls += 1;
        }
        closed_meanwhile((ioctl, row), world, &before)?;
        calls += 1;
    }
    Ok(calls)
}

/// The file is closed while the call is held: what it makes ends with the file.
fn closed_meanwhile((ioctl, row): (&Ioctl, &Row), world: &World, before: &Tables) -> Outcome<()> {
    let what = step(format!("{}, whose file is closed meanwhile", ioctl.name));
    let made = row.make(world)?;
    let number = call::open()?.into_raw_fd();
    // SAFETY: open; closed once, below.
    let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(number) });
    let (held, answer, _) = while_held(&file, (ioctl, &made, When::Read), || {
        // SAFETY: the only owner of it.
        unsafe { libc::close(number) };
        others_continue()
    })?;
    if !held {
        // SAFETY: as above; it was not closed meanwhile.
        unsafe { libc::close(number) };
    }
    sane(&what, answer)?;
    // What was made for it has another file.
    row.undo(world, &made, &[], Err(0))?;
    before.come_back()
}

/// A process, `when` in the middle of the call, which is killed then.
pub(crate) fn child(name: &str, when: &str) -> Outcome<()> {
    let when = if when == "read" { When::Read } else { When::Written };
    let world = World::new()?;
    let (ioctl, row) = rows::row(name)?;
    let made = row.make(&world)?;
    let (held, answer, _) = while_held(&world.file, (ioctl, &made, when), || {
        say("held");
        std::thread::sleep(PATIENCE);
        Ok(())
    })?;
    Err(Failure::Check(format!("{name}: held is {held}, answer {answer:?}: expected to be killed while it is held")))
}

/// Processes that are killed while what they make is half made.
pub(crate) fn killed() -> Outcome<u64> {
    let mut calls = 0;
    let before = Tables::now()?;
    let making = rows::all()?.into_iter().filter(|(_, row)| end_of(row).is_some() || row.name.ends_with("_ARM"));
    for (ioctl, _) in making {
        for when in ["read", "written"] {
            step(format_args!("{}, killed while it is {when}", ioctl.name));
            let mut child = Child::start(&["held", ioctl.name, when], None, PATIENCE)?;
            child.expect("held")?;
            child.must_be_killed()?;
            before.come_back()?;
            calls += 1;
        }
    }
    Ok(calls)
}
