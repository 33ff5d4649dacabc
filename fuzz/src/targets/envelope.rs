//! Envelopes (01 §4): the relay's decoder, the client's, and the content address.

use bytes::Bytes;
use drover_client::SealedEnvelope;
use drover_wire::cbor::Reader;
use drover_wire::envelope::Envelope;
use drover_wire::error::Code;
use drover_wire::id::Hash;

use crate::codec::Codec;
use crate::random::Rng;
use crate::reference::frames::{code, envelope};
use crate::reference::{Read, array, bytes_of, encode, generate, read, uint};

/// Decoding takes no heap.
pub fn run(input: &[u8]) {
    let codec = Codec {
        name: "envelope",
        shape: envelope(),
        code: |fault| Some(code(fault)),
        codes: &[Code::NoncanonicalCbor, Code::MalformedHeader],
        heap_factor: 0,
        decode: Envelope::decode,
        encode: |envelope: &Envelope<'_>| {
            let mut out = Vec::new();
            envelope.encode(&mut out);
            assert_eq!(out.len(), envelope.encoded_len());
            let mut again = Vec::new();
            envelope.encode_head(&mut again);
            assert_eq!(again[..], *envelope.head());
            again.extend_from_slice(envelope.ct);
            assert_eq!(again, out);
            out
        },
    };
    let accepted = codec.check(input);
    let sealed = SealedEnvelope::from_push(&Bytes::copy_from_slice(input));
    if !accepted {
        assert!(sealed.is_err());
        return;
    }
    // The address is of the items alone, as another encoder writes them (01 §4.1).
    let Read::Canonical(value, _) = read(input) else {
        unreachable!("accepted by the reference")
    };
    let items = array(&value).unwrap_or_default();
    let preimage: Vec<u8> = [0, 1, 2, 3, 7].iter().flat_map(|at| encode(&items[*at])).collect();
    let address = Hash::of(&[&preimage]);
    let envelope = Envelope::decode(input);
    assert_eq!(envelope.map(|envelope| envelope.content_hash()), Ok(address));
    let believed = uint(&items[0]) == Some(1) && bytes_of(&items[6]) == address.0;
    match sealed {
        Ok(sealed) => {
            assert!(believed);
            assert_eq!(sealed.encode(), input);
        }
        Err(_) => assert!(!believed),
    }
    let mut reader = Reader::new(input);
    assert_eq!(reader.skip(), Ok(()));
    assert!(reader.rest().is_empty());
}

/// An envelope, every other one with its right address.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let document = generate::document(&envelope(), rng);
    let fixed = Envelope::decode(&document).ok().filter(|_| rng.once_in(2)).map(|mut envelope| {
        envelope.v = 1;
        envelope.hash = envelope.content_hash();
        let mut out = Vec::new();
        envelope.encode(&mut out);
        out
    });
    fixed.unwrap_or(document)
}
