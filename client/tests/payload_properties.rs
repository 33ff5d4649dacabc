//! Properties of the payload codec, of author chains under any order of arrival, and of the monitor under any honest
//! behaviour: it must never cry wolf. What holds for any bytes is in `fuzz/`.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use drover_client::payload::attest::{ATTEST_PERIOD_MS, Monitor};
use drover_client::payload::chain::{AuthorChain, GroupChains, Link, OwnChain};
use drover_client::payload::{
    AuthorHead, Body, Certificate, ChainReset, DmWelcome, GroupHeads, HeadAttest, Header, Kind, Malformed,
    MediaRetain, Payload, RecoveryWrap, Rejected, RosterEntry,
};
use drover_client::wire::id::{GroupId, Hash, PublicKey, Signature, WrapTag};
use drover_client::{Identity, SealedEnvelope};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

fn id<T: From<[u8; 32]> + std::fmt::Debug>() -> impl Strategy<Value = T> {
    any::<[u8; 32]>().prop_map(T::from)
}

fn sig() -> impl Strategy<Value = Signature> {
    (any::<[u8; 32]>(), any::<[u8; 32]>()).prop_map(|(a, b)| Signature([a, b].concat().try_into().unwrap()))
}

fn blob() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..300).prop_map(Bytes::from)
}

/// All widths of head.
fn uint() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(value, shift)| value >> shift)
}

prop_compose! {
    fn certificate()(
        subject in id(), issuer in id(), not_before_ms in uint(), not_after_ms in uint(),
        capabilities in vec(".{0,12}", 1..5), sig in sig(),
    ) -> Certificate {
        Certificate { subject, issuer, not_before_ms, not_after_ms, capabilities, sig }
    }
}

prop_compose! {
    fn payload()(
        (encrypted, group, epoch) in (any::<bool>(), id(), uint()),
        kind in uint(), author in id(), cert in proptest::option::of(certificate()),
        ctr in uint(), prev_self in id(), sent_at_ms in uint(), body in blob(), sig in sig(),
    ) -> Payload {
        let header = Header { encrypted, group, epoch };
        Payload { header, kind: Kind(kind), author, cert, ctr, prev_self, sent_at_ms, body, sig }
    }
}

prop_compose! {
    fn head()(author in id(), ctr in uint(), hash in id(), proxied_for in proptest::option::of(id())) -> AuthorHead {
        AuthorHead { author, ctr, hash, proxied_for }
    }
}

prop_compose! {
    fn attest()(groups in vec((id(), vec(head(), 1..4)), 1..4)) -> HeadAttest {
        let groups = groups.into_iter().map(|(group, heads)| GroupHeads { group, heads }).collect();
        HeadAttest { groups }
    }
}

prop_compose! {
    fn roster()(
        device in id(), handle in ".{0,12}", display_name in ".{0,12}", machine in ".{0,12}",
        email in proptest::option::of(".{0,12}"), label in proptest::option::of(".{0,12}"), claimed_at_ms in uint(),
    ) -> RosterEntry {
        RosterEntry { device, handle, display_name, machine, email, label, claimed_at_ms }
    }
}

fn round_trip<B: Body + PartialEq + std::fmt::Debug>(body: &B) -> Result<(), TestCaseError> {
    let encoded = body.encode();
    prop_assert_eq!(&B::decode(&encoded).unwrap(), body);
    // No proper prefix is a body, and nothing may follow one.
    for end in 0..encoded.len() {
        prop_assert!(B::decode(&encoded.slice(..end)).is_err());
    }
    let longer = Bytes::from([&encoded[..], &[0]].concat());
    prop_assert!(B::decode(&longer).is_err());
    Ok(())
}

