//! The frames of the map form (01 §8, docs/map-form.md).

use ciborium::Value;
use drover_wire::error::Code;

use super::frames::{is_registered, offer, registered};
use super::generate::uint as number;
use super::{
    Fault, MALFORMED, Shape, U8, U32, U64, any_bytes, array, at, fixed, key, key_if, list, require, rule,
    uint,
};

const UNKNOWN_FIELD: Fault = Fault::Code(Code::UnknownRequiredField, false);

/// The code of a fault in the map form: a wrong length is malformed, a wrong type or width is not canonical.
pub fn code(fault: Fault) -> (Code, bool) {
    match fault {
        Fault::Code(code, closes) => (code, closes),
        Fault::Length | Fault::Key => (Code::MalformedHeader, false),
        _ => (Code::NoncanonicalCbor, false),
    }
}

/// A frame: `{0: tag, …}` of two to four keys.
pub fn frame() -> Shape {
    Shape::Own(judge, |rng| {
        let frames = frames();
        let (tag, shapes) = rng.pick(&frames);
        let Value::Map(mut pairs) = super::generate::value(rng.pick(shapes), rng) else {
            return Value::Null;
        };
        pairs.insert(0, (number(0u8), number(*tag)));
        Value::Map(pairs)
    })
}

fn judge(frame: &Value) -> Result<(), Fault> {
    let Value::Map(pairs) = frame else {
        return Err(Fault::Type);
    };
    require((2..=4).contains(&pairs.len()), Fault::Type)?;
    let tag = at(frame, 0).ok_or(MALFORMED)?;
    U64.judge(tag)?;
    let frames = frames();
    let (_, shapes) = frames
        .iter()
        .find(|(known, _)| uint(tag) == Some(*known))
        .ok_or(MALFORMED)?;
    let rest = Value::Map(
        pairs
            .iter()
            .filter(|(key, _)| uint(key) != Some(0))
            .cloned()
            .collect(),
    );
    // Of AUTH's two shapes the keys tell which.
    let fits = |shape: &&Shape| !matches!(shape.judge(&rest), Err(fault) if fault == MALFORMED);
    let shape = shapes.iter().find(fits).unwrap_or(&shapes[0]);
    shape.judge(&rest)
}

/// Whether it is a map of the right size whose tag has no map form, which is told before what follows it is read.
pub fn has_unknown_tag(frame: &Value) -> bool {
    let sized = frame.as_map().is_some_and(|pairs| (2..=4).contains(&pairs.len()));
    let tag = at(frame, 0).and_then(uint);
    sized && tag.is_some_and(|tag| frames().iter().all(|(known, _)| *known != tag))
}

/// By tag; keys without the tag's.
fn frames() -> Vec<(u64, Vec<Shape>)> {
    let map = |fields| Shape::Map(fields, MALFORMED);
    vec![
        (1, vec![map(vec![key(1, offer()), key(2, list(fixed(32)))])]),
        (
            2,
            vec![
                map(vec![key(1, fixed(32)), key(2, fixed(64))]),
                map(vec![key(1, any_bytes()), key(3, state())]),
            ],
        ),
        (
            3,
            vec![map(vec![
                key(
                    1,
                    rule(list(fixed(32)), |groups| {
                        require(!array(groups)?.is_empty(), MALFORMED)
                    }),
                ),
                key_if(2, U64),
                key_if(3, Shape::Bool),
            ])],
        ),
        (4, vec![map(vec![key(1, fixed(32)), key(2, ranges())])]),
        (5, vec![map(vec![key(1, envelope())])]),
        (6, vec![map(vec![key(1, envelope())])]),
        (8, vec![map(vec![key(1, error())])]),
    ]
}

