//! A relay in memory, enough of one to drive clients against: no sockets, no clock. Used by the session's unit tests and,
//! behind a socket, by the integration tests.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use std::collections::{HashMap, HashSet, VecDeque};

use drover_wire::access::{AccessSet, AccessState};
use drover_wire::envelope::Envelope;
use drover_wire::error::{Code, Refusal};
use drover_wire::frame::{Frame, Wake, encode_refusal};
use drover_wire::id::{GroupId, Hash, Salt};
use drover_wire::recon;

/// Envelopes one answer or replay pushes at most.
pub const BATCH: usize = 255;

#[derive(Default)]
pub struct Log {
    pub envelopes: Vec<(u64, Hash, Vec<u8>)>,
    pub handshakes: Vec<Vec<u8>>,
    next_seq: u64,
}

#[derive(Default)]
pub struct Peer {
    subscribed: HashSet<GroupId>,
    /// A PUSH was skipped: SUB_ACK 0 precedes the next frame of the group.
    owed: HashSet<GroupId>,
}

pub struct Model {
    pub logs: HashMap<GroupId, Log>,
    pub peers: HashMap<u64, Peer>,
    /// Groups that need no naming; others are created by CONNECT.
    pub version: u16,
    pub batch: usize,
    /// Answered to the next SENDs instead of storing.
    pub refuse_sends: VecDeque<Refusal>,
    /// Answered to the next LIVEs.
    pub refuse_lives: VecDeque<Refusal>,
    /// Pushes to skip, as if the peer's queue were full.
    pub skip_pushes: usize,
    /// seqs to leave out before each envelope, as rolled-back transactions do.
    pub gap: u64,
    pub salt: Salt,
    pub head: Option<AccessSet>,
    pub received: Vec<Vec<u8>>,
    /// Whether RECON reopens everything for ever.
    pub recon_never_ends: bool,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            logs: HashMap::new(),
            peers: HashMap::new(),
            version: 4,
            batch: BATCH,
            refuse_sends: VecDeque::new(),
            refuse_lives: VecDeque::new(),
            skip_pushes: 0,
            gap: 0,
            salt: Salt([0x5a; 32]),
            head: None,
            received: Vec::new(),
            recon_never_ends: false,
        }
    }
}

/// Messages by peer.
pub type Out = Vec<(u64, Vec<u8>)>;

pub fn bytes(frame: &Frame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out
}

fn error(refusal: impl Into<Refusal>) -> Vec<u8> {
    let mut out = Vec::new();
    encode_refusal(&refusal.into(), &mut out);
    out
}

impl Model {
    pub fn create(&mut self, group: GroupId) -> &mut Log {
        self.logs.entry(group).or_default()
    }

    /// Stores an envelope without telling anyone.
    pub fn store(&mut self, group: GroupId, ct: &[u8]) -> (u64, Hash) {
        let mut envelope = Envelope {
            v: 1,
            enc: 1,
            group,
            epoch: 1,
            seq: 0,
            ts_ms: 0,
            hash: Hash([0; 32]),
            ct,
        };
        envelope.hash = envelope.content_hash();
        self.accept(envelope)
    }

    /// Stores the first `count` of a series of small envelopes.
    pub fn fill(&mut self, group: GroupId, count: u64) {
        for n in 0..count {
            self.store(group, &n.to_be_bytes());
        }
    }

    fn accept(&mut self, mut envelope: Envelope<'_>) -> (u64, Hash) {
        let gap = self.gap;
        let log = self.create(envelope.group);
        if let Some((seq, hash, _)) = log.envelopes.iter().find(|(_, hash, _)| *hash == envelope.hash) {
            return (*seq, *hash);
        }
        log.next_seq += 1 + gap;
        (envelope.seq, envelope.ts_ms) = (log.next_seq, 1);
        let mut encoded = Vec::new();
        envelope.encode(&mut encoded);
        log.envelopes.push((envelope.seq, envelope.hash, encoded));
        (envelope.seq, envelope.hash)
    }

    /// Pushes a stored envelope to everyone subscribed but `writer`.
    pub fn fan_out(&mut self, group: GroupId, hash: Hash, writer: u64) -> Out {
        let envelope = self.logs[&group]
            .envelopes
            .iter()
            .find(|(_, h, _)| *h == hash)
            .unwrap()
            .2
            .clone();
        let mut out = Out::new();
        for (id, peer) in &mut self.peers {
            if *id == writer || !peer.subscribed.contains(&group) {
                continue;
            }
            if self.skip_pushes > 0 {
                self.skip_pushes -= 1;
                peer.owed.insert(group);
                continue;
            }
            if peer.owed.remove(&group) {
                out.push((*id, bytes(&Frame::SubAck { group, head_seq: 0 })));
            }
            out.push((*id, bytes(&Frame::Push { envelope: &envelope })));
        }
        out
    }

    pub fn connect(&mut self, peer: u64, groups: impl IntoIterator<Item = GroupId>) {
        self.peers.insert(peer, Peer::default());
        for group in groups {
            self.create(group);
        }
    }

    pub fn disconnect(&mut self, peer: u64) {
        self.peers.remove(&peer);
    }

