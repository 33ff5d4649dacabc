//! Redeeming an invite: link and code, a reserved seat, sealed bundles, scope by scope until the seat is taken (06 §4–§9).

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use drover_wire::access::verify;
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Hash, Nonce, PublicKey, Token};
use drover_wire::invite::{Record, canonical_code};
use drover_wire::join::{Request, Response};

use crate::connection::{Exchange, Incoming, encode};
use crate::error::Error;
use crate::identity::Identity;
use crate::random;

const JOIN: u8 = 18;

/// An invite link: `https://HOST/join/TOKEN#FRAGMENT` or `weald://join/TOKEN#FRAGMENT`. The fragment is the link's
/// secret and never leaves the device; a relay's own bootstrap invite has none.
#[derive(Clone, PartialEq, Eq)]
pub struct InviteLink {
    /// The relay's host as the link names it.
    pub host: Option<String>,
    /// The invite's token.
    pub token: Token,
    /// What follows `#`.
    pub fragment: Option<String>,
}

impl FromStr for InviteLink {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        const BAD: Error = Error::Invalid("not an invite link");
        let (rest, fragment) = match text.trim().split_once('#') {
            Some((rest, fragment)) => (rest, Some(fragment.to_owned()).filter(|f| !f.is_empty())),
            None => (text.trim(), None),
        };
        let (host, token) = if let Some(token) = rest.strip_prefix("weald://join/") {
            (None, token)
        } else {
            let rest = rest
                .strip_prefix("https://")
                .or_else(|| rest.strip_prefix("http://"))
                .ok_or(BAD)?;
            let (host, token) = rest.split_once("/join/").ok_or(BAD)?;
            (Some(host.to_owned()).filter(|host| !host.is_empty()), token)
        };
        Ok(Self {
            host,
            token: token.trim_end_matches('/').parse_token().ok_or(BAD)?,
            fragment,
        })
    }
}

// The token alone redeems nothing, but it is not for logs either.
impl fmt::Debug for InviteLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InviteLink({:?})", self.host)
    }
}

trait ParseToken {
    fn parse_token(&self) -> Option<Token>;
}

impl ParseToken for str {
    fn parse_token(&self) -> Option<Token> {
        let digits: Vec<u8> = self
            .chars()
            .map(|c| Some(c.to_digit(16)? as u8))
            .collect::<Option<_>>()?;
        let bytes: Vec<u8> = digits
            .chunks_exact(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect();
        (digits.len() == 2 * Token::LEN)
            .then(|| Token::from_slice(&bytes))
            .flatten()
    }
}

/// A sealed bundle of an invite (06 §4.2): the joining material of one group, sealed to the link's secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedBundle {
    /// The group.
    pub group: GroupId,
    /// The epoch it admits to.
    pub epoch: u64,
    /// Ciphertext.
    pub ct: Bytes,
}

/// The signed record of an invite, if its token is live: who issued it, for which groups, until when. Its signature is
/// verified; whether its issuer may be trusted is the caller's question (for a bootstrap invite: compare
/// [`genesis_fingerprint`] with what the operator printed).
///
/// # Errors
/// [`Error::Protocol`] when the relay serves a record that does not decode or verify; [`Error::Refused`].
pub async fn invite_record(exchange: &mut impl Exchange, token: Token) -> Result<Option<Record>, Error> {
    let answer = ask(exchange, &Request::Record { token: &token.0 }).await?;
    let Response::Record { record } = response(&answer, 3)? else {
        return Err(Error::Protocol("JOIN record not answered"));
    };
    if record.is_empty() {
        return Ok(None);
    }
    let record = Record::decode(record).map_err(|_| Error::Protocol("undecodable invite record"))?;
    if record.token != token || !verify(&record.issuer, &record.signing_input(), &record.sig) {
        return Err(Error::Protocol("invite record that is not what it claims"));
    }
    Ok(Some(record))
}

/// What a relay prints as its genesis key: `H("weald genesis v1", public key)` (06 §12).
pub fn genesis_fingerprint(issuer: &PublicKey) -> Hash {
    Hash::of(&[b"weald genesis v1", &issuer.0])
}

/// A reserved seat: held for ten minutes, or until the invite expires if that is sooner. The device is admitted
/// provisionally meanwhile.
#[derive(Clone, PartialEq, Eq)]
pub struct Reservation {
    token: Token,
    nonce: Nonce,
    device: PublicKey,
    /// When the seat lapses, milliseconds since the Unix epoch by the relay's clock.
    pub expires_at_ms: u64,
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation(until {})", self.expires_at_ms)
    }
}

impl Reservation {
    /// Reserves a seat for `device` with the one-time code in any spelling (06 §5). Legal before CONNECT and after AUTH.
    ///
    /// # Errors
    /// [`Error::Invalid`] for text that is no code. [`Error::Refused`] with `quota/seats_exhausted`, the relay's one
    /// answer to everything that means no; `quota/rate_limited`; `retry/backpressure`.
    pub async fn reserve(
        exchange: &mut impl Exchange,
        token: Token,
        code: &str,
        device: &Identity,
    ) -> Result<Self, Error> {
        Self::reserve_as(exchange, token, code, device, Nonce(random::bytes())).await
    }

