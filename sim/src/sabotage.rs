//! Saboteurs: what goes wrong here, nobody may do, and the simulator has to find it. Each sits on a border of the
//! engine; each is one file. A new one is a file and a line in [`ALL`], and `tests/sim.rs` has to see it found.

mod store;

mod audio_in_line;
mod both_numbers;
mod deaf_ear;
mod deaf_to_eviction;
mod dropped_push;
mod lingering_call;
mod list_with_a_hole;
mod lost_notice;
mod miscounted;
mod newest_first;
mod nothing_shed;
mod overtaking;
mod revoked_ear;
mod seat_kept;
mod second_hand;
mod silent_ringer;
mod skipped_item;
mod talkative;

use crate::dice::Dice;
use crate::report::Hire;
use crate::store::Image;
use crate::world::{Line, messages};
use bytes::Bytes;
use drover_engine::effects::{CloseHow, Stores};
use drover_engine::outbox::{Outbound, cost};
use drover_engine::wake::{Category, Wake};
use drover_wire::ws;

/// One way to break the rules.
pub trait Saboteur {
    /// Puts something between a shard and its stores.
    fn wraps(&mut self, stores: Stores) -> Stores {
        stores
    }

    /// The process starts again on this disk.
    fn restarts(&mut self, _disk: &mut Image, _dice: &mut Dice) {}

    /// The engine is handed a message.
    fn reads(&mut self, _line: Line, _message: &[u8]) {}

    /// The engine is handed a message; what it is handed instead.
    fn hands(&mut self, _line: Line, message: Bytes) -> Bytes {
        message
    }

    /// A connection is gone; whether the engine is told.
    fn tells_of_end(&mut self, _line: Line) -> bool {
        true
    }

    /// The engine queues messages for a connection; what is queued instead, and where. Whether the engine is told that
    /// they fit follows from those that go where it wanted.
    fn sends(&mut self, line: Line, run: Outbound, _dice: &mut Dice) -> Vec<(Line, Outbound)> {
        vec![(line, run)]
    }

    /// The engine queues a MEDIA message for a connection; for whom it is queued instead, and how.
    fn speaks(&mut self, line: Line, _message: &Bytes) -> Vec<(Line, Way)> {
        vec![(line, Way::Lane)]
    }

    /// The moment by which audio that waits is old, in the place of this one.
    fn ages(&mut self, mono_ms: u64) -> u64 {
        mono_ms
    }

    /// The engine has devices woken; those that are.
    fn wakes(&mut self, wakes: Vec<Wake>) -> Vec<Wake> {
        wakes
    }

    /// The engine ends a connection; whether it ends.
    fn closes(&mut self, _line: Line, _how: CloseHow) -> bool {
        true
    }
}

/// How MEDIA waits.
pub enum Way {
    /// In its own lane.
    Lane,
    /// With what is durable: as this run.
    Behind(Outbound),
}

/// All of them, by the names the command line knows.
pub const ALL: &[(&str, Hire)] = &[
    // A store that says "durable" of records that are not yet.
    ("early-append", || Box::<store::EarlyAppend>::default()),
    // The same of control records: a removal that a crash undoes.
    ("early-commit", || Box::<store::EarlyCommit>::default()),
    // A store that lacks one record when it is opened again.
    ("forgotten-record", || Box::<store::Forgotten>::default()),
    // A store that does the first half of a batch.
    ("half-batch", || Box::<store::HalfBatch>::default()),
    // An engine that lets one PUSH overtake another.
    ("overtaking", || Box::<overtaking::Overtaking>::default()),
    // One that goes on delivering to a removed device.
    ("revoked-delivery", || {
        Box::<deaf_to_eviction::DeafToEviction>::default()
    }),
    // One that answers a duplicate with another number.
    ("new-number", || Box::<both_numbers::BothNumbers>::default()),
    // One that leaves a PUSH out without a notice.
    ("dropped-push", || Box::<dropped_push::DroppedPush>::default()),
    // One that leaves the notice out.
    ("lost-notice", || Box::<lost_notice::LostNotice>::default()),
    // One that skips an item of a RECON answer.
    ("skipped-item", || Box::<skipped_item::SkippedItem>::default()),
    // One that leaves a range out of a RECON list.
    ("list-with-a-hole", || {
        Box::<list_with_a_hole::ListWithAHole>::default()
    }),
    // One that lets a removed device listen to its calls.
    ("revoked-ear", || Box::<revoked_ear::RevokedEar>::default()),
    // One that forgets that somebody is in a call.
    ("deaf-ear", || Box::<deaf_ear::DeafEar>::default()),
    // One in which the last one's bye ends no call.
    ("lingering-call", || {
        Box::<lingering_call::LingeringCall>::default()
    }),
    // One that keeps the sessions, and seats, of connections that are gone.
    ("seat-kept", || Box::<seat_kept::SeatKept>::default()),
    // One that queues audio with everything else.
    ("audio-in-line", || Box::<audio_in_line::AudioInLine>::default()),
    // One that keeps every frame of a stream, however old.
    ("nothing-shed", || Box::<nothing_shed::NothingShed>::default()),
    // One that hands key packages out twice.
    ("second-hand", || Box::<second_hand::SecondHand>::default()),
    // One that hands out the newest first.
    ("newest-first", || Box::<newest_first::NewestFirst>::default()),
    // One that counts one key package too few.
    ("miscounted", || Box::<miscounted::Miscounted>::default()),
    // One whose calls wake nobody.
    ("sound-sleep", || {
        Box::new(silent_ringer::SilentRinger(Category::Call))
    }),
    // One whose messages wake nobody.
    ("drowsy", || {
        Box::new(silent_ringer::SilentRinger(Category::Message))
    }),
    // One that logs what nobody may read.
    ("talkative", || Box::<talkative::Talkative>::default()),
];

/// The saboteur of this name.
///
/// # Errors
/// Lists those there are.
pub fn by_name(name: &str) -> Result<Hire, String> {
    let found = ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, hire)| *hire).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|(name, _)| *name).collect();
        format!("no saboteur is called {name}; there are {}", names.join(", "))
    })
}

/// A run of these messages.
fn run_of<'a>(payloads: impl Iterator<Item = &'a [u8]>) -> Outbound {
    let (mut bytes, mut count, mut total) = (Vec::new(), 0, 0);
    for payload in payloads {
        ws::binary_head(payload.len(), &mut bytes);
        bytes.extend_from_slice(payload);
        count += 1;
        total += cost(payload.len()) as u32;
    }
    Outbound {
        bytes: Bytes::from(bytes),
        messages: count,
        cost: total,
    }
}

/// The run without one of its messages; nothing if that was all.
fn without(run: &Outbound, at: usize) -> Option<Outbound> {
    let kept = messages(&run.bytes).enumerate().filter(|(n, _)| *n != at);
    let rest = run_of(kept.map(|(_, message)| message));
    (rest.messages > 0).then_some(rest)
}

/// Whether a run consists of PUSHes.
fn is_pushes(run: &Outbound) -> bool {
    messages(&run.bytes).all(|message| crate::world::tag_of(message) == 10)
}
