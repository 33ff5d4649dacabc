//! Invite records and one-time codes (06 §2, §3).

mod judge;

pub use judge::Fault;

use ed25519_dalek::SigningKey;

use crate::access::sign;
use crate::cbor::{Reader, Writer};
use crate::error::Code;
use crate::id::{GroupId, Hash, PublicKey, Signature, Token};

/// Symbols in a code.
pub const CODE_SYMBOLS: usize = 12;
/// Scopes of one invite at most; one bundle belongs to each (06 §1).
pub const SCOPES_MAX: usize = 256;
/// Capabilities of one invite at most (06 §1).
pub const CAPS_MAX: usize = 64;
/// Seats of one invite at most (06 §1); at least one.
pub const USES_MAX: u8 = 64;
/// The largest sealed bundle (06 §1).
pub const BUNDLE_BYTES_MAX: usize = 262_144;

/// Fields of a record; the issuer signs all but the last.
const FIELDS: usize = 12;
/// Bits a symbol stands for.
const SYMBOL_BITS: usize = 5;
/// Crockford Base32, in value order.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// A signed invite (06 §2).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Record {
    pub token: Token,
    pub workspace: [u8; 32],
    pub issuer: PublicKey,
    pub issued_at_ms: u64,
    pub expires_ms: u64,
    pub uses: u8,
    pub code_hash: Hash,
    pub scopes: Vec<GroupId>,
    pub caps: Vec<Vec<u8>>,
    pub update_pub: [u8; 32],
    pub bundles: Vec<(GroupId, u64, Vec<u8>)>,
    pub sig: Signature,
}

impl Record {
    /// Decodes a whole record. Sorting, pairing and everything else about its shape is judged later (06 §11).
    ///
    /// # Errors
    /// `reject/noncanonical_cbor`; `reject/malformed_header` when a list or bundle is over its bound.
    pub fn decode(bytes: &[u8]) -> Result<Self, Code> {
        let mut r = Reader::new(bytes);
        r.array_of(FIELDS)?;
        let record = Self {
            token: Token(*r.fixed()?),
            workspace: *r.fixed()?,
            issuer: PublicKey(*r.fixed()?),
            issued_at_ms: r.uint()?,
            expires_ms: r.uint()?,
            uses: r.u8()?,
            code_hash: Hash(*r.fixed()?),
            scopes: {
                let count = bounded(r.array()?, SCOPES_MAX)?;
                r.ids(count)?
            },
            caps: {
                let count = bounded(r.array()?, CAPS_MAX)?;
                (0..count)
                    .map(|_| Ok(r.bytes()?.to_vec()))
                    .collect::<Result<_, Code>>()?
            },
            update_pub: *r.fixed()?,
            bundles: {
                let count = bounded(r.array()?, SCOPES_MAX)?;
                (0..count).map(|_| bundle(&mut r)).collect::<Result<_, Code>>()?
            },
            sig: Signature(*r.fixed()?),
        };
        r.finish()?;
        Ok(record)
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut w = Writer::new(&mut out);
        self.write(w.array(FIELDS));
        w.bytes(self.sig);
        out
    }

    /// The first eleven fields, which the issuer signs.
    pub fn signing_input(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(Writer::new(&mut out).array(FIELDS - 1));
        out
    }

    /// The record with `sig` made by `key`, whose public half becomes the issuer.
    pub fn signed(mut self, key: &SigningKey) -> Self {
        self.issuer = PublicKey(key.verifying_key().to_bytes());
        self.sig = sign(key, &self.signing_input());
        self
    }

    /// The first eleven fields.
    fn write(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.bytes(self.token).bytes(self.workspace).bytes(self.issuer);
        w.uint(self.issued_at_ms).uint(self.expires_ms).uint(self.uses);
        w.bytes(self.code_hash)
            .bytes_array(&self.scopes)
            .bytes_array(&self.caps);
        w.bytes(self.update_pub).array(self.bundles.len());
        for (group, epoch, ct) in &self.bundles {
            w.array(3).bytes(group).uint(*epoch).bytes(ct);
        }
    }
}

fn bundle(r: &mut Reader<'_>) -> Result<(GroupId, u64, Vec<u8>), Code> {
    r.array_of(3)?;
    let (group, epoch, ct) = (GroupId(*r.fixed()?), r.uint()?, r.bytes()?);
    bounded(ct.len(), BUNDLE_BYTES_MAX)?;
    Ok((group, epoch, ct.to_vec()))
}

fn bounded(size: usize, max: usize) -> Result<usize, Code> {
    if size <= max {
        Ok(size)
    } else {
        Err(Code::MalformedHeader)
    }
}

/// The twelve canonical symbols of a code in any accepted spelling; `None` if it is none (06 §3).
pub fn canonical_code(text: &str) -> Option<[u8; CODE_SYMBOLS]> {
    let mut symbols = text
        .bytes()
        .filter(|byte| !matches!(byte, b'-' | b' '))
        .map(|byte| match byte.to_ascii_uppercase() {
            b'I' | b'L' => Some(b'1'),
            b'O' => Some(b'0'),
            symbol if ALPHABET.contains(&symbol) => Some(symbol),
            _ => None,
        });
    let mut code = [0; CODE_SYMBOLS];
    for slot in &mut code {
        *slot = symbols.next()??;
    }
    symbols.next().is_none().then_some(code)
}

/// The code of these 60 bits, grouped for display; bits above are ignored.
pub fn grouped_code(bits: u64) -> String {
    let mut text = String::with_capacity(CODE_SYMBOLS + 2);
    for place in 0..CODE_SYMBOLS {
        if place == 4 || place == 8 {
            text.push('-');
        }
        let value = bits >> (SYMBOL_BITS * (CODE_SYMBOLS - 1 - place)) & 0x1f;
        text.push(char::from(ALPHABET[value as usize]));
    }
    text
}
