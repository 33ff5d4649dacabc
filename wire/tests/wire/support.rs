//! Where the vectors are and how they are spelt.

use std::path::Path;

use drover_wire::error::Code;
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash};
use serde_json::Value;

pub(crate) const AB: GroupId = GroupId([0xab; 32]);
pub(crate) const ZERO: Hash = Hash([0; 32]);
/// `reject/noncanonical_cbor` and `reject/malformed_header`, as 03 §2 abbreviates them.
pub(crate) const G: Code = Code::NoncanonicalCbor;
pub(crate) const S: Code = Code::MalformedHeader;

/// Bytes of `"8207825820 ab*32 00"`: hex, where `xx*n` stands for n times the byte xx (vectors/README.md).
pub(crate) fn bytes(spelt: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for token in spelt.split_whitespace() {
        let (hex, times) = token
            .split_once('*')
            .map_or((token, 1), |(hex, n)| (hex, n.parse().unwrap()));
        let digits = hex.as_bytes().chunks(2);
        let once: Vec<u8> = digits
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect();
        out.extend(once.repeat(times));
    }
    out
}

pub(crate) fn array<const N: usize>(spelt: &str) -> [u8; N] {
    bytes(spelt).try_into().unwrap()
}

pub(crate) fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out
}

/// The project's own vectors: `section` of vectors/weald/codec.json or control.json.
pub(crate) fn ours(section: &str) -> Value {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vectors/weald");
    ["codec.json", "control.json"]
        .into_iter()
        .find_map(|file| {
            let text = std::fs::read(vectors.join(file)).unwrap();
            let mut document: Value = serde_json::from_slice(&text).unwrap();
            document.get_mut(section).map(Value::take)
        })
        .unwrap_or_else(|| panic!("no section {section}"))
}

/// A file of the corpus all implementations share, if there is a copy beside the project.
pub(crate) fn shared(file: &str) -> Option<Value> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .find_map(|above| {
            let text = std::fs::read(above.join("shared/vectors/weald").join(file)).ok()?;
            Some(serde_json::from_slice(&text).unwrap())
        })
}

/// The rows under `key` of a shared file; none if it is absent.
pub(crate) fn shared_rows(file: &str, key: &str) -> Vec<Value> {
    shared(file)
        .map(|mut document| rows(document[key].take()))
        .unwrap_or_default()
}

pub(crate) fn rows(section: Value) -> Vec<Value> {
    match section {
        Value::Array(rows) => rows,
        other => panic!("not a list: {other}"),
    }
}

pub(crate) trait Row {
    fn text(&self, key: &str) -> &str;
    fn number(&self, key: &str) -> u64;
    fn spelt(&self, key: &str) -> Vec<u8> {
        bytes(self.text(key))
    }
}

impl Row for Value {
    fn text(&self, key: &str) -> &str {
        self[key]
            .as_str()
            .unwrap_or_else(|| panic!("no text {key} in {self}"))
    }

    fn number(&self, key: &str) -> u64 {
        self[key]
            .as_u64()
            .unwrap_or_else(|| panic!("no number {key} in {self}"))
    }
}

/// Deterministic stand-in for a hash: the n-th of a long cycle of well-mixed values.
pub(crate) fn mixed(n: u64) -> Hash {
    Hash::of(&[&n.to_be_bytes()])
}

/// `class/code` as the specification writes it.
pub(crate) fn name_of(code: Code) -> String {
    format!("{}/{}", code.class().as_str(), code.as_str())
}
