//! Sessions fed arbitrary frames: the real shards in the engine's test world, with virtual time and a store in memory.
//! Most frames are right, and some are damaged, of another form, in another's name or at the wrong time; stores fail,
//! readers stop, processes restart.
//!
//! What must hold:
//!
//! - nothing panics, and the world comes to rest after each step;
//! - heap stays within [`HEAP_BYTES`] and what was put in;
//! - whatever the relay sends is a frame to the reference;
//! - a content address has one number and a number one content address, in every acknowledgement and every push, until
//!   something is dropped;
//! - when stores work again, a new connection is served.

use std::collections::HashMap;
use std::sync::OnceLock;

use bytes::Bytes;
use drover_engine::Config;
use drover_wire::blob::Request as Blob;
use drover_wire::envelope::Envelope;
use drover_wire::error::Code;
use drover_wire::frame::{Frame, Keys, Wake};
use drover_wire::id::{CallId, GroupId, Hash};
use drover_wire::invite_admin::Request as Invite;
use drover_wire::join::Request as Join;
use drover_wire::map::{MapFrame, is_map};
use drover_wire::recon;

use crate::allocation;
use crate::memory::{Memory, State};
use crate::mutate::mutate;
use crate::random::{Rng, Script};
use crate::reference::{Shape, Verdict, frames, generate, judge, map};
use crate::world::{self as w, C, Device, Fault, Kind, World};

/// Heap of a world beyond its script: sessions, realms, outboxes, indexes.
const HEAP_BYTES: usize = 8 << 20;
/// Heap for each byte of the script, which stands for whole frames that are stored and pushed to several.
const HEAP_FACTOR: usize = 4096;
/// Connections at a time.
const CONNS_MAX: usize = 6;
/// Every kind of request to a store.
const KINDS: [Kind; 10] = [
    Kind::Append,
    Kind::Index,
    Kind::Read,
    Kind::ReadSeqs,
    Kind::Usage,
    Kind::Load,
    Kind::Get,
    Kind::Commit,
    Kind::Claim,
    Kind::Code,
];
/// Steps of one script.
const STEPS_MAX: usize = 150;

/// A founded workspace of four devices and two groups, with an invite.
struct Template {
    state: State,
    workspace: w::Workspace,
    invite: w::Minted,
}

fn device(n: u64) -> Device {
    Device::new(n)
}

fn template() -> &'static Template {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let memory = Memory::default();
        let mut world = World::on(w::Store::over(memory.clone()), Config::default());
        world.code_verdict = Some(true);
        let workspace = world.found("ws:one", &[&device(3), &device(4)], &[w::group(1), w::group(2)]);
        let c = world.login(&workspace.founder.clone(), &[w::group(1), w::group(2)]);
        for group in [1, 2] {
            world.fill(c, w::group(group), 20);
            world.subscribe(c, w::group(group), 0);
        }
        let record = w::record(&workspace, 0x77, 3, &[w::group(1), w::group(2)]);
        let invite = world.issue(c, &workspace, &record);
        world.hang_up(c);
        drop(world);
        Template {
            state: memory.state(),
            workspace,
            invite,
        }
    })
}

/// Runs a script.
pub fn run(input: &[u8]) {
    let template = template();
    let most = HEAP_BYTES + HEAP_FACTOR * input.len();
    allocation::within("a session", most, || Play::new(template, input).play());
}

struct Play<'a> {
    script: Script<'a>,
    world: World,
    workspace: w::Workspace,
    invite: w::Minted,
    conns: Vec<C>,
    /// Own content addresses sent, to be sent again or asked for.
    sent: Vec<(Hash, Bytes)>,
    numbers: HashMap<Hash, u64>,
    addresses: HashMap<(GroupId, u64), Hash>,
    chain: Option<w::Chain>,
    drained: bool,
}

