//! Access sets and the answer to a query (05 §3, §5).

use drover_wire::access::{AccessSet, AccessState};
use drover_wire::error::Code;

use crate::codec::{Codec, Refused};
use crate::random::Rng;
use crate::reference::bodies::{access_set, access_state};
use crate::reference::{Fault, generate};

/// Whatever is wrong has one code.
pub(super) fn malformed(_: Fault) -> Refused {
    Some((Code::MalformedHeader, false))
}

/// Heap: keys and signatures take no more than their encodings, vectors are sized before they are filled.
pub fn run(input: &[u8]) {
    let set = Codec {
        name: "access set",
        shape: access_set(),
        code: malformed,
        codes: &[Code::MalformedHeader],
        heap_factor: 1,
        decode: AccessSet::decode,
        encode: AccessSet::encode,
    };
    if set.check(input)
        && let Ok(set) = AccessSet::decode(input)
    {
        // What is signed is the set without its confirmations and its signature (05 §4).
        let _ = (set.check_shape(), set.digest());
        assert!(set.signing_input().len() < input.len());
    }
    let state = Codec {
        name: "access state",
        shape: access_state(),
        code: malformed,
        codes: &[Code::MalformedHeader],
        heap_factor: 0,
        decode: AccessState::decode,
        encode: AccessState::encode,
    };
    state.check(input);
}

/// A set, or a state.
pub fn generate(rng: &mut Rng) -> Vec<u8> {
    let shape = if rng.once_in(4) { access_state() } else { access_set() };
    generate::document(&shape, rng)
}
