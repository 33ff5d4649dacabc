//! Access sets from the client's side: who may connect, and how the next set is made and published (05).
//!
//! The relay hands out only the head's version and digest. The sets themselves travel among members, through the root
//! group's log, so a client that lost a race has to obtain the winner's set before it can build upon it.

use std::collections::BTreeSet;

use bytes::Bytes;
use drover_wire::access::{AccessSet, AccessState, LIST_MAX, Quorum, quorum_message, verify};
use drover_wire::error::Code;
use drover_wire::frame::Frame;
use drover_wire::id::{EntryHash, GroupId, Hash, PublicKey, Salt};

use crate::clock::now_ms;
use crate::connection::{Exchange, encode};
use crate::error::Error;
use crate::identity::Identity;

/// ACCESS, both ways.
const ACCESS: u8 = 6;

/// Asks for the workspace's salt and the head of its set chain (05 §5.1).
///
/// # Errors
/// [`Error::Refused`]; connection failures.
pub async fn access_state(exchange: &mut impl Exchange) -> Result<AccessState, Error> {
    let answer = exchange
        .exchange(encode(&Frame::Access { body: b"" }), ACCESS)
        .await?;
    match answer.frame()? {
        Frame::Access { body } => {
            AccessState::decode(body).map_err(|_| Error::Protocol("undecodable access state"))
        }
        _ => Err(Error::Protocol("ACCESS not answered")),
    }
}

/// A workspace as its members know it: salt, root group, and the newest access set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workspace {
    salt: Salt,
    head: AccessSet,
}

impl Workspace {
    /// A workspace whose newest set is `head`, obtained from a trusted source: it is where the chain of trust begins.
    pub fn new(salt: Salt, head: AccessSet) -> Self {
        Self { salt, head }
    }

    /// The salt that principals are hashed with.
    pub fn salt(&self) -> &Salt {
        &self.salt
    }

    /// The root group, whose id names the workspace in every set.
    pub fn root(&self) -> GroupId {
        GroupId(self.head.workspace)
    }

    /// The newest set known.
    pub fn head(&self) -> &AccessSet {
        &self.head
    }

    /// Its digest.
    pub fn digest(&self) -> Hash {
        self.head.digest()
    }

    /// Whether this key may connect, by the newest set known.
    pub fn admits(&self, key: &PublicKey) -> bool {
        self.head.entries.contains(&EntryHash::of(key, &self.salt))
    }

    /// Begins the next version: the head, to be changed.
    pub fn draft(&self) -> SetDraft {
        let mut next = self.head.clone();
        next.version = next.version.saturating_add(1);
        next.prev_hash = self.head.digest();
        next.pending.clear();
        if let Some(quorum) = &mut next.quorum {
            quorum.sigs.clear();
        }
        SetDraft {
            salt: self.salt,
            prior: Some(self.head.clone()),
            next,
        }
    }

    /// The set a spent recovery key signs (05 §7.5): `replacement` becomes an authorizer, `successor` the new recovery
    /// key, and nothing else changes. `pending` lists entries the replacement may later remove: its owner's lost devices
    /// that are no authorizers.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the rotation breaks a rule of 05 §7.5.
    pub fn recovery_rotation(
        &self,
        spent: &Identity,
        replacement: &PublicKey,
        successor: &PublicKey,
        pending: impl IntoIterator<Item = EntryHash>,
    ) -> Result<AccessSet, Error> {
        let key = spent.public();
        if !self.head.recovery.contains(&key) || self.head.authorizers.contains(&key) {
            return Err(Error::Invalid("signer is no recovery key"));
        }
        if replacement == successor || self.admits(replacement) || self.admits(successor) {
            return Err(Error::Invalid("replacement and successor must be two new keys"));
        }
        let authorizers: Vec<_> = self
            .head
            .authorizers
            .iter()
            .map(|key| EntryHash::of(key, &self.salt))
            .collect();
        let pending: BTreeSet<_> = pending.into_iter().collect();
        if pending
            .iter()
            .any(|entry| !self.head.entries.contains(entry) || authorizers.contains(entry))
        {
            return Err(Error::Invalid("pending names a stranger or an authorizer"));
        }
        let mut draft = self.draft();
        draft
            .remove_recovery(&key)
            .add_recovery(successor)
            .add_authorizer(replacement);
        draft.next.pending = pending.into_iter().collect();
        draft.finish(spent)
    }

