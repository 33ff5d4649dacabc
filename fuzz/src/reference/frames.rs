//! The frames of the array form (01 §2, §3) and the envelope (01 §4).

use ciborium::Value;
use drover_wire::error::Code;

use super::generate::uint as number;
use super::{
    Fault, MALFORMED, Shape, U8, U16, U32, U64, any_bytes, array, bodies, bytes_of, fixed, list, require,
    rule, uint,
};
use crate::random::Rng;

/// The largest frame (01 §7).
pub const FRAME_BYTES_MAX: usize = 1_052_672;
/// The largest WAKE frame (01 §7).
pub const WAKE_BYTES_MAX: usize = 1024;

/// The registry of 04 §2: classes and their codes.
pub const REGISTRY: [(&str, &[&str]); 6] = [
    (
        "retry",
        &["backpressure", "lock_timeout", "failover", "push_backpressure"],
    ),
    (
        "reject",
        &[
            "malformed_header",
            "noncanonical_cbor",
            "hash_mismatch",
            "envelope_too_large",
            "unknown_required_field",
            "push_handle_malformed",
        ],
    ),
    (
        "denied",
        &[
            "plaintext_refused",
            "writer_not_in_access_set",
            "group_unknown",
            "service_read_only",
            "group_frozen",
            "push_not_configured",
            "wrap_not_newer",
        ],
    ),
    (
        "quota",
        &[
            "storage_exhausted",
            "log_budget_exhausted",
            "rate_limited",
            "seats_exhausted",
            "group_ingress_limited",
        ],
    ),
    ("version", &["protocol_unsupported", "below_client_floor"]),
    ("limit", &["push_registration_rate"]),
];

/// Whether the registry has this pair.
pub fn is_registered(class: &[u8], code: &[u8]) -> bool {
    REGISTRY
        .iter()
        .any(|(known, codes)| known.as_bytes() == class && codes.iter().any(|known| known.as_bytes() == code))
}

/// One of the registry's pairs.
pub fn registered(rng: &mut Rng) -> (&'static str, &'static str) {
    let (class, codes) = *rng.pick(&REGISTRY);
    (class, *rng.pick(codes))
}

/// A frame: `[tag, fields]`.
pub fn frame() -> Shape {
    let group = || fixed(32);
    let one = |body: fn() -> Shape| Shape::Array(vec![Shape::Nested(body)]);
    let tags = vec![
        (1, Shape::Array(vec![offer(), list(fixed(32)), U64])),
        (2, Shape::Array(vec![rule(U16, is_selected), U64, U8])),
        (3, Shape::Array(vec![any_bytes()])),
        (4, Shape::Array(vec![fixed(32), fixed(64)])),
        (5, Shape::Array(vec![U32, U8, any_bytes(), U8, U8])),
        (6, one(bodies::access_set)),
        (7, Shape::Array(vec![group(), U64])),
        (8, Shape::Array(vec![group(), U64])),
        (9, Shape::Array(vec![group(), Shape::Nested(bodies::recon)])),
        (10, one(envelope)),
        (11, one(envelope)),
        (12, Shape::Array(vec![fixed(32), U64])),
        (13, one(bodies::blob_request)),
        (14, Shape::Array(vec![any_bytes()])),
        (15, error()),
        (16, one(bodies::wrap)),
        (17, Shape::Array(vec![group(), U64, any_bytes()])),
        (18, one(bodies::join_request)),
        (19, one(bodies::drop_request)),
        (20, one(bodies::invite_request)),
        (21, Shape::Array(vec![group(), U64, any_bytes()])),
        (22, keys()),
        (23, Shape::Array(vec![fixed(16), group(), U64, U8, any_bytes()])),
        (24, Shape::Array(vec![fixed(16), fixed(4), U64, any_bytes()])),
        (25, wake()),
    ];
    Shape::Form(tags, Box::new(U64), MALFORMED)
}

/// What a client offers: any version but 0.
pub fn offer() -> Shape {
    rule(U16, |version| {
        require(
            uint(version) != Some(0),
            Fault::Code(Code::ProtocolUnsupported, true),
        )
    })
}