    /// One frame of a Ready session.
    pub fn frame(&mut self, peer: u64, message: &[u8]) -> Out {
        self.received.push(message.to_vec());
        let frame = Frame::decode(message).unwrap();
        let group = match frame {
            Frame::Sub { group, .. } | Frame::Recon { group, .. } => Some(group),
            Frame::Handshake { group, .. } | Frame::Live { group, .. } => Some(group),
            Frame::Send { envelope } => Some(Envelope::decode(envelope).unwrap().group),
            _ => None,
        };
        if group.is_some_and(|group| !self.logs.contains_key(&group)) {
            return vec![(peer, error(Code::GroupUnknown))];
        }
        let mut out = Out::new();
        match frame {
            Frame::Send { envelope } => {
                if let Some(refusal) = self.refuse_sends.pop_front() {
                    return vec![(peer, error(refusal))];
                }
                let envelope = Envelope::decode(envelope).unwrap();
                assert_eq!(
                    (envelope.seq, envelope.ts_ms, envelope.content_hash()),
                    (0, 0, envelope.hash)
                );
                let known = self.logs[&envelope.group].envelopes.len();
                let (seq, hash) = self.accept(envelope);
                if self.logs[&envelope.group].envelopes.len() > known {
                    out = self.fan_out(envelope.group, hash, peer);
                }
                out.push((peer, bytes(&Frame::SendAck { hash, seq })));
            }
            Frame::Handshake { group, message, .. } => {
                let log = self.create(group);
                let known = log.handshakes.iter().position(|held| held == message);
                let seq = known.unwrap_or(log.handshakes.len()) as u64;
                let delivery = bytes(&Frame::Handshake { group, seq, message });
                if known.is_none() {
                    log.handshakes.push(message.to_vec());
                    let others = self
                        .peers
                        .iter()
                        .filter(|(id, p)| **id != peer && p.subscribed.contains(&group));
                    out.extend(others.map(|(id, _)| (*id, delivery.clone())));
                }
                out.push((peer, delivery));
            }
            Frame::Sub { group, from_seq } => {
                let log = &self.logs[&group];
                let head = log.envelopes.last().map_or(0, |(seq, ..)| *seq);
                out.push((
                    peer,
                    bytes(&Frame::SubAck {
                        group,
                        head_seq: head.max(from_seq),
                    }),
                ));
                for (seq, message) in log.handshakes.iter().enumerate() {
                    out.push((
                        peer,
                        bytes(&Frame::Handshake {
                            group,
                            seq: seq as u64,
                            message,
                        }),
                    ));
                }
                let replay = log
                    .envelopes
                    .iter()
                    .filter(|(seq, ..)| *seq >= from_seq)
                    .take(self.batch);
                out.extend(replay.map(|(.., envelope)| (peer, bytes(&Frame::Push { envelope }))));
                self.peers.get_mut(&peer).unwrap().subscribed.insert(group);
            }
            Frame::Recon { group, payload } => {
                let log = &self.logs[&group];
                let mut held: Vec<_> = log.envelopes.iter().collect();
                held.sort_by_key(|(seq, hash, _)| recon::item(*seq, hash));
                let items: Vec<_> = held
                    .iter()
                    .map(|(seq, hash, _)| recon::item(*seq, hash))
                    .collect();
                let incoming = recon::decode(payload).unwrap();
                let batch = if self.recon_never_ends { 0 } else { self.batch };
                let mut answer = recon::answer(&items, incoming, batch);
                for owed in &answer.owed {
                    let at = items.binary_search(owed).unwrap();
                    out.push((
                        peer,
                        bytes(&Frame::Push {
                            envelope: &held[at].2,
                        }),
                    ));
                }
                answer.reopen(batch);
                let mut payload = Vec::new();
                recon::encode(&answer.ranges, &mut payload);
                out.push((
                    peer,
                    bytes(&Frame::Recon {
                        group,
                        payload: &payload,
                    }),
                ));
            }
            Frame::Live { group, epoch, ct } => {
                if let Some(refusal) = self.refuse_lives.pop_front() {
                    return vec![(peer, error(refusal))];
                }
                let beat = bytes(&Frame::Live { group, epoch, ct });
                let others = self
                    .peers
                    .iter()
                    .filter(|(id, p)| **id != peer && p.subscribed.contains(&group));
                out.extend(others.map(|(id, _)| (*id, beat.clone())));
            }
            Frame::Wake(Wake::Query) => {
                let answer = Wake::Capability {
                    enabled: false,
                    register_url: "",
                };
                out.push((peer, bytes(&Frame::Wake(answer))));
            }
            Frame::Access { body: b"" } => {
                let head = self.head.as_ref().map(|set| (set.version, set.digest()));
                let body = AccessState {
                    salt: self.salt,
                    head,
                }
                .encode();
                out.push((peer, bytes(&Frame::Access { body: &body })));
            }
            Frame::Access { body } => {
                let set = AccessSet::decode(body).unwrap();
                let next = self.head.as_ref().map_or(0, |head| head.version + 1);
                let prev = self.head.as_ref().map_or(Hash([0; 32]), AccessSet::digest);
                if set.version != next || set.prev_hash != prev {
                    let refusal = Refusal::plain(Code::WriterNotInAccessSet)
                        .with(drover_wire::error::Detail::Hash(prev.0));
                    return vec![(peer, error(refusal))];
                }
                let digest = set.digest();
                self.head = Some(set);
                out.push((peer, bytes(&Frame::Access { body: &digest.0 })));
            }
            other => panic!("the model does not speak {}", other.name()),
        }
        out
    }
}
