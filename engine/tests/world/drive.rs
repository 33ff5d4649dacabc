//! What clients do: frames, devices, access sets, and the flows a test needs before its own begins.

use super::{C, EPOCH_MS, World};
use bytes::Bytes;
use drover_engine::bootstrap::{self, Handoff};
use drover_engine::inspect::{RealmReport, TransparencyLog};
use drover_engine::shard::{MintOutcome, Operator, ShardMessage};
use drover_storage::RealmId;
use drover_wire::access::{AccessSet, AccessState, sign};
use drover_wire::envelope::Envelope;
use drover_wire::error::Code;
use drover_wire::frame::{Frame, Keys, List32Buf, Wake};
use drover_wire::id::{CallId, EntryHash, GroupId, Hash, PublicKey, Salt, Signature, Token};
use drover_wire::join;
use drover_wire::recon::{self, Item, Range};
use ed25519_dalek::SigningKey;
use std::sync::{Arc, Mutex};

// ---- what is received

/// An ERROR as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub code: Code,
    pub retry_after_s: u32,
    pub detail: Vec<u8>,
}

/// An ERROR without interval and detail.
pub fn refused(code: Code) -> Got {
    refused_with(code, 0, &[])
}

pub fn refused_with(code: Code, retry_after_s: u32, detail: &[u8]) -> Got {
    Got::Refused(Refused {
        code,
        retry_after_s,
        detail: detail.to_vec(),
    })
}

/// An ERROR whose detail is a limit.
pub fn limited(code: Code, retry_after_s: u32, limit: u64) -> Got {
    refused_with(code, retry_after_s, &limit.to_be_bytes())
}

/// An envelope as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    pub group: GroupId,
    pub seq: u64,
    pub ts_ms: u64,
    pub hash: Hash,
    pub ct: Vec<u8>,
}

/// A frame as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    ConnectAck {
        version: u16,
        server_time_ms: u64,
        min_enc: u8,
    },
    Challenge(Vec<u8>),
    AuthAck {
        key_packages: u32,
        write_mode: u8,
        access_set: u8,
        min_enc: u8,
    },
    Access(Vec<u8>),
    SubAck(GroupId, u64),
    Recon(GroupId, Vec<Range>),
    Push(Pushed),
    Ack(Hash, u64),
    Refused(Refused),
    Handshake(GroupId, u64, Vec<u8>),
    Join(Vec<u8>),
    /// The payload.
    Blob(Vec<u8>),
    Drop(drover_wire::drop::Answer),
    Live(GroupId, u64, Vec<u8>),
    /// The call, the kind and the body of a CALL.
    Call(CallId, u8, Vec<u8>),
    /// The call, the sequence number and the audio of a MEDIA.
    Media(CallId, u64, Vec<u8>),
    Bye(Vec<u8>),
    Capability(bool),
    Registered(u64),
    Cleared,
    Invite(Vec<u8>),
    Wrap(Vec<u8>),
    /// KEYS published: the depth of the shelf.
    Published(u32),
    /// KEYS bundles.
    Bundles(Vec<Vec<u8>>),
    /// KEYS none.
    NoBundles,
    Other(u8),
}

