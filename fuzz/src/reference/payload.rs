//! What is inside an envelope once it is opened: section 3 of the wire grammar. A client says only whether it is one.

use super::generate::uint as number;
use super::{Fault, Shape, U64, any_bytes, array, fixed, key, key_if, list, require, rule, uint};

/// The largest payload or body.
pub const PAYLOAD_BYTES_MAX: usize = 1_048_576;

fn map(fields: Vec<super::Field>) -> Shape {
    Shape::Map(fields, Fault::Key)
}

/// `[+ shape]`.
fn some(shape: Shape) -> Shape {
    Shape::List(Box::new(shape), 1..=usize::MAX, Fault::Count)
}

fn header() -> Shape {
    let version = Shape::Made(
        Box::new(U64),
        |v| require(uint(v) == Some(1), Fault::Range),
        |_| number(1u8),
    );
    let enc = rule(U64, |enc| {
        require(uint(enc).is_some_and(|enc| enc <= 1), Fault::Range)
    });
    map(vec![key(1, version), key(2, enc), key(3, fixed(32)), key(4, U64)])
}

/// A delegation.
pub fn certificate() -> Shape {
    // At most 4096, a ceiling of this client's.
    let capabilities = rule(some(Shape::Text), |list| {
        require(array(list)?.len() <= 4096, Fault::Count)
    });
    map(vec![
        key(1, fixed(32)),
        key(2, fixed(32)),
        key(3, U64),
        key(4, U64),
        key(5, capabilities),
        key(6, fixed(64)),
    ])
}

/// A payload.
pub fn payload() -> Shape {
    map(vec![
        key(1, header()),
        key(2, U64),
        key(3, fixed(32)),
        key_if(4, certificate()),
        key(5, U64),
        key(6, fixed(32)),
        key(7, U64),
        key(8, Shape::Nested(chain_reset)),
        key(9, fixed(64)),
    ])
}

/// Kind 0x70.
pub fn head_attest() -> Shape {
    let head = map(vec![
        key(1, fixed(32)),
        key(2, U64),
        key(3, fixed(32)),
        key_if(4, fixed(32)),
    ]);
    let heads = map(vec![key(1, fixed(32)), key(2, some(head))]);
    map(vec![key(1, some(heads))])
}

/// Kind 0x72.
pub fn chain_reset() -> Shape {
    map(vec![key(1, U64), key(2, fixed(32)), key(3, U64), key(4, U64)])
}

/// Kind 0x61.
pub fn recovery_wrap() -> Shape {
    map(vec![key(1, any_bytes()), key(2, any_bytes()), key(3, fixed(32))])
}

/// Kind 0x22, in both of its spellings.
pub fn dm_welcome() -> Shape {
    Shape::Either(
        Box::new(map(vec![key(1, fixed(32)), key(2, any_bytes())])),
        Box::new(Shape::Array(vec![fixed(32), any_bytes()])),
    )
}

/// Kind 0x80.
pub fn media_retain() -> Shape {
    map(vec![key(1, list(fixed(32))), key(2, U64)])
}

/// Kind 0x20.
pub fn roster_entry() -> Shape {
    map(vec![
        key(1, fixed(32)),
        key(2, Shape::Text),
        key(3, Shape::Text),
        key(4, Shape::Text),
        key_if(5, Shape::Text),
        key_if(6, Shape::Text),
        key(7, U64),
    ])
}
