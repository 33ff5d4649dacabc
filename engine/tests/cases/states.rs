//! Which frame is taken in which state, and how a session lives and dies (02 §2 to §4).

use crate::world::*;
use bytes::Bytes;
use drover_engine::effects::{CloseHow, CloseReason};
use drover_storage::control::{ControlBatch, Write};
use drover_wire::error::Code;
use drover_wire::frame::{BytesListBuf, Frame, Keys, List32Buf, Wake};
use drover_wire::id::{CallId, Hash};
use drover_wire::join;

/// A connection in state Bootstrapping: its device holds the seat, but no live grant.
pub fn bootstrapping(w: &mut World, minted: &Minted, device: &Device) -> C {
    let c = w.open();
    let got = w.reserve(c, minted, &minted.code.clone(), [1; 16], device);
    assert!(matches!(got, Got::Join(_)), "{got:?}");
    without_grants(w, minted);
    let c = w.open();
    let got = w.auth(c, device, &[]);
    assert!(matches!(got[..], [Got::AuthAck { .. }]), "{got:?}");
    c
}

/// Restarts with the workspace's grants gone.
pub fn without_grants(w: &mut World, minted: &Minted) {
    let keys = w.records(&minted.realm).into_iter().map(|(key, _)| key);
    let writes = keys
        .filter(|key| key.starts_with(b"grant/"))
        .map(|key| Write { key, value: None })
        .collect();
    w.commit_behind(
        &minted.realm,
        ControlBatch {
            writes,
            ..ControlBatch::default()
        },
    );
    w.restart();
}

/// One of each of the 25 frames (KEYS and WAKE in every form), and where it is taken: Fresh, Challenged,
/// Bootstrapping, Ready.
fn frames() -> Vec<(&'static str, Bytes, [bool; 4])> {
    let (g, call_id) = (group(1), CallId([3; 16]));
    let (packages, list): (BytesListBuf, List32Buf) =
        ([b"kp"].into_iter().collect(), [g].into_iter().collect());
    let (ready, never, always) = ([false, false, false, true], [false; 4], [true; 4]);
    let device = Device::new(1).public();
    let push = envelope(g, b"pushed").0;
    vec![
        (
            "CONNECT",
            frame(&Frame::Connect {
                version: 4,
                groups: list.as_list(),
                sent_at_ms: 0,
            }),
            [true, false, false, false],
        ),
        (
            "CONNECT_ACK",
            frame(&Frame::ConnectAck {
                version: 4,
                server_time_ms: 0,
                min_enc: 0,
            }),
            never,
        ),
        (
            "AUTH_CHALLENGE",
            frame(&Frame::AuthChallenge { challenge: &[1; 32] }),
            never,
        ),
        (
            "AUTH_ACK",
            frame(&Frame::AuthAck {
                key_packages_remaining: 0,
                write_mode: 0,
                build_digest: b"x",
                access_set: 1,
                min_enc: 0,
            }),
            never,
        ),
        ("ACCESS", access(&[]), [false, false, true, true]),
        ("SUB", sub(g, 0), ready),
        (
            "SUB_ACK",
            frame(&Frame::SubAck {
                group: g,
                head_seq: 0,
            }),
            never,
        ),
        ("RECON", recon(g, &drover_wire::recon::opening(&[])), ready),
        ("PUSH", frame(&Frame::Push { envelope: &push }), never),
        ("SEND", send(g, b"state table"), ready),
        (
            "SEND_ACK",
            frame(&Frame::SendAck {
                hash: Hash([0; 32]),
                seq: 1,
            }),
            never,
        ),
        ("BLOB", frame(&Frame::Blob { payload: b"" }), ready),
        (
            "ERROR",
            frame(&Frame::Error {
                code: Code::Backpressure,
                retry_after_s: 0,
                detail: &[],
            }),
            never,
        ),
        ("WRAP", frame(&Frame::Wrap { body: b"" }), ready),
        ("HANDSHAKE", handshake(g, b"state table"), ready),
        ("JOIN", join(&join::Request::Record { token: &[0; 16] }), always),
        ("DROP", frame(&Frame::Drop { payload: b"" }), ready),
        ("INVITE", frame(&Frame::Invite { body: b"\x81\x00" }), ready),
        ("LIVE", live(g, b"beat"), ready),
        (
            "KEYS publish",
            frame(&Frame::Keys(Keys::Publish {
                packages: packages.as_list(),
            })),
            ready,
        ),
        (
            "KEYS published",
            frame(&Frame::Keys(Keys::Published { remaining: 1 })),
            never,
        ),
        (
            "KEYS fetch",
            frame(&Frame::Keys(Keys::Fetch { device, count: 1 })),
            ready,
        ),
        (
            "KEYS bundles",
            frame(&Frame::Keys(Keys::Bundles {
                packages: packages.as_list(),
            })),
            never,
        ),
        ("KEYS none", frame(&Frame::Keys(Keys::None)), never),
        (
            "CALL",
            frame(&Frame::Call {
                call_id,
                group: g,
                epoch: 0,
                kind: 1,
                body: b"offer",
            }),
            ready,
        ),
        (
            "MEDIA",
            frame(&Frame::Media {
                call_id,
                stream: [0; 4],
                seq: 0,
                ct: b"m",
            }),
            ready,
        ),
        (
            "WAKE register",
            frame(&Frame::Wake(Wake::Register {
                handle: [1; 16],
                categories: 1,
                expires_at_ms: EPOCH_MS + 60_000,
            })),
            ready,
        ),
        (
            "WAKE registered",
            frame(&Frame::Wake(Wake::Registered { expires_at_ms: 1 })),
            never,
        ),
        ("WAKE clear", frame(&Frame::Wake(Wake::Clear)), ready),
        ("WAKE cleared", frame(&Frame::Wake(Wake::Cleared)), never),
        ("WAKE query", frame(&Frame::Wake(Wake::Query)), ready),
        (
            "WAKE capability",
            frame(&Frame::Wake(Wake::Capability {
                enabled: false,
                register_url: "",
            })),
            never,
        ),
        ("BYE", bye(), always),
    ]
}