impl Got {
    pub fn of(message: &[u8]) -> Self {
        match Frame::decode(message).expect("the relay sends what decodes") {
            Frame::ConnectAck {
                version,
                server_time_ms,
                min_enc,
            } => Got::ConnectAck {
                version,
                server_time_ms,
                min_enc,
            },
            Frame::AuthChallenge { challenge } => Got::Challenge(challenge.to_vec()),
            Frame::AuthAck {
                key_packages_remaining,
                write_mode,
                access_set,
                min_enc,
                ..
            } => Got::AuthAck {
                key_packages: key_packages_remaining,
                write_mode,
                access_set,
                min_enc,
            },
            Frame::Access { body } => Got::Access(body.to_vec()),
            Frame::SubAck { group, head_seq } => Got::SubAck(group, head_seq),
            Frame::Recon { group, payload } => {
                Got::Recon(group, recon::decode(payload).expect("a RECON payload"))
            }
            Frame::Push { envelope } => {
                let e = Envelope::decode(envelope).expect("an envelope");
                assert_eq!(e.content_hash(), e.hash, "what is pushed verifies");
                Got::Push(Pushed {
                    group: e.group,
                    seq: e.seq,
                    ts_ms: e.ts_ms,
                    hash: e.hash,
                    ct: e.ct.to_vec(),
                })
            }
            Frame::SendAck { hash, seq } => Got::Ack(hash, seq),
            Frame::Error {
                code,
                retry_after_s,
                detail,
            } => Got::Refused(Refused {
                code,
                retry_after_s,
                detail: detail.to_vec(),
            }),
            Frame::Handshake { group, seq, message } => Got::Handshake(group, seq, message.to_vec()),
            Frame::Join { body } => Got::Join(body.to_vec()),
            Frame::Blob { payload } => Got::Blob(payload.to_vec()),
            Frame::Drop { payload } => {
                Got::Drop(drover_wire::drop::Answer::decode(payload).expect("an answer"))
            }
            Frame::Live { group, epoch, ct } => Got::Live(group, epoch, ct.to_vec()),
            Frame::Call {
                call_id, kind, body, ..
            } => Got::Call(call_id, kind, body.to_vec()),
            Frame::Media { call_id, seq, ct, .. } => Got::Media(call_id, seq, ct.to_vec()),
            Frame::Bye { reason } => Got::Bye(reason.to_vec()),
            Frame::Wake(Wake::Capability { enabled, .. }) => Got::Capability(enabled),
            Frame::Wake(Wake::Registered { expires_at_ms }) => Got::Registered(expires_at_ms),
            Frame::Wake(Wake::Cleared) => Got::Cleared,
            Frame::Invite { body } => Got::Invite(body.to_vec()),
            Frame::Wrap { body } => Got::Wrap(body.to_vec()),
            Frame::Keys(Keys::Published { remaining }) => Got::Published(remaining),
            Frame::Keys(Keys::Bundles { packages }) => {
                Got::Bundles(packages.iter().map(<[u8]>::to_vec).collect())
            }
            Frame::Keys(Keys::None) => Got::NoBundles,
            other => Got::Other(other.tag()),
        }
    }

    /// The code of an ERROR.
    pub fn code(&self) -> Option<Code> {
        match self {
            Got::Refused(refused) => Some(refused.code),
            _ => None,
        }
    }

    /// The seq of a PUSH.
    pub fn push_seq(&self) -> Option<u64> {
        match self {
            Got::Push(push) => Some(push.seq),
            _ => None,
        }
    }

    pub fn handshake_seq(&self) -> Option<u64> {
        match self {
            Got::Handshake(_, seq, _) => Some(*seq),
            _ => None,
        }
    }

    pub fn ack_seq(&self) -> Option<u64> {
        match self {
            Got::Ack(_, seq) => Some(*seq),
            _ => None,
        }
    }
}

/// An ERROR of class retry, whose interval is 1 to 5 s (04 decision 6).
#[track_caller]
pub fn assert_retry(got: &Got, code: Code) {
    let Got::Refused(refused) = got else {
        panic!("{got:?}")
    };
    assert_eq!(refused.code, code);
    assert!((1..=5).contains(&refused.retry_after_s), "{refused:?}");
    assert!(refused.detail.is_empty());
}

/// The one element of a list.
#[track_caller]
pub fn only<T: std::fmt::Debug>(mut list: Vec<T>) -> T {
    assert_eq!(list.len(), 1, "{list:?}");
    list.remove(0)
}

// ---- what is sent

pub fn frame(frame: &Frame<'_>) -> Bytes {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out.into()
}

pub fn group(n: u64) -> GroupId {
    GroupId(Hash::of(&[b"group", &n.to_be_bytes()]).0)
}

pub fn connect(version: u16, groups: &[GroupId]) -> Bytes {
    let list: List32Buf = groups.iter().copied().collect();
    frame(&Frame::Connect {
        version,
        groups: list.as_list(),
        sent_at_ms: EPOCH_MS,
    })
}

