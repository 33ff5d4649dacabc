//! Issuing and administering invites: for authorizers (06 §2, §3, §11).

use argon2::{Algorithm, Argon2, Params, Version};
use bytes::Bytes;
use drover_wire::cbor::{Reader, Writer};
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash, PublicKey, Signature, Token};
use drover_wire::invite::{Record, canonical_code, grouped_code};
use drover_wire::invite_admin::{Request, Response};

use crate::clock::now_ms;
use crate::connection::{Exchange, Incoming, encode};
use crate::error::Error;
use crate::identity::Identity;
use crate::joining::SealedBundle;
use crate::limits::SEALED_BYTES_MAX;
use crate::random;

const INVITE: u8 = 20;

/// An invite to be issued. Scopes are the groups of the bundles; they have to contain the workspace's root.
#[derive(Clone, Debug)]
pub struct InviteDraft {
    /// The workspace's root group.
    pub root: GroupId,
    /// Seats, 1 to 64.
    pub seats: u8,
    /// How long it lives, milliseconds; seven days is usual.
    pub life_ms: u64,
    /// Capabilities, at most 64, such as `chat.read` (06 §2).
    pub capabilities: Vec<String>,
    /// X25519 public key of the link's secret, to which the bundles are sealed.
    pub update_pub: [u8; 32],
    /// One sealed bundle per group, at most 256.
    pub bundles: Vec<SealedBundle>,
}

/// An issued invite. Link and code travel separately; the code is not kept anywhere else.
#[derive(Clone)]
pub struct IssuedInvite {
    /// Goes into the link.
    pub token: Token,
    /// Twelve symbols in three groups, for the invited person.
    pub code: String,
    /// When it ends, milliseconds since the Unix epoch.
    pub expires_ms: u64,
}

/// One invite in the relay's list (06 §11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InviteSummary {
    /// Its token.
    pub token: Token,
    /// When the relay stored it, milliseconds since the Unix epoch.
    pub issued_at_ms: u64,
    /// When it ends.
    pub expires_ms: u64,
    /// Seats left.
    pub remaining: u8,
    /// Seats altogether.
    pub seats: u8,
    /// Groups it admits to.
    pub scope_count: u64,
    /// `live`, `revoked` or `spent`.
    pub state: String,
}

/// Whether this device may administer invites: whether it is an authorizer now.
///
/// # Errors
/// [`Error::Refused`]; connection failures.
pub async fn may_invite(exchange: &mut impl Exchange) -> Result<bool, Error> {
    let answer = ask(exchange, |w| {
        w.array(1).uint(0u8);
    })
    .await?;
    read(&answer, 0, |r| r.uint()).map(|yes| yes == 1)
}

/// Issues an invite signed by `issuer`, which has to be the session's device. Hashing the code takes some 20 ms and
/// 19 MiB, on purpose (06 §3).
///
/// # Errors
/// [`Error::ClockSkew`] when the local clock is more than five minutes off; [`Error::Invalid`] for a draft the relay would
/// refuse; [`Error::Refused`]; connection failures.
pub async fn create_invite(
    exchange: &mut impl Exchange,
    issuer: &Identity,
    draft: &InviteDraft,
) -> Result<IssuedInvite, Error> {
    exchange.clock().ok_or(Error::Lost)?.permits_issuing()?;
    let token = Token(random::bytes());
    let code = grouped_code(u64::from_ne_bytes(random::bytes()) >> 4);
    let record = draft.record(issuer, token, &code, now_ms())?;
    let body = record.encode();
    let answer = ask(exchange, |w| {
        w.array(2).uint(1u8).bytes(&body);
    })
    .await?;
    let stored = read(&answer, 1, |r| r.fixed::<16>().copied())?;
    if stored != token.0 {
        return Err(Error::Protocol("invite stored under another token"));
    }
    Ok(IssuedInvite {
        token,
        code,
        expires_ms: record.expires_ms,
    })
}

