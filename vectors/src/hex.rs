//! Bytes as hex digits.

/// The bytes of an even number of hex digits.
pub fn decode(digits: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = digits
        .chars()
        .map(|digit| Some(digit.to_digit(16)? as u8))
        .collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty()
        .then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// Lower-case digits of these bytes.
pub fn encode(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}
