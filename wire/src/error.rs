//! The closed registry of refusals: 25 codes in 6 classes (04 §2). No code is ever invented or moved.

/// What a client does about a refusal (04 §1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// The relay could not answer; repeat the same bytes later.
    Retry,
    /// These bytes can never be accepted.
    Reject,
    /// Valid bytes, refused by current state.
    Denied,
    /// A ceiling was met.
    Quota,
    /// Incompatible versions or a path that is off.
    Version,
    /// This principal writes one thing too often.
    Limit,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $class:ident / $text:literal),+ $(,)?) => {
        /// One entry of the registry; the class is part of it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $name),+ }

        impl Code {
            /// Every code, in the order of 04 §2.
            pub const ALL: &'static [Code] = &[$(Code::$name),+];

            /// The class the code belongs to.
            pub const fn class(self) -> Class {
                match self { $(Code::$name => Class::$class),+ }
            }

            /// The code's own word, without its class.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text),+ }
            }
        }
    };
}

codes! {
    /// No store, or it failed.
    Backpressure = Retry / "backpressure",
    /// A group's sequencer was not reached in time.
    LockTimeout = Retry / "lock_timeout",
    /// Shutdown or a change of owner.
    Failover = Retry / "failover",
    /// WAKE registration while the store is away.
    PushBackpressure = Retry / "push_backpressure",
    /// Wrong state, unknown tag, broken structure.
    MalformedHeader = Reject / "malformed_header",
    /// Bytes outside the deterministic subset.
    NoncanonicalCbor = Reject / "noncanonical_cbor",
    /// The content address does not match.
    HashMismatch = Reject / "hash_mismatch",
    /// Over a size ceiling.
    EnvelopeTooLarge = Reject / "envelope_too_large",
    /// An envelope map with an extra or a missing key.
    UnknownRequiredField = Reject / "unknown_required_field",
    /// A wake handle, mask, expiry or URL that can't be.
    PushHandleMalformed = Reject / "push_handle_malformed",
    /// Plaintext under an encryption floor.
    PlaintextRefused = Denied / "plaintext_refused",
    /// Not admitted, or not entitled.
    WriterNotInAccessSet = Denied / "writer_not_in_access_set",
    /// The group has no row.
    GroupUnknown = Denied / "group_unknown",
    /// Maintenance: no durable writes.
    ServiceReadOnly = Denied / "service_read_only",
    /// A retention conflict froze the group.
    GroupFrozen = Denied / "group_frozen",
    /// No ringer is configured.
    PushNotConfigured = Denied / "push_not_configured",
    /// The stored wrap is as new or newer.
    WrapNotNewer = Denied / "wrap_not_newer",
    /// The media quota is used up.
    StorageExhausted = Quota / "storage_exhausted",
    /// The workspace's log is full.
    LogBudgetExhausted = Quota / "log_budget_exhausted",
    /// A frame or byte rate, a count, a deadline.
    RateLimited = Quota / "rate_limited",
    /// No seat: the one answer to every JOIN that means no.
    SeatsExhausted = Quota / "seats_exhausted",
    /// Admission-blind ingress budgets.
    GroupIngressLimited = Quota / "group_ingress_limited",
    /// Too many wake registrations.
    PushRegistrationRate = Limit / "push_registration_rate",
    /// Versions that don't meet, or a path that is off.
    ProtocolUnsupported = Version / "protocol_unsupported",
    /// Raised by clients about a relay.
    BelowClientFloor = Version / "below_client_floor",
}

impl Class {
    /// The class's word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Class::Retry => "retry",
            Class::Reject => "reject",
            Class::Denied => "denied",
            Class::Quota => "quota",
            Class::Version => "version",
            Class::Limit => "limit",
        }
    }
}

impl Code {
    /// The registry entry for this pair of words; `None` makes an ERROR frame undecodable (04 §1).
    pub fn lookup(class: &[u8], code: &[u8]) -> Option<Code> {
        Self::ALL
            .iter()
            .copied()
            .find(|c| c.class().as_str().as_bytes() == class && c.as_str().as_bytes() == code)
    }
}

/// What bytes outside the subset are refused with, unless the place they were found in says otherwise (01 §7).
impl From<crate::cbor::Error> for Code {
    fn from(_: crate::cbor::Error) -> Self {
        Code::NoncanonicalCbor
    }
}

/// The detail of an ERROR frame, by kind (04 §1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Absent: the empty byte string.
    #[default]
    None,
    /// A limit or count, always 8 bytes big-endian.
    Number(u64),
    /// The relay's highest protocol version, 2 bytes big-endian.
    Version(u16),
    /// A state hash.
    Hash([u8; 32]),
    /// A reason word.
    Word(&'static str),
}

impl Detail {
    /// Hands the detail's bytes to `f`.
    pub fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Detail::None => f(&[]),
            Detail::Number(n) => f(&n.to_be_bytes()),
            Detail::Version(v) => f(&v.to_be_bytes()),
            Detail::Hash(h) => f(h),
            Detail::Word(w) => f(w.as_bytes()),
        }
    }
}

/// A refusal as it leaves the relay: code, seconds to wait (0 = absent), detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which entry of the registry.
    pub code: Code,
    /// Seconds; 0 means absent.
    pub retry_after_s: u32,
    /// Further data.
    pub detail: Detail,
}

impl Refusal {
    /// A refusal with neither an interval nor a detail.
    pub const fn plain(code: Code) -> Self {
        Self {
            code,
            retry_after_s: 0,
            detail: Detail::None,
        }
    }

    /// The same with a limit or count as its detail.
    pub const fn number(code: Code, limit: u64) -> Self {
        Self {
            code,
            retry_after_s: 0,
            detail: Detail::Number(limit),
        }
    }

    /// The same refusal with this interval in seconds.
    pub const fn after(mut self, seconds: u32) -> Self {
        self.retry_after_s = seconds;
        self
    }

    /// The same refusal with this detail.
    pub const fn with(mut self, detail: Detail) -> Self {
        self.detail = detail;
        self
    }
}

impl From<Code> for Refusal {
    fn from(code: Code) -> Self {
        Self::plain(code)
    }
}