impl<'a> Play<'a> {
    fn new(template: &Template, input: &'a [u8]) -> Self {
        let mut script = Script::new(input);
        let flags = script.u8();
        let config = w::config(|config| {
            config.shards = 1 + usize::from(flags & 1);
            config.min_enc_mls = flags & 2 != 0;
            config.read_only = flags & 0x0c == 0x0c;
            config.access_set = flags & 0x30 != 0x30;
            config.map_dialect = flags & 0x40 == 0;
            if flags & 0x80 != 0 {
                config.max_log_bytes = Some(1000);
                config.group_backlog_bytes = Some(2000);
                config.index_bytes_max = 1;
                config.push = Some(drover_engine::config::Push {
                    register_url: "https://ringer.example/v1/handles".into(),
                    coalesce_ms: 1000,
                });
            }
        });
        let memory = Memory::holding(template.state.clone());
        Self {
            script,
            world: World::on(w::Store::over(memory), config),
            workspace: template.workspace.clone(),
            invite: template.invite.clone(),
            conns: Vec::new(),
            sent: Vec::new(),
            numbers: HashMap::new(),
            addresses: HashMap::new(),
            chain: None,
            drained: false,
        }
    }

    fn play(mut self) {
        for _ in 0..STEPS_MAX {
            if self.script.is_over() {
                break;
            }
            self.step();
        }
        self.still_serves();
    }

    fn step(&mut self) {
        self.world.code_verdict = Some(self.script.u8() & 1 == 0);
        let op = self.script.u8();
        match op % 32 {
            0 | 1 => self.open(),
            2..=4 => self.login(),
            5 => self.time(),
            6 => self.trouble(),
            7 => self.reader(),
            8 => self.lifecycle(),
            _ => {
                if self.conns.is_empty() {
                    self.login();
                }
                let at = self.script.below(self.conns.len());
                let c = self.conns[at];
                let mut message = self.message(op % 32);
                // Some are damaged.
                if op >= 0xd0 {
                    let mut rng = Rng::new(self.script.u16().into());
                    let mut bytes = message.to_vec();
                    mutate(&mut rng, &mut bytes, &[]);
                    message = bytes.into();
                }
                self.world.push(c, message);
            }
        }
        // Several frames may come at once.
        if op & 0x20 == 0 {
            self.rest();
        }
    }

    /// Lets everything happen, and looks at what was sent.
    fn rest(&mut self) {
        self.world.pump();
        for c in self.conns.clone() {
            for message in self.world.take_all(c) {
                self.received(&message);
            }
        }
        let _ = self.world.wakes();
        let world = &self.world;
        self.conns.retain(|c| world.is_open(*c));
    }

