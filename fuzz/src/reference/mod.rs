//! A second opinion on every document of the wire: ciborium reads it, an explicit check says whether it is canonical
//! (01 §1), and tables written from the specification say what belongs where. Nothing here is shared with the decoders
//! it judges; the only thing taken from them is the type of a code.
//!
//! | Module | Story |
//! | --- | --- |
//! | here | reading, the canonical check, and judging a value by its [`Shape`] |
//! | [`mod@generate`] | a value of a given shape |
//! | [`frames`], [`map`] | the frames in both forms |
//! | [`bodies`] | what travels inside them |
//! | [`payload`] | what travels inside envelopes |

pub mod bodies;
pub mod frames;
pub mod generate;
pub mod map;
pub mod payload;

use ciborium::Value;
use drover_wire::error::Code;
use std::ops::RangeInclusive;

use crate::random::Rng;

/// What a document is to the reference.
#[derive(Debug)]
pub enum Read {
    /// One canonical item, and whether bytes follow it.
    Canonical(Value, bool),
    /// Anything else.
    Not,
}

/// Reads a document. Canonical is: definite lengths, shortest heads, no tag, no float, nothing below zero, no simple
/// value but false, true and null, keys of maps unsigned and strictly ascending.
pub fn read(document: &[u8]) -> Read {
    let Ok(value) = ciborium::from_reader::<Value, _>(document) else {
        return Read::Not;
    };
    let again = encode(&value);
    if is_plain(&value) && document.starts_with(&again) {
        Read::Canonical(value, document.len() > again.len())
    } else {
        Read::Not
    }
}

/// The item as ciborium writes it: definite, shortest, maps in the order they are in.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    ciborium::into_writer(value, &mut out).expect("a buffer takes everything");
    out
}

fn is_plain(value: &Value) -> bool {
    match value {
        Value::Integer(number) => u64::try_from(*number).is_ok(),
        Value::Bytes(_) | Value::Text(_) | Value::Bool(_) | Value::Null => true,
        Value::Array(items) => items.iter().all(is_plain),
        Value::Map(pairs) => {
            let keys: Option<Vec<u64>> = pairs.iter().map(|(key, _)| uint(key)).collect();
            keys.is_some_and(|keys| keys.is_sorted_by(|a, b| a < b))
                && pairs.iter().all(|(_, value)| is_plain(value))
        }
        _ => false,
    }
}

/// The number, if it is one.
pub fn uint(value: &Value) -> Option<u64> {
    value.as_integer().and_then(|number| number.try_into().ok())
}

/// What is wrong with a canonical document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An item of another type.
    Type,
    /// A byte string of another length.
    Length,
    /// An array of another count.
    Count,
    /// An integer over the width of its field.
    Range,
    /// A map's key that is unknown or missing.
    Key,
    /// Bytes after the document.
    Trailing,
    /// What the specification has a code for, and whether the socket closes.
    Code(Code, bool),
}

/// A fault that has `reject/malformed_header`.
pub const MALFORMED: Fault = Fault::Code(Code::MalformedHeader, false);

/// What belongs at a place of a document, judged from left to right.
pub enum Shape {
    /// An unsigned integer up to this.
    Uint(u64),
    /// A byte string of so many bytes.
    Bytes(RangeInclusive<usize>),
    /// A byte string of any length; made of a document of this shape.
    Nested(fn() -> Shape),
    /// A text string.
    Text,
    /// False or true.
    Bool,
    /// Null.
    Null,
    /// Null, or this.
    OrNull(Box<Shape>),
    /// Exactly these, in order.
    Array(Vec<Shape>),
    /// Between so many and so many of this; the fault of any other number.
    List(Box<Shape>, RangeInclusive<usize>, Fault),
    /// `[number, …]`: the rest by the number.
    Form(Vec<(u64, Shape)>, Box<Shape>, Fault),
    /// A flat array whose first element and count select the others; the fault of an unknown pair.
    Flat(Vec<(u64, Vec<Shape>)>, Fault),
    /// A map of these keys; the fault of a key that is unknown or missing.
    Map(Vec<Field>, Fault),
    /// One or the other.
    Either(Box<Shape>, Box<Shape>),
    /// A shape and something more that has to hold.
    Rule(Box<Shape>, fn(&Value) -> Result<(), Fault>),
    /// The same, with a way to make one that holds.
    Made(Box<Shape>, fn(&Value) -> Result<(), Fault>, fn(&mut Rng) -> Value),
    /// Judged and made by hand.
    Own(fn(&Value) -> Result<(), Fault>, fn(&mut Rng) -> Value),
}

/// A key of a map.
pub struct Field {
    key: u64,
    shape: Shape,
    required: bool,
}

/// A key that has to be there.
pub fn key(key: u64, shape: Shape) -> Field {
    Field {
        key,
        shape,
        required: true,
    }
}

/// A key that may be there.
pub fn key_if(key: u64, shape: Shape) -> Field {
    Field {
        key,
        shape,
        required: false,
    }
}

/// `B(n)` of 01.
pub fn fixed(len: usize) -> Shape {
    Shape::Bytes(len..=len)
}

/// `B*` of 01.
pub fn any_bytes() -> Shape {
    Shape::Bytes(0..=usize::MAX)
}

