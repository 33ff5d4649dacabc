//! One of every body of the control plane, and of every frame in map form.

use drover_wire::error::Code;
use drover_wire::id::{GroupId, Hash, PublicKey, Signature, Token, WrapTag};
use drover_wire::map::{AuthState, MapFrame, Span, WriteMode};
use drover_wire::retention::{Control, Destruction, Manifest, Policy, Resolution};
use drover_wire::wrap::Wrap;
use drover_wire::{blob, drop, invite_admin};

use super::{Parts, URLS};

impl Parts {
    pub(super) fn invite_requests(&self) -> [invite_admin::Request<'_>; 5] {
        use invite_admin::Request;
        let (body, token) = (&self.body[..], &self.more[..]);
        [
            Request::Authority,
            Request::Create { record: body },
            Request::List,
            Request::Revoke { token },
            Request::Refresh {
                token,
                group: &self.id,
                epoch: self.wide[0],
                ct: body,
            },
        ]
    }

    pub(super) fn invite_responses(&self) -> [invite_admin::Response<'_>; 5] {
        use invite_admin::{Response, State, Summary};
        let token = &self.more[..];
        let summary = |state| Summary {
            token: Token(self.short()),
            issued_at_ms: self.wide[0],
            expires_ms: self.wide[1],
            remaining: self.narrow[0],
            seats: self.narrow[1],
            scope_count: u16::from(self.narrow[2]),
            state,
        };
        [
            Response::Authority(self.narrow[0] & 1 == 1),
            Response::Created { token },
            Response::List([State::Live, State::Revoked, State::Spent].map(summary).to_vec()),
            Response::Revoked { token },
            Response::Refreshed,
        ]
    }