/// W02.1: every cell of the state × frame table: a frame that is not taken is answered `reject/malformed_header` and
/// ends the socket; any other leaves it alone, BYE excepted. W11.7
#[test]
fn state_table_decides_every_frame() {
    let mut w = World::new();
    let founding = w.mint("ws:founding");
    let founder = Device::new(9);
    bootstrapping(&mut w, &founding, &founder);
    let ws = w.found("ws:one", &[], &[group(1)]);
    for (name, message, taken) in frames() {
        for (state, &taken) in taken.iter().enumerate() {
            let c = w.open();
            match state {
                0 => {}
                1 => {
                    w.connect(c, 4, &[group(1)]);
                }
                2 => assert!(matches!(w.auth(c, &founder, &[])[..], [Got::AuthAck { .. }])),
                _ => assert!(matches!(
                    w.auth(c, &ws.founder, &[group(1)])[..],
                    [Got::AuthAck { .. }]
                )),
            }
            let got = w.ask(c, message.clone());
            let told_off = got == [refused(Code::MalformedHeader)];
            let closed = w.closed(c) == Some((CloseHow::Flush, CloseReason::Protocol));
            assert_eq!(told_off && closed, !taken, "{name} in state {state}: {got:?}");
            if taken && name != "BYE" {
                assert!(w.is_open(c), "{name} in state {state} ends the socket: {got:?}");
            }
            w.hang_up(c);
        }
    }
    // AUTH is taken in Challenged alone.
    for state in [0, 1, 2, 3] {
        let c = w.open();
        let challenge = match state {
            0 => vec![0; 32],
            1 => w.connect(c, 4, &[group(1)]),
            2 => {
                w.auth(c, &founder, &[]);
                vec![0; 32]
            }
            _ => {
                w.auth(c, &ws.founder, &[group(1)]);
                vec![0; 32]
            }
        };
        let got = w.ask(c, ws.founder.auth(&challenge));
        match state {
            1 => assert!(matches!(got[..], [Got::AuthAck { .. }])),
            _ => assert_eq!(got, [refused(Code::MalformedHeader)], "AUTH in state {state}"),
        }
        assert_eq!(w.is_open(c), state == 1);
    }
}

/// BYE is answered in kind with an empty reason, after every answer that was due, and ends the socket (02 §13).
#[test]
fn bye_is_answered_and_closes() {
    let mut w = World::new();
    let ws = w.found("ws:one", &[], &[group(1)]);
    let c = w.login(&ws.founder, &[group(1)]);
    w.hold(Kind::Append);
    w.say(c, send(group(1), b"first"));
    w.say(c, bye());
    assert_eq!(w.got(c), []);
    w.release(Kind::Append);
    let got = w.got(c);
    assert!(matches!(got[..], [Got::Ack(_, 1), Got::Bye(_)]), "{got:?}");
    assert_eq!(got[1], Got::Bye(Vec::new()));
    assert_eq!(w.closed(c), Some((CloseHow::Flush, CloseReason::Client)));
}

