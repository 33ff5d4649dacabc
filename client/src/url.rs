//! Where a relay is: `ws://host[:port][/path]` or `wss://…`.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::error::Error;

/// A relay's address. The path defaults to `/relay` (02 §1), the port to 80 (`ws`) or 443 (`wss`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RelayUrl {
    tls: bool,
    /// Without the brackets of an IPv6 literal.
    host: String,
    port: u16,
    path: String,
}

impl RelayUrl {
    /// Whether the connection is encrypted (`wss`).
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// Host name or address, an IPv6 literal without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Host and port as in a `Host` header.
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for RelayUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (tls, rest) = match text.split_once("://") {
            Some(("ws", rest)) => (false, rest),
            Some(("wss", rest)) => (true, rest),
            _ => return Err(Error::Invalid("relay URL does not begin with ws:// or wss://")),
        };
        let (authority, path) = match rest.find('/') {
            Some(at) if &rest[at..] != "/" => (&rest[..at], rest[at..].to_owned()),
            Some(at) => (&rest[..at], "/relay".to_owned()),
            None => (rest, "/relay".to_owned()),
        };
        let (host, port) = match authority.strip_prefix('[') {
            Some(literal) => {
                let (host, after) = literal
                    .split_once(']')
                    .ok_or(Error::Invalid("relay URL has an unclosed bracket"))?;
                match after {
                    "" => (host, None),
                    _ => (
                        host,
                        Some(
                            after
                                .strip_prefix(':')
                                .ok_or(Error::Invalid("relay URL has a bad port"))?,
                        ),
                    ),
                }
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = match port {
            Some(text) => text
                .parse()
                .map_err(|_| Error::Invalid("relay URL has a bad port"))?,
            None if tls => 443,
            None => 80,
        };
        let visible = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
        // An address may name its zone: fe80::1%eth0.
        let is_literal = host
            .split('%')
            .next()
            .is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok());
        let in_brackets = authority.starts_with('[');
        if in_brackets != is_literal
            || host.is_empty()
            || host.contains(['@', '?', '#', '[', ']'])
            || !visible(host)
        {
            return Err(Error::Invalid("relay URL has no proper host"));
        }
        if path.contains('#') || !visible(&path) {
            return Err(Error::Invalid("relay URL has no proper path"));
        }
        Ok(Self {
            tls,
            host: host.to_owned(),
            port,
            path,
        })
    }
}

impl fmt::Display for RelayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}://{}{}",
            if self.tls { "wss" } else { "ws" },
            self.authority(),
            self.path
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_spellings() {
        for (text, full) in [
            ("ws://localhost:8443", "ws://localhost:8443/relay"),
            ("wss://relay.example", "wss://relay.example:443/relay"),
            ("wss://relay.example/", "wss://relay.example:443/relay"),
            ("ws://relay.example/other", "ws://relay.example:80/other"),
            ("ws://[::1]:9/relay", "ws://[::1]:9/relay"),
            ("wss://[fe80::1]", "wss://[fe80::1]:443/relay"),
            ("ws://[fe80::1%eth0]", "ws://[fe80::1%eth0]:80/relay"),
        ] {
            let url: RelayUrl = text.parse().expect(text);
            assert_eq!(url.to_string(), full);
            assert_eq!(full.parse::<RelayUrl>().expect(full), url);
        }
    }

    #[test]
    fn refuses_what_it_cannot_mean() {
        for text in [
            "relay.example",
            "http://a",
            "ws://",
            "ws://a:b",
            "ws://u@a",
            "ws://[::1",
            "ws://[[1]:343",
            "ws://[1]",
            "ws://a]",
            "ws://a b",
            "ws://a/#f",
        ] {
            assert!(text.parse::<RelayUrl>().is_err(), "{text}");
        }
    }
}
