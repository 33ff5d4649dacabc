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

/// Writes the head of a message of `payload_bytes` into the end of `space`; returns where it begins. `None` if there is
/// no room for it.
pub fn head_before(payload_bytes: usize, space: &mut [u8]) -> Option<usize> {
    let at = space.len().checked_sub(head_len(payload_bytes))?;
    let head = &mut space[at..];
    head[0] = 0x82;
    match head.len() {
        2 => head[1] = payload_bytes as u8,
        4 => {
            head[1] = 126;
            head[2..].copy_from_slice(&(payload_bytes as u16).to_be_bytes());
        }
        _ => {
            head[1] = 127;
            head[2..].copy_from_slice(&(payload_bytes as u64).to_be_bytes());
        }
    }
    Some(at)
}

/// Bytes of the first message of `bytes`, head included; they begin with the head of an unmasked, final message. All of
/// them if they end before it does.
pub fn message_len(bytes: &[u8]) -> usize {
    let length = match *bytes {
        [_, 127, ..] => bytes
            .get(2..10)
            .and_then(|b| Some(10 + u64::from_be_bytes(b.try_into().ok()?))),
        [_, 126, a, b, ..] => Some(4 + u64::from(u16::from_be_bytes([a, b]))),
        [_, n, ..] if n < 126 => Some(2 + u64::from(n)),
        _ => None,
    };
    length.map_or(bytes.len(), |n| n.min(bytes.len() as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_long_as_their_heads_say() {
        for len in [0, 1, 125, 126, 255, 65_535, 65_536, 70_000] {
            let mut bytes = Vec::new();
            binary_head(len, &mut bytes);
            assert_eq!(bytes.len(), head_len(len));
            let mut space = [7; 14];
            let at = head_before(len, &mut space);
            assert_eq!(
                (at, &space[14 - bytes.len()..]),
                (Some(14 - bytes.len()), &bytes[..])
            );
            assert_eq!(head_before(len, &mut space[..1]), None);
            bytes.resize(bytes.len() + len, 0);
            let whole = bytes.len();
            assert_eq!(message_len(&bytes), whole);
            bytes.extend([0x82, 1, 0]);
            assert_eq!(message_len(&bytes), whole);
            assert_eq!(message_len(&bytes[..whole.min(3)]), whole.min(3));
        }
        assert_eq!(message_len(&[]), 0);
    }
}