fn state() -> Shape {
    let fields = vec![
        key(1, U64),
        key(2, U32),
        key(3, Shape::Text),
        key(4, U8),
        key_if(5, Shape::Text),
    ];
    Shape::Made(
        Box::new(Shape::Map(fields, MALFORMED)),
        |state| {
            let mode = at(state, 3).and_then(Value::as_text);
            let reasoned = at(state, 5).is_some();
            let floor = at(state, 4).and_then(uint);
            require(
                mode == Some("read_only") || (mode == Some("full") && !reasoned),
                MALFORMED,
            )?;
            require(floor.is_some_and(|floor| floor <= 1), MALFORMED)
        },
        |rng| {
            let mode = rng.below(3);
            let mut pairs = vec![
                (number(1u8), number(rng.uint(u64::MAX))),
                (number(2u8), number(rng.uint(100))),
                (
                    number(3u8),
                    Value::Text(if mode == 0 { "full" } else { "read_only" }.into()),
                ),
                (number(4u8), number(rng.next() % 2)),
            ];
            if mode == 2 {
                pairs.push((number(5u8), Value::Text("maintenance".into())));
            }
            Value::Map(pairs)
        },
    )
}

/// RECON's second key: the payload of the array form, or fingerprints with their bounds.
fn ranges() -> Shape {
    Shape::Own(
        |value| {
            let Value::Array(ranges) = value else {
                return any_bytes().judge(value);
            };
            require(ranges.len() <= 1024, MALFORMED)?;
            let range = Shape::Map(vec![key(1, U64), key(2, U64), key(3, fixed(32))], MALFORMED);
            let mut least = 0;
            for value in ranges {
                range.judge(value)?;
                let (lower, upper) = (at(value, 1).and_then(uint), at(value, 2).and_then(uint));
                require(lower >= Some(least) && lower < upper, MALFORMED)?;
                least = upper.unwrap_or_default();
            }
            Ok(())
        },
        |rng| {
            if rng.once_in(3) {
                return super::generate::value(&Shape::Nested(super::bodies::recon), rng);
            }
            let mut bounds: Vec<u64> = (0..rng.below(9)).map(|_| rng.uint(u64::MAX)).collect();
            bounds.sort_unstable();
            bounds.dedup();
            let range = |pair: &[u64]| {
                Value::Map(vec![
                    (number(1u8), number(pair[0])),
                    (number(2u8), number(pair[1])),
                    (number(3u8), Value::Bytes(vec![7; 32])),
                ])
            };
            Value::Array(bounds.windows(2).map(range).collect())
        },
    )
}

fn envelope() -> Shape {
    let fields = vec![
        key(1, U8),
        key(2, U8),
        key(3, fixed(32)),
        key(4, U64),
        key(5, U64),
        key(6, U64),
        key(7, fixed(32)),
        key(8, any_bytes()),
    ];
    rule(Shape::Map(fields, UNKNOWN_FIELD), |envelope| {
        let enc = at(envelope, 2).and_then(uint);
        require(enc.is_some_and(|enc| enc <= 1), MALFORMED)
    })
}

fn error() -> Shape {
    // Class and code are known to fit before the other two are read.
    Shape::Own(
        |error| {
            let any = || Shape::Own(|_| Ok(()), |_| Value::Null);
            Shape::Map(
                vec![
                    key(1, Shape::Text),
                    key(2, Shape::Text),
                    key_if(3, any()),
                    key_if(4, any()),
                ],
                MALFORMED,
            )
            .judge(error)?;
            let word = |key| {
                at(error, key)
                    .and_then(Value::as_text)
                    .unwrap_or_default()
                    .as_bytes()
            };
            require(is_registered(word(1), word(2)), MALFORMED)?;
            at(error, 3).map_or(Ok(()), |state| fixed(32).judge(state))?;
            at(error, 4).map_or(Ok(()), |ms| U64.judge(ms))
        },
        |rng| {
            let (class, code) = registered(rng);
            let mut pairs = vec![
                (number(1u8), Value::Text(class.into())),
                (number(2u8), Value::Text(code.into())),
            ];
            if rng.once_in(2) {
                pairs.push((number(3u8), Value::Bytes(rng.bytes(32))));
            }
            if rng.once_in(2) {
                pairs.push((number(4u8), number(rng.uint(u64::MAX))));
            }
            Value::Map(pairs)
        },
    )
}