    /// The same with a nonce of the caller's: repeating it after a lost answer takes no second seat.
    ///
    /// # Errors
    /// As [`Reservation::reserve`].
    pub async fn reserve_as(
        exchange: &mut impl Exchange,
        token: Token,
        code: &str,
        device: &Identity,
        nonce: Nonce,
    ) -> Result<Self, Error> {
        let code = canonical_code(code).ok_or(Error::Invalid("not an invite code"))?;
        let code = String::from_utf8_lossy(&code).into_owned();
        let device = device.public();
        let request = Request::Reserve {
            token: &token.0,
            code: &code,
            nonce: &nonce.0,
            device: &device.0,
        };
        let answer = ask(exchange, &request).await?;
        match response(&answer, 0)? {
            Response::Reserved { expires_at_ms } => Ok(Self {
                token,
                nonce,
                device,
                expires_at_ms,
            }),
            _ => Err(Error::Protocol("JOIN reserve not answered")),
        }
    }

    /// The sealed bundles of one of the invite's groups, newest first; empty when the invite is no longer live (06 §7).
    ///
    /// # Errors
    /// [`Error::Refused`]; connection failures.
    pub async fn bundles(
        &self,
        exchange: &mut impl Exchange,
        group: GroupId,
    ) -> Result<Vec<SealedBundle>, Error> {
        let answer = ask(
            exchange,
            &Request::Bundles {
                token: &self.token.0,
                group: &group.0,
            },
        )
        .await?;
        match response(&answer, 1)? {
            Response::Bundles(bundles) => Ok(bundles
                .iter()
                .map(|bundle| SealedBundle {
                    group: bundle.group,
                    epoch: bundle.epoch,
                    ct: answer.0.slice_ref(bundle.ct),
                })
                .collect()),
            _ => Err(Error::Protocol("JOIN bundles not answered")),
        }
    }

    /// Confirms that a group was joined (06 §9). After the last of the invite's groups the seat is taken and the device
    /// stays admitted until the invite expires; an authorizer's next set makes it durable. May be repeated.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::Protocol`] for a receipt that is not this commit's.
    pub async fn commit(&self, exchange: &mut impl Exchange, group: GroupId) -> Result<Hash, Error> {
        let request = Request::Commit {
            token: &self.token.0,
            nonce: &self.nonce.0,
            device: &self.device.0,
            group: &group.0,
        };
        let answer = ask(exchange, &request).await?;
        let expected = Hash::of(&[
            b"weald invite scope-commit v1",
            &self.token.0,
            &self.nonce.0,
            &group.0,
        ]);
        match response(&answer, 2)? {
            Response::Committed { receipt } if receipt == expected => Ok(receipt),
            _ => Err(Error::Protocol("JOIN commit with a wrong receipt")),
        }
    }

    /// Keeps the seat until the invite expires, once: for a joiner that has to wait for a person (06 D4). Relays without
    /// this step refuse.
    ///
    /// # Errors
    /// [`Error::Refused`]; connection failures.
    pub async fn park(&mut self, exchange: &mut impl Exchange) -> Result<u64, Error> {
        let request = Request::Park {
            token: &self.token.0,
            nonce: &self.nonce.0,
            device: &self.device.0,
        };
        let answer = ask(exchange, &request).await?;
        match response(&answer, 4)? {
            Response::Parked { expires_at_ms } | Response::Reserved { expires_at_ms } => {
                self.expires_at_ms = expires_at_ms;
                Ok(expires_at_ms)
            }
            _ => Err(Error::Protocol("JOIN park not answered")),
        }
    }
}

async fn ask(exchange: &mut impl Exchange, request: &Request<'_>) -> Result<Incoming, Error> {
    exchange
        .exchange(
            encode(&Frame::Join {
                body: &request.encode(),
            }),
            JOIN,
        )
        .await
}

fn response(answer: &Incoming, step: u8) -> Result<Response<'_>, Error> {
    match answer.frame()? {
        Frame::Join { body } => {
            Response::decode(step, body).ok_or(Error::Protocol("undecodable JOIN answer"))
        }
        _ => Err(Error::Protocol("JOIN not answered")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_both_spellings() {
        let token = Token([
            0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0, 0xaa, 0xbb, 0xcc, 0xdd, 0xee,
        ]);
        let link: InviteLink = "https://relay.example:9/join/00112233445566778899 00aabbccddee"
            .replace(' ', "")
            .parse()
            .expect("link");
        assert_eq!(
            (link.host.as_deref(), link.token, link.fragment),
            (Some("relay.example:9"), token, None)
        );
        let link: InviteLink = "weald://join/0011223344556677889900AABBCCDDEE#secret"
            .parse()
            .expect("link");
        assert_eq!(
            (link.host, link.token, link.fragment.as_deref()),
            (None, token, Some("secret"))
        );
        for bad in [
            "",
            "https://a/other/00",
            "weald://join/00",
            "weald://join/zz112233445566778899aabbccddeeff",
        ] {
            assert!(bad.parse::<InviteLink>().is_err(), "{bad}");
        }
    }

    /// 06 §13.
    #[test]
    fn the_genesis_fingerprint_is_the_worked_example() {
        let hex: String = genesis_fingerprint(&Identity::from_seed(&[9; 32]).public())
            .0
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(
            hex,
            "3308908059f399fb6d7b7ffcf02230e564d1d59f5771fffab556967eee30740a"
        );
    }
}