/// U8.
pub const U8: Shape = Shape::Uint(u8::MAX as u64);
/// U16.
pub const U16: Shape = Shape::Uint(u16::MAX as u64);
/// U32.
pub const U32: Shape = Shape::Uint(u32::MAX as u64);
/// U64.
pub const U64: Shape = Shape::Uint(u64::MAX);

/// Any number of this.
pub fn list(shape: Shape) -> Shape {
    Shape::List(Box::new(shape), 0..=usize::MAX, Fault::Count)
}

/// At most so many of this.
pub fn list_up_to(most: usize, shape: Shape) -> Shape {
    Shape::List(Box::new(shape), 0..=most, Fault::Count)
}

/// This, or null.
pub fn or_null(shape: Shape) -> Shape {
    Shape::OrNull(Box::new(shape))
}

/// A shape and something more that has to hold.
pub fn rule(shape: Shape, check: fn(&Value) -> Result<(), Fault>) -> Shape {
    Shape::Rule(Box::new(shape), check)
}

/// The fault, unless it holds.
pub const fn require(holds: bool, fault: Fault) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(fault) }
}

impl Shape {
    /// Judges a value from left to right.
    ///
    /// # Errors
    /// The first fault.
    pub fn judge(&self, value: &Value) -> Result<(), Fault> {
        match self {
            Self::Uint(max) => match uint(value) {
                Some(number) => require(number <= *max, Fault::Range),
                None => Err(Fault::Type),
            },
            Self::Bytes(lengths) => match value {
                Value::Bytes(bytes) => require(lengths.contains(&bytes.len()), Fault::Length),
                _ => Err(Fault::Type),
            },
            Self::Nested(_) => require(value.is_bytes(), Fault::Type),
            Self::Text => require(value.is_text(), Fault::Type),
            Self::Bool => require(value.is_bool(), Fault::Type),
            Self::Null => require(value.is_null(), Fault::Type),
            Self::OrNull(shape) => match value {
                Value::Null => Ok(()),
                value => shape.judge(value),
            },
            Self::Array(shapes) => {
                let items = array(value)?;
                require(items.len() == shapes.len(), Fault::Count)?;
                shapes
                    .iter()
                    .zip(items)
                    .try_for_each(|(shape, item)| shape.judge(item))
            }
            Self::List(shape, counts, fault) => {
                let items = array(value)?;
                require(counts.contains(&items.len()), *fault)?;
                items.iter().try_for_each(|item| shape.judge(item))
            }
            Self::Form(forms, number, unknown) => {
                let items = array(value)?;
                require(items.len() == 2, Fault::Count)?;
                number.judge(&items[0])?;
                let number = uint(&items[0]);
                let form = forms.iter().find(|(form, _)| Some(*form) == number);
                form.ok_or(*unknown)?.1.judge(&items[1])
            }
            Self::Flat(forms, unknown) => {
                let items = array(value)?;
                let (first, rest) = items.split_first().ok_or(*unknown)?;
                U64.judge(first)?;
                let number = uint(first);
                let form = forms
                    .iter()
                    .find(|(form, shapes)| Some(*form) == number && shapes.len() == rest.len());
                let shapes = &form.ok_or(*unknown)?.1;
                shapes
                    .iter()
                    .zip(rest)
                    .try_for_each(|(shape, item)| shape.judge(item))
            }
            Self::Map(fields, fault) => {
                let Value::Map(pairs) = value else {
                    return Err(Fault::Type);
                };
                let known = |key: &Value| fields.iter().any(|field| uint(key) == Some(field.key));
                require(pairs.iter().all(|(key, _)| known(key)), *fault)?;
                let missing = |field: &Field| field.required && at(value, field.key).is_none();
                require(!fields.iter().any(missing), *fault)?;
                fields.iter().try_for_each(|field| match at(value, field.key) {
                    Some(value) => field.shape.judge(value),
                    None => Ok(()),
                })
            }
            Self::Either(one, other) => one.judge(value).or_else(|_| other.judge(value)),
            Self::Rule(shape, check) | Self::Made(shape, check, _) => {
                shape.judge(value)?;
                check(value)
            }
            Self::Own(judge, _) => judge(value),
        }
    }
}

/// The elements of an array.
///
/// # Errors
/// [`Fault::Type`].
pub fn array(value: &Value) -> Result<&[Value], Fault> {
    value.as_array().map(Vec::as_slice).ok_or(Fault::Type)
}

/// The value of a map's key.
pub fn at(map: &Value, key: u64) -> Option<&Value> {
    let pairs = map.as_map()?;
    pairs
        .iter()
        .find(|(found, _)| uint(found) == Some(key))
        .map(|(_, value)| value)
}

/// A byte string's content, empty for anything else: for rules over a shape that holds.
pub fn bytes_of(value: &Value) -> &[u8] {
    value.as_bytes().map_or(&[], Vec::as_slice)
}

/// What the reference says of a whole document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is one.
    Accepted,
    /// It is none, for this reason.
    Refused(Fault),
    /// It is none: already its encoding is not canonical. Which fault comes first depends on how far one reads.
    NotCanonical,
}

/// Judges a whole document.
pub fn judge(shape: &Shape, document: &[u8]) -> Verdict {
    match read(document) {
        Read::Not => Verdict::NotCanonical,
        Read::Canonical(value, trailing) => match shape.judge(&value) {
            Err(fault) => Verdict::Refused(fault),
            Ok(()) if trailing => Verdict::Refused(Fault::Trailing),
            Ok(()) => Verdict::Accepted,
        },
    }
}
