//! Whole reconciliations between the client's [`Reconciler`] and the relay's answers: honest ones end with equal sets,
//! and no relay keeps a client busy for more than 64 rounds, whatever it says.

use std::collections::BTreeSet;

use drover_client::limits::RECON_ROUNDS_MAX;
use drover_client::recon::{Next, Reconciler};
use drover_wire::id::Hash;
use drover_wire::recon::{self, Item, Mode, OPEN_END, Range, item};

use crate::allocation;
use crate::mutate::mutate;
use crate::random::{Rng, Script};

/// Heap of one exchange: a message and its parts on both sides, beside the sets.
const HEAP_BYTES: usize = 4 << 20;

/// The script: flags, how many may be pushed in a round, then runs of items for one side, the other, or both.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let flags = script.u8();
    let honest = flags & 1 == 0;
    let floor = if flags & 2 == 0 { 0 } else { u64::from(script.u8()) };
    let batch = if flags & 4 == 0 { 255 } else { script.below(256) };
    let mut noise = Rng::new(u64::from(script.u8()));
    let (mut client, mut relay) = (BTreeSet::new(), BTreeSet::new());
    let mut seq = 1u64;
    while !script.is_over() && client.len() + relay.len() < 6000 {
        let what = script.u8();
        for _ in 0..=script.u8() {
            // Gaps are normal; items that share a number are not, and must do no harm.
            let id = Hash::of(&[&seq.to_be_bytes(), &(relay.len() as u64).to_be_bytes(), &[what]]);
            let it = item(seq, &id);
            if what & 3 != 1 {
                client.insert(it);
            }
            if what & 3 != 2 {
                relay.insert(it);
            }
            seq = seq.saturating_add(u64::from(what >> 4));
        }
        if what & 8 != 0 {
            seq = seq.saturating_add(script.uint());
        }
    }
    let most = HEAP_BYTES + 1024 * (client.len() + relay.len());
    allocation::within("an exchange", most, || {
        exchange(client, relay, floor, batch, honest.then_some(()).ok_or(&mut noise));
    });
}

fn exchange(
    mut client: BTreeSet<Item>,
    mut relay: BTreeSet<Item>,
    floor: u64,
    batch: usize,
    honesty: Result<(), &mut Rng>,
) {
    let list = |set: &BTreeSet<Item>| set.iter().copied().collect::<Vec<Item>>();
    let (before, differ) = (client.clone(), client != relay);
    let mut noise = honesty.err();
    let mut reconciler = Reconciler::new(floor);
    let mut payload = reconciler.open(&list(&client));
    for round in 1.. {
        assert!(round <= RECON_ROUNDS_MAX, "the exchange does not end");
        let incoming = recon::decode(&payload).expect("a client sends what decodes");
        let held = list(&relay);
        let mut answer = recon::answer(&held, incoming, batch);
        client.extend(answer.owed.iter().copied());
        answer.reopen(batch);
        let mut bytes = Vec::new();
        recon::encode(&answer.ranges, &mut bytes);
        let mut ranges = recon::decode(&bytes).expect("a relay sends what decodes");
        if let Some(noise) = &mut noise {
            ranges = altered(noise, ranges);
        }
        let mut next = reconciler.answered(&list(&client), ranges);
        if let Next::Offer(hashes) = &next {
            for hash in hashes {
                let it = client.iter().find(|item| recon::item_id(item) == *hash);
                relay.insert(*it.expect("what is offered is held"));
            }
            next = reconciler.offered(&list(&client));
        }
        match next {
            Next::Round(next) => payload = next,
            Next::Offer(_) => panic!("offered twice"),
            Next::Done => {
                // What lies at the open end takes no part.
                let (first, end) = (item(floor, &Hash([0; 32])), item(OPEN_END, &Hash([0; 32])));
                let same = floor == OPEN_END || client.range(first..end).eq(relay.range(first..end));
                assert!(noise.is_some() || same, "both sides hold the same");
                assert!(before.is_subset(&client) && (differ || client == before));
                return;
            }
            Next::GiveUp => {
                let few = relay.len() <= 2000 && batch == 255;
                assert!(noise.is_some() || !few, "an honest exchange of few items needs no 64 rounds");
                return;
            }
        }
    }
}

/// The same ranges with something else said about some.
fn altered(noise: &mut Rng, mut ranges: Vec<Range>) -> Vec<Range> {
    for range in &mut ranges {
        match noise.below(6) {
            0 => range.mode = Mode::Skip,
            1 => range.mode = Mode::Fingerprint(Hash([noise.next() as u8; 32])),
            2 => range.mode = Mode::Ids(vec![Hash([noise.next() as u8; 32])]),
            _ => {}
        }
    }
    let mut bytes = Vec::new();
    recon::encode(&ranges, &mut bytes);
    mutate(noise, &mut bytes, &[]);
    recon::decode(&bytes).unwrap_or(ranges)
}

/// A script.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let mut script = vec![*rng.pick(&[0, 0, 1, 2, 4, 5]), rng.next() as u8, rng.next() as u8];
    for _ in 0..rng.below(12) {
        let runs = [0x10, 0x11, 0x12, 0x20, 0x21, 0x22, 0x01, 0x18, 0x30];
        script.extend([*rng.pick(&runs), *rng.pick(&[0, 1, 3, 15, 16, 40, 255])]);
    }
    script
}
