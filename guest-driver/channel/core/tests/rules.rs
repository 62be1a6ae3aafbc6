// SPDX-License-Identifier: MIT OR Apache-2.0
//! Single rules: sizes, parts, credits, the end.

use crate::memory::Words;
use telegraphos_channel_core::{
    ASLEEP, Announce, CONSUMED, END, End, Head, Layout, Look, Near, Progress, PutError, RECORDS, RING, ROOM, Record,
    Violation, WORD,
};
use telegraphos_testkit::{Rng, over_seeds};

/// Two ends whose stores are there at once.
struct Pair {
    ends: [End; 2],
    memory: [Words; 2],
}

impl Pair {
    fn new(capacity: u64, announce: Announce) -> Pair {
        let layout = Layout::new(capacity).unwrap();
        let end = || End::new(layout, layout, announce, true);
        Pair { ends: [end(), end()], memory: [Words::of(layout), Words::of(layout)] }
    }

    fn with<R>(&mut self, who: usize, run: impl FnOnce(&mut End, &Words, &mut Words) -> R) -> R {
        let [a, b] = &mut self.memory;
        let (near, far) = if who == 0 { (a, b) } else { (b, a) };
        run(&mut self.ends[who], near, far)
    }

    fn put(&mut self, who: usize, parts: &[&[u8]]) -> Result<Option<Progress>, PutError> {
        self.with(who, |end, near, far| end.put(near, far, 7, parts))
    }

    fn take(&mut self, who: usize) -> Result<(Look, Vec<u8>), Violation> {
        self.with(who, |end, near, far| {
            let look = end.look(near)?;
            let Look::Record(record) = look else { return Ok((look, Vec::new())) };
            let mut bytes = vec![0; record.length];
            _ = end.take(near, far, &mut bytes);
            Ok((look, bytes))
        })
    }
}

#[test]
fn rings_are_powers_of_two_within_bounds() {
    for bad in [0, 32, 63, 65, 96, (1 << 30) + 64, 1 << 31, u64::MAX] {
        let error = Layout::new(bad).unwrap_err().to_string();
        assert!(error.contains(&bad.to_string()) && error.contains("expected"), "{error}");
    }
    let layout = Layout::new(1 << 30).unwrap();
    assert_eq!((layout.size(), layout.at((1 << 30) + 8)), (RING + (1 << 30), RING + 8));
}

#[test]
fn heads_are_what_they_were() {
    let head = Head { length: u32::MAX, kind: 255, number: 0xff_ffff };
    assert_eq!((head.encode(), Head::decode(head.encode())), (u64::MAX, head));
    assert_ne!(Head { length: 0, kind: 1, number: 0 }.encode(), 0);
}

#[test]
fn records_of_all_lengths_arrive_in_order_both_ways() {
    over_seeds(300, 30_000, |seed| {
        let mut rng = Rng::new(seed);
        let mut pair = Pair::new(64 << rng.below(5_u32), Announce::Armed);
        let max = (pair.memory[0].0.len() as u64 - 1) * WORD / 2;
        let mut under_way = [const { std::collections::VecDeque::<Vec<u8>>::new() }; 2];
        for n in 0..500_u64 {
            let who = rng.below(2_usize);
            if rng.percent(50) {
                let bytes: Vec<u8> = (0..rng.below(max)).map(|byte| (n + byte) as u8).collect();
                let (first, second) = bytes.split_at(bytes.len() / 2 / 8 * 8);
                match pair.put(who, &[first, second]) {
                    Ok(Some(_)) => under_way[who].push_back(bytes),
                    Ok(None) if !under_way[who].is_empty() => {}
                    Err(PutError::TooLong { length, max }) if length > max => {}
                    other => return Err(format!("{other:?}")),
                }
                continue;
            }
            let expected = under_way[1 - who].pop_front();
            match pair.take(who).map_err(|e| e.to_string())? {
                (Look::Empty, _) if expected.is_none() => {}
                (Look::Record(Record { kind: 7, .. }), bytes) if Some(&bytes) == expected.as_ref() => {}
                other => return Err(format!("{other:?} instead of {expected:?}")),
            }
        }
        Ok(())
    });
}

/// Half of the ring, with head and the word behind; then all of it is there for the next one as soon as that was taken.
#[test]
fn the_longest_record_always_finds_room_in_the_end() {
    let mut pair = Pair::new(64, Announce::Armed);
    let bytes = [1; 16];
    for n in 0..1000 {
        let filler = &bytes[..n % 5];
        assert!(pair.put(0, &[filler]).unwrap().is_some());
        assert_eq!(pair.take(1).unwrap().1, filler);
        assert!(pair.put(0, &[&bytes]).unwrap().is_some(), "record {n}");
        assert_eq!(pair.take(1).unwrap().1, bytes);
    }
}

