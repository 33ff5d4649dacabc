//! access-chain.json: digests, signatures and links; the verdicts are the engine's matter (engine/src/chain.rs).

use crate::{bytes, item_bytes, items, section, verifies};
use drover_vectors::cbor::Item;
use drover_vectors::frames::Schema;
use drover_wire::access::AccessSet;

#[test]
fn sets_encode_hash_link_and_verify_by_second_implementations() {
    let mut head = vec![0; 32];
    let (mut accepted, mut refused) = (0, 0);
    for step in section("access-chain.json", "steps") {
        let what = &step["name"];
        let (set, signed, digest) = (
            bytes(&step["set"]),
            bytes(&step["signed"]),
            bytes(&step["digest"]),
        );
        let fields = items(&step["fields"]);
        let decoded = AccessSet::decode(&set).unwrap();
        assert_eq!(decoded.encode(), set, "{what}");
        assert_eq!(decoded.signing_input(), signed, "{what}");
        assert_eq!(
            Schema::get().signing_input("ACCESS_PUBLISH", &fields).unwrap(),
            signed,
            "{what}"
        );
        let frame = Schema::get()
            .encode("ACCESS_PUBLISH", &fields, drover_vectors::Form::Array)
            .unwrap();
        assert!(frame.ends_with(&set), "{what}");
        assert_eq!(crate::blake3::hash(&signed).to_vec(), digest, "{what}");
        let sound = verifies(
            &item_bytes(&fields["signer"]),
            &signed,
            &item_bytes(&fields["sig"]),
        );
        assert_eq!(sound, step["refused"] != "reject/noncanonical_cbor", "{what}");
        // Quorum signatures are over the digest and the device they confirm.
        if let Some(Item::Array(quorum)) = fields.get("quorum")
            && let Item::Array(sigs) = &quorum[2]
            && !sigs.is_empty()
        {
            let salt = [0x5a; 32];
            let device = fields["signer"].clone();
            let entry = crate::blake3::hash(&[item_bytes(&device), salt.to_vec()].concat());
            let message = [
                b"weald recovery-confirm v1".to_vec(),
                digest.clone(),
                entry.to_vec(),
            ]
            .concat();
            let message = crate::blake3::hash(&message);
            for pair in sigs {
                let Item::Array(pair) = pair else {
                    panic!("{what}: a key and a signature")
                };
                assert!(
                    verifies(&item_bytes(&pair[0]), &message, &item_bytes(&pair[1])),
                    "{what}"
                );
            }
        }
        match step["refused"].is_null() {
            true => {
                assert_eq!(item_bytes(&fields["prev_hash"]), head, "{what}");
                head = digest;
                accepted += 1;
            }
            false => refused += 1,
        }
    }
    assert!(accepted >= 10 && refused >= 15, "{accepted} {refused}");
}
