//! What each attack does: how many sockets, how far they are let in, and the bytes each says over and over.

use super::super::Bench;
use crate::error::Error;
use crate::peer::{encoded, public_key};
use crate::workspace::{new_key, parse_token};
use crate::wsframe;
use clap::ValueEnum;
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash};
use drover_wire::join::Request;
use drover_wire::map::{MapFrame, Span};
use drover_wire::recon::{self, Mode, Range};
use ed25519_dalek::SigningKey;
use std::sync::Arc;

/// An attack by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Attack {
    /// Upgrade requests, a byte at a time.
    SlowUpgrades,
    /// Request heads that go on for ever.
    EndlessHeaders,
    /// Sockets that are opened, and nothing else: 10 000 are kept trying.
    HalfOpen,
    /// One address that upgrades as often as it can.
    SourceShare,
    /// Messages in fragments of one byte.
    Fragments,
    /// Pings.
    Pings,
    /// Frames that don't decode.
    Malformed,
    /// Subscribers that never read.
    DeafSubscribers,
    /// Reconciliations of maximum cost.
    Recon,
    /// The same as lists of fingerprints, which the map form has.
    ReconLists,
    /// Guessed one-time codes.
    JoinGuesses,
    /// Messages of 1 MiB that lack their last byte.
    DeclaredLengths,
}

impl Attack {
    /// All of them.
    pub(crate) const ALL: [Self; 12] = [
        Self::SlowUpgrades,
        Self::EndlessHeaders,
        Self::HalfOpen,
        Self::SourceShare,
        Self::Fragments,
        Self::Pings,
        Self::Malformed,
        Self::DeafSubscribers,
        Self::Recon,
        Self::ReconLists,
        Self::JoinGuesses,
        Self::DeclaredLengths,
    ];

    /// The row's name.
    pub(crate) const fn row(self) -> &'static str {
        match self {
            Self::SlowUpgrades => "slow-upgrades",
            Self::EndlessHeaders => "endless-headers",
            Self::HalfOpen => "half-open",
            Self::SourceShare => "source-share",
            Self::Fragments => "fragments",
            Self::Pings => "pings",
            Self::Malformed => "malformed",
            Self::DeafSubscribers => "deaf-subscribers",
            Self::Recon => "recon-cost",
            Self::ReconLists => "recon-lists",
            Self::JoinGuesses => "join-guesses",
            Self::DeclaredLengths => "declared-lengths",
        }
    }

    /// The row's description.
    pub(super) fn what(self) -> String {
        let doing = match self {
            Self::SlowUpgrades => "1000 upgrades, a byte at a time",
            Self::EndlessHeaders => "200 heads that never end",
            Self::HalfOpen => "10000 sockets that say nothing",
            Self::SourceShare => "200 upgrades at a time from one address",
            Self::Fragments => "60 connections, fragments of one byte",
            Self::Pings => "60 connections, pings of 125 B",
            Self::Malformed => "60 connections, frames that don't decode",
            Self::DeafSubscribers => "60 members that subscribe and never read",
            Self::Recon => "60 members, RECON of 1 MB and of 1024 ranges",
            Self::ReconLists => "60 members, RECON lists of one range and of 1024",
            Self::JoinGuesses => "60 connections, wrong codes",
            Self::DeclaredLengths => "200 connections, messages of 1 MiB less a byte",
        };
        format!("SEND beside {doing}")
    }

    /// Whether it needs no relay: its sockets are refused before their upgrade, or never ask for it.
    pub(super) fn is_before_upgrade(self) -> bool {
        matches!(
            self,
            Self::SlowUpgrades | Self::EndlessHeaders | Self::HalfOpen | Self::SourceShare
        )
    }

    /// Whether the group's log is to be long.
    pub(super) fn needs_log(self) -> bool {
        matches!(self, Self::DeafSubscribers | Self::Recon | Self::ReconLists)
    }
}

/// How far a socket goes before it begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// Connected.
    Bare,
    /// Upgraded.
    Upgraded,
    /// Authenticated as the second device.
    Member,
}

/// An attack, ready to be made.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) sockets: usize,
    /// Addresses they come from.
    pub(super) sources: u8,
    pub(super) opening: Opening,
    /// Said once.
    pub(super) first: Arc<[u8]>,
    /// Said over and over; may be empty.
    pub(super) then: Arc<[u8]>,
    /// Bytes said at a time.
    pub(super) pace: usize,
    /// Whether answers are read.
    pub(super) reads: bool,
    /// Bytes after which the socket is closed and another opened.
    pub(super) life: usize,
    pub(super) member: Arc<(SigningKey, [GroupId; 2])>,
}