fn is_selected(version: &Value) -> Result<(), Fault> {
    let known = uint(version).is_some_and(|version| (1..=4).contains(&version));
    require(known, Fault::Code(Code::ProtocolUnsupported, true))
}

fn error() -> Shape {
    let fields = Shape::Array(vec![any_bytes(), any_bytes(), U32, any_bytes()]);
    Shape::Made(
        Box::new(fields),
        |error| {
            let fields = array(error)?;
            require(
                is_registered(bytes_of(&fields[0]), bytes_of(&fields[1])),
                MALFORMED,
            )
        },
        |rng| {
            let (class, code) = registered(rng);
            let detail = rng.pick(&[0, 2, 8, 32]);
            Value::Array(vec![
                Value::Bytes(class.into()),
                Value::Bytes(code.into()),
                number(rng.uint(u64::from(u32::MAX))),
                Value::Bytes(rng.bytes(*detail)),
            ])
        },
    )
}

fn keys() -> Shape {
    let forms = vec![
        (1, list(any_bytes())),
        (2, Shape::Array(vec![U32])),
        (3, Shape::Array(vec![fixed(32), U8])),
        (4, list(any_bytes())),
        (5, Shape::Array(vec![])),
    ];
    Shape::Form(forms, Box::new(U8), MALFORMED)
}

const PUSH_MALFORMED: Fault = Fault::Code(Code::PushHandleMalformed, false);

fn wake() -> Shape {
    let handle = Shape::Made(
        Box::new(any_bytes()),
        |handle| require(bytes_of(handle).len() == 16, PUSH_MALFORMED),
        |rng| Value::Bytes(rng.bytes(16)),
    );
    let categories = Shape::Made(
        Box::new(U8),
        |mask| {
            require(
                uint(mask).is_some_and(|mask| (1..=7).contains(&mask)),
                PUSH_MALFORMED,
            )
        },
        |rng| number(1 + rng.next() % 7),
    );
    // What an address may look like is the relay's own rule where 12 §2 is silent; the target `text` holds it to the
    // rest.
    let url = Shape::Made(
        Box::new(Shape::Text),
        |url| {
            let url = url.as_text().unwrap_or_default();
            require(drover_wire::frame::is_register_url(url), PUSH_MALFORMED)
        },
        |rng| {
            let urls = [
                "",
                "https://ringer.example/v1/handles",
                "http://127.0.0.1:1/",
                "http://[::1]",
            ];
            Value::Text((*rng.pick(&urls)).to_owned())
        },
    );
    let forms = vec![
        (1, Shape::Array(vec![handle, categories, U64])),
        (2, Shape::Array(vec![U64])),
        (3, Shape::Array(vec![])),
        (4, Shape::Array(vec![])),
        (5, Shape::Array(vec![])),
        (6, Shape::Array(vec![Shape::Bool, url])),
    ];
    Shape::Form(forms, Box::new(U64), MALFORMED)
}

/// Whether a canonical frame is WAKE, whose size and faults have rules of their own.
pub fn is_wake(frame: &Value) -> bool {
    array(frame).is_ok_and(|items| items.len() == 2 && uint(&items[0]) == Some(25))
}

/// Whether a fault lies behind the tag of a WAKE frame.
pub fn wake_code(fault: Fault) -> (Code, bool) {
    match fault {
        Fault::Code(code, closes) => (code, closes),
        Fault::Trailing => (Code::NoncanonicalCbor, false),
        _ => (Code::MalformedHeader, false),
    }
}

/// The array form's code of a fault (01 §7).
pub fn code(fault: Fault) -> (Code, bool) {
    match fault {
        Fault::Code(code, closes) => (code, closes),
        _ => (Code::NoncanonicalCbor, false),
    }
}

/// An envelope (01 §4).
pub fn envelope() -> Shape {
    let enc = rule(U8, |enc| {
        require(uint(enc).is_some_and(|enc| enc <= 1), MALFORMED)
    });
    Shape::Array(vec![U8, enc, fixed(32), U64, U64, U64, fixed(32), any_bytes()])
}
