//! The data files against implementations that did not make them: `wire`, whose types the relay uses; the runner's own
//! codec; ciborium as a second decoder; a second BLAKE3; the Ed25519 of aws-lc. The files themselves were made with
//! cbor2, libsodium and the C Argon2 (vectors/README.md).
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "data/blake3.rs"]
mod blake3;
#[path = "data/bodies.rs"]
mod bodies;
#[path = "data/chain.rs"]
mod chain;
#[path = "data/frames.rs"]
mod frames;
#[path = "data/scripts.rs"]
mod scripts;

use drover_vectors::cbor::Item;
use drover_vectors::frames::Fields;
use drover_vectors::run::Run;
use drover_vectors::values::Scope;
use serde_json::{Map, Value as Json};
use std::path::Path;

/// A file of vectors/weald.
fn file(name: &str) -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("weald").join(name);
    serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The elements of a section.
fn section(name: &str, section: &str) -> Vec<Json> {
    let file = file(name);
    let rows = file[section]
        .as_array()
        .unwrap_or_else(|| panic!("{name}: no {section}"))
        .clone();
    assert!(!rows.is_empty(), "{name}: {section} is empty");
    rows
}

fn bytes(json: &Json) -> Vec<u8> {
    drover_vectors::hex::decode(json.as_str().unwrap_or_else(|| panic!("{json} is no hex"))).unwrap()
}

fn object(json: &Json) -> Map<String, Json> {
    json.as_object().unwrap().clone()
}

/// Fields as items; static vectors have neither names nor saved values.
fn items(json: &Json) -> Fields {
    let run = Run::new([0; 16]);
    let scope = Scope::new(&run, "", &[]);
    object(json)
        .into_iter()
        .map(|(field, value)| (field, scope.item(&value).unwrap()))
        .collect()
}

fn item_bytes(item: &Item) -> Vec<u8> {
    match item {
        Item::Bytes(bytes) => bytes.clone(),
        other => panic!("{other} is no byte string"),
    }
}

/// Ed25519 by aws-lc, which `wire` does not use.
fn verifies(key: &[u8], message: &[u8], signature: &[u8]) -> bool {
    use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
    UnparsedPublicKey::new(&ED25519, key)
        .verify(message, signature)
        .is_ok()
}
