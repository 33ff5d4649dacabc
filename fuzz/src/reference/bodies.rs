//! What travels inside byte strings of frames (01 §5): ACCESS, RECON, JOIN, INVITE, WRAP, BLOB, DROP.

use ciborium::Value;

use super::generate::{document, uint as number};
use super::{
    Fault, MALFORMED, Shape, U8, U16, U32, U64, any_bytes, array, bytes_of, fixed, list, list_up_to, or_null,
    require, rule, uint,
};
use crate::random::Rng;

/// The longest list of an access set, a retention record, a BLOB or DROP body.
const LIST_MAX: usize = 4096;

fn ids() -> Shape {
    list_up_to(LIST_MAX, fixed(32))
}

fn sigs() -> Shape {
    list_up_to(LIST_MAX, Shape::Array(vec![fixed(32), fixed(64)]))
}

// ---- ACCESS (01 §5.1)

/// A publication.
pub fn access_set() -> Shape {
    let quorum = Shape::Array(vec![U8, ids(), sigs()]);
    Shape::Array(vec![
        fixed(32),
        U64,
        fixed(32),
        U64,
        ids(),
        ids(),
        ids(),
        or_null(quorum),
        ids(),
        fixed(32),
        fixed(64),
    ])
}

/// The answer to a query.
pub fn access_state() -> Shape {
    Shape::Array(vec![fixed(32), or_null(Shape::Array(vec![U64, fixed(32)]))])
}

// ---- RECON (03 §2)

/// A payload, judged row by row.
pub fn recon() -> Shape {
    Shape::Own(judge_recon, |rng| {
        let mut uppers: Vec<u64> = (0..rng.below(6)).map(|_| rng.uint(u64::MAX)).collect();
        uppers.push(u64::MAX);
        uppers.sort_unstable();
        uppers.dedup();
        let ranges = uppers.into_iter().map(|upper| {
            let (mode, body) = match rng.below(3) {
                0 => (0u8, Value::Null),
                1 => (1, Value::Bytes(rng.bytes(32))),
                _ => {
                    let mut ids: Vec<_> = (0..rng.below(5)).map(|_| rng.bytes(32)).collect();
                    ids.sort_unstable();
                    (2, Value::Array(ids.into_iter().map(Value::Bytes).collect()))
                }
            };
            Value::Array(vec![number(upper), number(mode), body])
        });
        Value::Array(vec![number(1u8), Value::Array(ranges.collect())])
    })
}

fn judge_recon(value: &Value) -> Result<(), Fault> {
    let parts = array(value)?;
    require(parts.len() == 2, Fault::Count)?;
    U64.judge(&parts[0])?;
    require(uint(&parts[0]) == Some(1), MALFORMED)?;
    let ranges = array(&parts[1])?;
    require((1..=1024).contains(&ranges.len()), MALFORMED)?;
    let mut above = None;
    for range in ranges {
        let fields = array(range)?;
        require(fields.len() == 3, Fault::Count)?;
        U64.judge(&fields[0])?;
        U64.judge(&fields[1])?;
        match uint(&fields[1]) {
            Some(0) => Shape::Null.judge(&fields[2])?,
            Some(1) => fixed(32).judge(&fields[2])?,
            Some(2) => {
                let ids = array(&fields[2])?;
                require(ids.len() <= 4096, MALFORMED)?;
                ids.iter().try_for_each(|id| fixed(32).judge(id))?;
                require(ids.is_sorted_by(|a, b| bytes_of(a) < bytes_of(b)), MALFORMED)?;
            }
            _ => return Err(MALFORMED),
        }
        let upper = uint(&fields[0]);
        require(above.is_none() || upper > above, MALFORMED)?;
        above = upper;
    }
    require(above == Some(u64::MAX), MALFORMED)
}

// ---- JOIN (01 §5.3, 06 D4)

/// A request: its code is UTF-8.
pub fn join_request() -> Shape {
    let code = Shape::Made(
        Box::new(any_bytes()),
        |code| require(std::str::from_utf8(bytes_of(code)).is_ok(), Fault::Type),
        |_| Value::Bytes(b"28T5-CY4T-QKFF".to_vec()),
    );
    let b = any_bytes;
    let steps = vec![
        (0, vec![b(), code, b(), b()]),
        (1, vec![b(), b()]),
        (2, vec![b(), b(), b(), b()]),
        (3, vec![b()]),
        (4, vec![b(), b(), b()]),
    ];
    Shape::Flat(steps, Fault::Count)
}

