//! Ways to damage an input. Most places of a message lie in strings on which nothing depends, so damage is done to the
//! heads of CBOR items as often as to any byte.

use crate::random::Rng;

/// Damages `bytes` in one to four places; `other` is something to splice in.
pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=rng.below(4) {
        if rng.once_in(2) {
            head(rng, bytes);
        } else {
            byte(rng, bytes, other);
        }
    }
}

fn byte(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = rng.below(bytes.len() + 1);
    match rng.below(8) {
        0 => bytes.insert(at, rng.next() as u8),
        1 => bytes.truncate(at),
        2 => {
            let from = rng.below(other.len() + 1);
            let piece = &other[from..(from + rng.below(40)).min(other.len())];
            bytes.splice(at..at, piece.iter().copied());
        }
        3 => {
            let piece = bytes[at..(at + rng.below(40)).min(bytes.len())].to_vec();
            let to = rng.below(bytes.len() + 1);
            bytes.splice(to..to, piece);
        }
        _ if at == bytes.len() => {
            let more = rng.within(1..5);
            bytes.extend(rng.bytes(more));
        }
        4 => drop(bytes.drain(at..(at + rng.within(1..5)).min(bytes.len()))),
        5 => bytes[at] = *rng.pick(&[0, 1, 0x18, 0x40, 0x5f, 0x7f, 0x80, 0x9b, 0xa2, 0xf6, 0xff]),
        6 => bytes[at] ^= 1 << rng.below(8),
        _ => bytes[at] = bytes[at].wrapping_add(if rng.once_in(2) { 1 } else { 255 }),
    }
}

/// Damages the head of an item.
fn head(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let heads = heads(bytes);
    if heads.is_empty() {
        return;
    }
    let (at, len, argument) = *rng.pick(&heads);
    let major = bytes[at] & 0xe0;
    let changed = match rng.below(7) {
        // Longer than it has to be.
        0 => spelled(major, argument, rng.within(len..10)),
        1 => spelled(major, argument.wrapping_add(1), 1),
        2 => spelled(major, argument.wrapping_sub(1), 1),
        3 => spelled(major, rng.uint(u64::MAX), 1),
        // Another type.
        4 => spelled((rng.below(8) as u8) << 5, argument, 1),
        // Reserved, indefinite, a simple value, a float.
        5 => vec![*rng.pick(&[
            major | 0x1c,
            major | 0x1f,
            0xc1,
            0xf4,
            0xf5,
            0xf6,
            0xf7,
            0xf9,
            0xff,
        ])],
        _ => Vec::new(),
    };
    bytes.splice(at..at + len, changed);
}

/// A head of at least `len` bytes.
fn spelled(major: u8, argument: u64, len: usize) -> Vec<u8> {
    let wide = argument.to_be_bytes();
    let width = match argument {
        0..=23 => 0,
        24..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xffff_ffff => 4,
        _ => 8,
    };
    match width.max([0, 0, 1, 2, 4, 4, 8, 8, 8, 8][len.min(9)]) {
        0 => vec![major | argument as u8],
        1 => vec![major | 24, wide[7]],
        2 => [&[major | 25], &wide[6..]].concat(),
        4 => [&[major | 26], &wide[4..]].concat(),
        _ => [&[major | 27], &wide[..]].concat(),
    }
}

/// Where heads are, their lengths and arguments, as far as the bytes can be read so. Strings that look like items are
/// looked into half of the time, by way of chance: nested documents have heads too.
fn heads(bytes: &[u8]) -> Vec<(usize, usize, u64)> {
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        let width = match bytes[at] & 0x1f {
            0..=23 => 0,
            24 => 1,
            25 => 2,
            26 => 4,
            27 => 8,
            _ => break,
        };
        let Some(argument) = bytes.get(at + 1..at + 1 + width) else {
            break;
        };
        let argument = match width {
            0 => u64::from(bytes[at] & 0x1f),
            _ => argument
                .iter()
                .fold(0, |value, byte| value << 8 | u64::from(*byte)),
        };
        found.push((at, 1 + width, argument));
        let is_string = matches!(bytes[at] >> 5, 2 | 3);
        at += 1 + width;
        if is_string {
            // A document inside begins with an array, and there is nothing else in such a string.
            let nested = bytes.get(at).is_some_and(|first| (0x81..0x90).contains(first));
            if !nested {
                at = at.saturating_add(usize::try_from(argument).unwrap_or(usize::MAX));
            }
        }
    }
    found
}
