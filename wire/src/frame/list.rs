//! Lists inside frames, kept in their encoding: reading one allocates nothing, however many elements it has.
//!
//! A list that is to be sent is first built in a buffer ([`List32Buf`], [`BytesListBuf`]) and then lent to the frame.

use std::fmt;

use crate::cbor::{Error, Reader, Writer};

/// Bytes of one encoded 32-byte string: `58 20` and its content.
const STRIDE: usize = 34;

/// A list of 32-byte strings still in its encoding: fixed stride, so that no list is ever allocated.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct List32<'a>(&'a [u8]);

impl<'a> List32<'a> {
    /// The list of these encoded elements, without the head of the array; `None` if they are not 32-byte strings.
    pub fn from_encoded(elements: &'a [u8]) -> Option<Self> {
        let (chunks, rest) = elements.as_chunks::<STRIDE>();
        let whole = rest.is_empty() && chunks.iter().all(|chunk| chunk.starts_with(&[0x58, 0x20]));
        whole.then_some(Self(elements))
    }

    /// How many strings.
    pub fn len(&self) -> usize {
        self.0.len() / STRIDE
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8; 32]> + use<'a> {
        self.0.as_chunks::<STRIDE>().0.iter().map(|chunk| {
            let [_, _, string @ ..] = chunk;
            string
        })
    }

    pub(crate) fn read(r: &mut Reader<'a>) -> Result<Self, Error> {
        let count = r.array()?;
        let elements = r.rest();
        for _ in 0..count {
            r.fixed::<32>()?;
        }
        Ok(Self(&elements[..elements.len() - r.rest().len()]))
    }

    pub(crate) fn write(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.array(self.len()).raw(self.0);
    }
}

impl fmt::Debug for List32<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "List32({})", self.len())
    }
}

/// Owns a list of 32-byte strings that is to be sent.
#[derive(Clone, Debug, Default)]
pub struct List32Buf(Vec<u8>);

impl List32Buf {
    /// The list, to be put into a frame.
    pub fn as_list(&self) -> List32<'_> {
        List32(&self.0)
    }
}

impl<T: Into<[u8; 32]>> FromIterator<T> for List32Buf {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        for item in items {
            w.bytes(item.into());
        }
        Self(out)
    }
}

/// A list of byte strings of any length, still in its encoding.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct BytesList<'a> {
    count: usize,
    body: &'a [u8],
}

impl<'a> BytesList<'a> {
    /// The list of these encoded elements, without the head of the array; `None` if they are not byte strings.
    pub fn from_encoded(elements: &'a [u8]) -> Option<Self> {
        let mut r = Reader::new(elements);
        let mut count = 0;
        while !r.rest().is_empty() {
            r.bytes().ok()?;
            count += 1;
        }
        Some(Self {
            count,
            body: elements,
        })
    }

    /// How many strings.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        // Every constructor has read the elements through once, so the end comes from the count.
        let mut r = Reader::new(self.body);
        std::iter::from_fn(move || r.bytes().ok())
    }

    pub(super) fn read(r: &mut Reader<'a>) -> Result<Self, Error> {
        let count = r.array()?;
        let elements = r.rest();
        for _ in 0..count {
            r.bytes()?;
        }
        Ok(Self {
            count,
            body: &elements[..elements.len() - r.rest().len()],
        })
    }

    pub(super) fn write(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.array(self.count).raw(self.body);
    }
}

impl fmt::Debug for BytesList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BytesList({}, {} bytes)", self.count, self.body.len())
    }
}

/// Owns a list of byte strings that is to be sent.
#[derive(Clone, Debug, Default)]
pub struct BytesListBuf {
    count: usize,
    body: Vec<u8>,
}

impl BytesListBuf {
    /// The list, to be put into a frame.
    pub fn as_list(&self) -> BytesList<'_> {
        BytesList {
            count: self.count,
            body: &self.body,
        }
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for BytesListBuf {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut list = Self::default();
        let mut w = Writer::new(&mut list.body);
        for item in items {
            w.bytes(item);
            list.count += 1;
        }
        list
    }
}
