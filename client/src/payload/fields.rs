//! Reading maps with integer keys: keys in ascending order, none unknown, none missing.

use drover_wire::cbor::{self, Reader};

use super::Malformed;

/// A map being read, field by field in ascending order of keys.
pub(super) struct Fields<'r, 'a> {
    reader: &'r mut Reader<'a>,
    left: usize,
    last: Option<u64>,
}

impl<'r, 'a> Fields<'r, 'a> {
    pub(super) fn open(reader: &'r mut Reader<'a>) -> Result<Self, Malformed> {
        let left = reader.map()?;
        Ok(Self {
            reader,
            left,
            last: None,
        })
    }

    /// The value of a key that has to be there.
    pub(super) fn required(&mut self, key: u64) -> Result<&mut Reader<'a>, Malformed> {
        self.optional(key)?.ok_or(Malformed::Missing(key))
    }

    /// The value of a key that may be there.
    pub(super) fn optional(&mut self, key: u64) -> Result<Option<&mut Reader<'a>>, Malformed> {
        match self.peek()? {
            Some((found, after)) if found == key => {
                *self.reader = after;
                self.left -= 1;
                self.last = Some(key);
                Ok(Some(self.reader))
            }
            Some((found, _)) if found < key => Err(Malformed::Unknown(found)),
            _ => Ok(None),
        }
    }

    /// Nothing is left.
    pub(super) fn end(self) -> Result<(), Malformed> {
        match self.peek()? {
            Some((found, _)) => Err(Malformed::Unknown(found)),
            None => Ok(()),
        }
    }

    /// The next key and what follows it.
    fn peek(&self) -> Result<Option<(u64, Reader<'a>)>, Malformed> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut after = *self.reader;
        let key = after.uint()?;
        if self.last.is_some_and(|last| key <= last) {
            return Err(cbor::Error::KeyOrder.into());
        }
        Ok(Some((key, after)))
    }
}

/// An array of items that take at least `item_bytes_min` each, so that a count alone sizes no buffer.
pub(super) fn list<'a, T>(
    reader: &mut Reader<'a>,
    item_bytes_min: usize,
    mut item: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let count = reader.array()?;
    let mut items = Vec::with_capacity(count.min(reader.rest().len() / item_bytes_min));
    for _ in 0..count {
        items.push(item(reader)?);
    }
    Ok(items)
}

/// The same for a list that may not be empty.
pub(super) fn list_of_some<'a, T>(
    what: &'static str,
    reader: &mut Reader<'a>,
    item_bytes_min: usize,
    item: impl FnMut(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let items = list(reader, item_bytes_min, item)?;
    if items.is_empty() {
        return Err(Malformed::Empty(what));
    }
    Ok(items)
}

/// A whole document.
pub(super) fn whole<'a, T>(
    bytes: &'a [u8],
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<T, Malformed> {
    if bytes.len() > super::PAYLOAD_BYTES_MAX {
        return Err(Malformed::TooLong);
    }
    let mut reader = Reader::new(bytes);
    let value = read(&mut reader)?;
    reader.finish()?;
    Ok(value)
}
