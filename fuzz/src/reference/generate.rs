//! A value of a given shape, so that most of what the targets are given is nearly right.

use ciborium::Value;

use super::{Field, Shape, encode};
use crate::random::Rng;

/// A document of this shape.
pub fn document(shape: &Shape, rng: &mut Rng) -> Vec<u8> {
    encode(&value(shape, rng))
}

/// A number.
pub fn uint(number: impl Into<u64>) -> Value {
    Value::Integer(number.into().into())
}

/// A value of this shape; where a rule has no way to make one, mostly.
pub fn value(shape: &Shape, rng: &mut Rng) -> Value {
    match shape {
        Shape::Uint(max) => uint(rng.uint(*max)),
        Shape::Bytes(lengths) => {
            let len = match rng.below(40) {
                0 => 250 + rng.below(10),
                1 => 65_530 + rng.below(10),
                _ => rng.below(40),
            };
            let len = len.clamp(*lengths.start(), *lengths.end());
            // Equal strings matter to some: of one byte each, and few of these.
            if len > 0 && rng.once_in(2) {
                Value::Bytes(vec![rng.below(4) as u8; len])
            } else {
                Value::Bytes(rng.bytes(len))
            }
        }
        Shape::Nested(inner) => {
            let mut bytes = document(&inner(), rng);
            if rng.once_in(8) {
                bytes = rng.bytes(9);
            }
            Value::Bytes(bytes)
        }
        Shape::Text => Value::Text(text(rng)),
        Shape::Bool => Value::Bool(rng.once_in(2)),
        Shape::Null => Value::Null,
        Shape::OrNull(shape) => {
            if rng.once_in(3) {
                Value::Null
            } else {
                value(shape, rng)
            }
        }
        Shape::Array(shapes) => Value::Array(shapes.iter().map(|shape| value(shape, rng)).collect()),
        Shape::List(shape, counts, _) => {
            let count = match rng.below(20) {
                0 => 23 + rng.below(4),
                1 => 300,
                _ => rng.below(5),
            };
            let count = count.clamp(*counts.start(), *counts.end());
            Value::Array((0..count).map(|_| value(shape, rng)).collect())
        }
        Shape::Form(forms, _, _) => {
            let (number, shape) = rng.pick(forms);
            Value::Array(vec![uint(*number), value(shape, rng)])
        }
        Shape::Flat(forms, _) => {
            let (number, shapes) = rng.pick(forms);
            let rest = shapes.iter().map(|shape| value(shape, rng));
            Value::Array([uint(*number)].into_iter().chain(rest).collect())
        }
        Shape::Map(fields, _) => {
            let there: Vec<&Field> = fields
                .iter()
                .filter(|field| field.required || rng.once_in(2))
                .collect();
            let pairs = there
                .iter()
                .map(|field| (uint(field.key), value(&field.shape, rng)))
                .collect();
            Value::Map(pairs)
        }
        Shape::Either(one, other) => value(if rng.once_in(2) { one } else { other }, rng),
        Shape::Rule(shape, check) => {
            let mut made = value(shape, rng);
            for _ in 0..20 {
                if check(&made).is_ok() {
                    break;
                }
                made = value(shape, rng);
            }
            made
        }
        Shape::Made(_, _, make) | Shape::Own(_, make) => make(rng),
    }
}

fn text(rng: &mut Rng) -> String {
    const PIECES: [&str; 8] = ["", "a", "relay", "é", "漢字", "\u{1f980}", "\0", "-"];
    (0..rng.below(6)).map(|_| *rng.pick(&PIECES)).collect()
}
