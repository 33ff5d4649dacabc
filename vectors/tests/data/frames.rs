//! frames.json and the rows of scripts/refusals.json that bytes alone decide.

use crate::{bytes, file, item_bytes, items, object, section, verifies};
use drover_vectors::cbor::Item;
use drover_vectors::frames::{Form, Schema};
use drover_vectors::run::Run;
use drover_vectors::values::Scope;
use drover_wire::frame::Frame;
use drover_wire::map::{MapFrame, is_map};
use serde_json::Value as Json;
use std::collections::BTreeSet;

/// A second decoder: what it reads, written again, is the same bytes, so they are canonical; and it reads what ours does.
fn second_opinion(bytes: &[u8], what: &str) {
    let value: ciborium::Value =
        ciborium::from_reader(bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut again = Vec::new();
    ciborium::into_writer(&value, &mut again).unwrap();
    assert_eq!(again, bytes, "{what}: not canonical");
    assert_eq!(plain(&value), Item::decode(bytes).unwrap(), "{what}");
}

fn plain(value: &ciborium::Value) -> Item {
    use ciborium::Value;
    let uint = |integer: &ciborium::value::Integer| u64::try_from(*integer).unwrap();
    match value {
        Value::Integer(integer) => Item::Uint(uint(integer)),
        Value::Bytes(bytes) => Item::Bytes(bytes.clone()),
        Value::Text(text) => Item::Text(text.clone()),
        Value::Bool(bool) => Item::Bool(*bool),
        Value::Null => Item::Null,
        Value::Array(items) => Item::Array(items.iter().map(plain).collect()),
        Value::Map(pairs) => Item::Map(
            pairs
                .iter()
                .map(|(key, value)| match key {
                    Value::Integer(key) => (uint(key), plain(value)),
                    other => panic!("{other:?} is no key"),
                })
                .collect(),
        ),
        other => panic!("{other:?} has no place in a frame"),
    }
}

/// What `wire` makes of a frame, encoded again.
fn through_wire(bytes: &[u8], what: &str) -> Vec<u8> {
    let mut out = Vec::new();
    match is_map(bytes) {
        true => MapFrame::decode(bytes)
            .unwrap_or_else(|error| panic!("{what}: {error:?}"))
            .encode(&mut out),
        false => Frame::decode(bytes)
            .unwrap_or_else(|error| panic!("{what}: {error:?}"))
            .encode(&mut out),
    }
    out
}

#[test]
fn every_frame_is_there_and_three_codecs_agree_on_its_bytes() {
    let schema = Schema::get();
    let run = Run::new([0; 16]);
    let mut seen = BTreeSet::new();
    for row in section("frames.json", "frames") {
        let name = row["frame"].as_str().unwrap();
        seen.insert(name.to_owned());
        let fields = items(&row["fields"]);
        for form in Form::ALL {
            let what = format!("{name}, {}, {}", row["name"], form.name());
            // Frames that travel as arrays in both forms are stated once.
            let json = match (&row[form.name()], form) {
                (Json::Null, Form::Map) if schema.is_sent(name, form).unwrap() => &row["array"],
                (json, _) => json,
            };
            if json.is_null() {
                assert!(!schema.is_sent(name, form).unwrap(), "{what} is missing");
                continue;
            }
            let due = bytes(json);
            second_opinion(&due, &what);
            assert_eq!(through_wire(&due, &what), due, "{what}");
            if name != "SEND_ACK" {
                assert_eq!(schema.encode(name, &fields, form).unwrap(), due, "{what}");
            }
            let mut scope = Scope::new(&run, "", &[]);
            let fits = schema.matches(
                name,
                &object(&row["fields"]),
                form,
                &Item::decode(&due).unwrap(),
                &mut scope,
            );
            assert_eq!(fits.unwrap(), Ok(()), "{what}");
        }
    }
    let all: BTreeSet<_> = schema.names().map(str::to_owned).collect();
    assert_eq!(seen, all, "frames without a vector");
}

#[test]
fn hashes_and_signatures_hold_by_a_second_implementation() {
    let mut checked = (0, 0);
    for row in section("frames.json", "frames") {
        let (name, what) = (row["frame"].as_str().unwrap(), &row["name"]);
        let mut fields = items(&row["fields"]);
        match name {
            "SEND" | "PUSH" => {
                let preimage: Vec<u8> = ["v", "enc", "group", "epoch", "ct"]
                    .iter()
                    .flat_map(|field| fields[*field].encode())
                    .collect();
                assert_eq!(
                    crate::blake3::hash(&preimage).to_vec(),
                    item_bytes(&fields["hash"]),
                    "{what}"
                );
                checked.0 += 1;
            }
            "JOIN_RECEIPT" => {
                let commit = section("frames.json", "frames");
                let commit = commit.iter().find(|row| row["frame"] == "JOIN_COMMIT").unwrap();
                let commit = items(&commit["fields"]);
                let mut message = b"weald invite scope-commit v1".to_vec();
                ["token", "nonce", "group"]
                    .iter()
                    .for_each(|field| message.extend(item_bytes(&commit[*field])));
                assert_eq!(
                    crate::blake3::hash(&message).to_vec(),
                    item_bytes(&fields["receipt"])
                );
                checked.0 += 1;
            }
            "AUTH" => {
                let (key, sig) = (
                    item_bytes(&fields["device_key"]),
                    item_bytes(&fields["signature"]),
                );
                assert!(verifies(&key, &[0x11; 32], &sig), "{what}");
                checked.1 += 1;
            }
            "BLOB_POLICY" | "BLOB_DESTRUCTION" => {
                let Some(Item::Array(sigs)) = fields.get("sigs").cloned() else {
                    panic!("{what} has signatures")
                };
                let over = Schema::get().signing_input(name, &fields).unwrap();
                for pair in sigs {
                    let Item::Array(pair) = pair else {
                        panic!("a key and a signature")
                    };
                    assert!(
                        verifies(&item_bytes(&pair[0]), &over, &item_bytes(&pair[1])),
                        "{what}"
                    );
                    checked.1 += 1;
                }
            }
            "ACCESS_PUBLISH" | "INVITE_CREATE" | "BLOB_CONTROL" | "BLOB_MANIFEST" | "BLOB_RESOLUTION"
            | "DROP" => {
                // Manifests and DROPs are signed by the control's key, which they do not carry: seed 01*32.
                let key = ["signer", "issuer", "verifier"]
                    .iter()
                    .find_map(|field| fields.get(*field).map(item_bytes))
                    .unwrap_or_else(|| {
                        drover_vectors::hex::decode(
                            "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c",
                        )
                        .unwrap()
                    });
                let sig = item_bytes(&fields.remove("sig").unwrap());
                let over = Schema::get().signing_input(name, &fields).unwrap();
                assert!(verifies(&key, &over, &sig), "{name}, {what}");
                assert!(!verifies(&key, &over[1..], &sig));
                checked.1 += 1;
            }
            _ => {}
        }
    }
    assert!(checked.0 >= 4 && checked.1 >= 9, "{checked:?}");
}

/// W01.2 by the second BLAKE3; the bytes are built by hand, not by `wire`.
#[test]
fn content_addresses_hold_by_a_second_implementation() {
    let run = Run::new([0; 16]);
    let scope = Scope::new(&run, "", &[]);
    let mut count = 0;
    for row in section("codec.json", "content_addresses") {
        let number = |key: &str| Item::Uint(row[key].as_u64().unwrap_or_else(|| panic!("{key} in {row}")));
        let text = |key: &str| Item::Bytes(scope.bytes(row[key].as_str().unwrap()).unwrap());
        let preimage: Vec<u8> = [
            number("v"),
            number("enc"),
            text("group"),
            number("epoch"),
            text("ct"),
        ]
        .iter()
        .flat_map(Item::encode)
        .collect();
        assert_eq!(
            crate::blake3::hash(&preimage).to_vec(),
            item_bytes(&text("hash")),
            "{row}"
        );
        count += 1;
    }
    assert!(count >= 10);
}

/// The relay's own decoder refuses what a row says by the code it names, wherever decoding decides.
#[test]
fn refused_bytes_are_refused_by_the_codec_with_the_rows_code() {
    let run = Run::new([0; 16]);
    let scope = Scope::new(&run, "", &[]);
    let mut decided = 0;
    for name in ["scripts/refusals.json", "scripts/map.json"] {
        for row in file(name)["rows"].as_array().unwrap() {
            let Some(raw) = row["sends"]["raw"].as_str() else {
                continue;
            };
            let message = scope.bytes(raw).unwrap();
            let refused = match is_map(&message) {
                true => MapFrame::decode(&message).err(),
                false => Frame::decode(&message).err(),
            };
            if let Some(error) = refused {
                let code = error.refusal.code;
                let got = format!("{}/{}", code.class().as_str(), code.as_str());
                assert_eq!(got, row["refused"], "{}", row["rule"]);
                assert_eq!(error.closes, row["closes"] == true, "{}", row["rule"]);
                decided += 1;
            }
        }
    }
    assert!(decided > 60, "{decided}");
}