/// An envelope of this ciphertext, and its content address.
pub fn envelope(group: GroupId, ct: &[u8]) -> (Vec<u8>, Hash) {
    envelope_of(Envelope {
        v: 1,
        enc: 1,
        group,
        epoch: 0,
        seq: 0,
        ts_ms: 0,
        hash: Hash([0; 32]),
        ct,
    })
}

/// The same from all its fields; the hash is filled in.
pub fn envelope_of(mut envelope: Envelope<'_>) -> (Vec<u8>, Hash) {
    envelope.hash = envelope.content_hash();
    let mut out = Vec::new();
    envelope.encode(&mut out);
    (out, envelope.hash)
}

pub fn send(group: GroupId, ct: &[u8]) -> Bytes {
    send_envelope(&envelope(group, ct).0)
}

pub fn send_envelope(envelope: &[u8]) -> Bytes {
    frame(&Frame::Send { envelope })
}

pub fn sub(group: GroupId, from_seq: u64) -> Bytes {
    frame(&Frame::Sub { group, from_seq })
}

pub fn handshake(group: GroupId, message: &[u8]) -> Bytes {
    frame(&Frame::Handshake {
        group,
        seq: 0,
        message,
    })
}

pub fn live(group: GroupId, ct: &[u8]) -> Bytes {
    frame(&Frame::Live { group, epoch: 7, ct })
}

pub fn call(call_id: CallId, group: GroupId, kind: u8, body: &[u8]) -> Bytes {
    let epoch = 7;
    frame(&Frame::Call {
        call_id,
        group,
        epoch,
        kind,
        body,
    })
}

pub fn media(call_id: CallId, stream: u8, seq: u64, ct: &[u8]) -> Bytes {
    let stream = [0, 0, 0, stream];
    frame(&Frame::Media {
        call_id,
        stream,
        seq,
        ct,
    })
}

pub fn access(body: &[u8]) -> Bytes {
    frame(&Frame::Access { body })
}

pub fn join(request: &join::Request<'_>) -> Bytes {
    frame(&Frame::Join {
        body: &request.encode(),
    })
}

pub fn recon(group: GroupId, ranges: &[Range]) -> Bytes {
    let mut payload = Vec::new();
    recon::encode(ranges, &mut payload);
    frame(&Frame::Recon {
        group,
        payload: &payload,
    })
}

pub fn bye() -> Bytes {
    frame(&Frame::Bye { reason: b"done" })
}

pub fn keys_fetch(device: PublicKey, count: u8) -> Bytes {
    frame(&Frame::Keys(Keys::Fetch { device, count }))
}

// ---- who acts

/// A key pair from a number.
#[derive(Clone)]
pub struct Device {
    pub key: SigningKey,
}

impl Device {
    pub fn new(n: u64) -> Self {
        Self {
            key: SigningKey::from_bytes(&Hash::of(&[b"device", &n.to_be_bytes()]).0),
        }
    }

    pub fn public(&self) -> PublicKey {
        PublicKey(self.key.verifying_key().to_bytes())
    }

    pub fn entry(&self, salt: &Salt) -> EntryHash {
        EntryHash::of(&self.public(), salt)
    }

    pub fn auth(&self, challenge: &[u8]) -> Bytes {
        self.auth_with(sign(&self.key, challenge))
    }

    pub fn auth_with(&self, signature: Signature) -> Bytes {
        frame(&Frame::Auth {
            device_key: self.public(),
            signature,
        })
    }
}

/// A minted workspace and its one invite.
#[derive(Clone, Debug)]
pub struct Minted {
    pub realm: RealmId,
    pub token: Token,
    pub code: String,
}

/// A founded workspace, as its founder knows it.
#[derive(Clone)]
pub struct Workspace {
    pub minted: Minted,
    pub salt: Salt,
    pub founder: Device,
    /// The recovery key named at genesis.
    pub recovery: Device,
    /// The newest set a test had accepted.
    pub head: AccessSet,
}

/// A set before its signature, sorted.
pub struct Draft {
    pub set: AccessSet,
}

