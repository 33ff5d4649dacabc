//! WebSocket heads by hand (RFC 6455 §5.2): masked ones out, unmasked ones in.

use crate::error::Error;

/// The masking key of every frame sent. Fixed, so that a template can be masked once; not zero, so that the relay does
/// the work it does for any client.
pub(crate) const MASK: [u8; 4] = [0x5a, 0xc3, 0x17, 0x8e];

/// [`MASK`] over eight bytes that begin at an offset of 3 modulo 4.
pub(crate) const MASK_U64: u64 = u64::from_be_bytes([
    MASK[3], MASK[0], MASK[1], MASK[2], MASK[3], MASK[0], MASK[1], MASK[2],
]);

const BINARY: u8 = 0x82;
const PONG: u8 = 0x8a;
const MASKED: u8 = 0x80;

/// Appends `payload` as one masked binary message.
pub(crate) fn put_message(payload: &[u8], out: &mut Vec<u8>) {
    put_frame(BINARY, payload, out);
}

/// Appends the answer to a ping.
pub(crate) fn put_pong(payload: &[u8], out: &mut Vec<u8>) {
    put_frame(PONG, payload, out);
}

/// One masked frame of any kind: `first` is FIN and opcode.
pub(crate) fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(first, payload, &mut out);
    out
}

fn put_frame(first: u8, payload: &[u8], out: &mut Vec<u8>) {
    out.push(first);
    let len = payload.len();
    if len < 126 {
        out.push(MASKED | len as u8);
    } else if len < 65_536 {
        out.push(MASKED | 126);
        out.extend_from_slice(&(len as u16).to_be_bytes());
    } else {
        out.push(MASKED | 127);
        out.extend_from_slice(&(len as u64).to_be_bytes());
    }
    out.extend_from_slice(&MASK);
    let start = out.len();
    out.extend_from_slice(payload);
    mask(&mut out[start..], 0);
}

/// Masks, or unmasks, bytes that begin at this offset of their payload.
pub(crate) fn mask(bytes: &mut [u8], offset: usize) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte ^= MASK[(offset + index) % 4];
    }
}

/// What a server sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inbound<'a> {
    /// A binary message.
    Message(&'a [u8]),
    /// To be answered.
    Ping(&'a [u8]),
    /// Nothing to do.
    Pong,
    /// The server ends the connection.
    Close,
}

/// The first whole frame of `bytes`, and how many bytes it takes; `None` when it is not whole yet.
#[inline]
pub(crate) fn first(bytes: &[u8]) -> Result<Option<(Inbound<'_>, usize)>, Error> {
    let &[opcode, short, ref rest @ ..] = bytes else {
        return Ok(None);
    };
    let (head, len) = match (short, rest) {
        (0..126, _) => (2, usize::from(short)),
        (126, &[a, b, ..]) => (4, usize::from(u16::from_be_bytes([a, b]))),
        (127, &[0, 0, 0, 0, a, b, c, d, ..]) => (10, u32::from_be_bytes([a, b, c, d]) as usize),
        (126, _) => return Ok(None),
        (127, rest) if rest.len() < 8 => return Ok(None),
        _ => {
            return Err(Error::Unexpected(
                "a WebSocket frame that is masked or too long".into(),
            ));
        }
    };
    let Some(payload) = bytes.get(head..head + len) else {
        return Ok(None);
    };
    let inbound = match opcode {
        BINARY => Inbound::Message(payload),
        0x88 => Inbound::Close,
        0x89 => Inbound::Ping(payload),
        PONG => Inbound::Pong,
        other => return Err(Error::Unexpected(format!("WebSocket opcode {other:#x}"))),
    };
    Ok(Some((inbound, head + len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_every_form() {
        for len in [0, 1, 125, 126, 300, 65_535, 65_536, 100_000] {
            let payload = vec![7; len];
            let mut bytes = Vec::new();
            drover_wire::ws::binary_head(len, &mut bytes);
            bytes.extend_from_slice(&payload);
            let whole = bytes.len();
            for cut in (0..whole.min(12)).chain([whole - 1]) {
                if cut < whole {
                    assert_eq!(
                        first(&bytes[..cut]).expect("no error"),
                        None,
                        "{len} cut to {cut}"
                    );
                }
            }
            bytes.push(0x82);
            assert_eq!(
                first(&bytes).expect("no error"),
                Some((Inbound::Message(&payload), whole))
            );
        }
    }

    #[test]
    fn control_frames() {
        assert_eq!(
            first(&[0x89, 1, 9]).expect("ping"),
            Some((Inbound::Ping(&[9]), 3))
        );
        assert_eq!(first(&[0x8a, 0]).expect("pong"), Some((Inbound::Pong, 2)));
        assert_eq!(first(&[0x88, 0]).expect("close"), Some((Inbound::Close, 2)));
        assert!(first(&[0x82, 0x81, 0, 0, 0, 0, 1]).is_err(), "masked by a server");
        assert!(first(&[0x81, 0]).is_err(), "text");
    }

    #[test]
    fn sent_messages_unmask_to_themselves() {
        for len in [3, 126, 70_000] {
            let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let mut out = Vec::new();
            put_message(&payload, &mut out);
            let start = out.len() - len;
            assert_eq!(out[start - 4..start], MASK);
            mask(&mut out[start..], 0);
            assert_eq!(out[start..], payload[..]);
        }
    }
}
