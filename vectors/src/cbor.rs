//! CBOR items as a tree, and their only encoding (01 §1). Shares no code with `wire`, so that a fault there is no fault
//! here; unlike `wire` it reads whatever is canonical, negative numbers, tags and floats excepted.

use std::fmt;

/// Items nested deeper than this are refused: no frame needs a tenth of it.
const DEPTH_MAX: usize = 32;

/// One item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Major 0.
    Uint(u64),
    /// Major 2.
    Bytes(Vec<u8>),
    /// Major 3.
    Text(String),
    /// Major 4.
    Array(Vec<Item>),
    /// Major 5, integer keys only.
    Map(Vec<(u64, Item)>),
    /// `f4`, `f5`.
    Bool(bool),
    /// `f6`.
    Null,
    /// Never read; written as it is.
    Raw(Vec<u8>),
}

/// Why bytes are no canonical item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Fault {
    #[error("the bytes end early")]
    Truncated,
    #[error("a head that is indefinite or reserved")]
    Reserved,
    #[error("a head that is not the shortest")]
    NotShortest,
    #[error("a negative number, a tag or a float")]
    Unsupported,
    #[error("text that is not UTF-8")]
    NotText,
    #[error("map keys that do not ascend")]
    Unordered,
    #[error("nested too deeply")]
    Deep,
    #[error("bytes follow the item")]
    Trailing,
}

impl Item {
    /// Reads a whole document.
    ///
    /// # Errors
    /// Anything but one canonical item.
    pub fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let mut input = Input(bytes);
        let item = input.item(DEPTH_MAX)?;
        match input.0 {
            [] => Ok(item),
            _ => Err(Fault::Trailing),
        }
    }

    /// The encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Item::Uint(value) => head(0, *value, out),
            Item::Bytes(bytes) => {
                head(2, bytes.len() as u64, out);
                out.extend_from_slice(bytes);
            }
            Item::Text(text) => {
                head(3, text.len() as u64, out);
                out.extend_from_slice(text.as_bytes());
            }
            Item::Array(items) => {
                head(4, items.len() as u64, out);
                items.iter().for_each(|item| item.write(out));
            }
            Item::Map(pairs) => {
                head(5, pairs.len() as u64, out);
                for (key, item) in pairs {
                    head(0, *key, out);
                    item.write(out);
                }
            }
            Item::Bool(false) => out.push(0xf4),
            Item::Bool(true) => out.push(0xf5),
            Item::Null => out.push(0xf6),
            Item::Raw(bytes) => out.extend_from_slice(bytes),
        }
    }
}

/// Characters of a text that are told of it.
pub(crate) const TOLD_CHARS_MAX: usize = 80;

/// Diagnostic notation; long strings are cut.
impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T>(
            f: &mut fmt::Formatter<'_>,
            items: &[T],
            each: impl Fn(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
        ) -> fmt::Result {
            for (index, item) in items.iter().take(12).enumerate() {
                if index > 0 {
                    f.write_str(", ")?;
                }
                each(f, item)?;
            }
            match items.len() {
                0..=12 => Ok(()),
                len => write!(f, ", … {} more", len - 12),
            }
        }
        match self {
            Item::Uint(value) => write!(f, "{value}"),
            Item::Bytes(bytes) | Item::Raw(bytes) => {
                f.write_str("h'")?;
                for byte in bytes.iter().take(40) {
                    write!(f, "{byte:02x}")?;
                }
                match bytes.len() {
                    0..=40 => f.write_str("'"),
                    len => write!(f, "…' ({len} bytes)"),
                }
            }
            Item::Text(text) => match text.char_indices().nth(TOLD_CHARS_MAX) {
                None => write!(f, "{text:?}"),
                Some((at, _)) => write!(f, "{:?}… ({} bytes)", &text[..at], text.len()),
            },
            Item::Array(items) => {
                f.write_str("[")?;
                list(f, items, |f, item| item.fmt(f))?;
                f.write_str("]")
            }
            Item::Map(pairs) => {
                f.write_str("{")?;
                list(f, pairs, |f, (key, item)| write!(f, "{key}: {item}"))?;
                f.write_str("}")
            }
            Item::Bool(value) => write!(f, "{value}"),
            Item::Null => f.write_str("null"),
        }
    }
}