impl Draft {
    /// Version 0 of a workspace: these authorizers, recovery keys and further members.
    pub fn genesis(salt: &Salt, authorizers: &[&Device], recovery: &[&Device], members: &[&Device]) -> Self {
        let all = [authorizers, recovery, members].concat();
        let mut set = AccessSet {
            workspace: group(0).0,
            version: 0,
            prev_hash: Hash([0; 32]),
            issued_at_ms: EPOCH_MS,
            entries: all.iter().map(|d| d.entry(salt)).collect(),
            authorizers: authorizers.iter().map(|d| d.public()).collect(),
            recovery: recovery.iter().map(|d| d.public()).collect(),
            quorum: None,
            pending: Vec::new(),
            signer: PublicKey([0; 32]),
            sig: Signature([0; 64]),
        };
        sort(&mut set);
        Self { set }
    }

    /// Changed as told, then sorted again.
    pub fn with(mut self, change: impl FnOnce(&mut AccessSet)) -> Self {
        change(&mut self.set);
        sort(&mut self.set);
        self
    }

    pub fn by(self, signer: &Device) -> AccessSet {
        self.set.signed(&signer.key)
    }
}

fn sort(set: &mut AccessSet) {
    set.entries.sort_unstable();
    set.entries.dedup();
    set.authorizers.sort_unstable();
    set.recovery.sort_unstable();
    set.pending.sort_unstable();
    if let Some(quorum) = &mut set.quorum {
        quorum.keys.sort_unstable();
    }
}

impl Workspace {
    /// The successor of the newest set, not yet changed.
    pub fn next(&self) -> Draft {
        let mut set = self.head.clone();
        set.version += 1;
        set.prev_hash = self.head.digest();
        set.pending.clear();
        if let Some(quorum) = &mut set.quorum {
            quorum.sigs.clear();
        }
        Draft { set }
    }

    /// The same with these devices more.
    pub fn adding(&self, devices: &[&Device]) -> Draft {
        self.next()
            .with(|set| set.entries.extend(devices.iter().map(|d| d.entry(&self.salt))))
    }

    /// The same without these.
    pub fn removing(&self, devices: &[&Device]) -> Draft {
        let gone: Vec<EntryHash> = devices.iter().map(|d| d.entry(&self.salt)).collect();
        self.next().with(|set| set.entries.retain(|e| !gone.contains(e)))
    }
}

impl World {
    /// Everything the client has read, decoded.
    pub fn got(&mut self, c: C) -> Vec<Got> {
        self.pump();
        self.take_all(c).iter().map(|message| Got::of(message)).collect()
    }

    /// Sends one message and returns everything that comes back.
    pub fn ask(&mut self, c: C, message: Bytes) -> Vec<Got> {
        self.push(c, message);
        self.got(c)
    }

    /// The same where exactly one frame is expected.
    #[track_caller]
    pub fn ask1(&mut self, c: C, message: Bytes) -> Got {
        only(self.ask(c, message))
    }

    /// Sends and waits, looking at nothing.
    pub fn say(&mut self, c: C, message: Bytes) {
        self.push(c, message);
        self.pump();
    }

    // ---- the operator

    pub fn mint(&mut self, name: &str) -> Minted {
        match self.try_mint(name, true) {
            Some(minted) => minted,
            None => panic!("{name} was not minted"),
        }
    }

    /// Mints; `None` if the workspace existed or the store failed.
    pub fn try_mint(&mut self, name: &str, first: bool) -> Option<Minted> {
        self.mint_with(name, first, None)
    }

    /// The same with the invite stored sealed.
    pub fn mint_with(&mut self, name: &str, first: bool, handoff: Option<Handoff>) -> Option<Minted> {
        let realm = RealmId(name.into());
        let mut minted = bootstrap::mint(&realm, self.now.wall_ms, first).expect("a mint");
        if let Some(handoff) = handoff {
            minted = minted.with_handoff(handoff);
        }
        let outcome = Arc::new(Mutex::new(None));
        let told = outcome.clone();
        let operator = Operator::Mint {
            minted: Box::new(minted),
            reply: Box::new(move |o| *told.lock().unwrap() = Some(o)),
        };
        let (shard, message) = ShardMessage::operator(realm.clone(), operator, self.config.shards);
        self.post(shard, message);
        self.pump();
        match outcome.lock().unwrap().take() {
            Some(MintOutcome::Minted(banner)) => Some(Minted {
                realm,
                token: banner.token,
                code: banner.code,
            }),
            _ => None,
        }
    }

