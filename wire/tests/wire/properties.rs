//! What holds for any values: decoding is the inverse of encoding. What holds for any bytes is in `fuzz/`.

mod bodies;

use drover_wire::access::{AccessSet, AccessState, Quorum};
use drover_wire::cbor::{Reader, Writer};
use drover_wire::envelope::Envelope;
use drover_wire::error::Code;
use drover_wire::frame::{BytesListBuf, Frame, Keys, List32Buf, Wake};
use drover_wire::id::{CallId, EntryHash, GroupId, Hash, PublicKey, Salt, Signature, Token};
use drover_wire::invite::Record;
use drover_wire::join::{Bundle, Request, Response};
use drover_wire::map::MapFrame;
use drover_wire::retention::Manifest;
use drover_wire::wrap::Wrap;
use drover_wire::{blob, drop, invite_admin, recon};
use proptest::prelude::*;

use crate::support::encoded;

/// What frames of every kind can be made of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    id: [u8; 32],
    key: [u8; 32],
    wide: [u64; 3],
    narrow: [u8; 4],
    body: Vec<u8>,
    more: Vec<u8>,
    ids: Vec<[u8; 32]>,
    list32: List32Buf,
    one_group: List32Buf,
    list: BytesListBuf,
}

/// Kinds of frame [`Parts::frame`] makes: 23 tags, and the forms of KEYS and WAKE.
pub(crate) const KINDS: usize = 34;

const URLS: [&str; 4] = [
    "",
    "https://ringer.example/v1/handles",
    "http://localhost:1/",
    "http://[::1]/",
];

impl Parts {
    fn u32(&self) -> u32 {
        self.wide[0] as u32
    }

    fn signature(&self) -> Signature {
        let mut signature = [7; 64];
        signature[..32].copy_from_slice(&self.key);
        Signature(signature)
    }

    fn short<const N: usize>(&self) -> [u8; N] {
        std::array::from_fn(|n| self.id[n])
    }

