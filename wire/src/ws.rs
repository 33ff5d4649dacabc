//! WebSocket heads of whole data messages (RFC 6455 §5.2): what the hot path writes and reads by hand.

/// Bytes of an unmasked binary head for a payload of this length: 2, 4 or 10.
pub const fn head_len(payload_bytes: usize) -> usize {
    if payload_bytes < 126 {
        2
    } else if payload_bytes < 65_536 {
        4
    } else {
        10
    }
}

/// Appends the head of an unmasked, final binary message (what a server sends).
pub fn binary_head(payload_bytes: usize, out: &mut Vec<u8>) {
    out.push(0x82);
    if payload_bytes < 126 {
        out.push(payload_bytes as u8);
    } else if payload_bytes < 65_536 {
        out.push(126);
        out.extend_from_slice(&(payload_bytes as u16).to_be_bytes());
    } else {
        out.push(127);
        out.extend_from_slice(&(payload_bytes as u64).to_be_bytes());
    }
}