    pub(super) fn wrap(&self) -> Wrap<'_> {
        // A wrap without a ciphertext is none.
        let ct = if self.body.is_empty() {
            b"-"
        } else {
            &self.body[..]
        };
        Wrap {
            group: GroupId(self.id),
            epoch: self.wide[0],
            tag: WrapTag(self.key),
            ct,
        }
    }

    pub(super) fn hashes(&self) -> Vec<Hash> {
        self.ids.iter().copied().map(Hash).collect()
    }

    /// Null, or bytes of any width.
    pub(super) fn digest(&self) -> Option<Vec<u8>> {
        (self.narrow[1] & 1 == 1).then(|| self.more.clone())
    }

    pub(super) fn sigs(&self) -> Vec<(PublicKey, Signature)> {
        self.ids
            .iter()
            .map(|&id| (PublicKey(id), self.signature()))
            .collect()
    }

    pub(super) fn control(&self) -> Control {
        Control {
            group: GroupId(self.id),
            epoch: self.wide[0],
            verifier: PublicKey(self.key),
            prev: self.digest(),
            sig: self.signature(),
        }
    }

    pub(super) fn manifest(&self) -> Manifest {
        Manifest {
            group: GroupId(self.id),
            epoch: self.wide[0],
            sequence: self.wide[1],
            prev: self.digest(),
            blobs: self.hashes(),
            sig: self.signature(),
        }
    }

    pub(super) fn policy(&self) -> Policy {
        Policy {
            group: GroupId(self.id),
            version: self.wide[0],
            media_after_days: self.u32(),
            text_after_days: self.wide[1] as u32,
            not_before_s: self.wide[2],
            authorizers: vec![PublicKey(self.key)],
            sigs: self.sigs(),
        }
    }

    pub(super) fn destruction(&self) -> Destruction {
        Destruction {
            group: GroupId(self.id),
            kind: self.more.clone(),
            target: Hash(self.key),
            policy_version: (self.narrow[0] & 1 == 1).then_some(self.wide[1]),
            not_before_s: self.wide[2],
            authorizers: vec![PublicKey(self.key)],
            sigs: self.sigs(),
        }
    }

    pub(super) fn resolution(&self) -> Resolution {
        Resolution {
            group: GroupId(self.id),
            epoch: self.wide[0],
            verifier: PublicKey(self.key),
            sig: self.signature(),
        }
    }

    pub(super) fn blob_requests(&self) -> [blob::Request<'_>; 13] {
        use blob::Request;
        let (group, hash) = (GroupId(self.id), Hash(self.key));
        let (workspace, session) = (&self.more[..], &self.more[..]);
        [
            Request::Put {
                workspace,
                group,
                hash,
                ciphertext_bytes: self.wide[0],
            },
            Request::Get {
                workspace,
                group,
                hash,
            },
            Request::MultipartPart {
                session,
                part_number: self.u32(),
                part_bytes: self.wide[1],
            },
            Request::MultipartComplete {
                session,
                parts: self.ids.iter().map(|id| (self.u32(), &id[..])).collect(),
            },
            Request::MultipartAbort { session },
            Request::Control(self.control()),
            Request::Manifest(self.manifest()),
            Request::Policy(self.policy()),
            Request::Destruction(self.destruction()),
            Request::List { workspace, group },
            Request::Resolution(self.resolution()),
            Request::Position { group },
            Request::Quota { group },
        ]
    }

    pub(super) fn blob_responses(&self) -> [blob::Response<'_>; 13] {
        use blob::Response;
        let (url, expires_in_s) = (URLS[usize::from(self.narrow[0]) % URLS.len()], self.wide[0]);
        let maybe = |bit: u8| (self.narrow[1] & bit != 0).then_some(Hash(self.key));
        [
            Response::Upload { url, expires_in_s },
            Response::Exists,
            Response::Multipart {
                session: self.short(),
                part_bytes: self.wide[1],
                expires_in_s,
            },
            Response::Download { url, expires_in_s },
            Response::NotFound,
            Response::PartUpload { url, expires_in_s },
            Response::Completed,
            Response::Aborted,
            Response::Ack(Hash(self.id)),
            Response::Listing(self.ids.iter().map(|id| (&id[..], self.wide[1])).collect()),
            Response::Resolved,
            Response::Position(blob::Position {
                control_epoch: self.wide[0],
                control_digest: maybe(1),
                next_sequence: self.wide[1],
                prev_manifest: maybe(2),
                blobs: self.hashes(),
            }),
            Response::Quota {
                stored_bytes: self.wide[0],
                reserved_bytes: self.wide[1],
                limit_bytes: (self.narrow[1] & 1 == 1).then_some(self.wide[2]),
            },
        ]
    }

    pub(super) fn drop_request(&self) -> drop::Request {
        drop::Request {
            group: GroupId(self.id),
            checkpoint: Hash(self.key),
            snapshots: self.hashes(),
            epoch: self.wide[0],
            policy_version: (self.narrow[0] & 1 == 1).then_some(self.wide[1]),
            destruction_digest: self.digest(),
            sig: self.signature(),
        }
    }

    pub(super) fn drop_answers(&self) -> [drop::Answer; 8] {
        use drop::{Answer, Verdict};
        let [deleted, bytes, kept] = self.wide;
        [
            Answer::Ran { deleted, bytes, kept },
            Answer::Against(Verdict::GroupFrozen),
            Answer::Against(Verdict::NoRetentionChain),
            Answer::Against(Verdict::StaleEpoch(deleted)),
            Answer::Against(Verdict::BadSignature),
            Answer::Against(Verdict::NoAuthorization),
            Answer::Against(Verdict::AuthorizationNotDue),
            Answer::Against(Verdict::IncompleteManifest(bytes)),
        ]
    }

    pub(super) fn map_frames(&self) -> [MapFrame<'_>; 10] {
        let (group, groups) = (GroupId(self.id), self.list32.as_list());
        let flag = |bit: u8| self.narrow[0] & bit != 0;
        let reason = flag(1).then_some(URLS[usize::from(self.narrow[1]) % URLS.len()]);
        let write_mode = if flag(2) {
            WriteMode::Full
        } else {
            WriteMode::ReadOnly { reason }
        };
        let mut bounds: Vec<u64> = self.wide.to_vec();
        bounds.sort_unstable();
        bounds.dedup();
        let spans = bounds.windows(2).map(|pair| Span {
            lower: pair[0],
            upper: pair[1],
            fingerprint: Hash(self.key),
        });
        [
            MapFrame::Connect {
                version: (self.wide[0] as u16).max(1),
                groups,
            },
            MapFrame::Proof {
                device_key: PublicKey(self.key),
                signature: self.signature(),
            },
            MapFrame::Auth {
                key: &self.more,
                state: AuthState {
                    relay_time_ms: self.wide[1],
                    key_packages_remaining: self.u32(),
                    write_mode,
                    min_enc: self.narrow[2] & 1,
                },
            },
            MapFrame::Sub {
                groups: self.one_group.as_list(),
                from_seq: flag(4).then_some(self.wide[0]),
                no_backfill: flag(8).then_some(flag(16)),
            },
            MapFrame::Recon {
                group,
                payload: &self.body,
            },
            MapFrame::ReconList {
                group,
                spans: spans.collect(),
            },
            MapFrame::ReconList { group, spans: vec![] },
            MapFrame::Push(self.envelope()),
            MapFrame::Send(self.envelope()),
            MapFrame::Error {
                code: Code::ALL[usize::from(self.narrow[3]) % Code::ALL.len()],
                state: flag(32).then_some(Hash(self.id)),
                retry_after_ms: flag(64).then_some(self.wide[2]),
            },
        ]
    }
}
