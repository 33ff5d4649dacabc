//! The deterministic CBOR subset (01 §1): a strict reader over a borrowed message, and a writer.
//!
//! Reading is done by hand because minicbor's decoder accepts heads that are not in their shortest form, and the
//! subset is exactly about refusing those; the checks run in the order of 01 §1.3, since the order decides which
//! code a WAKE frame is refused with. Nothing here allocates: strings are slices of the message, and a length or
//! count is compared with the bytes that are left before anyone can size a buffer by it.
//!
//! Writing goes through minicbor's encoder, which always picks the shortest head.

use std::convert::Infallible;
use std::ops::Deref;

use minicbor::Encoder;
use minicbor::encode::Write;

const UINT: u8 = 0;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;
const SIMPLE: u8 = 7;

const FALSE: u64 = 20;
const TRUE: u64 = 21;
const NULL: u64 = 22;
/// The whole encoding of null.
const NULL_BYTE: u8 = 0xf6;

/// Why bytes are outside the subset, in the order of 01 §1.3. Frames and bodies map these to codes of the registry
/// (01 §7), most of them all to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The input ends before the item, its argument, or what its length or count promises.
    #[error("truncated")]
    Truncated,
    /// Low bits 28 to 31: reserved, or an indefinite length.
    #[error("reserved or indefinite head")]
    Reserved,
    /// The argument has a shorter form.
    #[error("head is not in its shortest form")]
    NonShortest,
    /// Major 0, 2, 4 or 7 where another one belongs.
    #[error("wrong type")]
    WrongType,
    /// Major 1, 3, 5 or 6 where it does not belong.
    #[error("unsupported major type")]
    UnsupportedMajor,
    /// A fixed-width byte string of another length.
    #[error("wrong length")]
    WrongLength,
    /// A fixed-arity array with another count.
    #[error("wrong count")]
    WrongCount,
    /// An integer over the width of its field.
    #[error("integer out of range")]
    OutOfRange,
    /// A text string that is not UTF-8.
    #[error("text is not UTF-8")]
    InvalidText,
    /// Bytes after the last field.
    #[error("trailing bytes")]
    Trailing,
    /// A map's key that is not above the one before.
    #[error("map keys do not ascend")]
    KeyOrder,
}

