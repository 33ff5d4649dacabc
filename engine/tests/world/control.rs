//! What clients do on the control plane: invites, key packages, wraps.

use super::{C, Device, EPOCH_MS, Got, Minted, Workspace, World, frame, join};
use bytes::Bytes;
use drover_wire::error::Code;
use drover_wire::frame::{BytesListBuf, Frame, Keys};
use drover_wire::id::{GroupId, Hash, Signature, Token, WrapTag};
use drover_wire::invite::{Record, canonical_code};
use drover_wire::invite_admin::{Request, Response, Summary};
use drover_wire::join;
use drover_wire::wrap::Wrap;
use std::sync::OnceLock;

/// The one answer to every JOIN that means no, byte for byte (06 §1).
pub const GENERIC: &[u8] = b"\x82\x0f\x84\x45quota\x4fseats_exhausted\x00\x40";

/// The one-time code of every invite a test issues.
pub const CODE: &str = "28T5-CY4T-QKFF";

/// A day.
pub const DAY_MS: u64 = 86_400_000;

pub fn invite(request: &Request<'_>) -> Bytes {
    frame(&Frame::Invite {
        body: &request.encode(),
    })
}

pub fn create(record: &Record) -> Bytes {
    invite(&Request::Create {
        record: &record.encode(),
    })
}

pub fn revoke(token: &Token) -> Bytes {
    invite(&Request::Revoke { token: &token.0 })
}

pub fn refresh(token: &Token, group: GroupId, epoch: u64, ct: &[u8]) -> Bytes {
    invite(&Request::Refresh {
        token: &token.0,
        group: &group.0,
        epoch,
        ct,
    })
}

/// A frame INVITE is answered with.
pub fn invite_answer(response: &Response<'_>) -> Got {
    Got::Invite(response.encode())
}

pub fn commit(m: &Minted, nonce: [u8; 16], device: &Device, group: GroupId) -> Bytes {
    join(&join::Request::Commit {
        token: &m.token.0,
        nonce: &nonce,
        device: &device.public().0,
        group: &group.0,
    })
}

pub fn park(m: &Minted, nonce: [u8; 16], device: &Device) -> Bytes {
    join(&join::Request::Park {
        token: &m.token.0,
        nonce: &nonce,
        device: &device.public().0,
    })
}

/// What a commit of this group is answered with (06 §9).
pub fn receipt(m: &Minted, nonce: [u8; 16], group: GroupId) -> Got {
    let receipt = Hash::of(&[b"weald invite scope-commit v1", &m.token.0, &nonce, &group.0]);
    Got::Join(join::Response::Committed { receipt }.encode())
}

pub fn reserved_until(expires_at_ms: u64) -> Got {
    Got::Join(join::Response::Reserved { expires_at_ms }.encode())
}

pub fn parked_until(expires_at_ms: u64) -> Got {
    Got::Join(join::Response::Parked { expires_at_ms }.encode())
}

pub fn generic() -> Got {
    super::refused(Code::SeatsExhausted)
}

pub fn keys_publish(packages: &[&[u8]]) -> Bytes {
    let list: BytesListBuf = packages.iter().copied().collect();
    frame(&Frame::Keys(Keys::Publish {
        packages: list.as_list(),
    }))
}

pub fn wrap(group: GroupId, epoch: u64, tag: u8, ct: &[u8]) -> Bytes {
    let body = Wrap {
        group,
        epoch,
        tag: WrapTag([tag; 32]),
        ct,
    };
    frame(&Frame::Wrap { body: &body.encode() })
}

/// What a stored wrap is answered with.
pub fn wrapped(tag: u8) -> Got {
    Got::Wrap(vec![tag; 32])
}

/// An invite of the workspace for these groups, the first its root: seven days, signed by its founder.
pub fn record(ws: &Workspace, n: u8, uses: u8, scopes: &[GroupId]) -> Record {
    record_with(ws, n, uses, scopes, |_| {})
}