    /// The frame of this kind, 0 to [`KINDS`] - 1; tags come in ascending order.
    pub(crate) fn frame(&self, kind: usize) -> Frame<'_> {
        let Self {
            wide: [a, b, _],
            narrow: [n, m, o, p],
            ..
        } = *self;
        let (group, device_key) = (GroupId(self.id), PublicKey(self.key));
        let (body, call_id) = (&self.body[..], CallId(self.short()));
        let packages = self.list.as_list();
        match kind {
            0 => Frame::Connect {
                version: (a as u16).max(1),
                groups: self.list32.as_list(),
                sent_at_ms: b,
            },
            1 => Frame::ConnectAck {
                version: u16::from(n % 4) + 1,
                server_time_ms: a,
                min_enc: m,
            },
            2 => Frame::AuthChallenge { challenge: body },
            3 => Frame::Auth {
                device_key,
                signature: self.signature(),
            },
            4 => Frame::AuthAck {
                key_packages_remaining: self.u32(),
                write_mode: n,
                build_digest: body,
                access_set: m,
                min_enc: o,
            },
            5 => Frame::Access { body },
            6 => Frame::Sub { group, from_seq: a },
            7 => Frame::SubAck { group, head_seq: a },
            8 => Frame::Recon { group, payload: body },
            9 => Frame::Push { envelope: body },
            10 => Frame::Send { envelope: body },
            11 => Frame::SendAck {
                hash: Hash(self.id),
                seq: a,
            },
            12 => Frame::Blob { payload: body },
            13 => Frame::Bye { reason: body },
            14 => Frame::Error {
                code: Code::ALL[usize::from(n) % Code::ALL.len()],
                retry_after_s: self.u32(),
                detail: body,
            },
            15 => Frame::Wrap { body },
            16 => Frame::Handshake {
                group,
                seq: a,
                message: body,
            },
            17 => Frame::Join { body },
            18 => Frame::Drop { payload: body },
            19 => Frame::Invite { body },
            20 => Frame::Live {
                group,
                epoch: a,
                ct: body,
            },
            21 => Frame::Keys(Keys::Publish { packages }),
            22 => Frame::Keys(Keys::Published {
                remaining: self.u32(),
            }),
            23 => Frame::Keys(Keys::Fetch {
                device: device_key,
                count: n,
            }),
            24 => Frame::Keys(Keys::Bundles { packages }),
            25 => Frame::Keys(Keys::None),
            26 => Frame::Call {
                call_id,
                group,
                epoch: a,
                kind: n,
                body,
            },
            27 => Frame::Media {
                call_id,
                stream: self.short(),
                seq: a,
                ct: body,
            },
            28 => Frame::Wake(Wake::Register {
                handle: self.short(),
                categories: n % 7 + 1,
                expires_at_ms: a,
            }),
            29 => Frame::Wake(Wake::Registered { expires_at_ms: a }),
            30 => Frame::Wake(Wake::Clear),
            31 => Frame::Wake(Wake::Cleared),
            32 => Frame::Wake(Wake::Query),
            _ => {
                let register_url = URLS[usize::from(p) % URLS.len()];
                Frame::Wake(Wake::Capability {
                    enabled: n & 1 == 1,
                    register_url,
                })
            }
        }
    }

    fn envelope(&self) -> Envelope<'_> {
        let Self {
            wide: [epoch, seq, ts_ms],
            narrow: [v, enc, ..],
            ..
        } = *self;
        let (group, hash) = (GroupId(self.id), Hash(self.key));
        Envelope {
            v,
            enc: enc & 1,
            group,
            epoch,
            seq,
            ts_ms,
            hash,
            ct: &self.body,
        }
    }

    fn access_set(&self) -> AccessSet {
        let key = PublicKey(self.key);
        let keys: Vec<PublicKey> = self.ids.iter().copied().map(PublicKey).collect();
        let entries: Vec<EntryHash> = self.ids.iter().copied().map(EntryHash).collect();
        AccessSet {
            workspace: self.id,
            version: self.wide[0],
            prev_hash: Hash(self.key),
            issued_at_ms: self.wide[1],
            entries: entries.clone(),
            authorizers: keys.clone(),
            recovery: vec![key],
            quorum: (self.narrow[0] & 1 == 1).then(|| Quorum {
                threshold: self.narrow[1],
                sigs: keys.iter().map(|key| (*key, self.signature())).collect(),
                keys,
            }),
            pending: entries,
            signer: key,
            sig: self.signature(),
        }
    }

    fn state(&self) -> AccessState {
        let head = (self.narrow[0] & 1 == 1).then_some((self.wide[0], Hash(self.key)));
        AccessState {
            salt: Salt(self.id),
            head,
        }
    }

    fn record(&self) -> Record {
        Record {
            token: Token(self.short()),
            workspace: self.id,
            issuer: PublicKey(self.key),
            issued_at_ms: self.wide[0],
            expires_ms: self.wide[1],
            uses: self.narrow[0],
            code_hash: Hash(self.key),
            scopes: self.ids.iter().copied().map(GroupId).collect(),
            caps: vec![self.more.clone(), vec![]],
            update_pub: self.key,
            bundles: self
                .ids
                .iter()
                .map(|&id| (GroupId(id), self.wide[2], self.more.clone()))
                .collect(),
            sig: self.signature(),
        }
    }

    fn request(&self, step: u8) -> Request<'_> {
        let (token, device, nonce) = (&self.body[..], &self.key[..], &self.more[..]);
        match step {
            0 => Request::Reserve {
                token,
                code: "28T5-CY4T-QKFF",
                nonce,
                device,
            },
            1 => Request::Bundles {
                token,
                group: &self.id,
            },
            2 => Request::Commit {
                token,
                nonce,
                device,
                group: &self.id,
            },
            3 => Request::Record { token },
            _ => Request::Park { token, nonce, device },
        }
    }

    fn response(&self, step: u8) -> Response<'_> {
        let expires_at_ms = self.wide[0];
        match step {
            0 => Response::Reserved { expires_at_ms },
            1 => Response::Bundles(
                self.ids
                    .iter()
                    .map(|&id| Bundle {
                        group: GroupId(id),
                        epoch: self.wide[1],
                        ct: &self.body,
                    })
                    .collect(),
            ),
            2 => Response::Committed {
                receipt: Hash(self.id),
            },
            3 => Response::Record { record: &self.body },
            _ => Response::Parked { expires_at_ms },
        }
    }

    fn recon(&self) -> Vec<recon::Range> {
        let mut uppers: Vec<u64> = self.wide.iter().copied().chain([recon::OPEN_END]).collect();
        uppers.sort_unstable();
        uppers.dedup();
        let mut ids: Vec<Hash> = self.ids.iter().copied().map(Hash).collect();
        ids.sort_unstable();
        ids.dedup();
        let mode = |pick: u8| match pick % 3 {
            0 => recon::Mode::Skip,
            1 => recon::Mode::Fingerprint(Hash(self.id)),
            _ => recon::Mode::Ids(ids.clone()),
        };
        let picks = self.narrow.iter();
        uppers
            .into_iter()
            .zip(picks)
            .map(|(upper, &pick)| recon::Range {
                upper,
                mode: mode(pick),
            })
            .collect()
    }
}

