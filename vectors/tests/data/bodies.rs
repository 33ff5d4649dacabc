//! invites.json and recon-transcripts.json.

use crate::{bytes, item_bytes, items, section, verifies};
use drover_vectors::frames::Schema;
use drover_vectors::values::code_hash;
use drover_wire::id::Hash;
use drover_wire::invite::Record;
use drover_wire::recon::{self, Item};
use serde_json::Value as Json;

#[test]
fn records_are_judged_as_stated_and_signed_as_they_claim() {
    for row in section("invites.json", "records") {
        let what = &row["name"];
        let encoded = bytes(&row["record"]);
        let record = Record::decode(&encoded).unwrap();
        assert_eq!(record.encode(), encoded, "{what}");
        let judged = record.judge(row["bootstrap"] == true, row["now_ms"].as_u64().unwrap());
        let code = judged.err().map(|fault| {
            let code = fault.code();
            format!("{}/{}", code.class().as_str(), code.as_str())
        });
        assert_eq!(code.as_deref(), row["refused"].as_str(), "{what}");
        let fields = items(&row["fields"]);
        let over = Schema::get().signing_input("INVITE_CREATE", &fields).unwrap();
        assert_eq!(over, record.signing_input(), "{what}");
        assert_eq!(
            crate::blake3::hash(&over).to_vec(),
            bytes(&row["digest"]),
            "{what}"
        );
        let sound = verifies(&item_bytes(&fields["issuer"]), &over, &item_bytes(&fields["sig"]));
        assert_eq!(sound, row["refused"] != "reject/noncanonical_cbor", "{what}");
    }
}

/// The hashes were made by the C implementation.
#[test]
fn code_hashes_agree_with_another_argon2() {
    for row in section("invites.json", "codes") {
        let hash = code_hash(row["symbols"].as_str().unwrap().as_bytes(), &bytes(&row["token"])).unwrap();
        assert_eq!(hash, bytes(&row["hash"]), "{row}");
    }
}

fn held(json: &Json) -> Vec<Item> {
    json.as_array()
        .unwrap()
        .iter()
        .map(|seq| item(seq.as_u64().unwrap()))
        .collect()
}

fn item(seq: u64) -> Item {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&seq.to_be_bytes());
    recon::item(seq, &Hash(id))
}

fn encoded(ranges: &[recon::Range]) -> Vec<u8> {
    let mut out = Vec::new();
    recon::encode(ranges, &mut out);
    out
}

/// Both roles of `wire` take every round as the transcript has it (03 §5, §6), and end with equal sets.
#[test]
fn transcripts_are_what_both_roles_do() {
    for row in section("recon-transcripts.json", "transcripts") {
        let what = &row["name"];
        let (mut client, mut relay) = (held(&row["client_holds"]), held(&row["relay_holds"]));
        let mut message = recon::opening(&client);
        let rounds = row["rounds"].as_array().unwrap();
        for (number, round) in rounds.iter().enumerate() {
            assert_eq!(
                encoded(&message),
                bytes(&round["client"]),
                "{what}, round {number}"
            );
            let incoming = recon::decode(&bytes(&round["client"])).unwrap();
            let answer = recon::answer(&relay, incoming, usize::MAX);
            let pushed: Vec<Item> = answer.owed.clone();
            assert_eq!(pushed, held(&round["pushed"]), "{what}, round {number}");
            assert_eq!(
                encoded(&answer.ranges),
                bytes(&round["relay"]),
                "{what}, round {number}"
            );
            client.extend(pushed);
            client.sort_unstable();
            client.dedup();
            let step = recon::client_step(&client, &recon::decode(&bytes(&round["relay"])).unwrap());
            let sends: Vec<Hash> = held(&round["client_sends"]).iter().map(recon::item_id).collect();
            assert_eq!(step.send, sends, "{what}, round {number}");
            relay.extend(held(&round["client_sends"]));
            relay.sort_unstable();
            relay.dedup();
            assert_eq!(
                step.ranges.is_none(),
                round["done"] == true,
                "{what}, round {number}"
            );
            message = step.ranges.unwrap_or_default();
        }
        assert_eq!(
            rounds.last().map(|round| &round["done"]),
            Some(&Json::Bool(true)),
            "{what}"
        );
        assert_eq!(client, relay, "{what}");
    }
}
