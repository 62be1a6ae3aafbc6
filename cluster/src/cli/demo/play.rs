// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts, in order: what each guest's process does when, and what must come of it.

use super::row::{Accesses, Row, grouped, short};
use super::{NODES, Part};
use crate::{Cluster, Error, Guest, OutputLine, Result, Running, interrupt, joined};
use std::time::{Duration, Instant};
use telegraphos_agent::Figure;
use telegraphos_wire::regs::Register;

/// How long a step may take.
const LIMIT: Duration = Duration::from_secs(90);
/// How long peers of a node that leaves may take to notice it.
const NOTICE: Duration = Duration::from_secs(30);
/// SIGBUS on Linux.
const BUS: i32 = 7;
const TERM: i32 = 15;

const LOADS: u64 = 500;
const ATOMICS: u64 = 300;
/// Elements of each sender. A board begins to hold a sender back at 1024, and nothing is taken out until all are sent.
const ELEMENTS: u64 = 900;
const PAINTED: u64 = 1500;
const RETURNED: u64 = 1000;

/// What came of a step: operations, nanoseconds, wrong ones.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    count: u64,
    ns: u64,
    wrong: u64,
}

/// The process of a guest.
struct Player(Running, usize);

impl Player {
    fn enter(guest: &Guest) -> Result<Player> {
        let running = guest.argv(&["tg-demo"]).keep_input_open().spawn_until(LIMIT, |line| line == "ready")?;
        Ok(Player(running, guest.node()))
    }

    fn say(&mut self, command: &str) -> Result<()> {
        self.0.write(&format!("{command}\n"))
    }

    /// What came of the last command; what is said besides goes to stderr.
    fn result(&mut self) -> Result<Step> {
        let begun = Instant::now();
        loop {
            let left = LIMIT.saturating_sub(begun.elapsed());
            let Some(line) = self.0.next_line(left)? else { return Err(self.silent()) };
            match Figure::parse(line.text()) {
                Some(Figure::Step { count, ns, wrong, .. }) if matches!(line, OutputLine::Stdout(_)) => {
                    return Ok(Step { count, ns, wrong });
                }
                _ => eprintln!("  [{}] {}", self.1, line.text()),
            }
        }
    }

    fn silent(&self) -> Error {
        let why = match self.0.ended() {
            Some(status) => format!("it ended with {status}"),
            None => format!("no answer in {} s", LIMIT.as_secs()),
        };
        Error::Command { node: self.1.into(), command: "tg-demo".into(), why }
    }
}

/// All of them, and what shows rows.
struct Stage<'a> {
    cluster: &'a Cluster,
    players: Vec<Player>,
    broken: &'a [Part],
    seed: u64,
    show: &'a mut dyn FnMut(Row) -> Result<()>,
}

/// Plays all parts; `show` gets each line when it is known.
pub(super) fn play(cluster: &Cluster, broken: &[Part], show: &mut dyn FnMut(Row) -> Result<()>) -> Result<()> {
    let players = cluster.guests().iter().map(Player::enter).collect::<Result<_>>()?;
    let mut stage = Stage { cluster, players, broken, seed: seed(), show };
    stage.everywhere("connect")?;
    stage.stores()?;
    stage.loads()?;
    stage.atomics()?;
    stage.queue()?;
    stage.replicas()?;
    stage.leave()
}

/// A number that was not used before.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