/// The workspace's invites.
///
/// # Errors
/// [`Error::Refused`] with `denied/writer_not_in_access_set` for a device that is no authorizer; connection failures.
pub async fn list_invites(exchange: &mut impl Exchange) -> Result<Vec<InviteSummary>, Error> {
    let answer = ask(exchange, |w| {
        w.array(1).uint(2u8);
    })
    .await?;
    read(&answer, 2, |r| {
        let count = r.array()?;
        (0..count)
            .map(|_| {
                r.array_of(7)?;
                Ok(InviteSummary {
                    token: Token(*r.fixed()?),
                    issued_at_ms: r.uint()?,
                    expires_ms: r.uint()?,
                    remaining: r.u8()?,
                    seats: r.u8()?,
                    scope_count: r.uint()?,
                    state: String::from_utf8_lossy(r.bytes()?).into_owned(),
                })
            })
            .collect()
    })
}

/// Revokes an invite and everyone admitted by it only provisionally. The answer is the same for a token that is unknown.
///
/// # Errors
/// As [`list_invites`].
pub async fn revoke_invite(exchange: &mut impl Exchange, token: Token) -> Result<(), Error> {
    let answer = ask(exchange, |w| {
        w.array(2).uint(3u8).bytes(token);
    })
    .await?;
    read(&answer, 3, |r| r.fixed::<16>().map(drop))
}

/// A newer bundle for one of a live invite's groups, after a commit made the issued one stale (06 §7). Joiners are offered
/// the three newest and the issued one. Any device of the access set may; relays without this step refuse.
///
/// # Errors
/// [`Error::Invalid`] for a bundle of 0 or more than 262 144 bytes; [`Error::Refused`]; connection failures.
pub async fn refresh_bundle(
    exchange: &mut impl Exchange,
    token: Token,
    bundle: &SealedBundle,
) -> Result<(), Error> {
    if bundle.ct.is_empty() || bundle.ct.len() > SEALED_BYTES_MAX {
        return Err(Error::Invalid("bundle of 0 or more than 262 144 bytes"));
    }
    let body = Request::Refresh {
        token: &token.0,
        group: &bundle.group.0,
        epoch: bundle.epoch,
        ct: &bundle.ct,
    }
    .encode();
    let answer = exchange
        .exchange(encode(&Frame::Invite { body: &body }), INVITE)
        .await?;
    match answer.frame()? {
        Frame::Invite { body } if Response::decode(body) == Ok(Response::Refreshed) => Ok(()),
        _ => Err(Error::Protocol("INVITE refresh not answered")),
    }
}

impl InviteDraft {
    fn record(&self, issuer: &Identity, token: Token, code: &str, now_ms: u64) -> Result<Record, Error> {
        let mut bundles: Vec<_> = self
            .bundles
            .iter()
            .map(|b| (b.group, b.epoch, b.ct.to_vec()))
            .collect();
        bundles.sort();
        let scopes: Vec<_> = bundles.iter().map(|(group, ..)| *group).collect();
        let mut caps: Vec<_> = self
            .capabilities
            .iter()
            .map(|cap| cap.as_bytes().to_vec())
            .collect();
        caps.sort();
        caps.dedup();
        if !(1..=64).contains(&self.seats) || self.life_ms == 0 {
            return Err(Error::Invalid("seats outside 1 to 64, or no life"));
        }
        if scopes.len() > 256 || caps.len() > 64 || scopes.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::Invalid(
                "too many groups or capabilities, or a group twice",
            ));
        }
        if !scopes.contains(&self.root) {
            return Err(Error::Invalid("the root group is not among the bundles"));
        }
        if bundles
            .iter()
            .any(|(.., ct)| ct.is_empty() || ct.len() > SEALED_BYTES_MAX)
        {
            return Err(Error::Invalid("bundle of 0 or more than 262 144 bytes"));
        }
        let record = Record {
            token,
            workspace: self.root.0,
            issuer: PublicKey([0; 32]),
            issued_at_ms: now_ms,
            expires_ms: now_ms.saturating_add(self.life_ms),
            uses: self.seats,
            code_hash: code_hash(code, &token)?,
            scopes,
            caps,
            update_pub: self.update_pub,
            bundles,
            sig: Signature([0; 64]),
        };
        Ok(record.signed(issuer.key()))
    }
}

