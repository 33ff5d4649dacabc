//! Whether an invite may be stored (06 §2, §11): which rule a record breaks, and the refusal that states it.
//!
//! Nothing here knows a session or a store: who may create an invite, whose groups it names and whether its token is
//! free is for the caller to find out, in the order of 06 §11.

use super::{BUNDLE_BYTES_MAX, CAPS_MAX, Record, SCOPES_MAX, USES_MAX};
use crate::access::verify;
use crate::error::Code;
use crate::id::GroupId;

/// Capabilities without a parameter, in no order (06 §2).
const CAPABILITIES: [&[u8]; 10] = [
    b"chat.read",
    b"chat.write",
    b"ticket.read",
    b"ticket.write",
    b"ticket.create",
    b"git.patch.propose",
    b"media.write",
    b"admit",
    b"roster.revoke",
    b"admin",
];
/// What the capability for one step of a ticket begins with; `FROM->TO` follows.
const TRANSITION: &str = "ticket.transition:";
/// The only capabilities the relay's own invite has.
const BOOTSTRAP_CAP: &[u8] = b"admin";

/// The first rule a record breaks, in judging order (06 §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Over [`SCOPES_MAX`] scopes.
    #[error("too many scopes")]
    ScopeCount,
    /// Scopes that do not strictly ascend.
    #[error("scopes do not ascend")]
    ScopeOrder,
    /// Over [`CAPS_MAX`] capabilities.
    #[error("too many capabilities")]
    CapCount,
    /// Capabilities that do not strictly ascend.
    #[error("capabilities do not ascend")]
    CapOrder,
    /// A capability outside the vocabulary.
    #[error("unknown capability")]
    UnknownCap,
    /// Not 1 to [`USES_MAX`] seats.
    #[error("seats out of range")]
    Uses,
    /// Expires no later than it was issued.
    #[error("expires before it is issued")]
    Lifetime,
    /// Not exactly one bundle per scope, in the order of the scopes.
    #[error("bundles do not pair with scopes")]
    BundlePairing,
    /// A bundle without ciphertext, or over [`BUNDLE_BYTES_MAX`].
    #[error("bundle of a wrong size")]
    BundleSize,
    /// The issuer did not sign this.
    #[error("signature does not verify")]
    Signature,
    /// Scopes without the workspace itself.
    #[error("the workspace is no scope")]
    RootScope,
    /// No scope, which only the relay's own invite may have.
    #[error("no scope")]
    Scopeless,
    /// The relay's own invite with other capabilities than `admin`.
    #[error("bootstrap invite with other capabilities than admin")]
    BootstrapCaps,
    /// Past its expiry.
    #[error("expired")]
    Expired,
}

impl Fault {
    /// What a creation is refused with (06 §11, D3).
    pub const fn code(self) -> Code {
        match self {
            Fault::ScopeCount
            | Fault::ScopeOrder
            | Fault::CapCount
            | Fault::CapOrder
            | Fault::UnknownCap
            | Fault::Uses
            | Fault::Lifetime
            | Fault::BundlePairing
            | Fault::BundleSize => Code::MalformedHeader,
            Fault::Signature => Code::NoncanonicalCbor,
            Fault::RootScope | Fault::Scopeless | Fault::BootstrapCaps | Fault::Expired => {
                Code::WriterNotInAccessSet
            }
        }
    }
}

impl Record {
    /// Every rule of 06 §2 in its order. That an invite is the relay's own, `bootstrap`, is the relay's knowledge and
    /// never read from a record; `now_ms` is the relay's clock.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn judge(&self, bootstrap: bool, now_ms: u64) -> Result<(), Fault> {
        self.check_shape()?;
        self.check_signature()?;
        self.check_root(bootstrap)?;
        self.check_expiry(now_ms)
    }

    /// Sizes, sorting, vocabulary, seats, lifetime, bundles.
    ///
    /// # Errors
    /// The first of [`Fault::ScopeCount`] to [`Fault::BundleSize`].
    pub fn check_shape(&self) -> Result<(), Fault> {
        let bundled = self.bundles.iter().map(|(group, ..)| group);
        let sized = |(_, _, ct): &(GroupId, u64, Vec<u8>)| (1..=BUNDLE_BYTES_MAX).contains(&ct.len());
        let rules = [
            (self.scopes.len() <= SCOPES_MAX, Fault::ScopeCount),
            (self.scopes.is_sorted_by(|a, b| a < b), Fault::ScopeOrder),
            (self.caps.len() <= CAPS_MAX, Fault::CapCount),
            (self.caps.is_sorted_by(|a, b| a < b), Fault::CapOrder),
            (self.caps.iter().all(|cap| is_capability(cap)), Fault::UnknownCap),
            ((1..=USES_MAX).contains(&self.uses), Fault::Uses),
            (self.expires_ms > self.issued_at_ms, Fault::Lifetime),
            (self.scopes.iter().eq(bundled), Fault::BundlePairing),
            (self.bundles.iter().all(sized), Fault::BundleSize),
        ];
        rules.into_iter().try_for_each(|(kept, fault)| holds(kept, fault))
    }

    /// That the issuer signed the first eleven fields.
    ///
    /// # Errors
    /// [`Fault::Signature`].
    pub fn check_signature(&self) -> Result<(), Fault> {
        holds(
            verify(&self.issuer, &self.signing_input(), &self.sig),
            Fault::Signature,
        )
    }

    /// That the scopes contain the workspace itself, or that this is the relay's own invite, which has none.
    ///
    /// # Errors
    /// [`Fault::RootScope`], [`Fault::Scopeless`] or [`Fault::BootstrapCaps`].
    pub fn check_root(&self, bootstrap: bool) -> Result<(), Fault> {
        if !self.scopes.is_empty() {
            return holds(self.scopes.contains(&GroupId(self.workspace)), Fault::RootScope);
        }
        holds(bootstrap, Fault::Scopeless)?;
        holds(self.caps == [BOOTSTRAP_CAP], Fault::BootstrapCaps)
    }

    /// That the invite is still good at this time of the relay's clock.
    ///
    /// # Errors
    /// [`Fault::Expired`].
    pub fn check_expiry(&self, now_ms: u64) -> Result<(), Fault> {
        holds(now_ms < self.expires_ms, Fault::Expired)
    }
}

fn holds(kept: bool, fault: Fault) -> Result<(), Fault> {
    if kept { Ok(()) } else { Err(fault) }
}

fn is_capability(cap: &[u8]) -> bool {
    CAPABILITIES.contains(&cap)
        || std::str::from_utf8(cap)
            .ok()
            .and_then(|cap| cap.strip_prefix(TRANSITION)?.split_once("->"))
            .is_some_and(|(from, to)| !from.is_empty() && !to.is_empty())
}
