//! WAKE, whose decode failures have codes of their own: 01 §7, 12 §2.

use drover_wire::error::Code;
use drover_wire::frame::{Frame, Wake, is_register_url};

use crate::support::{G, Row, S, array, bytes, encoded, name_of, ours, rows, shared_rows};

fn refused(message: &[u8]) -> Code {
    let error = Frame::decode(message).expect_err("accepted");
    assert!(!error.closes);
    error.refusal.code
}

/// W12.1 and W01.13, push-frames.json: all 28 vectors.
#[test]
fn wake_rows_decode_rebuild_and_encode_or_are_refused_with_their_code() {
    let check = |name: &str, wire: &[u8], expect: &str, fields: &serde_json::Value| {
        if expect != "accept" {
            return assert_eq!(name_of(refused(wire)), expect, "{name}");
        }
        let decoded = Frame::decode(wire).unwrap();
        assert_eq!(encoded(&decoded), wire, "{name}");
        let Frame::Wake(wake) = decoded else {
            panic!("{name} is no WAKE")
        };
        if !fields["handle"].is_null() {
            let (handle, categories) = (array(fields.text("handle")), fields.number("categories") as u8);
            let expires_at_ms = fields.number("expires_at");
            assert_eq!(
                wake,
                Wake::Register {
                    handle,
                    categories,
                    expires_at_ms
                },
                "{name}"
            );
        } else if !fields["expires_at"].is_null() {
            assert_eq!(
                wake,
                Wake::Registered {
                    expires_at_ms: fields.number("expires_at")
                },
                "{name}"
            );
        } else if !fields["register_url"].is_null() {
            let (enabled, register_url) = (fields["enabled"].as_bool().unwrap(), fields.text("register_url"));
            assert_eq!(
                wake,
                Wake::Capability {
                    enabled,
                    register_url
                },
                "{name}"
            );
        }
    };
    let mine = rows(ours("wake"));
    assert_eq!(mine.len(), 28);
    for row in &mine {
        check(
            row.text("name"),
            &row.spelt("bytes"),
            row.text("expect"),
            &row["fields"],
        );
    }
    for row in shared_rows("push-frames.json", "vectors") {
        // 12 §10: an expiry long past is the session's to refuse; the codec has no clock.
        let by_session = row["fields"]["expires_at"] == 1_000_000_000_000u64;
        let expect = match row["expect"].as_str() {
            Some("accept") => "accept",
            _ if by_session => "accept",
            _ => row.text("code"),
        };
        check(row.text("name"), &row.spelt("hex"), expect, &row["fields"]);
    }
}

/// The rows of 12 §2 that no vector holds.
#[test]
fn failures_of_a_wake_body_are_told_apart() {
    let form = |body: &str| refused(&bytes(&format!("821819 {body}")));
    for (body, code, row) in [
        ("820180", S, "3: fields of another count"),
        ("83010080", S, "3: inner array of three"),
        ("8201", S, "3: truncated"),
        ("ff", G, "5: the inner array is indefinite"),
        ("9f0380ff", G, "5: the inner array is indefinite"),
        ("822080", S, "3: form is negative"),
        ("821b ff*8 80", S, "4: form beyond every width"),
        ("82190006 80", G, "5: form is not shortest"),
        ("820080", S, "4: form 0"),
        ("820183 01 01 00", S, "6: handle is no byte string"),
        ("820183 50 00*15", S, "6: handle is truncated"),
        ("820183 50 00*16 190100 00", S, "8: categories over 255"),
        ("820183 50 00*16 4101 00", S, "8: categories are no integer"),
        (
            "820183 4f 00*15 4101 00",
            Code::PushHandleMalformed,
            "7 wins over 8",
        ),
        (
            "820183 50 00*16 00 4100",
            Code::PushHandleMalformed,
            "9 wins over 10",
        ),
        ("820183 50 00*16 01 20", S, "10: expiry is negative"),
        ("820682 f6 60", S, "11: enabled is null"),
        ("820682 01 60", S, "11: enabled is an integer"),
        ("820682 f814 60", G, "5: enabled in the long form"),
        ("820682 f5 40", S, "11: url is a byte string"),
        ("820682 f5 61ff", S, "11: url is not UTF-8"),
        ("820682 f5 6178", Code::PushHandleMalformed, "12: url is none"),
    ] {
        assert_eq!(form(body), code, "{row}");
    }
    // Before the form is reached they are failures of a frame like any other.
    assert_eq!(refused(&bytes("83181980 80")), G, "1");
    assert_eq!(refused(&bytes("82190019 820580")), G, "1");
}

#[test]
fn the_wake_ceiling_is_tested_right_after_the_tag() {
    let mut at = bytes("821819 820580");
    at.resize(1024, 0);
    assert_eq!(
        refused(&at),
        G,
        "1024 bytes are read, and are too many only for a query"
    );
    at.push(0);
    assert_eq!(refused(&at), Code::EnvelopeTooLarge);
    let mut broken = bytes("821819 ff");
    broken.resize(1025, 0);
    assert_eq!(refused(&broken), Code::EnvelopeTooLarge, "whatever the body is");
}

#[test]
fn a_register_url_is_empty_https_or_loopback() {
    let long = format!("https://h/{}", "a".repeat(502));
    for good in [
        "",
        "https://ringer.example/v1/handles",
        "HTTPS://h",
        "https://[2001:db8::1]:8443/x",
        "http://127.0.0.1:9000/v1",
        "http://localhost",
        "http://LOCALHOST:1?q",
        "http://[::1]:9000/v1",
        &long,
    ] {
        assert!(is_register_url(good), "{good}");
    }
    let longer = format!("{long}a");
    for bad in [
        "https://",
        "https:///path",
        "ringer.example",
        "ftp://localhost",
        "http://ringer.example",
        "http://localhost.example",
        "http://127.0.0.1.example",
        "http://localhost@ringer.example",
        "http://ringer.example#@localhost",
        "http://ringer.example\\@localhost",
        "https://ringer.example/a b",
        "https://ringer.example/\n",
        &longer,
    ] {
        assert!(!is_register_url(bad), "{bad}");
    }
}

#[test]
fn a_handle_is_never_rendered() {
    let wake = Frame::Wake(Wake::Register {
        handle: [0xc5; 16],
        categories: 1,
        expires_at_ms: 0,
    });
    let shown = format!("{wake:?} {wake:#?}");
    assert!(!shown.contains("c5") && !shown.contains("197"), "{shown}");
}