/// A frame that does not decode is refused and leaves the socket usable; a text message and a frame over the ceiling
/// end it (01 §7, 02 §1, §14). W02.1
#[test]
fn codec_failures_close_only_where_the_table_says() {
    let mut w = World::new();
    let ws = w.found("ws:one", &[], &[group(1)]);
    let c = w.login(&ws.founder, &[group(1)]);
    assert_eq!(
        w.ask1(c, Bytes::from_static(&[0xff])),
        refused(Code::NoncanonicalCbor)
    );
    assert_eq!(
        w.ask1(c, Bytes::from_static(&[0x82, 0x18, 0x63, 0x80])),
        refused(Code::MalformedHeader)
    );
    assert_eq!(w.stored(c, group(1), b"still here"), 1);
    let huge = Bytes::from(vec![0x82; 1_052_673]);
    assert_eq!(w.ask1(c, huge), refused(Code::EnvelopeTooLarge));
    assert!(!w.is_open(c));
    let c = w.login(&ws.founder, &[group(1)]);
    w.push_text(c);
    assert_eq!(w.got(c), [refused(Code::MalformedHeader)]);
    assert!(!w.is_open(c));
}

/// CONNECT: version 0 is refused with the relay's highest, a higher one is clamped; 256 groups fit, 257 don't. W04.2
#[test]
fn connect_negotiates_version_and_bounds_groups() {
    let mut w = World::new();
    let c = w.open();
    let zero = Bytes::from_static(&[0x82, 1, 0x83, 0, 0x80, 0]);
    assert_eq!(
        w.ask1(c, zero),
        refused_with(Code::ProtocolUnsupported, 0, &[0, 4])
    );
    assert!(!w.is_open(c));
    for (offered, selected) in [(1, 1), (3, 3), (4, 4), (5, 4), (65_535, 4)] {
        let c = w.open();
        let got = w.ask(c, connect(offered, &[]));
        assert_eq!(
            got[0],
            Got::ConnectAck {
                version: selected,
                server_time_ms: EPOCH_MS,
                min_enc: 0
            }
        );
        assert!(matches!(&got[1..], [Got::Challenge(c)] if c.len() == 32));
    }
    let groups: Vec<_> = (0..257).map(group).collect();
    let c = w.open();
    w.connect(c, 4, &groups[..256]);
    let c = w.open();
    assert_eq!(w.ask1(c, connect(4, &groups)), limited(Code::RateLimited, 0, 256));
    assert!(!w.is_open(c));
    // Repeats count by number, not by name.
    let c = w.open();
    w.connect(c, 4, &[group(1); 256]);
}

/// W02.19: 10 s without AUTH_ACK end the socket, JOIN traffic or not; idle brings a ping; a pong keeps it; silence
/// after the ping ends it.
#[test]
fn deadlines_end_silent_sockets() {
    let mut w = World::new();
    let ws = w.found("ws:one", &[], &[group(1)]);
    let c = w.open();
    w.advance(9_999);
    w.say(c, join(&join::Request::Record { token: &[0; 16] }));
    w.got(c);
    assert!(w.is_open(c));
    w.advance(1);
    assert_eq!(w.got(c), [refused_with(Code::RateLimited, 5, &[])]);
    assert_eq!(
        w.closed(c),
        Some((CloseHow::Flush, CloseReason::HandshakeDeadline))
    );

    let c = w.login(&ws.founder, &[group(1)]);
    w.advance(299_999);
    assert_eq!(w.pings(c), 0);
    w.advance(1);
    assert_eq!(w.pings(c), 1);
    w.advance(9_000);
    w.push_pong(c);
    w.advance(299_999);
    assert_eq!(
        (w.pings(c), w.is_open(c)),
        (1, true),
        "the pong counts as activity"
    );
    w.advance(1);
    assert_eq!(w.pings(c), 2);
    w.advance(9_999);
    assert!(w.is_open(c));
    w.advance(1);
    assert_eq!(w.got(c), [refused_with(Code::RateLimited, 5, &[])]);
    assert_eq!(w.closed(c), Some((CloseHow::Flush, CloseReason::IdleDeadline)));
}

/// Outbound traffic is no activity; any inbound message is (02 §2). W02.19
#[test]
fn only_inbound_traffic_keeps_a_session() {
    let mut w = World::new();
    let ws = w.found("ws:one", &[], &[group(1)]);
    let (reader, writer) = (
        w.login(&ws.founder, &[group(1)]),
        w.login(&ws.founder, &[group(1)]),
    );
    w.subscribe(reader, group(1), 0);
    for n in 0..10 {
        w.advance(30_000);
        w.stored(writer, group(1), &distinct(n));
    }
    assert_eq!((w.pings(reader), w.pings(writer)), (1, 0));
    w.advance(10_000);
    assert!(!w.is_open(reader) && w.is_open(writer));
}

/// The override shortens the probe with the idle deadline. W02.19
#[test]
fn probe_is_never_longer_than_idle() {
    let mut w = World::with(config(|c| c.idle_timeout_ms = 3_000));
    let ws = w.found("ws:one", &[], &[group(1)]);
    let c = w.login(&ws.founder, &[group(1)]);
    w.advance(3_000);
    assert_eq!(w.pings(c), 1);
    w.advance(2_999);
    assert!(w.is_open(c));
    w.advance(1);
    assert!(!w.is_open(c));
}