proptest! {
    #[test]
    fn payloads_decode_to_what_was_encoded(payload in payload(), cut in any::<Index>()) {
        let encoded = Bytes::from(payload.encode());
        prop_assert_eq!(&Payload::decode(&encoded).unwrap(), &payload);
        prop_assert!(Payload::decode(&encoded.slice(..cut.index(encoded.len()))).is_err());
        // What is signed is the same map without the signature.
        let signed = payload.signing_input();
        prop_assert_eq!(&encoded[1..signed.len()], &signed[1..]);
        prop_assert_eq!(encoded[0], signed[0] + 1);
        prop_assert_eq!(encoded.len(), signed.len() + 1 + 2 + 64);
    }

    #[test]
    fn bodies_decode_to_what_was_encoded(
        attest in attest(), roster in roster(), blobs in vec(id(), 0..5), (n, m, k) in (uint(), uint(), uint()),
        (a, b) in (blob(), blob()), (h, t) in (id(), any::<[u8; 32]>()),
    ) {
        round_trip(&attest)?;
        round_trip(&roster)?;
        round_trip(&ChainReset { last_ctr: n, last_hash: h, resumes_at: m, declared_at_ms: k })?;
        round_trip(&RecoveryWrap { epoch_secret: a.clone(), group_info: b, tag: WrapTag(t) })?;
        round_trip(&DmWelcome { tag: h, welcome: a })?;
        round_trip(&MediaRetain { blobs, asserted_at_ms: n })?;
    }

    #[test]
    fn a_signature_covers_every_field(payload in payload(), other in payload()) {
        let author = Identity::from_seed(&[1; 32]);
        let payload = Payload { cert: None, ..payload }.signed(&author);
        let envelope = |payload: &Payload| match payload.header {
            Header { encrypted: true, group, epoch } => SealedEnvelope::new(group, epoch, payload.encode()).unwrap(),
            Header { group, epoch, .. } => SealedEnvelope::plaintext(group, epoch, payload.encode()).unwrap(),
        };
        prop_assert_eq!(payload.verify(&envelope(&payload)), Ok(()));
        prop_assert_eq!(payload.verify(&envelope(&other)), Err(Rejected::Header));
        let changed = [
            Payload { header: other.header, ..payload.clone() },
            Payload { kind: Kind(payload.kind.0 ^ 1), ..payload.clone() },
            Payload { author: other.author, ..payload.clone() },
            Payload { cert: Some(other.cert.unwrap_or(Certificate {
                subject: payload.author, issuer: other.author, not_before_ms: 0, not_after_ms: u64::MAX,
                capabilities: vec!["chat.write".into()], sig: other.sig,
            })), ..payload.clone() },
            Payload { ctr: payload.ctr ^ 1, ..payload.clone() },
            Payload { prev_self: other.prev_self, ..payload.clone() },
            Payload { sent_at_ms: payload.sent_at_ms ^ 1, ..payload.clone() },
            Payload { body: [&payload.body[..], &[0]].concat().into(), ..payload.clone() },
            Payload { sig: other.sig, ..payload.clone() },
        ];
        for changed in changed {
            prop_assert_eq!(changed.verify(&envelope(&changed)), Err(Rejected::Signature));
        }
    }

    /// An honest chain in any order, with repetitions: gaps come and go, and nothing else is ever said.
    #[test]
    fn order_of_arrival_is_no_evidence(order in vec(any::<Index>(), 1..60), length in 1..30u64) {
        let mut own = OwnChain::start();
        let links: Vec<Link> = (0..length).map(|n| {
            let place = own.next();
            let hash = Hash::of(&[&n.to_be_bytes()]);
            own.sealed(hash);
            Link { ctr: place.ctr, prev_self: place.prev_self, hash }
        }).collect();
        let mut chain = AuthorChain::new();
        let random = order.iter().map(|at| links[at.index(links.len())]);
        for link in random.chain(links.iter().copied()) {
            let verdict = chain.observe(link);
            let gap = matches!(verdict.evidence(), Some(drover_client::payload::chain::Evidence::Gap { .. }));
            prop_assert!(verdict.is_linked() || gap, "{:?}", verdict);
        }
        prop_assert_eq!(chain.gaps().next(), None);
        prop_assert_eq!(chain.head(), links.last().map(|link| (link.ctr, link.hash)));
    }

    /// A withheld link is noticed by everyone who gets a later one, and other content for any link is a fork.
    #[test]
    fn withholding_and_forking_are_noticed(length in 2..30u64, at in any::<Index>()) {
        let links: Vec<Link> = (0..length).map(|n| Link {
            ctr: n,
            prev_self: n.checked_sub(1).map_or(Hash([0; 32]), |n| Hash::of(&[&n.to_be_bytes()])),
            hash: Hash::of(&[&n.to_be_bytes()]),
        }).collect();
        let at = at.index(links.len() - 1);
        let mut chain = AuthorChain::new();
        let noticed = links.iter().enumerate().filter(|(n, _)| *n != at)
            .filter(|(_, link)| chain.observe(**link).evidence().is_some()).count();
        prop_assert_eq!(noticed, 1);
        prop_assert_eq!(chain.gaps().collect::<Vec<_>>(), [at as u64..=at as u64]);
        let mut whole = AuthorChain::new();
        prop_assert!(links.iter().all(|link| whole.observe(*link).is_linked()));
        let fork = Link { hash: Hash([0xee; 32]), ..links[at] };
        prop_assert!(whole.observe(fork).evidence().is_some());
    }
}