    /// Takes over a set that was accepted elsewhere, if it follows the head: shape, version, link, workspace, signer and
    /// signature (05 §7.1, §7.3). The relay judged the finer rules.
    ///
    /// # Errors
    /// [`Error::Invalid`], with what is wrong.
    pub fn adopt(&mut self, encoded: &[u8]) -> Result<(), Error> {
        let set = AccessSet::decode(encoded).map_err(|_| Error::Invalid("undecodable access set"))?;
        set.check_shape()
            .map_err(|_| Error::Invalid("access set of a bad shape"))?;
        if self.head.version.checked_add(1) != Some(set.version) || set.prev_hash != self.head.digest() {
            return Err(Error::Invalid("access set does not follow the head"));
        }
        if set.workspace != self.head.workspace {
            return Err(Error::Invalid("access set of another workspace"));
        }
        if !self.head.authorizers.contains(&set.signer) && !self.head.recovery.contains(&set.signer) {
            return Err(Error::Invalid("access set signed by a stranger"));
        }
        if !verify(&set.signer, &set.signing_input(), &set.sig) {
            return Err(Error::Invalid("access set with a bad signature"));
        }
        self.head = set;
        Ok(())
    }

    /// Publishes a set made from [`Workspace::draft`] and, when it is accepted, takes it over. Give its encoding to the
    /// other members.
    ///
    /// An answer that was lost costs nothing: a repeated publication of the accepted head counts as accepted.
    ///
    /// # Errors
    /// [`Error::SetConflict`] when another set was accepted first: obtain it, [`Workspace::adopt`] it, draft again.
    /// [`Error::Refused`] when the set itself breaks a rule; connection failures.
    pub async fn publish(&mut self, exchange: &mut impl Exchange, set: AccessSet) -> Result<Hash, Error> {
        let digest = publish(exchange, &set, Some(self.head.digest())).await?;
        self.head = set;
        Ok(digest)
    }
}

/// Publishes a set upon `prior` (`None` for genesis).
pub(crate) async fn publish(
    exchange: &mut impl Exchange,
    set: &AccessSet,
    prior: Option<Hash>,
) -> Result<Hash, Error> {
    let digest = set.digest();
    let body = set.encode();
    let refusal = match exchange
        .exchange(encode(&Frame::Access { body: &body }), ACCESS)
        .await
    {
        Ok(answer) => {
            return match answer.frame()? {
                Frame::Access { body } if body == digest.0 => Ok(digest),
                _ => Err(Error::Protocol("access set acknowledged with another digest")),
            };
        }
        Err(Error::Refused(refusal)) if refusal.code == Code::WriterNotInAccessSet => refusal,
        Err(error) => return Err(error),
    };
    // A lost race and a broken rule share a code. The head's digest tells them apart: in the refusal, or asked for at a
    // relay that does not send it (02, decision 7).
    let named = refusal.state();
    if named.is_some() && named == prior {
        return Err(Error::Refused(refusal));
    }
    match access_state(exchange).await?.head {
        Some((_, head)) if head == digest => Ok(digest),
        Some((version, head)) if Some(head) != prior => Err(Error::SetConflict {
            version,
            digest: head,
        }),
        _ => Err(Error::Refused(refusal)),
    }
}

/// A set in the making. Keys given as authorizers or recovery keys become entries as well, as they have to be.
#[derive(Clone, Debug)]
pub struct SetDraft {
    salt: Salt,
    /// `None` for genesis.
    prior: Option<AccessSet>,
    next: AccessSet,
}

impl SetDraft {
    /// Version 0 of a new workspace with this root group: nobody in it yet (05 §7.2).
    pub fn genesis(salt: Salt, root: GroupId) -> Self {
        let next = AccessSet {
            workspace: root.0,
            version: 0,
            prev_hash: Hash([0; 32]),
            issued_at_ms: 0,
            entries: Vec::new(),
            authorizers: Vec::new(),
            recovery: Vec::new(),
            quorum: None,
            pending: Vec::new(),
            signer: PublicKey([0; 32]),
            sig: drover_wire::id::Signature([0; 64]),
        };
        Self {
            salt,
            prior: None,
            next,
        }
    }