/// A cursor over one whole document. After an error its position has no meaning.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first byte of `document`.
    pub const fn new(document: &'a [u8]) -> Self {
        Self { rest: document }
    }

    /// What has not been read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Ends the document.
    ///
    /// # Errors
    /// [`Error::Trailing`] if any byte is left.
    #[inline]
    pub const fn finish(self) -> Result<(), Error> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Error::Trailing)
        }
    }

    /// An unsigned integer of any width.
    ///
    /// # Errors
    /// Checks 1 to 5 of 01 §1.3.
    #[inline]
    pub fn uint(&mut self) -> Result<u64, Error> {
        self.expect(UINT)
    }

    /// An unsigned integer up to 2^8 - 1.
    ///
    /// # Errors
    /// As [`Self::uint`], or [`Error::OutOfRange`].
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Error> {
        self.uint()?.try_into().map_err(|_| Error::OutOfRange)
    }

    /// An unsigned integer up to 2^16 - 1.
    ///
    /// # Errors
    /// As [`Self::uint`], or [`Error::OutOfRange`].
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Error> {
        self.uint()?.try_into().map_err(|_| Error::OutOfRange)
    }

    /// An unsigned integer up to 2^32 - 1.
    ///
    /// # Errors
    /// As [`Self::uint`], or [`Error::OutOfRange`].
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Error> {
        self.uint()?.try_into().map_err(|_| Error::OutOfRange)
    }

    /// A byte string of any length, borrowed.
    ///
    /// # Errors
    /// Checks 1 to 6 of 01 §1.3.
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let len = self.sized(BYTES)?;
        self.take(len)
    }

    /// A byte string of exactly `N` bytes, borrowed.
    ///
    /// # Errors
    /// As [`Self::bytes`], or [`Error::WrongLength`].
    #[inline]
    pub fn fixed<const N: usize>(&mut self) -> Result<&'a [u8; N], Error> {
        self.bytes()?.try_into().map_err(|_| Error::WrongLength)
    }

    /// A text string, borrowed.
    ///
    /// # Errors
    /// Checks 1 to 6 of 01 §1.3, or [`Error::InvalidText`].
    pub fn text(&mut self) -> Result<&'a str, Error> {
        let len = self.sized(TEXT)?;
        std::str::from_utf8(self.take(len)?).map_err(|_| Error::InvalidText)
    }

    /// The count of an array. It is never more than the bytes left, because an element takes at least one.
    ///
    /// # Errors
    /// Checks 1 to 6 of 01 §1.3.
    #[inline]
    pub fn array(&mut self) -> Result<usize, Error> {
        self.sized(ARRAY)
    }

    /// The head of an array of exactly `count` elements.
    ///
    /// # Errors
    /// As [`Self::array`], or [`Error::WrongCount`].
    #[inline]
    pub fn array_of(&mut self, count: usize) -> Result<(), Error> {
        if self.array()? == count {
            Ok(())
        } else {
            Err(Error::WrongCount)
        }
    }

    /// The count of an array of at most `max` elements: what a body's list is bounded by before anything is sized by
    /// it.
    ///
    /// # Errors
    /// As [`Self::array`], or [`Error::WrongCount`].
    #[inline]
    pub fn array_up_to(&mut self, max: usize) -> Result<usize, Error> {
        match self.array()? {
            count if count <= max => Ok(count),
            _ => Err(Error::WrongCount),
        }
    }

    /// The elements of an array of 32-byte strings whose head has been read. The buffer is sized by what the input
    /// can hold, so a large `count` alone allocates nothing.
    ///
    /// # Errors
    /// Those of the first element that fails.
    pub fn ids<T: From<[u8; 32]>>(&mut self, count: usize) -> Result<Vec<T>, Error> {
        let encoded_len = head_len(32) + 32;
        let mut ids = Vec::with_capacity(count.min(self.rest.len() / encoded_len));
        for _ in 0..count {
            ids.push(T::from(*self.fixed()?));
        }
        Ok(ids)
    }

    /// The count of a map's pairs; only the map form has maps (01 §8). It is never more than the bytes left.
    ///
    /// # Errors
    /// Checks 1 to 6 of 01 §1.3.
    #[inline]
    pub fn map(&mut self) -> Result<usize, Error> {
        self.sized(MAP)
    }

    /// Passes over one whole item of any kind the map form has, whatever it contains, without recursion. Keys of maps
    /// inside are not compared.
    ///
    /// # Errors
    /// Checks 1 to 6 of 01 §1.3, or [`Error::InvalidText`].
    pub fn skip(&mut self) -> Result<(), Error> {
        // Counts are bounded by the bytes left at their heads, so their sum stays far below 2^64.
        let mut items = 1u64;
        while items > 0 {
            items -= 1;
            match self.rest.first().map(|first| first >> 5) {
                Some(BYTES) => drop(self.bytes()?),
                Some(TEXT) => drop(self.text()?),
                Some(ARRAY) => items += self.array()? as u64,
                Some(MAP) => items += 2 * self.map()? as u64,
                Some(SIMPLE) if self.rest.first() == Some(&NULL_BYTE) => self.null()?,
                Some(SIMPLE) => drop(self.bool()?),
                _ => drop(self.uint()?),
            }
        }
        Ok(())
    }

    /// `false` or `true`.
    ///
    /// # Errors
    /// Checks 1 to 5 of 01 §1.3.
    pub fn bool(&mut self) -> Result<bool, Error> {
        match self.expect(SIMPLE)? {
            FALSE => Ok(false),
            TRUE => Ok(true),
            _ => Err(Error::WrongType),
        }
    }

    /// Null.
    ///
    /// # Errors
    /// Checks 1 to 5 of 01 §1.3.
    pub fn null(&mut self) -> Result<(), Error> {
        // No other form can carry 22: `f8 16` is not the shortest, a float's argument is larger.
        if self.expect(SIMPLE)? == NULL {
            Ok(())
        } else {
            Err(Error::WrongType)
        }
    }

    /// Null, or what `read` reads.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn nullable<T, E>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, E>) -> Result<Option<T>, E> {
        match self.rest.split_first() {
            Some((&NULL_BYTE, rest)) => {
                self.rest = rest;
                Ok(None)
            }
            _ => read(self).map(Some),
        }
    }

    /// One head: major type and argument.
    #[inline]
    fn head(&mut self) -> Result<(u8, u64), Error> {
        let (&first, rest) = self.rest.split_first().ok_or(Error::Truncated)?;
        self.rest = rest;
        let (argument, least) = match first & 0x1f {
            value @ 0..=23 => return Ok((first >> 5, u64::from(value))),
            24 => (u64::from(u8::from_be_bytes(self.argument()?)), 24),
            25 => (u64::from(u16::from_be_bytes(self.argument()?)), 1 << 8),
            26 => (u64::from(u32::from_be_bytes(self.argument()?)), 1 << 16),
            27 => (u64::from_be_bytes(self.argument()?), 1 << 32),
            _ => return Err(Error::Reserved),
        };
        if argument < least {
            return Err(Error::NonShortest);
        }
        Ok((first >> 5, argument))
    }

    #[inline]
    fn argument<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    /// The argument of a head that must be of this major type.
    #[inline]
    fn expect(&mut self, expected: u8) -> Result<u64, Error> {
        match self.head()? {
            (major, argument) if major == expected => Ok(argument),
            (UINT | BYTES | ARRAY | SIMPLE, _) => Err(Error::WrongType),
            _ => Err(Error::UnsupportedMajor),
        }
    }

    /// A length or count, compared with what is left before anything is done with it.
    #[inline]
    fn sized(&mut self, expected: u8) -> Result<usize, Error> {
        match usize::try_from(self.expect(expected)?) {
            Ok(size) if size <= self.rest.len() => Ok(size),
            _ => Err(Error::Truncated),
        }
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }
}