/// A count is never believed: what it sizes is bounded by the bytes that are there.
#[test]
fn huge_counts_allocate_nothing() {
    let counts: [&[u8]; 3] = [
        &[0x9a, 0xff, 0xff, 0xff, 0xff],
        &[0x9b, 0, 0, 0, 1, 0, 0, 0, 0],
        &[0x5a, 0xff, 0xff, 0xff, 0xff],
    ];
    for count in counts {
        let bytes = Bytes::from([&[0xa1, 0x01], count].concat());
        assert!(HeadAttest::decode(&bytes).is_err());
        assert!(MediaRetain::decode(&bytes).is_err());
    }
    // As many capabilities as fit into a payload would take 24 times its size.
    let many = Certificate {
        subject: PublicKey([1; 32]),
        issuer: PublicKey([2; 32]),
        not_before_ms: 0,
        not_after_ms: 1,
        capabilities: vec![String::new(); 4097],
        sig: Signature([0; 64]),
    };
    assert_eq!(Certificate::decode(&many.encode()), Err(Malformed::TooLong));
    let long = Bytes::from(vec![0xa1; 1_048_577]);
    assert_eq!(Payload::decode(&long), Err(Malformed::TooLong));
}

/// The bytes, once by hand: map heads, keys ascending, shortest heads.
#[test]
fn the_encoding_of_a_small_payload() {
    let payload = Payload::new(GroupId([0x77; 32]), 4, Kind::CHAT_MESSAGE, &b"hi"[..])
        .signed(&Identity::from_seed(&[1; 32]));
    let hex: String = payload
        .signing_input()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let (group, zero) = ("77".repeat(32), "00".repeat(32));
    let author = "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c";
    let expected =
        format!("a701a4010102010358 20{group}0404 0210 035820{author} 0500 065820{zero} 0700 08426869");
    assert_eq!(hex, expected.replace(' ', ""));
    assert!(payload.encode().starts_with(&[0xa8, 0x01, 0xa4]));
    for (missing, encoding) in [
        (1, "a0"),
        (
            2,
            "a101a40101020103582077777777777777777777777777777777777777777777777777777777777777770404",
        ),
    ] {
        let bytes: Vec<u8> = (0..encoding.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&encoding[at..at + 2], 16).unwrap())
            .collect();
        assert_eq!(Payload::decode(&bytes.into()), Err(Malformed::Missing(missing)));
    }
    assert_eq!(
        Payload::decode(&Bytes::from_static(&[0xa1, 0x00, 0x00])),
        Err(Malformed::Unknown(0))
    );
}

#[test]
fn certificates_bind_agent_device_and_time() {
    let (device, agent, group) = (
        Identity::from_seed(&[1; 32]),
        Identity::from_seed(&[2; 32]),
        GroupId([7; 32]),
    );
    let cert = Certificate {
        subject: agent.public(),
        issuer: device.public(),
        not_before_ms: 100,
        not_after_ms: 200,
        capabilities: vec!["chat.write".into()],
        sig: Signature([0; 64]),
    }
    .signed(&device);
    let judge = |cert: &Certificate, author: &Identity, at_ms: u64| {
        let payload = Payload::new(group, 1, Kind::CHAT_MESSAGE, &b"x"[..])
            .at(OwnChain::start().next(), at_ms)
            .certified(cert.clone())
            .signed(author);
        let envelope = SealedEnvelope::new(group, 1, payload.encode()).unwrap();
        Payload::decode(envelope.ct()).unwrap().verify(&envelope)
    };
    assert_eq!(judge(&cert, &agent, 100), Ok(()));
    assert_eq!(judge(&cert, &agent, 200), Ok(()));
    assert_eq!(judge(&cert, &agent, 201), Err(Rejected::CertificateTime));
    assert_eq!(judge(&cert, &device, 150), Err(Rejected::CertificateOfAnother));
    let forged = Certificate {
        not_after_ms: 500,
        ..cert.clone()
    };
    assert_eq!(judge(&forged, &agent, 150), Err(Rejected::CertificateSignature));
    let own = Certificate {
        subject: device.public(),
        ..cert
    }
    .signed(&device);
    assert_eq!(judge(&own, &device, 150), Err(Rejected::CertificateOfAnother));
}

#[test]
fn both_spellings_of_a_welcome_are_read() {
    let welcome = DmWelcome {
        tag: DmWelcome::tag_for(b"ref"),
        welcome: Bytes::from_static(b"mls"),
    };
    let array = [&[0x82, 0x58, 0x20][..], &welcome.tag.0, &[0x43], b"mls"].concat();
    assert_eq!(DmWelcome::decode(&array.into()), Ok(welcome.clone()));
    assert_eq!(welcome.encode()[0], 0xa2);
}

