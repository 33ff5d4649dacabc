//! One connection's protocol state (02 §3): what it may send now, what it is owed, what it waits for.

use crate::budget::Window;
use crate::effects::{CloseHow, CloseReason};
use crate::event::Peer;
use crate::outbox::Outbound;
use bytes::Bytes;
use drover_media::Sender;
use drover_storage::RealmId;
use drover_storage::log::{Record, StreamKind};
use drover_wire::frame::{Frame, Keys, Wake};
use drover_wire::id::{EntryHash, GroupId, Hash, PublicKey};
use drover_wire::map::{ListAnswering, Span};
use drover_wire::recon::{self, Answering, Item, item_seq};
use std::collections::VecDeque;

/// The states of 02 §3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Upgraded, nothing said.
    Fresh,
    /// CONNECT accepted, the challenge is out.
    Challenged,
    /// AUTH is being judged.
    Judging,
    /// Founding a workspace that has no set.
    Bootstrapping,
    /// Admitted.
    Ready,
    /// Over: the last frame is on its way out.
    Closed,
}

/// What the state × frame table says (02 §3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// Go on.
    Yes,
    /// `reject/malformed_header`, close.
    No,
}

/// The table of 02 §3.1, all 25 frames.
pub(crate) fn allowed(state: State, frame: &Frame<'_>) -> Allowed {
    use State::{Bootstrapping, Challenged, Fresh, Ready};
    let yes = match frame {
        Frame::Connect { .. } => state == Fresh,
        Frame::Auth { .. } => state == Challenged,
        Frame::Join { .. } | Frame::Bye { .. } => true,
        Frame::Access { .. } => matches!(state, Ready | Bootstrapping),
        Frame::Send { .. }
        | Frame::Sub { .. }
        | Frame::Recon { .. }
        | Frame::Wrap { .. }
        | Frame::Handshake { .. }
        | Frame::Invite { .. }
        | Frame::Blob { .. }
        | Frame::Drop { .. }
        | Frame::Live { .. }
        | Frame::Call { .. }
        | Frame::Media { .. }
        | Frame::Keys(Keys::Publish { .. } | Keys::Fetch { .. })
        | Frame::Wake(Wake::Register { .. } | Wake::Clear | Wake::Query) => state == Ready,
        Frame::ConnectAck { .. }
        | Frame::AuthChallenge { .. }
        | Frame::AuthAck { .. }
        | Frame::SubAck { .. }
        | Frame::Push { .. }
        | Frame::SendAck { .. }
        | Frame::Error { .. }
        | Frame::Keys(Keys::Published { .. } | Keys::Bundles { .. } | Keys::None)
        | Frame::Wake(Wake::Registered { .. } | Wake::Cleared | Wake::Capability { .. }) => false,
    };
    if yes { Allowed::Yes } else { Allowed::No }
}

/// One answer that is owed, in request order.
#[derive(Debug)]
pub(crate) enum Owed {
    /// Ready to leave.
    Ready(Outbound),
    /// SEND_ACK once this batch is durable.
    Ack { hash: Hash, seq: u64, batch: u64 },
    /// Key packages; they go back on their shelf if this never leaves.
    Bundles {
        out: Outbound,
        taken: Box<crate::shard::Taken>,
    },
    /// A prebuilt frame once this batch is durable.
    After { out: Outbound, batch: u64 },
}

/// Why a connection's next frame is not read.
#[derive(Debug, Default)]
pub(crate) enum Waiting {
    /// It is read.
    #[default]
    No,
    /// This frame is handled again once the answers before it have left, or what it needs is in memory.
    Parked(Bytes),
    /// A frame's own work is under way; its answer resumes the connection.
    Working,
    /// A SUB's replay runs.
    Replay(Box<Replay>),
    /// A RECON's answer is being made.
    Answer(Box<Answer>),
    /// A RECON's pushes are being read.
    Recon(Box<Recon>),
}

/// An answer to a RECON in the making.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) group: u32,
    pub(crate) making: Making,
}

/// See [`Answer`].
#[derive(Debug)]
pub(crate) enum Making {
    /// To a payload, either form.
    Payload(Answering),
    /// To the list of the map form.
    List(ListAnswering),
}

impl Making {
    /// Looks at about `items_max` items; whether that was all.
    pub(crate) fn step(&mut self, items: &[Item], items_max: usize) -> bool {
        match self {
            Self::Payload(answering) => answering.step(items, items_max),
            Self::List(answering) => answering.step(items, items_max),
        }
    }

    /// What is answered, and the numbers owed in the order they are sent.
    pub(crate) fn finish(self) -> (Round, Vec<u64>) {
        let seqs = |items: &[Item]| items.iter().map(item_seq).collect();
        match self {
            Self::Payload(answering) => {
                let answer = answering.finish();
                let owed = seqs(&answer.owed);
                (Round::Payload(answer), owed)
            }
            Self::List(answering) => {
                let answer = answering.finish();
                (Round::List(answer.spans), seqs(&answer.owed))
            }
        }
    }
}

/// A SUB's replay (02 §8): handshakes from zero, a bounded backfill, then whatever was committed meanwhile.
#[derive(Debug)]
pub(crate) struct Replay {
    pub(crate) group: u32,
    /// The next handshake to send.
    pub(crate) next_handshake: u64,
    pub(crate) phase: Phase,
    /// Handshakes read and not yet queued.
    pub(crate) read: VecDeque<Record>,
    /// The stream a page of which is being read.
    pub(crate) reading: Option<StreamKind>,
}