fn head(major: u8, argument: u64, out: &mut Vec<u8>) {
    let major = major << 5;
    let bytes = argument.to_be_bytes();
    match argument {
        0..24 => out.push(major | argument as u8),
        24..0x100 => out.extend_from_slice(&[major | 24, bytes[7]]),
        0x100..0x1_0000 => out.extend_from_slice(&[major | 25, bytes[6], bytes[7]]),
        0x1_0000..0x1_0000_0000 => {
            out.push(major | 26);
            out.extend_from_slice(&bytes[4..]);
        }
        _ => {
            out.push(major | 27);
            out.extend_from_slice(&bytes);
        }
    }
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: u64) -> Result<&'a [u8], Fault> {
        let count = usize::try_from(count).map_err(|_| Fault::Truncated)?;
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Fault::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn head(&mut self) -> Result<(u8, u8, u64), Fault> {
        let first = self.take(1)?[0];
        let low = first & 0x1f;
        let (width, least) = match low {
            0..24 => return Ok((first >> 5, low, u64::from(low))),
            24 => (1, 24),
            25 => (2, 0x100),
            26 => (4, 0x1_0000),
            27 => (8, 0x1_0000_0000),
            _ => return Err(Fault::Reserved),
        };
        let argument = self
            .take(width)?
            .iter()
            .fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        if argument < least {
            return Err(Fault::NotShortest);
        }
        Ok((first >> 5, low, argument))
    }

    /// A count of items that can't be larger than the bytes that are left.
    fn count(&self, argument: u64) -> Result<usize, Fault> {
        usize::try_from(argument)
            .ok()
            .filter(|count| *count <= self.0.len())
            .ok_or(Fault::Truncated)
    }

    fn item(&mut self, depth: usize) -> Result<Item, Fault> {
        let depth = depth.checked_sub(1).ok_or(Fault::Deep)?;
        let (major, low, argument) = self.head()?;
        Ok(match major {
            0 => Item::Uint(argument),
            2 => Item::Bytes(self.take(argument)?.to_vec()),
            3 => {
                let text = std::str::from_utf8(self.take(argument)?).map_err(|_| Fault::NotText)?;
                Item::Text(text.to_owned())
            }
            4 => Item::Array(
                (0..self.count(argument)?)
                    .map(|_| self.item(depth))
                    .collect::<Result<_, _>>()?,
            ),
            5 => {
                let mut pairs: Vec<(u64, Item)> = Vec::new();
                for _ in 0..self.count(argument)? {
                    let (0, _, key) = self.head()? else {
                        return Err(Fault::Unsupported);
                    };
                    if pairs.last().is_some_and(|(last, _)| *last >= key) {
                        return Err(Fault::Unordered);
                    }
                    pairs.push((key, self.item(depth)?));
                }
                Item::Map(pairs)
            }
            7 if (20..=22).contains(&low) => match low {
                20 => Item::Bool(false),
                21 => Item::Bool(true),
                _ => Item::Null,
            },
            _ => return Err(Fault::Unsupported),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_items_come_back_and_others_are_told_apart() {
        for bytes in [
            "00",
            "17",
            "1818",
            "190100",
            "1a00010000",
            "1b0000000100000000",
            "40",
            "4161",
            "6161",
            "80",
            "8201f6",
            "a2000a0180",
            "f4",
            "f5",
        ] {
            let bytes = crate::hex::decode(bytes).unwrap();
            assert_eq!(Item::decode(&bytes).unwrap().encode(), bytes);
        }
        for (bytes, fault) in [
            ("", Fault::Truncated),
            ("1817", Fault::NotShortest),
            ("1c", Fault::Reserved),
            ("5fff", Fault::Reserved),
            ("42ff", Fault::Truncated),
            ("9bffffffffffffffff", Fault::Truncated),
            ("20", Fault::Unsupported),
            ("c100", Fault::Unsupported),
            ("f93c00", Fault::Unsupported),
            ("61ff", Fault::NotText),
            ("a201000000", Fault::Unordered),
            ("a200000000", Fault::Unordered),
            ("0000", Fault::Trailing),
        ] {
            assert_eq!(
                Item::decode(&crate::hex::decode(bytes).unwrap()),
                Err(fault),
                "{bytes}"
            );
        }
        assert_eq!(Item::decode(&[0x81; 64]), Err(Fault::Deep));
    }
}