    /// Admits a device.
    pub fn add(&mut self, key: &PublicKey) -> &mut Self {
        let entry = EntryHash::of(key, &self.salt);
        self.add_entry(entry)
    }

    /// Admits the principal with this entry hash.
    pub fn add_entry(&mut self, entry: EntryHash) -> &mut Self {
        insert(&mut self.next.entries, entry);
        self
    }

    /// Removes a principal altogether: its sockets are closed when the set is accepted (05 §9).
    pub fn remove(&mut self, key: &PublicKey) -> &mut Self {
        self.next.authorizers.retain(|k| k != key);
        self.next.recovery.retain(|k| k != key);
        let entry = EntryHash::of(key, &self.salt);
        self.remove_entry(&entry)
    }

    /// Removes the plain entry with this hash.
    pub fn remove_entry(&mut self, entry: &EntryHash) -> &mut Self {
        self.next.entries.retain(|e| e != entry);
        self
    }

    /// Makes a device an authorizer: it may publish sets and issue invites.
    pub fn add_authorizer(&mut self, key: &PublicKey) -> &mut Self {
        insert(&mut self.next.authorizers, *key);
        self.add(key)
    }

    /// Takes an authorizer's power; it remains an entry.
    pub fn remove_authorizer(&mut self, key: &PublicKey) -> &mut Self {
        self.next.authorizers.retain(|k| k != key);
        self
    }

    /// Adds a recovery key.
    pub fn add_recovery(&mut self, key: &PublicKey) -> &mut Self {
        insert(&mut self.next.recovery, *key);
        self.add(key)
    }

    /// Removes a recovery key and its entry.
    pub fn remove_recovery(&mut self, key: &PublicKey) -> &mut Self {
        self.next.recovery.retain(|k| k != key);
        let entry = EntryHash::of(key, &self.salt);
        self.remove_entry(&entry)
    }

    /// Registers outside keys of which `threshold` together confirm a recovery (05 §8); `None` drops them.
    pub fn quorum(&mut self, quorum: Option<(u8, Vec<PublicKey>)>) -> &mut Self {
        self.next.quorum = quorum.map(|(threshold, keys)| {
            let keys: BTreeSet<_> = keys.into_iter().collect();
            Quorum {
                threshold,
                keys: keys.into_iter().collect(),
                sigs: Vec::new(),
            }
        });
        self
    }

    /// Dates and signs the set.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the relay would refuse it: a list empty or over 4096, no prior authorizer or no prior
    /// recovery key left, a signer without the right.
    pub fn sign(&self, signer: &Identity) -> Result<AccessSet, Error> {
        let rightful = self
            .prior
            .as_ref()
            .map_or(&self.next.authorizers, |prior| &prior.authorizers);
        if !rightful.contains(&signer.public()) {
            return Err(Error::Invalid("signer is no authorizer"));
        }
        if let Some(prior) = &self.prior {
            if !prior
                .authorizers
                .iter()
                .any(|key| self.next.authorizers.contains(key))
            {
                return Err(Error::Invalid("no prior authorizer would remain"));
            }
            if !prior.recovery.iter().any(|key| self.next.recovery.contains(key)) {
                return Err(Error::Invalid("no prior recovery key would remain"));
            }
        }
        self.finish(signer)
    }

    fn finish(&self, signer: &Identity) -> Result<AccessSet, Error> {
        let mut set = self.next.clone();
        if [set.entries.len(), set.authorizers.len(), set.recovery.len()]
            .into_iter()
            .any(|len| len > LIST_MAX)
        {
            return Err(Error::Invalid("a list over 4096"));
        }
        set.issued_at_ms = now_ms();
        let set = set.signed(signer.key());
        set.check_shape()
            .map_err(|_| Error::Invalid("empty list or bad quorum"))?;
        Ok(set)
    }
}

/// Attaches an outside key's confirmation that `replacement`'s recovery is genuine (05 §8). The set's own signature does
/// not cover it, so it may be added afterwards.
pub fn confirm_recovery(
    set: &mut AccessSet,
    member: &Identity,
    replacement: &EntryHash,
) -> Result<(), Error> {
    let digest = set.digest();
    let quorum = set
        .quorum
        .as_mut()
        .ok_or(Error::Invalid("the set has no quorum"))?;
    if !quorum.keys.contains(&member.public()) {
        return Err(Error::Invalid("key is not in the quorum"));
    }
    let message = quorum_message(&digest, replacement);
    quorum.sigs.push((member.public(), member.sign(&message.0)));
    Ok(())
}