#[test]
fn what_no_record_can_be_is_refused_and_nothing_is_stored() {
    let mut pair = Pair::new(64, Announce::Armed);
    assert_eq!(pair.put(0, &[&[0; 17]]), Err(PutError::TooLong { length: 17, max: 16 }));
    assert_eq!(pair.put(0, &[&[0; 7], &[0; 1]]), Err(PutError::Ragged { length: 7 }));
    assert_eq!(pair.with(0, |end, near, far| end.put(near, far, 0, &[])), Err(PutError::Kind));
    assert!(pair.memory[1].0.iter().all(|word| *word == 0));
    assert_eq!(pair.take(1), Ok((Look::Empty, vec![])));
}

#[test]
fn the_end_comes_behind_all_records() {
    let mut pair = Pair::new(64, Announce::Armed);
    assert!(pair.put(0, &[b"last"]).unwrap().is_some());
    _ = pair.with(0, |end, near, far| end.end(near, far));
    assert_eq!(pair.put(0, &[b"more"]), Err(PutError::Ended));
    assert_eq!(pair.take(1).unwrap().1, b"last");
    assert_eq!(pair.take(1), Ok((Look::Ended, vec![])));
    // The other direction continues.
    assert!(pair.put(1, &[b"answer"]).unwrap().is_some());
    assert_eq!(pair.take(0).unwrap().1, b"answer");
}

#[test]
fn lies_are_named() {
    let lie = |at, word| {
        let mut pair = Pair::new(64, Announce::Armed);
        pair.memory[0].set(at, word);
        let mut taken = pair.take(0).err();
        while taken.is_none() && pair.put(0, &[&[0; 16]]).is_ok_and(|put| put.is_some()) {}
        taken
            .get_or_insert_with(|| match pair.put(0, &[&[0; 16]]) {
                Err(PutError::Violation(violation)) => violation,
                other => panic!("{other:?}"),
            })
            .to_string()
    };
    let head = |length, kind, number| Head { length, kind, number }.encode();
    let mut pair = Pair::new(64, Announce::Armed);
    pair.memory[0].set(RING, head(1, 0, 0));
    let found = pair.take(0).unwrap_err();
    pair.memory[0].set(RING, head(1, 1, 0));
    assert_eq!((pair.take(0), pair.put(0, &[b"x"])), (Err(found), Err(PutError::Violation(found))), "it is for good");
    assert!(lie(RING, head(17, 1, 0)).contains("says 17 bytes: at most 16"));
    assert!(lie(RING, head(u32::MAX, 1, 0)).contains("says 4294967295 bytes"));
    assert!(lie(RING, head(1, 1, 5)).contains("has number 5"));
    assert!(lie(RING, head(1, 0, 0)).contains("no kind"));
    assert!(lie(END, 9).contains("it has sent 8 bytes, and 0 were found"));
    assert!(lie(CONSUMED, 1 << 40).contains("1099511627776 bytes are reported"));
    assert!(lie(CONSUMED, 4).contains("multiples of 8"));
}

/// One that looks is not woken, one that sleeps once for what it waits for.
#[test]
fn only_a_sleeper_is_woken_once_and_for_what_it_waits_for() {
    let mut pair = Pair::new(256, Announce::Look);
    let put = |pair: &mut Pair| pair.put(0, &[b"x"]).unwrap().unwrap();
    assert_eq!(put(&mut pair), Progress::Done);
    pair.with(1, |end, _, far| end.begin_sleep(far, ROOM));
    assert_eq!(put(&mut pair), Progress::Done, "it waits for room");
    pair.with(1, |end, _, far| end.begin_sleep(far, RECORDS));
    assert_eq!([put(&mut pair), put(&mut pair)], [Progress::Wake, Progress::Done]);
    pair.with(1, |end, _, far| end.end_sleep(far));
    assert_eq!(pair.memory[0].load(ASLEEP), 0);
    assert_eq!(put(&mut pair), Progress::Done);
    pair.with(1, |end, _, far| end.begin_sleep(far, RECORDS));
    assert_eq!(put(&mut pair), Progress::Wake, "another sleep");
    pair.ends[0].set_announce(Announce::Always);
    assert_eq!([put(&mut pair), put(&mut pair)], [Progress::Wake; 2]);
}
