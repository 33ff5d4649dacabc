//! Event kinds: permanent numbers, most of whose bodies nobody but their application reads.

use std::fmt;

/// What a payload is. Any number is legal, since a kind this build does not know is stored and ignored: an old client
/// never loses what a newer one wrote.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind(pub u64);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)+) => {
        impl Kind {
            $($(#[$doc])* pub const $name: Kind = Kind($number);)+

            /// Every kind this build knows, ascending.
            pub const ALL: &'static [Kind] = &[$(Kind::$name),+];

            /// Its name in the table of kinds; `None` for an unknown one.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($number => Some($text),)+ _ => None }
            }
        }
    };
}

kinds! {
    /// One change of a document.
    DOC_CHANGE = 0x0001, "doc.change";
    /// A document, whole.
    DOC_SNAPSHOT = 0x0002, "doc.snapshot";
    /// A message of a channel.
    CHAT_MESSAGE = 0x0010, "chat.message";
    /// One ticket file, whole.
    TICKET_OP = 0x0011, "ticket.op";
    /// A device's entry in the roster; body [`RosterEntry`](super::RosterEntry).
    ROSTER_UPDATE = 0x0020, "roster.update";
    /// A revocation and the epoch change that enforces it.
    ROSTER_REVOKE = 0x0021, "roster.revoke";
    /// A Welcome into a two-person group; body [`DmWelcome`](super::DmWelcome).
    DM_WELCOME = 0x0022, "dm.welcome";
    /// A blob: hash, key, name, type, size.
    MEDIA_REF = 0x0030, "media.ref";
    /// A proposed patch.
    GIT_PATCH = 0x0040, "git.patch";
    /// What became of a patch.
    GIT_STATUS = 0x0041, "git.status";
    /// A deletion.
    TOMBSTONE = 0x0050, "tombstone";
    /// The current GroupInfo of a group that admits by itself.
    GROUPINFO_PUBLISH = 0x0060, "groupinfo.publish";
    /// An epoch secret and GroupInfo, sealed for recovery; body [`RecoveryWrap`](super::RecoveryWrap).
    RECOVERY_WRAP = 0x0061, "recovery.wrap";
    /// Earlier epoch secrets of an open group.
    HISTORY_PUBLISH = 0x0062, "history.publish";
    /// Which wrap tags are current.
    RECOVERY_DIRECTORY = 0x0063, "recovery.directory";
    /// What an author has seen of every author; body [`HeadAttest`](super::HeadAttest).
    HEAD_ATTEST = 0x0070, "head.attest";
    /// A complete snapshot manifest.
    CHECKPOINT = 0x0071, "checkpoint";
    /// An author's lost state, declared; body [`ChainReset`](super::ChainReset).
    CHAIN_RESET = 0x0072, "chain.reset";
    /// What a checkpoint names.
    SNAPSHOT = 0x0073, "snapshot";
    /// The blobs a group still refers to; body [`MediaRetain`](super::MediaRetain).
    MEDIA_RETAIN = 0x0080, "media.retain";
    /// What a workspace sees of an agent.
    AGENT_CARD = 0x0090, "agent.card";
    /// A request that one agent act.
    AGENT_INVOKE = 0x0091, "agent.invoke";
    /// What became of such a request.
    AGENT_LIFECYCLE = 0x0092, "agent.lifecycle";
    /// Which host runs an agent.
    AGENT_LEASE = 0x0093, "agent.lease";
    /// One person asks another to look at something.
    ASK = 0x00a0, "ask";
    /// Reserved and never used: ephemeral traffic is LIVE.
    EPHEMERAL = 0x00f0, "ephemeral";
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "kind {:#06x}", self.0),
        }
    }
}
