//! What clients read inside envelopes: payloads, certificates, bodies.

use std::fmt::Debug;

use bytes::Bytes;
use drover_client::payload::{
    Body, Certificate, ChainReset, DmWelcome, HeadAttest, Malformed, MediaRetain, Payload, RecoveryWrap, RosterEntry,
};

use crate::codec::{Codec, IntoRefused};
use crate::random::Rng;
use crate::reference::payload as shapes;
use crate::reference::{Fault, Read, Shape, Verdict, generate, judge, read};

/// Nobody is told why.
impl IntoRefused for Malformed {
    fn into_refused(self) -> Option<(drover_wire::error::Code, bool)> {
        None
    }
}

/// Heap: a capability of one byte becomes a string of 24, with at most 4096 of them; a head of at least 71 bytes
/// becomes 112; whatever is a byte string is shared with the input.
pub fn run(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    let payload = |bytes: &Bytes| Payload::decode(bytes);
    check("payload", shapes::payload(), 24, &bytes, payload, Payload::encode);
    let certificate = |bytes: &Bytes| Certificate::decode(bytes);
    check("certificate", shapes::certificate(), 24, &bytes, certificate, Certificate::encode);
    body::<HeadAttest>("head.attest", shapes::head_attest(), &bytes);
    body::<ChainReset>("chain.reset", shapes::chain_reset(), &bytes);
    body::<RecoveryWrap>("recovery.wrap", shapes::recovery_wrap(), &bytes);
    body::<MediaRetain>("media.retain", shapes::media_retain(), &bytes);
    body::<RosterEntry>("roster.update", shapes::roster_entry(), &bytes);
    // The one body with two spellings: what was read in the second is written in the first.
    match read(input) {
        Read::Canonical(value, false) if value.is_array() => {
            let welcome = DmWelcome::decode(&bytes);
            let fits = input.len() <= shapes::PAYLOAD_BYTES_MAX && shapes::dm_welcome().judge(&value).is_ok();
            assert_eq!(welcome.is_ok(), fits, "{value:?}");
            if let Ok(welcome) = welcome {
                assert_eq!(DmWelcome::decode(&welcome.encode()), Ok(welcome));
            }
        }
        _ => body::<DmWelcome>("dm.welcome", shapes::dm_welcome(), &bytes),
    }
}

fn body<B: Body + PartialEq + Debug>(name: &'static str, shape: Shape, bytes: &Bytes) {
    check(name, shape, 3, bytes, B::decode, |body| body.encode().to_vec());
}

fn check<T: PartialEq + Debug>(
    name: &'static str,
    shape: Shape,
    heap_factor: usize,
    bytes: &Bytes,
    decode: impl Fn(&Bytes) -> Result<T, Malformed>,
    encode: impl Fn(&T) -> Vec<u8>,
) {
    let verdict = if bytes.len() > shapes::PAYLOAD_BYTES_MAX {
        Verdict::Refused(Fault::Range)
    } else {
        judge(&shape, bytes)
    };
    let codec = Codec {
        name,
        shape,
        code: |_| None,
        codes: &[],
        heap_factor,
        decode: |_: &[u8]| decode(bytes),
        encode,
    };
    codec.check_as(bytes, verdict);
}

/// A payload, a certificate, or a body.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let all: [fn() -> Shape; 8] = [
        shapes::payload,
        shapes::certificate,
        shapes::head_attest,
        shapes::chain_reset,
        shapes::recovery_wrap,
        shapes::dm_welcome,
        shapes::media_retain,
        shapes::roster_entry,
    ];
    generate::document(&rng.pick(&all)(), rng)
}