impl Stage<'_> {
    /// The word behind a command that makes the fault of a part, if it is wanted.
    fn fault(&self, part: Part) -> &'static str {
        if self.broken.contains(&part) { " break" } else { "" }
    }

    fn fresh(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.seed
    }

    /// A command for these nodes at once; operations, nanoseconds and wrong ones of all together.
    fn at(&mut self, nodes: &[usize], command: &str) -> Result<Step> {
        for node in nodes {
            self.players[*node].say(command)?;
        }
        let mut all = Step::default();
        for node in nodes {
            let Step { count, ns, wrong } = self.players[*node].result()?;
            all = Step { count: all.count + count, ns: all.ns + ns, wrong: all.wrong + wrong };
        }
        Ok(all)
    }

    fn everywhere(&mut self, command: &str) -> Result<Step> {
        self.at(&[0, 1, 2], command)
    }

    /// What these nodes' boards have counted so far.
    fn accesses(&self, nodes: &[usize]) -> Result<Accesses> {
        let mut all = Accesses::default();
        for node in nodes {
            let wanted = [Register::CountStores, Register::CountLoads, Register::CountAtomics, Register::CountEnqueues];
            all += Accesses(self.cluster.node(*node).registers(wanted)?);
        }
        Ok(all)
    }

    /// A command for these nodes at once, and what their boards counted meanwhile.
    fn counted(&mut self, nodes: &[usize], command: &str) -> Result<(Step, Accesses)> {
        let before = self.accesses(nodes)?;
        let step = self.at(nodes, command)?;
        Ok((step, self.accesses(nodes)? - before))
    }

    /// Two nodes, in both directions.
    fn stores(&mut self) -> Result<()> {
        for (from, to, way) in [(0, 1, "0 -> 1"), (1, 0, "1 -> 0")] {
            let seed = self.fresh();
            let (step, took) = self.counted(&[from], &format!("store {to} {seed}"))?;
            let checked = self.at(&[to], &format!("compare {seed}{}", self.fault(Part::Store)))?;
            self.show(Part::Store, "store, 8 to 64 bit", &[(from, to)], way, step, took, words(checked, step.count))?;
        }
        Ok(())
    }

    fn loads(&mut self) -> Result<()> {
        for (by, of, way) in [(0, 1, "1 -> 0"), (1, 0, "0 -> 1")] {
            let seed = self.fresh();
            self.at(&[of], &format!("fill {seed}{}", self.fault(Part::Load)))?;
            let (step, took) = self.counted(&[by], &format!("load {of} {seed} {LOADS}"))?;
            self.show(Part::Load, "load, 8 to 64 bit", &[(of, by)], way, step, took, words(step, LOADS))?;
        }
        Ok(())
    }

    fn atomics(&mut self) -> Result<()> {
        let (step, took) = self.counted(&[0, 1, 2], &format!("atomic {ATOMICS}"))?;
        self.at(&[0, 2], "mark")?;
        self.at(&[1], &format!("mark{}", self.fault(Part::Atomic)))?;
        let checked = self.at(&[0], &format!("tickets {}", step.count))?;
        let text = match checked.wrong {
            0 => "each ticket drawn once".into(),
            wrong => format!("{wrong} tickets drawn twice or never"),
        };
        let ways = [(0, 0), (1, 0), (2, 0)];
        self.show(Part::Atomic, "fetch-and-increment", &ways, "all -> 0", step, took, (checked.wrong == 0, text))
    }

    /// Two nodes append far more than the queue of the third has room for, before it takes anything out.
    fn queue(&mut self) -> Result<()> {
        let overflows = |cluster: &Cluster| cluster.node(2).registers([Register::CountOverflows]);
        let [before] = overflows(self.cluster)?;
        let (step, took) = self.counted(&[0, 1], &format!("enqueue {ELEMENTS}"))?;
        let out = self.at(&[2], &format!("dequeue {} 2{}", step.count, self.fault(Part::Queue)))?;
        self.at(&[0, 1], "quiet")?;
        let [after] = overflows(self.cluster)?;
        let overflows = after.wrapping_sub(before);
        let text = match (out.wrong, overflows) {
            (0, 0) => "the queue has not overflowed".into(),
            (0, n) => format!("{} overflows, nothing lost, in order", grouped(n)),
            (wrong, n) => format!("{} overflows, {wrong} elements lost or out of order", grouped(n)),
        };
        let ok = out.wrong == 0 && overflows > 0 && out.count == step.count;
        self.show(Part::Queue, "enqueue: room for 20", &[(0, 2), (1, 2)], "0,1 -> 2", step, took, (ok, text))
    }

    /// All nodes store to one word at the same time, and watch their own copies of it.
    fn replicas(&mut self) -> Result<()> {
        let (step, took) = self.counted(&[0, 1, 2], &format!("paint {PAINTED}"))?;
        self.everywhere("quiet")?;
        // The fault is an old value once more: all copies get it.
        let mut seen = self.at(&[1], &format!("look{}", self.fault(Part::Replicas)))?;
        let others = self.at(&[0, 2], "look")?;
        seen.count += others.count;
        seen.wrong += others.wrong;
        let equal = self.equal_copies()?;
        let text = match (seen.wrong, equal) {
            (0, true) => format!("3 equal copies, {} changes in order", grouped(seen.count)),
            (wrong, true) => format!("{wrong} values seen after later ones"),
            (_, false) => "the copies differ".into(),
        };
        let ways = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)];
        let ok = seen.wrong == 0 && equal && seen.count > 0;
        self.show(Part::Replicas, "store to a replicated page", &ways, "all", step, took, (ok, text))
    }

    fn equal_copies(&mut self) -> Result<bool> {
        let digests = (0..NODES).map(|node| Ok(self.at(&[node], "digest")?.count)).collect::<Result<Vec<u64>>>()?;
        Ok(digests.windows(2).all(|pair| pair[0] == pair[1]))
    }

    /// The third machine is reset while processes of the others store into its memory.
    fn leave(&mut self) -> Result<()> {
        let (guest, mut storing) = (self.cluster.node(2), Vec::new());
        for node in [0, 1] {
            let running = self
                .cluster
                .node(node)
                .argv(&["tg-demo", "--until-gone", "2"])
                .spawn_until(LIMIT, |line| line == "storing")?;
            if self.broken.contains(&Part::Leave) {
                running.signal(TERM)?;
            }
            storing.push(running);
        }
        let begun = Instant::now();
        let (noticed, back) = std::thread::scope(|scope| {
            let threads: Vec<_> =
                storing.into_iter().map(|running| scope.spawn(move || noticed(running, begun))).collect();
            let reset = guest.reset();
            let back = begun.elapsed();
            let noticed = threads.into_iter().map(joined).collect::<Result<Vec<_>>>();
            reset.and(noticed).map(|noticed| (noticed, back))
        })?;
        interrupt::check()?;
        let slowest = noticed.iter().flatten().max().copied();
        let (ok, text) = match slowest {
            Some(_) if noticed.iter().all(Option::is_some) => (true, "both processes got SIGBUS".into()),
            _ => (false, "a process at a vanished node's memory did not get SIGBUS".into()),
        };
        let ways = [(2, 0), (2, 1)];
        (self.show)(Row {
            part: Part::Leave,
            what: "node 2 is reset: noticed",
            ways: ways.to_vec(),
            way: "by 0, 1",
            count: noticed.len() as u64,
            time: slowest.unwrap_or(NOTICE),
            took: "-".into(),
            check: text,
            ok,
        })?;
        self.come_back(guest, back)
    }

    /// The machine is up again: its new process shares anew, the others import again and continue.
    fn come_back(&mut self, guest: &Guest, back: Duration) -> Result<()> {
        self.players[2] = Player::enter(guest)?;
        self.everywhere("connect")?;
        let seed = self.fresh();
        let before = self.accesses(&[0, 1])?;
        let (command, fault) = (format!("return 2 {seed} {RETURNED}"), self.fault(Part::Leave));
        self.players[0].say(&command)?;
        self.players[1].say(&format!("{command}{fault}"))?;
        let (one, two) = (self.players[0].result()?, self.players[1].result()?);
        let step = Step { count: one.count + two.count, ns: one.ns + two.ns, wrong: 0 };
        let took = self.accesses(&[0, 1])? - before;
        let checked = self.at(&[2], &format!("arrived {seed} {RETURNED}"))?;
        let equal = self.equal_copies()?;
        let text = match (checked.wrong, equal) {
            (0, true) => format!("back after {}, its copy is whole", short(back)),
            (0, false) => "its copy of the replicated page differs".into(),
            (wrong, _) => format!("{wrong} words wrong"),
        };
        let ok = checked.wrong == 0 && equal;
        self.show(Part::Leave, "it comes back: stores", &[(0, 2), (1, 2)], "0,1 -> 2", step, took, (ok, text))
    }

    #[allow(clippy::too_many_arguments, reason = "the columns of a line")]
    fn show(
        &mut self,
        part: Part,
        what: &'static str,
        ways: &[(usize, usize)],
        way: &'static str,
        step: Step,
        took: Accesses,
        (ok, check): (bool, String),
    ) -> Result<()> {
        let time = Duration::from_nanos(step.ns.checked_div(step.count).unwrap_or(0));
        let ways = ways.iter().map(|(from, to)| (*from as u16, *to as u16)).collect();
        (self.show)(Row { part, what, ways, way, count: step.count, time, took: took.each(step.count), check, ok })
    }
}

/// Whether all words are right, and as text.
fn words(checked: Step, expected: u64) -> (bool, String) {
    match checked {
        Step { wrong: 0, count, .. } if count == expected => (true, "every word right".into()),
        Step { wrong: 0, count, .. } => (false, format!("{count} words instead of {expected}")),
        Step { wrong, .. } => (false, format!("{wrong} words wrong")),
    }
}

/// When a process that stores got SIGBUS; nothing if it ended otherwise.
fn noticed(mut running: Running, begun: Instant) -> Result<Option<Duration>> {
    while running.next_line(NOTICE)?.is_some() {}
    Ok(running.ended().filter(|status| status.signal() == Some(BUS)).map(|_| begun.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_and_compared() {
        let step = |count, wrong| Step { count, ns: 0, wrong };
        assert_eq!(words(step(5, 0), 5), (true, "every word right".into()));
        assert_eq!(words(step(5, 1), 5), (false, "1 words wrong".into()));
        assert_eq!(words(step(4, 0), 5), (false, "4 words instead of 5".into()));
    }
}