    fn received(&mut self, message: &[u8]) {
        static ARRAYS: OnceLock<Shape> = OnceLock::new();
        static MAPS: OnceLock<Shape> = OnceLock::new();
        let shape = match is_map(message) {
            true => MAPS.get_or_init(map::frame),
            false => ARRAYS.get_or_init(frames::frame),
        };
        assert_eq!(judge(shape, message), Verdict::Accepted, "the relay sends what is a frame");
        if is_map(message) {
            if let Ok(MapFrame::Push(envelope)) = MapFrame::decode(message) {
                self.pushed(&envelope);
            }
            return;
        }
        match Frame::decode(message) {
            Ok(Frame::SendAck { hash, seq }) => self.numbered(hash, seq),
            Ok(Frame::Push { envelope }) => {
                let envelope = Envelope::decode(envelope).expect("an envelope");
                self.pushed(&envelope);
            }
            Ok(Frame::Drop { payload }) => {
                if let Ok(drover_wire::drop::Answer::Ran { .. }) = drover_wire::drop::Answer::decode(payload) {
                    // What was deleted may be sent again, under another number.
                    self.numbers.clear();
                }
            }
            Ok(_) => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    fn pushed(&mut self, envelope: &Envelope<'_>) {
        assert_eq!(envelope.content_hash(), envelope.hash);
        let place = (envelope.group, envelope.seq);
        let before = self.addresses.insert(place, envelope.hash);
        assert!(before.is_none_or(|before| before == envelope.hash), "one number, two envelopes");
        self.numbered(envelope.hash, envelope.seq);
    }

    fn numbered(&mut self, hash: Hash, seq: u64) {
        let before = self.numbers.insert(hash, seq);
        assert!(before.is_none_or(|before| before == seq), "one envelope, two numbers");
    }

    // ---- connections

    fn open(&mut self) {
        if self.conns.len() >= CONNS_MAX {
            return;
        }
        let shard = self.script.below(self.world.config.shards);
        let source = ["203.0.113.7", "203.0.113.8"][self.script.below(2)];
        self.conns.push(self.world.open_on(shard, source));
    }

    fn device(&mut self) -> Device {
        device(1 + self.script.below(6) as u64)
    }

    fn group(&mut self) -> GroupId {
        w::group([1, 1, 2, 2, 9, 10][self.script.below(6)])
    }

    /// A whole handshake, or what is left of one on a connection that is there.
    fn login(&mut self) {
        self.open();
        let Some(c) = self.conns.last().copied() else { return };
        let (device, how) = (self.device(), self.script.u8());
        let groups = match how & 3 {
            0 => vec![w::group(1)],
            1 | 2 => vec![w::group(1), w::group(2)],
            _ => vec![w::group(9)],
        };
        let version = if how & 0x10 == 0 { 4 } else { self.script.u16().max(1) };
        let connect = w::connect(version, &groups);
        let as_map = |message: &Bytes| {
            let frame = Frame::decode(message).ok();
            let map = match frame {
                Some(Frame::Connect { version, groups, .. }) => MapFrame::Connect { version, groups },
                Some(Frame::Auth {
                    device_key,
                    signature,
                }) => MapFrame::Proof {
                    device_key,
                    signature,
                },
                _ => return message.clone(),
            };
            map_bytes(&map)
        };
        let dialect = |message: Bytes| if how & 0x0c == 0x0c { as_map(&message) } else { message };
        self.world.push(c, dialect(connect));
        self.world.pump();
        let mut challenge = Vec::new();
        for message in self.world.take_all(c) {
            self.received(&message);
            match Frame::decode(&message) {
                Ok(Frame::AuthChallenge { challenge: found }) => challenge = found.to_vec(),
                _ => {
                    if let Ok(MapFrame::Auth { key, .. }) = MapFrame::decode(&message) {
                        challenge = key.to_vec();
                    }
                }
            }
        }
        let auth = if how & 0xe0 == 0xe0 {
            device.auth(b"another challenge")
        } else {
            device.auth(&challenge)
        };
        self.world.push(c, dialect(auth));
    }

    // ---- the world

    fn time(&mut self) {
        let ms = 1u64 << (self.script.u8() % 28);
        self.world.advance(ms + u64::from(self.script.u8()));
    }

    fn kind(&mut self) -> Kind {
        KINDS[self.script.below(KINDS.len())]
    }

    fn trouble(&mut self) {
        let kind = self.kind();
        match self.script.below(8) {
            0 => self.world.hold(kind),
            1 | 2 => self.world.release(kind),
            3 => {
                if self.world.waiting(kind) > 0 {
                    self.world.release_one(kind);
                }
            }
            4 => self.world.hold_letters = !self.world.hold_letters,
            5 => {
                self.world.hold_letters = false;
                self.world.newest_letter_first = !self.world.newest_letter_first;
            }
            _ => {
                let faults = [Fault::NotCommitted, Fault::UnknownLost, Fault::UnknownKept];
                let fault = faults[self.script.below(3)];
                self.world.store.fail_next(kind, fault);
            }
        }
    }

    fn reader(&mut self) {
        if self.conns.is_empty() {
            return;
        }
        let at = self.script.below(self.conns.len());
        let c = self.conns[at];
        match self.script.below(6) {
            0 => self.world.stop_reading(c, usize::from(self.script.u16())),
            1 => self.world.read_again(c),
            2 => self.world.read_some(c, usize::from(self.script.u16())),
            3 => self.world.push_text(c),
            4 if self.script.below(2) == 0 => self.world.push_ping(c),
            4 => self.world.push_pong(c),
            _ => self.world.hang_up(c),
        }
    }

    fn lifecycle(&mut self) {
        match self.script.below(8) {
            0 => {
                self.world.restart();
                self.conns.clear();
            }
            1 => {
                self.world.drain();
                self.drained = true;
            }
            _ => self.time(),
        }
    }

    // ---- frames

    fn message(&mut self, op: u8) -> Bytes {
        match op {
            9..=11 => self.send(),
            12 => w::sub(self.group(), self.script.uint()),
            13 => self.recon(),
            14 => w::handshake(self.group(), self.script.take(9)),
            15 => self.access(),
            16 => self.map(),
            17 => self.keys(),
            18 => self.join(),
            19 => self.invite(),
            20..=22 => self.retention(),
            23 => self.drop_below(),
            24 => self.wake(),
            25 => self.calls(),
            26 => w::wrap(self.group(), self.script.uint(), self.script.u8() & 3, self.script.take(5)),
            27 => w::live(self.group(), self.script.take(9)),
            28 => w::bye(),
            29 => Bytes::copy_from_slice(self.script.take(60)),
            30 => Bytes::from(generate::document(&map::frame(), &mut Rng::new(self.script.u16().into()))),
            _ => Bytes::from(generate::document(&frames::frame(), &mut Rng::new(self.script.u16().into()))),
        }
    }

    fn send(&mut self) -> Bytes {
        let (group, how) = (self.group(), self.script.u8());
        if how & 7 == 7 && !self.sent.is_empty() {
            let at = self.script.below(self.sent.len());
            return self.sent[at].1.clone();
        }
        let len = match how >> 6 {
            0 | 1 => 3,
            2 => 20,
            _ => 1500,
        };
        let mut ct = vec![how; len];
        ct.extend_from_slice(self.script.take(2));
        let (bytes, hash) = w::envelope_of(Envelope {
            v: 1 + u8::from(how & 0x3f == 0x3f),
            enc: u8::from(how & 0x38 != 0x38),
            group,
            epoch: u64::from(how),
            seq: u64::MAX,
            ts_ms: 0,
            hash: Hash([0; 32]),
            ct: &ct,
        });
        let message = match Envelope::decode(&bytes) {
            Ok(envelope) if how & 7 == 6 => map_bytes(&MapFrame::Send(envelope)),
            _ => w::send_envelope(&bytes),
        };
        self.sent.push((hash, message.clone()));
        message
    }

    fn recon(&mut self) -> Bytes {
        let group = self.group();
        let mut items: Vec<_> = self
            .numbers
            .iter()
            .map(|(hash, seq)| recon::item(*seq, hash))
            .collect();
        items.sort_unstable();
        items.truncate(self.script.u8().into());
        let ranges = recon::opening(&items);
        w::recon(group, &ranges)
    }

    /// A successor of the newest set, right or not.
    fn access(&mut self) -> Bytes {
        let how = self.script.u8();
        if how & 7 == 0 {
            return w::access(&[]);
        }
        let (other, by) = (self.device(), self.device());
        let draft = match how & 7 {
            1 | 2 => self.workspace.adding(&[&other]),
            3 => self.workspace.removing(&[&other]),
            4 => w::rotation(&self.workspace, &other, &by, &[]),
            5 => self.workspace.next().with(|set| set.version += 1),
            _ => self.workspace.next(),
        };
        let by = match how >> 3 & 3 {
            0..=2 => self.workspace.founder.clone(),
            _ => by,
        };
        let set = draft.by(&by);
        let message = w::access(&set.encode());
        if how & 0x20 == 0 {
            // Whether it was accepted or not; both are worth a try.
            self.workspace.head = set;
        }
        message
    }

    fn map(&mut self) -> Bytes {
        let group = self.group();
        let groups = [self.group(), group].into_iter().collect::<drover_wire::frame::List32Buf>();
        let frame = match self.script.below(4) {
            0 => MapFrame::Sub {
                groups: groups.as_list(),
                from_seq: Some(self.script.u8().into()),
                no_backfill: None,
            },
            1 => MapFrame::Sub {
                groups: groups.as_list(),
                from_seq: None,
                no_backfill: Some(self.script.u8() & 1 == 0),
            },
            2 => MapFrame::ReconList {
                group,
                spans: vec![drover_wire::map::Span {
                    lower: self.script.u8().into(),
                    upper: u64::MAX,
                    fingerprint: Hash([self.script.u8(); 32]),
                }],
            },
            _ => MapFrame::Error {
                code: Code::Backpressure,
                state: None,
                retry_after_ms: None,
            },
        };
        map_bytes(&frame)
    }

    fn keys(&mut self) -> Bytes {
        match self.script.below(4) {
            0 => w::keys_fetch(self.device().public(), self.script.u8() % 10),
            1 => w::keys_publish(&[]),
            2 => w::frame(&Frame::Keys(Keys::None)),
            _ => w::keys_publish(&[b"kp1", &[self.script.u8(); 40]]),
        }
    }

    fn join(&mut self) -> Bytes {
        let (device, group) = (self.device(), self.group());
        let nonce = [self.script.u8() & 3; 16];
        let mut invite = match self.script.below(3) {
            0 => self.workspace.minted.clone(),
            _ => self.invite.clone(),
        };
        if self.script.below(8) == 7 {
            invite.token.0[0] ^= 1;
        }
        match self.script.below(6) {
            0 | 1 => w::reserve(&invite, w::CODE, nonce, &device),
            2 => w::commit(&invite, nonce, &device, group),
            3 => w::park(&invite, nonce, &device),
            4 => w::join(&Join::Record {
                token: &invite.token.0,
            }),
            _ => w::join(&Join::Bundles {
                token: &invite.token.0,
                group: &group.0,
            }),
        }
    }

    fn invite(&mut self) -> Bytes {
        let (n, group) = (self.script.u8() & 0x77, self.group());
        let token = drover_wire::id::Token([n; 16]);
        match self.script.below(6) {
            0 => w::invite(&Invite::Authority),
            1 => w::invite(&Invite::List),
            2 => w::revoke(&token),
            3 => w::refresh(&token, group, self.script.uint(), self.script.take(7)),
            _ => {
                // Hashing a code takes a while; what is stored of it does not matter here.
                let mut record = w::record(&self.workspace, 0x77, 1 + n % 3, &[w::group(1), group]);
                record.token = token;
                let record = record.signed(&self.workspace.founder.key);
                w::create(&record)
            }
        }
    }

    /// A record of a retention chain that continues the one before, or doesn't.
    fn retention(&mut self) -> Bytes {
        let (group, how) = (w::group(1 + self.script.below(2) as u64), self.script.u8());
        let founder = self.workspace.founder.clone();
        let hash = |at: u8| self.sent.get(usize::from(at)).map_or(Hash([at; 32]), |(hash, _)| *hash);
        let target = hash(how >> 4);
        let now_s = self.world.now.wall_ms / 1000;
        let Some(chain) = &mut self.chain else {
            let chain = w::Chain::new(group, founder);
            let first = w::control(&chain.control);
            self.chain = Some(chain);
            return first;
        };
        match how & 15 {
            0 => w::control(&chain.control),
            1 | 2 => {
                let next = chain.successor(&device(u64::from(how >> 4)));
                if how & 1 == 0 {
                    (chain.control, chain.key) = (next.clone(), device(u64::from(how >> 4)));
                }
                w::control(&next)
            }
            3..=5 => {
                let next = chain.draft(&[target], |_| {});
                chain.manifest = Some((next.sequence, next.digest()));
                w::manifest(&next)
            }
            6 | 7 => w::policy(&w::a_policy(group, 1 + u64::from(how >> 6), now_s + 604_800, &[&founder])),
            8 | 9 => {
                let kind: &[u8] = if how & 0x10 == 0 { b"drop_before" } else { b"blob" };
                w::destruction(&w::a_destruction(group, kind, target, now_s + 604_800, &[&founder]))
            }
            10 => w::resolution(group, u64::from(how >> 4), &chain.key.clone()),
            11 => w::position(group),
            12 => w::blob(&Blob::Quota { group }),
            13 => w::blob(&Blob::List {
                workspace: &[],
                group,
            }),
            14 => w::blob(&Blob::Get {
                workspace: &[],
                group,
                hash: target,
            }),
            _ => w::blob(&Blob::Put {
                workspace: &[],
                group,
                hash: target,
                ciphertext_bytes: self.script.uint(),
            }),
        }
    }

    fn drop_below(&mut self) -> Bytes {
        let group = w::group(1 + self.script.below(2) as u64);
        let (how, at) = (self.script.u8(), self.script.u8());
        let known = |at: u8| {
            self.sent
                .get(usize::from(at))
                .map_or_else(|| w::envelope(group, &w::distinct(usize::from(at) % 20)).1, |(hash, _)| *hash)
        };
        let chain = self
            .chain
            .clone()
            .unwrap_or_else(|| w::Chain::new(group, self.workspace.founder.clone()));
        let snapshots: Vec<Hash> = (0..how & 3).map(known).collect();
        let request = chain.drop_with(known(at), &snapshots, |request| {
            if how & 4 != 0 {
                (request.policy_version, request.destruction_digest) = (None, Some(known(how >> 4).0.to_vec()));
            }
        });
        w::drop_frame(&request)
    }

    fn wake(&mut self) -> Bytes {
        let wake = match self.script.below(4) {
            0 => Wake::Query,
            1 => Wake::Clear,
            _ => Wake::Register {
                handle: [self.script.u8() & 3; 16],
                categories: 1 + self.script.u8() % 7,
                expires_at_ms: self.world.now.wall_ms.saturating_add(self.script.uint()),
            },
        };
        w::frame(&Frame::Wake(wake))
    }

    fn calls(&mut self) -> Bytes {
        let (call_id, group) = (CallId([self.script.u8() & 3; 16]), self.group());
        if self.script.below(2) == 0 {
            return w::frame(&Frame::Media {
                call_id,
                stream: [1; 4],
                seq: self.script.uint(),
                ct: self.script.take(9),
            });
        }
        w::frame(&Frame::Call {
            call_id,
            group,
            epoch: 1,
            kind: self.script.u8() % 6,
            body: self.script.take(9),
        })
    }

    // ---- the end

    /// Whatever happened, a new connection gets its challenge and an answer to its proof.
    fn still_serves(&mut self) {
        self.world.hold_letters = false;
        self.world.store.up();
        for kind in KINDS {
            self.world.release(kind);
        }
        self.rest();
        self.world.advance(120_000);
        self.rest();
        if self.drained {
            return;
        }
        let mut answered = false;
        // Faults that were planned and not met yet may meet this one too.
        for _ in 0..40 {
            let c = self.world.open();
            self.world.push(c, w::connect(4, &[w::group(1)]));
            self.world.pump();
            let challenge = self.world.take_all(c).iter().find_map(|message| match Frame::decode(message) {
                Ok(Frame::AuthChallenge { challenge }) => Some(challenge.to_vec()),
                _ => None,
            });
            let challenge = challenge.expect("every connection is challenged");
            self.world.push(c, device(3).auth(&challenge));
            self.world.pump();
            let got = self.world.take_all(c);
            assert!(!got.is_empty(), "every proof is answered");
            let code = match Frame::decode(&got[0]) {
                Ok(Frame::Error { code, .. }) => Some(code),
                _ => None,
            };
            self.world.hang_up(c);
            if !matches!(code, Some(Code::Backpressure | Code::Failover)) {
                answered = true;
                break;
            }
            self.world.advance(5_000);
        }
        assert!(answered, "the relay never recovers");
    }
}

fn map_bytes(frame: &MapFrame<'_>) -> Bytes {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out.into()
}

/// A script.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let mut script = vec![if rng.once_in(3) { rng.next() as u8 } else { 0 }];
    for _ in 0..rng.below(60) {
        let op = match rng.below(6) {
            0 => 2,
            1 => 9,
            _ => rng.next() as u8,
        };
        script.extend([0, op]);
        let len = rng.below(7);
        script.extend(rng.bytes(len));
    }
    script
}