/// Integers of every width, their borders preferred.
fn wide() -> impl Strategy<Value = u64> {
    let borders = [
        0,
        23,
        24,
        255,
        256,
        65_535,
        65_536,
        u64::from(u32::MAX),
        1 << 32,
        1 << 63,
        u64::MAX,
    ];
    prop_oneof![prop::sample::select(borders.to_vec()), any::<u64>(), 0..300u64]
}

fn blob() -> impl Strategy<Value = Vec<u8>> {
    let sizes = prop_oneof![4 => 0..40usize, 1 => 250..260usize, 1 => 65_530..65_540usize];
    sizes.prop_flat_map(|size| any::<u8>().prop_map(move |byte| vec![byte; size]))
}

fn parts() -> impl Strategy<Value = Parts> {
    let ids = prop::collection::vec(any::<[u8; 32]>(), 0..30);
    let blobs = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..30);
    let small = prop::collection::vec(any::<u8>(), 0..40);
    let fixed = (
        any::<[u8; 32]>(),
        any::<[u8; 32]>(),
        [wide(), wide(), wide()],
        any::<[u8; 4]>(),
    );
    (fixed, blob(), small, ids, blobs).prop_map(|((id, key, wide, narrow), body, more, ids, blobs)| {
        let list32 = ids.iter().copied().collect();
        Parts {
            id,
            key,
            wide,
            narrow,
            body,
            more,
            ids,
            list32,
            one_group: [id].into_iter().collect(),
            list: blobs.iter().collect(),
        }
    })
}

fn as_map(frame: &MapFrame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out
}

/// Encodings of one of everything.
fn encodings(parts: &Parts) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = (0..KINDS).map(|kind| encoded(&parts.frame(kind))).collect();
    let mut envelope = Vec::new();
    parts.envelope().encode(&mut envelope);
    let mut payload = Vec::new();
    recon::encode(&parts.recon(), &mut payload);
    all.extend([
        envelope,
        payload,
        parts.access_set().encode(),
        parts.state().encode(),
        parts.record().encode(),
    ]);
    all.extend((0..5).flat_map(|step| [parts.request(step).encode(), parts.response(step).encode()]));
    all.extend(parts.invite_requests().map(|body| body.encode()));
    all.extend(parts.invite_responses().map(|body| body.encode()));
    all.extend(parts.blob_requests().map(|body| body.encode()));
    all.extend(parts.blob_responses().map(|body| body.encode()));
    all.extend(parts.drop_answers().map(|body| body.encode()));
    all.extend([
        parts.wrap().encode(),
        parts.drop_request().encode(),
        parts.control().encode(),
        parts.policy().encode(),
        parts.destruction().encode(),
        parts.resolution().encode(),
    ]);
    all.extend(parts.map_frames().map(|frame| as_map(&frame)));
    all
}

