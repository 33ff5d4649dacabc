//! Founding a workspace on a fresh relay with its bootstrap invite (06 §12, §13; 05 §7.2).

use drover_wire::id::{GroupId, Hash, PublicKey, Token};

use crate::access::{self, SetDraft, Workspace};
use crate::connection::{Connection, Hello};
use crate::error::Error;
use crate::identity::Identity;
use crate::joining::{InviteLink, Reservation, genesis_fingerprint, invite_record};
use crate::transport::Endpoint;

/// Everything the founder decides. The whole takes one connection and has to end within ten minutes of the reservation.
#[derive(Debug)]
pub struct Founding {
    endpoint: Endpoint,
    token: Token,
    code: String,
    fingerprint: Option<Hash>,
    root: GroupId,
    groups: Vec<GroupId>,
    members: Vec<PublicKey>,
    quorum: Option<(u8, Vec<PublicKey>)>,
}

impl Founding {
    /// With the link and the code the relay printed, and the group that becomes the workspace's root.
    pub fn new(endpoint: impl Into<Endpoint>, link: &InviteLink, code: &str, root: GroupId) -> Self {
        Self {
            endpoint: endpoint.into(),
            token: link.token,
            code: code.to_owned(),
            fingerprint: None,
            root,
            groups: Vec::new(),
            members: Vec::new(),
            quorum: None,
        }
    }

    /// The genesis fingerprint the operator read to the founder: a relay whose invite another key signed is left.
    #[must_use]
    pub fn expect_fingerprint(mut self, fingerprint: Hash) -> Self {
        self.fingerprint = Some(fingerprint);
        self
    }

    /// Further groups to create with the workspace, at most 255.
    #[must_use]
    pub fn groups(mut self, groups: impl IntoIterator<Item = GroupId>) -> Self {
        self.groups.extend(groups);
        self
    }

    /// Devices admitted from the beginning.
    #[must_use]
    pub fn members(mut self, members: impl IntoIterator<Item = PublicKey>) -> Self {
        self.members.extend(members);
        self
    }

    /// Outside keys of which `threshold` together confirm a recovery (05 §8).
    #[must_use]
    pub fn quorum(mut self, threshold: u8, keys: Vec<PublicKey>) -> Self {
        self.quorum = Some((threshold, keys));
        self
    }

    /// Reserves the one seat, authenticates, asks for the salt and publishes the genesis set: `founder` is its sole
    /// authorizer, `recovery` (of the phrase the founder writes down) its recovery key. A failed attempt may be repeated
    /// with the same keys within the ten minutes; the relay's genesis key is gone after the first success.
    ///
    /// # Errors
    /// [`Error::Refused`] with `quota/seats_exhausted` when link and code are not (or no longer) valid;
    /// [`Error::SetConflict`] when the workspace was founded already; [`Error::Protocol`] when the fingerprint differs;
    /// connection failures.
    pub async fn found(&self, founder: &Identity, recovery: &PublicKey) -> Result<Workspace, Error> {
        let mut connection = Connection::open(&self.endpoint).await?;
        if let Some(expected) = self.fingerprint {
            let record = invite_record(&mut connection, self.token).await?;
            if record.is_none_or(|record| genesis_fingerprint(&record.issuer) != expected) {
                return Err(Error::Protocol(
                    "the bootstrap invite is not signed by the expected genesis key",
                ));
            }
        }
        Reservation::reserve(&mut connection, self.token, &self.code, founder).await?;
        let mut groups = vec![self.root];
        groups.extend(self.groups.iter().filter(|group| **group != self.root));
        connection.authenticate(founder, &Hello::groups(groups)).await?;

        let state = access::access_state(&mut connection).await?;
        if let Some((version, digest)) = state.head {
            return Err(Error::SetConflict { version, digest });
        }
        let mut draft = SetDraft::genesis(state.salt, self.root);
        draft
            .add_authorizer(&founder.public())
            .add_recovery(recovery)
            .quorum(self.quorum.clone());
        for member in &self.members {
            draft.add(member);
        }
        let set = draft.sign(founder)?;
        access::publish(&mut connection, &set, None).await?;
        // The founding session stays limited (02 §3), so the caller connects anew.
        connection.close().await;
        Ok(Workspace::new(state.salt, set))
    }
}