/// See [`Replay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Sending handshakes, then the backfill from here.
    Handshakes { from_seq: u64, head: u64 },
    /// The backfill page is being read.
    Backfill { from_seq: u64, head: u64 },
    /// Envelopes committed since SUB, above this number.
    CatchUp { above: u64 },
}

/// A RECON answer whose envelopes are being read.
#[derive(Debug)]
pub(crate) struct Recon {
    pub(crate) group: u32,
    pub(crate) round: Round,
    /// The numbers owed, in the order they are sent: where they lie in the index, a DROP may change meanwhile.
    pub(crate) owed: Vec<u64>,
    /// How many of them were asked of the store.
    pub(crate) asked: usize,
    /// Where the store was told to stop.
    pub(crate) bytes_max: usize,
}

/// What is answered to a RECON, in its form.
#[derive(Debug)]
pub(crate) enum Round {
    /// The payload, either form.
    Payload(recon::Answer),
    /// The list of the map form.
    List(Vec<Span>),
}

/// Per-connection frame budgets; made when first charged.
#[derive(Debug, Default)]
pub(crate) struct Budgets {
    pub(crate) sub: Window,
    pub(crate) recon: Window,
    pub(crate) handshake: Window,
    pub(crate) access: Window,
    pub(crate) wrap: Window,
    pub(crate) invite: Window,
    pub(crate) join: Window,
    pub(crate) keys: Window,
    pub(crate) live: Window,
    pub(crate) call: Window,
    pub(crate) drop: Window,
}

/// An AUTH under way: the candidates left to ask, the first one's verdict kept (05 §6.2 b).
#[derive(Debug)]
pub(crate) struct Judging {
    pub(crate) device: PublicKey,
    pub(crate) candidates: VecDeque<RealmId>,
    /// What the first candidate said, if it did not admit.
    pub(crate) first: Option<(RealmId, crate::shard::Verdict)>,
    /// Whether one of those asked could not say.
    pub(crate) is_unsure: bool,
    /// The realm that admitted, and by which entry: the first of the two reads.
    pub(crate) chosen: Option<(RealmId, EntryHash)>,
    /// Whether unknown groups have been claimed.
    pub(crate) claimed: bool,
}

/// The connection.
#[derive(Debug)]
pub struct Session {
    pub(crate) peer: Peer,
    pub(crate) state: State,
    /// Negotiated protocol version; 0 before CONNECT.
    pub(crate) version: u16,
    /// CONNECT was a map: frames that have a map form leave in it (01 §8).
    pub(crate) map: bool,
    /// Groups of a map SUB still to be begun, with its cursor and whether nothing stored is wanted.
    pub(crate) subs: VecDeque<(GroupId, u64, bool)>,
    /// Groups named in CONNECT, in order.
    pub(crate) named: Box<[GroupId]>,
    pub(crate) challenge: Option<Box<[u8; 32]>>,
    pub(crate) device: Option<PublicKey>,
    /// The entry it was admitted with.
    pub(crate) entry: Option<EntryHash>,
    /// Admitted by a grant, which may lapse (05 D11).
    pub(crate) provisional: bool,
    /// Slot of the realm it is bound to, on this shard.
    pub(crate) realm: Option<u32>,
    /// Slot of its device's budgets in that realm.
    pub(crate) device_slot: u32,
    pub(crate) judging: Option<Box<Judging>>,
    /// Groups it holds by SUB (slots on this shard).
    pub(crate) subscribed: Vec<u32>,
    pub(crate) budgets: Option<Box<Budgets>>,
    /// Its MEDIA budgets; there once it has joined a call or sent MEDIA.
    pub(crate) media: Option<Box<Sender>>,
    pub(crate) owed: VecDeque<Owed>,
    pub(crate) waiting: Waiting,
    /// The frame being handled was charged when it was first seen.
    pub(crate) charged: bool,
    /// It was refused.
    pub(crate) refused: bool,
    /// The transport was told to stop reading.
    pub(crate) paused: bool,
    /// Close, and how, once everything owed has left.
    pub(crate) closing: Option<(CloseHow, CloseReason)>,
    /// The last batch this connection was listed in, so that it is listed once.
    pub(crate) listed_in: u64,
    pub(crate) opened_ms: u64,
    pub(crate) active_ms: u64,
    /// When the idle probe was sent.
    pub(crate) probe_ms: Option<u64>,
    /// Since when an owed frame has found no room.
    pub(crate) stalled_ms: Option<u64>,
    /// When its timers are looked at next; entries of the shard's heap for other moments are void.
    pub(crate) armed_ms: Option<u64>,
}

impl Session {
    pub(crate) fn new(peer: Peer, mono_ms: u64) -> Self {
        Self {
            peer,
            state: State::Fresh,
            version: 0,
            map: false,
            subs: VecDeque::new(),
            named: Box::default(),
            challenge: None,
            device: None,
            entry: None,
            provisional: false,
            realm: None,
            device_slot: 0,
            judging: None,
            subscribed: Vec::new(),
            budgets: None,
            media: None,
            owed: VecDeque::new(),
            waiting: Waiting::No,
            charged: false,
            refused: false,
            paused: false,
            closing: None,
            listed_in: 0,
            opened_ms: mono_ms,
            active_ms: mono_ms,
            probe_ms: None,
            stalled_ms: None,
            armed_ms: None,
        }
    }

    /// Charges one frame of a budget (once for a frame that is handled again later).
    pub(crate) fn charge(&mut self, pick: fn(&mut Budgets) -> &mut Window, wall_ms: u64, limit: u32) -> bool {
        if self.charged {
            return true;
        }
        let fits = pick(self.budgets.get_or_insert_default()).charge(wall_ms, limit);
        self.charged = fits;
        fits
    }
}
