//! What must hold of a decoder for any input:
//!
//! - it does not panic, and takes no more heap than its bound;
//! - its verdict is the reference's, its code too wherever the document is canonical;
//! - what it accepts encodes to the same bytes, which decode to the same value.

use std::fmt::Debug;

use drover_wire::error::{Code, Refusal};
use drover_wire::frame::DecodeError;

use crate::allocation;
use crate::reference::{Fault, Shape, Verdict, judge};

/// Heap a decoder may take for whatever input: what is not in proportion to it.
const HEAP_BYTES: usize = 256;

/// How a document is refused: a code and whether the socket closes, or nothing that is told.
pub type Refused = Option<(Code, bool)>;

/// What decoders are refused with.
pub trait IntoRefused {
    /// As the peer sees it.
    fn into_refused(self) -> Refused;
}

impl IntoRefused for DecodeError {
    fn into_refused(self) -> Refused {
        Some((self.refusal.code, self.closes))
    }
}

impl IntoRefused for Code {
    fn into_refused(self) -> Refused {
        Some((self, false))
    }
}

impl IntoRefused for Refusal {
    fn into_refused(self) -> Refused {
        Some((self.code, false))
    }
}

/// Nothing is told.
impl IntoRefused for () {
    fn into_refused(self) -> Refused {
        None
    }
}

/// One decoder and all that is known of it.
pub struct Codec<D, E> {
    /// For messages.
    pub name: &'static str,
    /// What the document is.
    pub shape: Shape,
    /// The code of a fault.
    pub code: fn(Fault) -> Refused,
    /// Codes that a document which is not even canonical may be refused with.
    pub codes: &'static [Code],
    /// Heap in proportion to the input's length.
    pub heap_factor: usize,
    /// The decoder.
    pub decode: D,
    /// The encoder.
    pub encode: E,
}

impl<D, E> Codec<D, E> {
    /// Checks everything on one input; returns whether it was accepted.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn check<'a, T, R>(&self, document: &'a [u8]) -> bool
    where
        T: PartialEq + Debug,
        R: IntoRefused,
        D: Fn(&'a [u8]) -> Result<T, R>,
        E: Fn(&T) -> Vec<u8>,
    {
        self.check_as(document, judge(&self.shape, document))
    }

    /// The same against a verdict that is known.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn check_as<'a, T, R>(&self, document: &'a [u8], verdict: Verdict) -> bool
    where
        T: PartialEq + Debug,
        R: IntoRefused,
        D: Fn(&'a [u8]) -> Result<T, R>,
        E: Fn(&T) -> Vec<u8>,
    {
        let name = self.name;
        let most = HEAP_BYTES * usize::from(self.heap_factor > 0) + self.heap_factor * document.len();
        let ours = allocation::within(name, most, || (self.decode)(document));
        let ours = ours.map_err(IntoRefused::into_refused);
        match (&ours, verdict) {
            (Ok(value), Verdict::Accepted) => {
                let again = (self.encode)(value);
                assert_eq!(again, document, "{name}: accepted bytes are another spelling");
            }
            (Err(refused), Verdict::Refused(fault)) => {
                assert_eq!(*refused, (self.code)(fault), "{name}: {fault:?}");
            }
            (Err(Some((code, _))), Verdict::NotCanonical) => {
                assert!(
                    self.codes.contains(code),
                    "{name}: {code:?} for what is not canonical"
                );
            }
            (Err(None), Verdict::NotCanonical) => {}
            (ours, reference) => panic!("{name}: decoded to {ours:?}, the reference says {reference:?}"),
        }
        ours.is_ok()
    }
}