impl Scene {
    pub(super) fn new(bench: &Bench, group: GroupId, attack: Attack) -> Result<Self, Error> {
        use Opening::{Bare, Member, Upgraded};
        let (sockets, sources, opening) = match attack {
            Attack::SlowUpgrades => (1_000, 4, Bare),
            Attack::EndlessHeaders => (200, 4, Bare),
            Attack::HalfOpen => (10_000, 40, Bare),
            Attack::SourceShare => (200, 1, Bare),
            Attack::DeafSubscribers | Attack::Recon | Attack::ReconLists => (60, 1, Member),
            Attack::DeclaredLengths => (200, 4, Upgraded),
            Attack::Fragments | Attack::Pings | Attack::Malformed | Attack::JoinGuesses => (60, 1, Upgraded),
        };
        let (first, then) = words(bench, group, attack)?;
        Ok(Self {
            sockets,
            sources,
            opening,
            pace: if attack == Attack::SlowUpgrades {
                1
            } else {
                usize::MAX
            },
            reads: matches!(
                attack,
                Attack::SourceShare
                    | Attack::Malformed
                    | Attack::Recon
                    | Attack::ReconLists
                    | Attack::JoinGuesses
            ),
            life: match attack {
                // 20 JOINs a minute and connection.
                Attack::JoinGuesses | Attack::DeclaredLengths => first.len() + then.len(),
                _ => usize::MAX,
            },
            first: first.into(),
            then: then.into(),
            member: Arc::new((bench.workspace.device(1).clone(), bench.workspace.named(group))),
        })
    }
}

/// What is said once, and what over and over.
fn words(bench: &Bench, group: GroupId, attack: Attack) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let request = crate::peer::upgrade_request(&bench.target);
    let message = |frame: &Frame<'_>| {
        let mut out = Vec::new();
        wsframe::put_message(&encoded(frame), &mut out);
        out
    };
    Ok(match attack {
        Attack::SlowUpgrades => (request[..request.len() - 4].into(), b"x".repeat(64)),
        Attack::EndlessHeaders => (
            b"GET /relay HTTP/1.1\r\n".to_vec(),
            b"X-Header: abcdefghijklmnopqrstuvwxyz\r\n".repeat(40),
        ),
        Attack::HalfOpen => (Vec::new(), Vec::new()),
        Attack::SourceShare => (request.into(), Vec::new()),
        Attack::Fragments => (
            wsframe::masked(0x02, b"x"),
            wsframe::masked(0x00, b"x").repeat(8_192),
        ),
        Attack::Pings => (Vec::new(), wsframe::masked(0x89, &[7; 125]).repeat(512)),
        Attack::Malformed => (
            Vec::new(),
            wsframe::masked(0x82, &[0x82, 0x18, 0x63, 0xff]).repeat(4_096),
        ),
        Attack::DeafSubscribers => (Vec::new(), message(&Frame::Sub { group, from_seq: 1 })),
        Attack::Recon => {
            let ids: Vec<Hash> = (0..recon::IDS_MAX as u64)
                .map(|n| {
                    let mut id = [0; 32];
                    id[..8].copy_from_slice(&n.to_be_bytes());
                    Hash(id)
                })
                .collect();
            let range = |n: u64, last: u64, step: u64, mode: &Mode| Range {
                upper: if n == last { recon::OPEN_END } else { n * step },
                mode: mode.clone(),
            };
            let ids = Mode::Ids(ids);
            let lists: Vec<Range> = (1..=7).map(|n| range(n, 7, 2_500, &ids)).collect();
            let wrong = Mode::Fingerprint(Hash([9; 32]));
            let many = recon::RANGES_MAX as u64;
            let fingerprints: Vec<Range> = (1..=many).map(|n| range(n, many, 18, &wrong)).collect();
            let mut out = Vec::new();
            for ranges in [lists, fingerprints] {
                let mut payload = Vec::new();
                recon::encode(&ranges, &mut payload);
                out.extend(message(&Frame::Recon {
                    group,
                    payload: &payload,
                }));
            }
            (Vec::new(), out)
        }
        Attack::ReconLists => {
            // Nothing agrees: each item is hashed twice.
            let list = |count: u64, step: u64| -> Vec<Span> {
                let bound = |n: u64| if n == count { recon::OPEN_END } else { n * step };
                let span = |n| Span {
                    lower: bound(n - 1),
                    upper: bound(n),
                    fingerprint: Hash([9; 32]),
                };
                (1..=count).map(span).collect()
            };
            let mut out = Vec::new();
            for spans in [list(1, 0), list(recon::RANGES_MAX as u64, 18)] {
                let mut frame = Vec::new();
                MapFrame::ReconList { group, spans }.encode(&mut frame);
                wsframe::put_message(&frame, &mut out);
            }
            (Vec::new(), out)
        }
        Attack::JoinGuesses => {
            let token = bench.mint()?;
            let token =
                parse_token(&token).ok_or_else(|| Error::Unexpected("a link without token".into()))?;
            let mut out = Vec::new();
            for n in 0..20 {
                let body = Request::Reserve {
                    token: &token.0,
                    code: "AAAA-BBBB-CCCC",
                    nonce: &[n; 16],
                    device: &public_key(&new_key()).0,
                }
                .encode();
                out.extend(message(&Frame::Join { body: &body }));
            }
            (Vec::new(), out)
        }
        Attack::DeclaredLengths => {
            let mut frame = wsframe::masked(0x82, &vec![7; 1_056_768]);
            frame.pop();
            (Vec::new(), frame)
        }
    })
}