/// The response to a request of this step.
pub fn join_response(step: u8) -> Shape {
    let bundle = Shape::Array(vec![fixed(32), U64, any_bytes()]);
    let (number, body) = match step {
        0 | 4 => (0, U64),
        1 => (1, list(bundle)),
        2 => (2, fixed(32)),
        _ => (3, any_bytes()),
    };
    Shape::Form(vec![(number, body)], Box::new(U64), Fault::Range)
}

// ---- INVITE (01 §5.4, 06 D4)

/// A request.
pub fn invite_request() -> Shape {
    let b = any_bytes;
    let kinds = vec![
        (0, vec![]),
        (1, vec![Shape::Nested(invite_record)]),
        (2, vec![]),
        (3, vec![b()]),
        (4, vec![b(), b(), U64, b()]),
    ];
    Shape::Flat(kinds, MALFORMED)
}

/// A response.
pub fn invite_response() -> Shape {
    let state = Shape::Made(
        Box::new(any_bytes()),
        |state| {
            require(
                [&b"live"[..], b"revoked", b"spent"].contains(&bytes_of(state)),
                MALFORMED,
            )
        },
        |rng| Value::Bytes(rng.pick(&[&b"live"[..], b"revoked", b"spent"]).to_vec()),
    );
    let summary = Shape::Array(vec![fixed(16), U64, U64, U8, U8, U16, state]);
    let yes_or_no = rule(U64, |flag| {
        require(uint(flag).is_some_and(|flag| flag <= 1), MALFORMED)
    });
    let kinds = vec![
        (0, vec![yes_or_no]),
        (1, vec![any_bytes()]),
        (2, vec![list(summary)]),
        (3, vec![any_bytes()]),
        (4, vec![]),
    ];
    Shape::Flat(kinds, MALFORMED)
}

/// An invite record; lists over their bounds are malformed.
pub fn invite_record() -> Shape {
    let up_to = |most, shape| Shape::List(Box::new(shape), 0..=most, MALFORMED);
    let bundle = rule(Shape::Array(vec![fixed(32), U64, any_bytes()]), |bundle| {
        require(bytes_of(&array(bundle)?[2]).len() <= 262_144, MALFORMED)
    });
    Shape::Array(vec![
        fixed(16),
        fixed(32),
        fixed(32),
        U64,
        U64,
        U8,
        fixed(32),
        up_to(256, fixed(32)),
        up_to(64, any_bytes()),
        fixed(32),
        up_to(256, bundle),
        fixed(64),
    ])
}

// ---- WRAP (01 §5.2)

/// A wrap.
pub fn wrap() -> Shape {
    let fields = Shape::Array(vec![fixed(32), U64, fixed(32), any_bytes()]);
    rule(fields, |wrap| {
        let ct = bytes_of(&array(wrap)?[3]).len();
        require(ct > 0, MALFORMED)?;
        require(
            ct <= 262_144,
            Fault::Code(drover_wire::error::Code::EnvelopeTooLarge, false),
        )
    })
}

// ---- BLOB (01 §5.5)

fn version() -> Shape {
    or_null(fixed(8))
}

fn authorizers() -> Shape {
    Shape::List(Box::new(fixed(32)), 1..=LIST_MAX, Fault::Count)
}

/// Form 6: whose key speaks for the group.
pub fn control() -> Shape {
    Shape::Array(vec![fixed(32), U64, fixed(32), or_null(any_bytes()), fixed(64)])
}

/// Form 7: what the group needs.
pub fn manifest() -> Shape {
    Shape::Array(vec![fixed(32), U64, U64, or_null(any_bytes()), ids(), fixed(64)])
}

/// Form 8: when the rest may go.
pub fn policy() -> Shape {
    Shape::Array(vec![fixed(32), U64, U32, U32, U64, authorizers(), sigs()])
}

/// Form 9: that one thing has to go.
pub fn destruction() -> Shape {
    Shape::Array(vec![
        fixed(32),
        any_bytes(),
        fixed(32),
        version(),
        U64,
        authorizers(),
        sigs(),
    ])
}

/// Form 11: the genuine one of two controls.
pub fn resolution() -> Shape {
    Shape::Array(vec![fixed(32), U64, fixed(32), fixed(64)])
}