proptest! {
    #[test]
    fn decoding_is_the_inverse_of_encoding(parts in parts()) {
        for kind in 0..KINDS {
            let frame = parts.frame(kind);
            let wire = encoded(&frame);
            prop_assert_eq!(Frame::decode(&wire), Ok(frame));
        }
        let mut wire = Vec::new();
        let envelope = parts.envelope();
        envelope.encode(&mut wire);
        prop_assert_eq!(Envelope::decode(&wire), Ok(envelope));
        prop_assert_eq!(wire.len(), envelope.encoded_len());

        let mut wire = Vec::new();
        recon::encode(&parts.recon(), &mut wire);
        prop_assert_eq!(recon::decode(&wire), Ok(parts.recon()));

        let set = parts.access_set();
        prop_assert_eq!(AccessSet::decode(&set.encode()), Ok(set));
        let state = parts.state();
        prop_assert_eq!(AccessState::decode(&state.encode()), Ok(state));
        let record = parts.record();
        prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
        for step in 0..5 {
            let request = parts.request(step);
            let wire = request.encode();
            prop_assert_eq!(Request::decode(&wire), Some(request));
            let response = parts.response(step);
            let wire = response.encode();
            prop_assert_eq!(Response::decode(step, &wire), Some(response));
        }
    }

    #[test]
    fn decoding_bodies_and_maps_is_the_inverse_of_encoding(parts in parts()) {
        for body in parts.invite_requests() {
            let wire = body.encode();
            prop_assert_eq!(invite_admin::Request::decode(&wire), Ok(body));
        }
        for body in parts.invite_responses() {
            let wire = body.encode();
            prop_assert_eq!(invite_admin::Response::decode(&wire), Ok(body));
        }
        let wire = parts.wrap().encode();
        prop_assert_eq!(Wrap::decode(&wire), Ok(parts.wrap()));
        for body in parts.blob_requests() {
            let wire = body.encode();
            prop_assert_eq!(blob::Request::decode(&wire), Ok(body));
        }
        for body in parts.blob_responses() {
            let wire = body.encode();
            prop_assert_eq!(blob::Response::decode(&wire), Ok(body));
        }
        prop_assert_eq!(drop::Request::decode(&parts.drop_request().encode()), Ok(parts.drop_request()));
        for body in parts.drop_answers() {
            prop_assert_eq!(drop::Answer::decode(&body.encode()), Ok(body));
        }
        prop_assert_eq!(Manifest::decode(&parts.manifest().encode()), Ok(parts.manifest()));
        for frame in parts.map_frames() {
            let wire = as_map(&frame);
            prop_assert_eq!(MapFrame::decode(&wire), Ok(frame));
        }
    }

    /// `skip` ends exactly behind the item, whatever follows.
    #[test]
    fn skipping_an_item_ends_behind_it(parts in parts(), tail in prop::collection::vec(any::<u8>(), 0..9)) {
        for wire in encodings(&parts) {
            let mut r = Reader::new(&wire);
            prop_assert_eq!(r.skip(), Ok(()));
            prop_assert!(r.rest().is_empty());
            let longer = [&wire[..], &tail].concat();
            let mut r = Reader::new(&longer);
            prop_assert_eq!(r.skip(), Ok(()));
            prop_assert_eq!(r.rest(), &tail[..]);
        }
    }

    #[test]
    fn a_content_address_is_the_hash_of_the_items_alone(parts in parts()) {
        let envelope = parts.envelope();
        let mut preimage = Vec::new();
        Writer::new(&mut preimage)
            .uint(envelope.v)
            .uint(envelope.enc)
            .bytes(envelope.group)
            .uint(envelope.epoch)
            .bytes(envelope.ct);
        prop_assert_eq!(envelope.content_hash(), Hash::of(&[&preimage]));
    }
}
