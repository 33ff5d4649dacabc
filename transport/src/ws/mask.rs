//! Unmasking (RFC 6455 §5.3).

/// XORs the payload with the repeated key, in place, 16 bytes at a time (the compiler widens that further).
pub(crate) fn unmask(payload: &mut [u8], key: [u8; 4]) {
    let word = u32::from_ne_bytes(key) as u128;
    let wide = word | word << 32 | word << 64 | word << 96;
    let (chunks, rest) = payload.as_chunks_mut::<16>();
    for chunk in chunks {
        *chunk = (u128::from_ne_bytes(*chunk) ^ wide).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_agrees_with_the_definition() {
        let key = [0x12, 0x34, 0x56, 0x78];
        for len in 0..100 {
            let plain: Vec<u8> = (0..len).collect();
            let mut masked = plain.clone();
            unmask(&mut masked, key);
            for (i, byte) in masked.iter().enumerate() {
                assert_eq!(*byte, plain[i] ^ key[i % 4]);
            }
        }
    }
}
