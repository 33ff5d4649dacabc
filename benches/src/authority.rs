//! The founder of a workspace: whoever may publish its access sets, admit guests by invite, and let a log be dropped
//! (05 §7.4, 06 §2, 08 §12).

use crate::error::Error;
use crate::peer::{Peer, encoded, public_key};
use crate::workspace::{new_key, random};
use drover_wire::access::AccessSet;
use drover_wire::frame::Frame;
use drover_wire::id::{EntryHash, GroupId, Hash, PublicKey, Salt, Signature, Token};
use drover_wire::invite::{Record, canonical_code, grouped_code};
use drover_wire::invite_admin;
use ed25519_dalek::SigningKey;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long an invite is good.
const INVITE_LIFE: Duration = Duration::from_secs(3600);

/// See the module.
#[derive(Debug)]
pub(crate) struct Authority {
    pub(crate) key: SigningKey,
    salt: Salt,
    /// The newest accepted set.
    head: AccessSet,
}

/// An invite of the founder's.
pub(crate) struct Invite {
    pub(crate) token: Token,
    pub(crate) code: String,
}

impl Authority {
    /// Publishes the first set over the founder's connection, with these devices in it.
    pub(crate) fn found(
        peer: &mut Peer,
        founder: SigningKey,
        devices: &[SigningKey],
        salt: Salt,
    ) -> Result<Self, Error> {
        let head = first_set(&founder, &public_key(&new_key()), devices, &salt);
        publish(peer, &head)?;
        Ok(Self {
            key: founder,
            salt,
            head,
        })
    }

    /// Entries of the newest set.
    pub(crate) fn entries(&self) -> usize {
        self.head.entries.len()
    }

    /// The next set, without and with these devices.
    pub(crate) fn replacing(&self, dropped: &[SigningKey], admitted: &[SigningKey]) -> AccessSet {
        let entry = |device| EntryHash::of(&public_key(device), &self.salt);
        let dropped: Vec<EntryHash> = dropped.iter().map(entry).collect();
        self.next(|set| {
            set.entries.retain(|entry| !dropped.contains(entry));
            set.entries.extend(admitted.iter().map(entry));
            set.entries.sort_unstable();
        })
    }

    /// The next set, in which this device is an authorizer too.
    pub(crate) fn joined_by(&self, device: &SigningKey) -> AccessSet {
        self.next(|set| {
            set.authorizers.push(public_key(device));
            set.authorizers.sort_unstable();
        })
    }

    fn next(&self, change: impl FnOnce(&mut AccessSet)) -> AccessSet {
        let mut set = AccessSet {
            version: self.head.version + 1,
            prev_hash: self.head.digest(),
            ..self.head.clone()
        };
        change(&mut set);
        set.signed(&self.key)
    }

    /// Publishes a set that was made from the newest one.
    pub(crate) fn publish(&mut self, peer: &mut Peer, set: AccessSet) -> Result<(), Error> {
        publish(peer, &set)?;
        self.accepted(set);
        Ok(())
    }

    /// A set that was made from the newest one is the newest now.
    pub(crate) fn accepted(&mut self, set: AccessSet) {
        self.head = set;
    }

    /// Creates an invite with this many seats to a group.
    pub(crate) fn invite(&self, peer: &mut Peer, group: GroupId, uses: u8) -> Result<Invite, Error> {
        let token = Token(random());
        let code = grouped_code(u64::from_le_bytes(random()));
        let code_hash = canonical_code(&code)
            .and_then(|symbols| hash_code(&symbols, &token))
            .ok_or_else(|| Error::Unexpected("a code that can't be hashed".into()))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let record = Record {
            token,
            workspace: group.0,
            issuer: public_key(&self.key),
            issued_at_ms: now.as_millis() as u64,
            expires_ms: (now + INVITE_LIFE).as_millis() as u64,
            uses,
            code_hash,
            scopes: vec![group],
            caps: vec![b"chat.read".to_vec()],
            update_pub: random(),
            bundles: vec![(group, 1, b"sealed".to_vec())],
            sig: Signature([0; 64]),
        }
        .signed(&self.key)
        .encode();
        let body = invite_admin::Request::Create { record: &record }.encode();
        peer.send(&encoded(&Frame::Invite { body: &body }))?;
        peer.answer(|frame| matches!(frame, Frame::Invite { .. }).then_some(()))?;
        Ok(Invite { token, code })
    }
}

/// Sends a set and waits until it is accepted.
fn publish(peer: &mut Peer, set: &AccessSet) -> Result<(), Error> {
    peer.send(&encoded(&Frame::Access { body: &set.encode() }))?;
    let digest = peer.answer(|frame| match frame {
        Frame::Access { body } => Hash::from_slice(body),
        _ => None,
    })?;
    if digest != set.digest() {
        return Err(Error::Unexpected("another access set was accepted".into()));
    }
    Ok(())
}

/// Argon2id as 06 §3 has it.
fn hash_code(symbols: &[u8; 12], token: &Token) -> Option<Hash> {
    let params = argon2::Params::new(19_456, 2, 1, Some(Hash::LEN)).ok()?;
    let mut hash = [0; Hash::LEN];
    argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params)
        .hash_password_into(symbols, &token.0, &mut hash)
        .ok()?;
    Some(Hash(hash))
}

fn first_set(founder: &SigningKey, recovery: &PublicKey, devices: &[SigningKey], salt: &Salt) -> AccessSet {
    let signer = public_key(founder);
    let mut entries: Vec<EntryHash> = devices
        .iter()
        .map(public_key)
        .chain([signer, *recovery])
        .map(|key| EntryHash::of(&key, salt))
        .collect();
    entries.sort_unstable();
    AccessSet {
        workspace: [0; 32],
        version: 0,
        prev_hash: Hash([0; 32]),
        issued_at_ms: 0,
        entries,
        authorizers: vec![signer],
        recovery: vec![*recovery],
        quorum: None,
        pending: Vec::new(),
        signer,
        sig: Signature([0; 64]),
    }
    .signed(founder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn founded(devices: &[SigningKey]) -> Authority {
        let (key, salt) = (new_key(), Salt([1; 32]));
        let head = first_set(&key, &public_key(&new_key()), devices, &salt);
        Authority { key, salt, head }
    }

    #[test]
    fn the_first_set_has_the_shape_a_relay_asks_for() {
        let devices: Vec<SigningKey> = (0..5).map(|_| new_key()).collect();
        let set = founded(&devices).head;
        assert_eq!(set.check_shape(), Ok(()));
        assert_eq!(set.entries.len(), 7);
    }

    #[test]
    fn a_successor_replaces_devices_one_for_one() {
        let devices: Vec<SigningKey> = (0..5).map(|_| new_key()).collect();
        let authority = founded(&devices);
        let set = authority.replacing(&devices[..2], &[new_key(), new_key()]);
        assert_eq!(set.check_shape(), Ok(()));
        assert_eq!((set.version, set.entries.len()), (1, authority.entries()));
        let gone = EntryHash::of(&public_key(&devices[0]), &authority.salt);
        assert!(!set.entries.contains(&gone));
        assert_eq!(set.prev_hash, authority.head.digest());
    }

    #[test]
    fn codes_hash_as_the_specification_says() {
        let hash = hash_code(b"000000000000", &Token([0; 16])).expect("a hash");
        assert_eq!(hash.0[..4], [0x79, 0x4c, 0x4b, 0x55]);
    }
}
