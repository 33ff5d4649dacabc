//! One-time codes: what an invite's code hashes to (06 §3). Costs 19 MiB and some 20 ms: never on a shard's thread.

use argon2::{Algorithm, Argon2, Params, Version};

/// Argon2id of the twelve canonical symbols, salted with the token; `None` if the hash can't be computed.
pub fn hash(code: &[u8; 12], token: &[u8; 16]) -> Option<[u8; 32]> {
    let params = Params::new(19_456, 2, 1, Some(32)).ok()?;
    let mut out = [0; 32];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(code, token, &mut out)
        .ok()?;
    Some(out)
}

/// Whether the code hashes to this value, compared in constant time; a failure counts as a mismatch.
pub fn matches(check: &crate::effects::CodeCheck) -> bool {
    hash(&check.code, &check.token).is_some_and(|hash| {
        hash.iter()
            .zip(&check.code_hash)
            .fold(0, |diff, (a, b)| diff | (a ^ b))
            == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of 06 §3.
    #[test]
    fn hashes_are_those_of_the_specification() {
        let hex = |h: [u8; 32]| h.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(
            hash(b"000000000000", &[0; 16]).map(hex).as_deref(),
            Some("794c4b55d301afdc2d81606440761dda2adfdd2136d8d149453f2714d4d3165f")
        );
        assert_eq!(
            hash(b"ZZZZZZZZZZZZ", &[0xff; 16]).map(hex).as_deref(),
            Some("26e883fe962ffaaba7c28b3f4f57ada51ec4b0a74e26cba848f802be38f3ba1a")
        );
    }
}