/// A request.
pub fn blob_request() -> Shape {
    let b = any_bytes;
    let forms = vec![
        (1, Shape::Array(vec![b(), fixed(32), fixed(32), U64])),
        (2, Shape::Array(vec![b(), fixed(32), fixed(32)])),
        (3, Shape::Array(vec![b(), U32, U64])),
        (
            4,
            Shape::Array(vec![b(), list_up_to(LIST_MAX, Shape::Array(vec![U32, b()]))]),
        ),
        (5, Shape::Array(vec![b()])),
        (6, control()),
        (7, manifest()),
        (8, policy()),
        (9, destruction()),
        (10, Shape::Array(vec![b(), fixed(32)])),
        (11, resolution()),
        (12, Shape::Array(vec![fixed(32)])),
        (13, Shape::Array(vec![fixed(32)])),
    ];
    Shape::Form(forms, Box::new(U64), MALFORMED)
}

/// A response.
pub fn blob_response() -> Shape {
    fn url() -> Shape {
        Shape::Made(
            Box::new(any_bytes()),
            |url| require(std::str::from_utf8(bytes_of(url)).is_ok(), MALFORMED),
            |_| Value::Bytes(b"https://blobs.example/x".to_vec()),
        )
    }
    let address = || Shape::Array(vec![url(), U64]);
    let nothing = || Shape::Array(vec![]);
    let entry = Shape::Array(vec![any_bytes(), U64]);
    let forms = vec![
        (1, address()),
        (2, nothing()),
        (3, Shape::Array(vec![fixed(16), U64, U64])),
        (4, address()),
        (5, nothing()),
        (6, address()),
        (7, nothing()),
        (8, nothing()),
        (9, Shape::Array(vec![fixed(32)])),
        (10, Shape::Array(vec![list_up_to(LIST_MAX, entry)])),
        (11, nothing()),
        (
            12,
            Shape::Array(vec![U64, or_null(fixed(32)), U64, or_null(fixed(32)), ids()]),
        ),
        (13, Shape::Array(vec![U64, U64, or_null(U64)])),
    ];
    Shape::Form(forms, Box::new(U64), MALFORMED)
}

// ---- DROP (01 §5.6)

/// A request.
pub fn drop_request() -> Shape {
    let fields = Shape::Array(vec![
        fixed(32),
        fixed(32),
        ids(),
        U64,
        version(),
        or_null(any_bytes()),
        fixed(64),
    ]);
    Shape::Form(vec![(1, fields)], Box::new(U64), MALFORMED)
}

/// An answer.
pub fn drop_answer() -> Shape {
    let reason = Shape::Made(
        Box::new(any_bytes()),
        |reason| require(is_verdict(bytes_of(reason)), MALFORMED),
        |rng| {
            let n = rng.uint(u64::MAX);
            let word = match rng.below(4) {
                0 => format!("stale_epoch:{n}"),
                1 => format!("incomplete_manifest:{n}"),
                _ => (*rng.pick(&PLAIN_VERDICTS)).to_owned(),
            };
            Value::Bytes(word.into())
        },
    );
    let forms = vec![
        (1, Shape::Array(vec![U64, U64, U64])),
        (2, Shape::Array(vec![reason])),
    ];
    Shape::Form(forms, Box::new(U64), MALFORMED)
}

const PLAIN_VERDICTS: [&str; 5] = [
    "group_frozen",
    "no_retention_chain",
    "bad_signature",
    "no_authorization",
    "authorization_not_due",
];

fn is_verdict(reason: &[u8]) -> bool {
    let Ok(reason) = std::str::from_utf8(reason) else {
        return false;
    };
    let number = ["stale_epoch:", "incomplete_manifest:"]
        .iter()
        .find_map(|word| reason.strip_prefix(word));
    match number {
        // The one decimal spelling of a number of 64 bits.
        Some(digits) => {
            digits.bytes().all(|digit| digit.is_ascii_digit())
                && (digits == "0" || !digits.starts_with('0'))
                && digits.parse::<u64>().is_ok()
        }
        None => PLAIN_VERDICTS.contains(&reason),
    }
}

/// One of all bodies, to try decoders on what is meant for others.
pub fn any_body(rng: &mut Rng) -> Vec<u8> {
    let step = rng.below(5) as u8;
    let shapes: [fn() -> Shape; 17] = [
        access_set,
        access_state,
        recon,
        join_request,
        invite_request,
        invite_response,
        invite_record,
        wrap,
        blob_request,
        blob_response,
        control,
        manifest,
        policy,
        destruction,
        resolution,
        drop_request,
        drop_answer,
    ];
    match rng.below(shapes.len() + 1) {
        0 => document(&join_response(step), rng),
        n => document(&shapes[n - 1](), rng),
    }
}
