//! Delegation: a device lets an agent's key author in its name. The relay never sees one.

use drover_wire::access::{LIST_MAX, verify};
use drover_wire::cbor::{Reader, Writer};
use drover_wire::id::{PublicKey, Signature};

use super::fields::{Fields, list_of_some, whole};
use super::{Malformed, Rejected};
use crate::identity::Identity;

/// Lets `subject`, an agent, author between two times. Present in every payload whose author is an agent.
///
/// Which issuers may delegate what is for the application to judge; [`Certificate::verify`] judges what the certificate
/// itself says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The agent.
    pub subject: PublicKey,
    /// The device that answers for it, and attests for it.
    pub issuer: PublicKey,
    /// Milliseconds since the Unix epoch, inclusive.
    pub not_before_ms: u64,
    /// Milliseconds since the Unix epoch, inclusive.
    pub not_after_ms: u64,
    /// At least one, at most 4096.
    pub capabilities: Vec<String>,
    /// By the issuer.
    pub sig: Signature,
}

impl Certificate {
    /// Decodes a whole certificate.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        whole(bytes, Self::read)
    }

    /// The canonical encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut Writer::new(&mut out));
        out
    }

    /// What is signed: the map of every field before the signature.
    pub fn signing_input(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_fields(Writer::new(&mut out).map(5));
        out
    }

    /// The certificate issued and signed by `issuer`.
    #[must_use]
    pub fn signed(mut self, issuer: &Identity) -> Self {
        self.issuer = issuer.public();
        self.sig = issuer.sign(&self.signing_input());
        self
    }

    /// Whether the issuer signed that `author` may author at this time.
    ///
    /// # Errors
    /// [`Rejected::CertificateOfAnother`], [`Rejected::CertificateTime`], [`Rejected::CertificateSignature`].
    pub fn verify(&self, author: &PublicKey, at_ms: u64) -> Result<(), Rejected> {
        if self.subject != *author || self.subject == self.issuer {
            return Err(Rejected::CertificateOfAnother);
        }
        if !(self.not_before_ms..=self.not_after_ms).contains(&at_ms) {
            return Err(Rejected::CertificateTime);
        }
        if !verify(&self.issuer, &self.signing_input(), &self.sig) {
            return Err(Rejected::CertificateSignature);
        }
        Ok(())
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut fields = Fields::open(reader)?;
        let certificate = Self {
            subject: PublicKey(*fields.required(1)?.fixed()?),
            issuer: PublicKey(*fields.required(2)?.fixed()?),
            not_before_ms: fields.required(3)?.uint()?,
            not_after_ms: fields.required(4)?.uint()?,
            capabilities: capabilities(fields.required(5)?)?,
            sig: Signature(*fields.required(6)?.fixed()?),
        };
        fields.end()?;
        Ok(certificate)
    }

    pub(super) fn write(&self, w: &mut Writer<&mut Vec<u8>>) {
        self.write_fields(w.map(6));
        w.uint(6u8).bytes(self.sig);
    }

    fn write_fields(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.uint(1u8).bytes(self.subject);
        w.uint(2u8).bytes(self.issuer);
        w.uint(3u8).uint(self.not_before_ms);
        w.uint(4u8).uint(self.not_after_ms);
        w.uint(5u8).array(self.capabilities.len());
        for capability in &self.capabilities {
            w.text(capability);
        }
    }
}

fn capabilities(reader: &mut Reader<'_>) -> Result<Vec<String>, Malformed> {
    // A string takes 24 times its shortest encoding, so this list alone has a ceiling of its own.
    let mut ahead = *reader;
    if ahead.array()? > LIST_MAX {
        return Err(Malformed::TooLong);
    }
    list_of_some("capabilities", reader, 1, |r| Ok(r.text()?.to_owned()))
}
