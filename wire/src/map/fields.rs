//! A map read through once, its values found by key.

use crate::cbor::{self, Reader};
use crate::error::Code;
use crate::frame::DecodeError;

/// A refusal in the map form, where a wrong length has another code than in the array form (01 decision 6).
pub(super) struct Refused(pub(super) DecodeError);

impl From<DecodeError> for Refused {
    fn from(error: DecodeError) -> Self {
        Self(error)
    }
}

impl From<Code> for Refused {
    fn from(code: Code) -> Self {
        Self(code.into())
    }
}

impl From<cbor::Error> for Refused {
    fn from(error: cbor::Error) -> Self {
        match error {
            cbor::Error::WrongLength => Code::MalformedHeader.into(),
            _ => Self(error.into()),
        }
    }
}

/// The values of the keys 0 to `N` - 1, each a reader that stands before its value.
pub(super) struct Fields<'a, const N: usize> {
    values: [Option<Reader<'a>>; N],
    others: bool,
    /// What an unknown or missing key is refused with.
    refusal: Code,
}

impl<'a, const N: usize> Fields<'a, N> {
    /// Reads the whole map, whatever its keys and values.
    ///
    /// A key that is a byte string, an array or a simple value is an unknown key, and what follows it is not read:
    /// the corpus has such a one. Other types of key are not in the subset.
    pub(super) fn read(r: &mut Reader<'a>, refusal: Code) -> Result<Self, Refused> {
        let mut fields = Self {
            values: [None; N],
            others: false,
            refusal,
        };
        let mut last = None;
        for _ in 0..r.map()? {
            let key = match r.uint() {
                Err(cbor::Error::WrongType) => return Err(refusal.into()),
                key => key?,
            };
            if last.is_some_and(|last| key <= last) {
                return Err(cbor::Error::KeyOrder.into());
            }
            last = Some(key);
            match usize::try_from(key)
                .ok()
                .and_then(|key| fields.values.get_mut(key))
            {
                Some(value) => *value = Some(*r),
                None => fields.others = true,
            }
            r.skip()?;
        }
        Ok(fields)
    }

    /// Requires every required key, and none that is neither required nor optional.
    pub(super) fn require(&self, required: &[usize], optional: &[usize]) -> Result<(), Refused> {
        if self.are(required, optional) {
            Ok(())
        } else {
            Err(self.refusal.into())
        }
    }

    /// Whether every required key is there, and none that is neither required nor optional.
    pub(super) fn are(&self, required: &[usize], optional: &[usize]) -> bool {
        let fits = |(key, value): (usize, &Option<Reader<'a>>)| match value {
            Some(_) => required.contains(&key) || optional.contains(&key),
            None => !required.contains(&key),
        };
        !self.others && self.values.iter().enumerate().all(fits)
    }

    /// The value of a key that has to be there.
    pub(super) fn value(&mut self, key: usize) -> Result<&mut Reader<'a>, Code> {
        self.values
            .get_mut(key)
            .and_then(Option::as_mut)
            .ok_or(self.refusal)
    }

    /// The value of a key that may be there.
    pub(super) fn optional<T>(
        &mut self,
        key: usize,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, cbor::Error>,
    ) -> Result<Option<T>, cbor::Error> {
        self.values
            .get_mut(key)
            .and_then(Option::as_mut)
            .map(read)
            .transpose()
    }
}