/// The hash of a one-time code under its invite's token (06 §3): Argon2id, 19 456 KiB, two passes, one lane.
///
/// # Errors
/// [`Error::Invalid`] for text that is no code.
pub fn code_hash(code: &str, token: &Token) -> Result<Hash, Error> {
    let symbols = canonical_code(code).ok_or(Error::Invalid("not an invite code"))?;
    let params = Params::new(19_456, 2, 1, Some(32)).map_err(|_| Error::Invalid("argon2 parameters"))?;
    let mut out = [0; 32];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(&symbols, &token.0, &mut out)
        .map_err(|_| Error::Invalid("argon2"))?;
    Ok(Hash(out))
}

async fn ask(
    exchange: &mut impl Exchange,
    write: impl FnOnce(&mut Writer<&mut Vec<u8>>),
) -> Result<Incoming, Error> {
    let mut body = Vec::new();
    write(&mut Writer::new(&mut body));
    let frame: Bytes = encode(&Frame::Invite { body: &body });
    exchange.exchange(frame, INVITE).await
}

/// Reads `[kind, field]`.
fn read<'a, T>(
    answer: &'a Incoming,
    kind: u64,
    field: impl FnOnce(&mut Reader<'a>) -> Result<T, drover_wire::cbor::Error>,
) -> Result<T, Error> {
    const BAD: Error = Error::Protocol("undecodable INVITE answer");
    let Frame::Invite { body } = answer.frame()? else {
        return Err(BAD);
    };
    let mut reader = Reader::new(body);
    let parse = || {
        reader.array_of(2)?;
        let answered = reader.uint()?;
        Ok::<_, drover_wire::cbor::Error>((answered, field(&mut reader)?))
    };
    let (answered, value) = parse().map_err(|_| BAD)?;
    reader.finish().map_err(|_| BAD)?;
    if answered == kind { Ok(value) } else { Err(BAD) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 06 §3, vectors/invite-code.json.
    #[test]
    fn the_code_hash_is_the_vectors() {
        let hash = code_hash(
            "28t5-cy4t-qkff",
            &Token([
                0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee,
                0xff,
            ]),
        )
        .expect("a code");
        let hex: String = hash.0.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "c7b6fc098f6ffadaad1246fa8dc141cdf090147325cafc5fd7c49d82235746db"
        );
    }

    #[test]
    fn a_draft_the_relay_would_refuse_is_not_signed() {
        let root = GroupId([7; 32]);
        let good = InviteDraft {
            root,
            seats: 1,
            life_ms: 1000,
            capabilities: vec!["chat.write".into(), "chat.read".into()],
            update_pub: [0; 32],
            bundles: vec![SealedBundle {
                group: root,
                epoch: 1,
                ct: Bytes::from_static(b"sealed"),
            }],
        };
        let record = |draft: &InviteDraft| {
            draft.record(
                &Identity::from_seed(&[1; 32]),
                Token([1; 16]),
                "0000-0000-0000",
                5,
            )
        };
        let made = record(&good).expect("good");
        assert!(made.caps.is_sorted() && made.expires_ms == 1005);
        assert!(
            record(&InviteDraft {
                seats: 0,
                ..good.clone()
            })
            .is_err()
        );
        assert!(
            record(&InviteDraft {
                root: GroupId([8; 32]),
                ..good.clone()
            })
            .is_err()
        );
        let twice = InviteDraft {
            bundles: [good.bundles.clone(), good.bundles.clone()].concat(),
            ..good
        };
        assert!(record(&twice).is_err());
    }
}