/// The same, changed before it is signed.
pub fn record_with(
    ws: &Workspace,
    n: u8,
    uses: u8,
    scopes: &[GroupId],
    change: impl FnOnce(&mut Record),
) -> Record {
    let mut sorted = scopes.to_vec();
    sorted.sort_unstable();
    let token = Token([n; 16]);
    let mut record = Record {
        token,
        workspace: scopes[0].0,
        issuer: ws.founder.public(),
        issued_at_ms: EPOCH_MS,
        expires_ms: EPOCH_MS + 7 * DAY_MS,
        uses,
        code_hash: code_hash(n),
        bundles: sorted.iter().map(|g| (*g, 1, b"sealed".to_vec())).collect(),
        scopes: sorted,
        caps: vec![b"chat.read".to_vec(), b"chat.write".to_vec()],
        update_pub: [0x33; 32],
        sig: Signature([0; 64]),
    };
    change(&mut record);
    record.signed(&ws.founder.key)
}

/// Hashed once for each token: it takes a while, and tests are many.
fn code_hash(n: u8) -> Hash {
    static HASHES: [OnceLock<Hash>; 256] = [const { OnceLock::new() }; 256];
    *HASHES[usize::from(n)].get_or_init(|| {
        let symbols = canonical_code(CODE).unwrap();
        Hash(drover_engine::code::hash(&symbols, &[n; 16]).unwrap())
    })
}

impl World {
    /// Stores an invite, which must be taken; what its joiners know of it.
    #[track_caller]
    pub fn issue(&mut self, c: C, ws: &Workspace, record: &Record) -> Minted {
        let token = record.token;
        assert_eq!(
            self.ask1(c, create(record)),
            invite_answer(&Response::Created { token: &token.0 })
        );
        Minted {
            realm: ws.minted.realm.clone(),
            token,
            code: CODE.to_owned(),
        }
    }

    /// Takes a seat, which must be free.
    #[track_caller]
    pub fn seat(&mut self, m: &Minted, nonce: u8, device: &Device) {
        let c = self.open_on(0, &format!("seat {nonce}"));
        let got = self.reserve(c, m, CODE, [nonce; 16], device);
        assert!(matches!(got, Got::Join(_)), "{got:?}");
        self.hang_up(c);
    }

    /// Commits a scope, from a connection of its own.
    pub fn commit(&mut self, m: &Minted, nonce: u8, device: &Device, group: GroupId) -> Got {
        let c = self.open();
        let got = self.ask1(c, commit(m, [nonce; 16], device, group));
        self.hang_up(c);
        got
    }

    /// What JOIN bundles serves: epochs and ciphertexts in order.
    #[track_caller]
    pub fn bundles(&mut self, token: &Token, group: GroupId) -> Vec<(u64, Vec<u8>)> {
        let c = self.open();
        let request = join::Request::Bundles {
            token: &token.0,
            group: &group.0,
        };
        let Got::Join(body) = self.ask1(c, join(&request)) else {
            panic!("bundles are always answered")
        };
        self.hang_up(c);
        match join::Response::decode(1, &body) {
            Some(join::Response::Bundles(list)) => list
                .iter()
                .map(|b| {
                    assert_eq!(b.group, group);
                    (b.epoch, b.ct.to_vec())
                })
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    /// What JOIN record serves; empty if nothing.
    #[track_caller]
    pub fn record_of(&mut self, token: &Token) -> Vec<u8> {
        let c = self.open();
        let Got::Join(body) = self.ask1(c, join(&join::Request::Record { token: &token.0 })) else {
            panic!("a record is always answered")
        };
        self.hang_up(c);
        match join::Response::decode(3, &body) {
            Some(join::Response::Record { record }) => record.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// The list of invites.
    #[track_caller]
    pub fn invites(&mut self, c: C) -> Vec<Summary> {
        match self.ask1(c, invite(&Request::List)) {
            Got::Invite(body) => match Response::decode(&body) {
                Ok(Response::List(list)) => list,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// INVITE refresh, which is always answered alike.
    #[track_caller]
    pub fn say_refresh(&mut self, c: C, token: &Token, group: GroupId, epoch: u64, ct: &[u8]) -> Vec<u8> {
        match self.ask1(c, refresh(token, group, epoch, ct)) {
            Got::Invite(body) => body,
            other => panic!("{other:?}"),
        }
    }

    /// Lets time pass until every realm in memory has been swept (06 §1: 15 minutes and a tenth).
    pub fn sweep(&mut self) {
        self.advance(990_000);
    }

    /// What the store holds of a partition beside a realm's own.
    pub fn beside(&self, ws: &Workspace, partition: &str) -> Vec<(Vec<u8>, Bytes)> {
        let name = format!("{}/{partition}", ws.minted.realm.0);
        self.records(&drover_storage::RealmId(name.into()))
    }
}