/// Writes items in their shortest form to something that cannot fail: a buffer.
pub struct Writer<W>(Encoder<W>);

impl<W: Write<Error = Infallible>> Writer<W> {
    /// Appends to `out`.
    pub fn new(out: W) -> Self {
        Self(Encoder::new(out))
    }

    /// An unsigned integer.
    pub fn uint(&mut self, value: impl Into<u64>) -> &mut Self {
        written(self.0.u64(value.into()));
        self
    }

    /// A byte string.
    pub fn bytes(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        written(self.0.bytes(bytes.as_ref()));
        self
    }

    /// The head of a byte string; its bytes follow by other means.
    pub fn bytes_head(&mut self, len: usize) -> &mut Self {
        written(self.0.bytes_len(len as u64));
        self
    }

    /// A text string.
    pub fn text(&mut self, text: &str) -> &mut Self {
        written(self.0.str(text));
        self
    }

    /// The head of an array; its elements follow.
    pub fn array(&mut self, count: usize) -> &mut Self {
        written(self.0.array(count as u64));
        self
    }

    /// The head of a map; keys, ascending, and values follow in turn.
    pub fn map(&mut self, count: usize) -> &mut Self {
        written(self.0.map(count as u64));
        self
    }

    /// An array of byte strings.
    pub fn bytes_array<I>(&mut self, items: I) -> &mut Self
    where
        I: IntoIterator<IntoIter: ExactSizeIterator>,
        I::Item: AsRef<[u8]>,
    {
        let items = items.into_iter();
        self.array(items.len());
        for item in items {
            self.bytes(item);
        }
        self
    }

    /// `false` or `true`.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        written(self.0.bool(value));
        self
    }

    /// Null.
    pub fn null(&mut self) -> &mut Self {
        written(self.0.null());
        self
    }

    /// Bytes that are encoded already.
    pub fn raw(&mut self, encoded: &[u8]) -> &mut Self {
        let Ok(()) = self.0.writer_mut().write_all(encoded);
        self
    }
}

/// A definite item written to a buffer leaves nothing that could fail.
fn written<T>(result: Result<T, minicbor::encode::Error<Infallible>>) {
    debug_assert!(result.is_ok(), "minicbor refused a definite item");
}

/// Bytes of the shortest head that carries `argument`: 1, 2, 3, 5 or 9.
pub const fn head_len(argument: u64) -> usize {
    match argument {
        0..=23 => 1,
        24..=0xff => 2,
        0x100..=0xffff => 3,
        0x1_0000..=0xffff_ffff => 5,
        _ => 9,
    }
}

/// A few heads and fixed fields on the stack, for writing or hashing them in front of bytes that are not copied.
#[derive(Clone, Debug)]
pub struct HeadBuf {
    bytes: [u8; Self::CAPACITY],
    len: usize,
}

impl HeadBuf {
    /// The heads of an envelope take at most 109 bytes, the most anyone asks for.
    pub const CAPACITY: usize = 128;

    /// An empty buffer.
    pub const fn new() -> Self {
        Self {
            bytes: [0; Self::CAPACITY],
            len: 0,
        }
    }
}

impl Default for HeadBuf {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for HeadBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// # Panics
/// Over [`HeadBuf::CAPACITY`] bytes: a mistake of the caller, whatever the input was.
impl Write for HeadBuf {
    type Error = Infallible;

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), Infallible> {
        let end = self.len + bytes.len();
        self.bytes[self.len..end].copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }
}