/// Keeps a list strictly ascending.
fn insert<T: Ord>(list: &mut Vec<T>, item: T) {
    if let Err(at) = list.binary_search(&item) {
        list.insert(at, item);
    }
}

/// The encoding of a set, to be given to other members.
pub fn encode_set(set: &AccessSet) -> Bytes {
    set.encode().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(seed: u8) -> Identity {
        Identity::from_seed(&[seed; 32])
    }

    fn workspace() -> Workspace {
        let salt = Salt([0x5a; 32]);
        let mut draft = SetDraft::genesis(salt, GroupId([0x77; 32]));
        draft
            .add_authorizer(&id(1).public())
            .add_recovery(&id(0x3f).public());
        Workspace::new(salt, draft.sign(&id(1)).expect("genesis"))
    }

    /// 05 §16, vector case 1.
    #[test]
    fn genesis_is_the_worked_example() {
        let workspace = workspace();
        let mut set = workspace.head().clone();
        set.issued_at_ms = 0x0000_018b_cfe5_6800;
        let set = set.signed(id(1).key());
        let hex: String = set.digest().0.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "a72a891ffa748a5cae22d56a91b8ec4010cc8987b61bd428830754ef0e0f1331"
        );
    }

    #[test]
    fn a_draft_follows_the_head_and_can_be_adopted() {
        let (mut mine, mut theirs) = (workspace(), workspace());
        theirs.head = mine.head.clone();
        let mut draft = mine.draft();
        draft.add(&id(2).public());
        let set = draft.sign(&id(1)).expect("authorizer");
        assert_eq!((set.version, set.prev_hash), (1, mine.digest()));
        theirs.adopt(&set.encode()).expect("follows");
        assert!(theirs.admits(&id(2).public()) && !mine.admits(&id(2).public()));
        assert!(theirs.adopt(&set.encode()).is_err(), "only once");
        mine.head.version = 7;
        assert!(mine.adopt(&set.encode()).is_err());
    }

    #[test]
    fn a_forged_successor_is_not_adopted() {
        let mut workspace = workspace();
        let mut set = workspace.draft().sign(&id(1)).expect("authorizer");
        set.issued_at_ms += 1;
        assert!(workspace.adopt(&set.encode()).is_err());
        let stranger = set.signed(id(9).key());
        assert!(workspace.adopt(&stranger.encode()).is_err());
    }

    #[test]
    fn a_draft_that_strands_the_workspace_is_not_signed() {
        let workspace = workspace();
        let mut draft = workspace.draft();
        draft
            .remove_authorizer(&id(1).public())
            .add_authorizer(&id(2).public());
        assert!(draft.sign(&id(1)).is_err());
        let mut draft = workspace.draft();
        draft.remove(&id(0x3f).public()).add_recovery(&id(0x4f).public());
        assert!(draft.sign(&id(1)).is_err());
        assert!(workspace.draft().sign(&id(2)).is_err());
    }

    /// 05 §16, the recovery rotation upon version 1.
    #[test]
    fn the_recovery_rotation_is_the_worked_example() {
        let mut workspace = workspace();
        let mut genesis = workspace.head.clone();
        genesis.issued_at_ms = 0x0000_018b_cfe5_6800;
        workspace.head = genesis.signed(id(1).key());
        let mut draft = workspace.draft();
        draft.add(&id(2).public());
        let mut set = draft.sign(&id(1)).expect("authorizer");
        set.issued_at_ms = 0x0000_018b_cfe6_5260;
        workspace.head = set.signed(id(1).key());
        let pinned = id(2).entry(workspace.salt());
        let mut set = workspace
            .recovery_rotation(&id(0x3f), &id(7).public(), &id(0x4f).public(), [pinned])
            .expect("rotation");
        set.issued_at_ms = 0x0000_018b_cfe7_3cc0;
        let hex: String = set.digest().0.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "df624773799441e532623932f75bb55d4b123a14a195c472c7c104bfc55bbbc0"
        );
        let authorizer = id(1).entry(workspace.salt());
        assert!(
            workspace
                .recovery_rotation(&id(0x3f), &id(7).public(), &id(0x4f).public(), [authorizer])
                .is_err()
        );
    }
}