#[test]
fn known_kinds_have_names_and_unknown_ones_are_kept() {
    assert!(Kind::ALL.is_sorted() && Kind::ALL.iter().all(|kind| kind.name().is_some()));
    assert_eq!(Kind::ALL.len(), 26);
    assert_eq!(format!("{:?} {:?}", Kind::ASK, Kind(0x1234)), "ask kind 0x1234");
}

const MINUTE_MS: u64 = 60_000;

/// A device with its laptop's lid: on for a while, off for a while.
struct Device {
    key: PublicKey,
    agent: PublicKey,
    lid: Vec<u64>,
    attested_at: Option<u64>,
    /// Its own chain and its agent's.
    own: [OwnChain; 2],
}

impl Device {
    fn is_on(&self, minute: u64) -> bool {
        let cycle: u64 = self.lid.iter().sum::<u64>().max(1);
        let mut rest = minute % cycle;
        let mut on = true;
        for span in &self.lid {
            if rest < *span {
                return on;
            }
            rest -= span;
            on = !on;
        }
        on
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Honest devices behind an honest relay: they attest on connect and every 15 minutes, write when they like and have
    /// agents that do. Whatever their lids do, whatever their attestations lag behind, nobody is ever warned.
    #[test]
    fn honest_people_raise_no_warning(
        lids in vec(vec(1..90u64, 2..7), 1..5), dice in vec(any::<u8>(), 64..257), lag in 0..14usize, start in 0..15u64,
    ) {
        let me = PublicKey([0xff; 32]);
        let mut devices: Vec<_> = lids.into_iter().enumerate().map(|(n, lid)| Device {
            key: PublicKey([n as u8 + 1; 32]), agent: PublicKey([n as u8 + 101; 32]), lid,
            attested_at: None, own: [OwnChain::start(); 2],
        }).collect();
        let leaves = devices.iter().map(|device| device.key).chain([me]);
        let mut monitor = Monitor::new(me, leaves, start * MINUTE_MS);
        let mut view = GroupChains::new();
        let mut past = Vec::new();
        let mut thrown = 0;
        for minute in start..start + 12 * 60 {
            let now = minute * MINUTE_MS;
            let mut throw = || { thrown += 1; dice[(thrown * 7 + minute as usize) % dice.len()] };
            let tick_first = throw() % 2 == 0;
            let check = |monitor: &mut Monitor, view: &GroupChains| match monitor.tick(view, now) {
                Some(report) => report.warnings,
                None => Vec::new(),
            };
            if tick_first {
                prop_assert_eq!(check(&mut monitor, &view), vec![]);
            }
            past.push(view.heads(GroupId([7; 32]), |_| false).map_or(vec![], |heads| heads.heads));
            for device in &mut devices {
                if !device.is_on(minute) {
                    device.attested_at = None;
                    continue;
                }
                if device.attested_at.is_none_or(|at| now - at >= ATTEST_PERIOD_MS) {
                    device.attested_at = Some(now);
                    // Others' envelopes reach it late; what it sent itself or for its agent, it knows.
let mut heads: Vec<AuthorHead> = past[past.len().saturating_sub(1 + lag)].clone();
                    heads.retain(|head| head.author != device.agent);
                    if let Some((ctr, hash)) = view.chain(&device.agent).and_then(|chain| chain.head()) {
                        heads.push(AuthorHead { author: device.agent, ctr, hash, proxied_for: Some(device.agent) });
                    }
                    monitor.attested(device.key, &GroupHeads { group: GroupId([7; 32]), heads }, &view, now);
                }
                if throw() % 4 == 0 {
                    let by_agent = throw() % 2 == 0;
                    let author = if by_agent { device.agent } else { device.key };
                    let own = &mut device.own[usize::from(by_agent)];
                    let place = own.next();
                    let hash = Hash::of(&[&author.0, &place.ctr.to_be_bytes()]);
                    own.sealed(hash);
                    let mut payload = Payload::new(GroupId([7; 32]), 1, Kind::CHAT_MESSAGE, &b""[..]).at(place, now);
                    payload.author = author;
                    prop_assert!(view.observe(&payload, hash).unwrap().is_linked());
                    monitor.wrote(author, by_agent.then_some(device.key), now);
                }
            }
            if !tick_first {
                prop_assert_eq!(check(&mut monitor, &view), vec![]);
            }
        }
    }
}