    pub fn report(&mut self, realm: &RealmId) -> Option<RealmReport> {
        let report = Arc::new(Mutex::new(None));
        let told = report.clone();
        let operator = Operator::Report {
            reply: Box::new(move |r| *told.lock().unwrap() = Some(r)),
        };
        let (shard, message) = ShardMessage::operator(realm.clone(), operator, self.config.shards);
        self.post(shard, message);
        self.pump();
        let report = report.lock().unwrap().take();
        report.expect("a report is always answered")
    }

    pub fn log(&mut self, realm: &RealmId) -> Option<TransparencyLog> {
        let log = Arc::new(Mutex::new(None));
        let told = log.clone();
        let operator = Operator::Log {
            reply: Box::new(move |l| *told.lock().unwrap() = Some(l)),
        };
        let (shard, message) = ShardMessage::operator(realm.clone(), operator, self.config.shards);
        self.post(shard, message);
        self.pump();
        let log = log.lock().unwrap().take();
        log.expect("a log is always answered")
    }

    // ---- joining

    pub fn reserve(&mut self, c: C, minted: &Minted, code: &str, nonce: [u8; 16], device: &Device) -> Got {
        let message = reserve(minted, code, nonce, device);
        self.ask1(c, message)
    }

    // ---- sessions

    /// CONNECT; returns the challenge.
    #[track_caller]
    pub fn connect(&mut self, c: C, version: u16, groups: &[GroupId]) -> Vec<u8> {
        let got = self.ask(c, connect(version, groups));
        match &got[..] {
            [Got::ConnectAck { .. }, Got::Challenge(challenge)] => challenge.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// CONNECT and AUTH on a fresh connection; returns what AUTH was answered with.
    pub fn auth(&mut self, c: C, device: &Device, groups: &[GroupId]) -> Vec<Got> {
        let challenge = self.connect(c, 4, groups);
        self.ask(c, device.auth(&challenge))
    }

    /// A Ready connection of this device on shard 0.
    #[track_caller]
    pub fn login(&mut self, device: &Device, groups: &[GroupId]) -> C {
        self.login_as(0, 4, device, groups)
    }

    /// The same from a given shard and with a given version.
    #[track_caller]
    pub fn login_as(&mut self, shard: usize, version: u16, device: &Device, groups: &[GroupId]) -> C {
        let c = self.open_on(shard, "203.0.113.7");
        let challenge = self.connect(c, version, groups);
        let got = self.ask(c, device.auth(&challenge));
        assert!(matches!(got[..], [Got::AuthAck { .. }]), "{got:?}");
        c
    }

    /// Whether this device may come in now.
    pub fn admits(&mut self, device: &Device, groups: &[GroupId]) -> bool {
        let c = self.open();
        let got = self.auth(c, device, groups);
        self.hang_up(c);
        matches!(got[..], [Got::AuthAck { .. }])
    }

    // ---- workspaces

    /// A workspace founded by device 1 with recovery key 2, these further members, and these groups.
    #[track_caller]
    pub fn found(&mut self, name: &str, members: &[&Device], groups: &[GroupId]) -> Workspace {
        self.found_by(name, &Device::new(1), &Device::new(2), members, groups)
    }

    #[track_caller]
    pub fn found_by(
        &mut self,
        name: &str,
        founder: &Device,
        recovery: &Device,
        members: &[&Device],
        groups: &[GroupId],
    ) -> Workspace {
        let minted = self.mint(name);
        let c = self.open();
        let got = self.reserve(c, &minted, &minted.code.clone(), [1; 16], founder);
        assert!(matches!(got, Got::Join(_)), "{got:?}");
        let got = self.auth(c, founder, groups);
        assert!(matches!(got[..], [Got::AuthAck { .. }]), "{got:?}");
        let state = self.state(c);
        let head = Draft::genesis(&state.salt, &[founder], &[recovery], members).by(founder);
        let got = self.publish(c, &head);
        assert_eq!(got, Got::Access(head.digest().0.to_vec()));
        self.hang_up(c);
        Workspace {
            minted,
            salt: state.salt,
            founder: founder.clone(),
            recovery: recovery.clone(),
            head,
        }
    }

    /// The ACCESS state query.
    #[track_caller]
    pub fn state(&mut self, c: C) -> AccessState {
        match self.ask1(c, access(&[])) {
            Got::Access(body) => AccessState::decode(&body).expect("a state"),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub fn publish(&mut self, c: C, set: &AccessSet) -> Got {
        self.ask1(c, access(&set.encode()))
    }

    /// Publishes a set that must be accepted, and remembers it as the head.
    #[track_caller]
    pub fn accept(&mut self, c: C, ws: &mut Workspace, set: AccessSet) {
        assert_eq!(self.publish(c, &set), Got::Access(set.digest().0.to_vec()));
        ws.head = set;
    }

    // ---- envelopes

    /// SEND of an envelope that must be acknowledged; returns its number.
    #[track_caller]
    pub fn stored(&mut self, c: C, group: GroupId, ct: &[u8]) -> u64 {
        let (bytes, hash) = envelope(group, ct);
        match self.ask1(c, send_envelope(&bytes)) {
            Got::Ack(acked, seq) if acked == hash => seq,
            other => panic!("{other:?}"),
        }
    }

    /// HANDSHAKE that must be acknowledged; returns its number.
    #[track_caller]
    pub fn shaken(&mut self, c: C, group: GroupId, message: &[u8]) -> u64 {
        match self.ask1(c, handshake(group, message)) {
            Got::Handshake(acked, seq, echoed) if acked == group && echoed == message => seq,
            other => panic!("{other:?}"),
        }
    }

    /// `count` distinct envelopes, pipelined, all acknowledged.
    #[track_caller]
    pub fn fill(&mut self, c: C, group: GroupId, count: usize) {
        for n in 0..count {
            self.push(c, send(group, &distinct(n)));
        }
        let got = self.got(c);
        let acks = got.iter().filter(|g| matches!(g, Got::Ack(..))).count();
        assert_eq!(
            acks,
            count,
            "{:?}",
            got.iter().find(|g| !matches!(g, Got::Ack(..)))
        );
    }

    /// SUB; returns everything that comes, the SUB_ACK first.
    #[track_caller]
    pub fn subscribe(&mut self, c: C, group: GroupId, from_seq: u64) -> Vec<Got> {
        let got = self.ask(c, sub(group, from_seq));
        assert!(
            matches!(got.first(), Some(Got::SubAck(g, _)) if *g == group),
            "{got:?}"
        );
        got
    }

    /// Reconciles a client that holds `items` until every range is settled; returns what was pushed and the rounds.
    pub fn reconcile(&mut self, c: C, group: GroupId, items: &mut Vec<Item>) -> (Vec<Pushed>, usize) {
        let mut pushed = Vec::new();
        let mut ranges = recon::opening(items);
        for round in 1..=64 {
            let mut got = self.ask(c, recon(group, &ranges));
            let Some(Got::Recon(_, answer)) = got.pop() else {
                panic!("the answer comes last, and always")
            };
            for got in got {
                let Got::Push(push) = got else { panic!("{got:?}") };
                items.push(recon::item(push.seq, &push.hash));
                pushed.push(push);
            }
            items.sort_unstable();
            items.dedup();
            match recon::client_step(items, &answer).ranges {
                Some(next) => ranges = next,
                None => return (pushed, round),
            }
        }
        panic!("the exchange never ends");
    }
}

/// A ciphertext of its own for each number.
pub fn distinct(n: usize) -> Vec<u8> {
    (n as u64 + 1).to_be_bytes().to_vec()
}

pub fn reserve(minted: &Minted, code: &str, nonce: [u8; 16], device: &Device) -> Bytes {
    join(&join::Request::Reserve {
        token: &minted.token.0,
        code,
        nonce: &nonce,
        device: &device.public().0,
    })
}
