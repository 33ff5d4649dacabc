//! Founding and joining a workspace, admitting devices, files of device keys (05 §7.2, 06 §12, §13).

use crate::args::BenchArgs;
use crate::authority::Authority;
use crate::error::Error;
use crate::link::Target;
use crate::peer::{Peer, encoded, public_key};
use drover_wire::access::{AccessState, LIST_MAX};
use drover_wire::frame::Frame;
use drover_wire::id::{GroupId, Token};
use drover_wire::invite::Record;
use drover_wire::join::{Request, Response};
use ed25519_dalek::SigningKey;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Devices beside the founder and its recovery key that fit one access set.
pub(crate) const DEVICES_MAX: usize = LIST_MAX - 2;

/// Devices that are admitted, and a group of their workspace.
#[derive(Debug)]
pub(crate) struct Workspace {
    devices: Vec<SigningKey>,
    /// At least one; named by every connection, so that the relay knows which workspace is meant.
    groups: Vec<GroupId>,
    /// Whether the devices may create groups by naming them.
    creates_groups: bool,
    /// Of a workspace that was founded here.
    authority: Option<Authority>,
}

impl Workspace {
    /// By invite or key file.
    pub(crate) fn enter(args: &BenchArgs, target: &Target, devices: usize) -> Result<Self, Error> {
        if let Some(path) = &args.keys {
            return Self::load(path);
        }
        let (Some(invite), Some(code)) = (&args.invite, &args.code) else {
            return Err(Error::Usage(
                "--url needs --invite with --code, or --keys FILE".into(),
            ));
        };
        let workspace = Self::join(target, invite, code, devices)?;
        if let Some(path) = &args.save_keys {
            workspace.save(path)?;
        }
        Ok(workspace)
    }

    /// Redeems an invite: a bootstrap invite founds the workspace with this many devices, a member invite admits one
    /// device to the groups of its scope.
    pub(crate) fn join(target: &Target, invite: &str, code: &str, devices: usize) -> Result<Self, Error> {
        let token = parse_token(invite)
            .ok_or_else(|| Error::Usage(format!("--invite {invite}: no 32 hex digits at its end")))?;
        let founder = new_key();
        let mut peer = Peer::open(target)?;
        let record = request(
            &mut peer,
            3,
            &Request::Record { token: &token.0 },
            |response| match response {
                Response::Record { record } => Some(Record::decode(record).ok()),
                _ => None,
            },
        )?;
        let nonce: [u8; 16] = random();
        let device = public_key(&founder);
        let reserve = Request::Reserve {
            token: &token.0,
            code,
            nonce: &nonce,
            device: &device.0,
        };
        request(&mut peer, 0, &reserve, |response| {
            matches!(response, Response::Reserved { .. }).then_some(())
        })?;
        match record {
            Some(record) if !record.scopes.is_empty() => Ok(Self {
                devices: vec![founder],
                groups: record.scopes.clone(),
                creates_groups: false,
                authority: None,
            }),
            _ => found(peer, founder, devices),
        }
    }

    /// From a file that [`save`](Self::save) wrote.
    fn load(path: &Path) -> Result<Self, Error> {
        let text = fs::read_to_string(path).map_err(|source| Error::File {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|what| Error::Usage(format!("{}: {what}", path.display())))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (mut devices, mut groups) = (Vec::new(), Vec::new());
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            match line.split_once(' ') {
                Some(("device", hex)) if parse_hex::<32>(hex).is_some() => {
                    devices.extend(parse_hex(hex).map(|seed| SigningKey::from_bytes(&seed)));
                }
                Some(("group", hex)) if parse_hex::<32>(hex).is_some() => {
                    groups.extend(parse_hex(hex).map(GroupId));
                }
                _ if line.is_empty() || line.starts_with('#') => (),
                _ => return Err(format!("line {number}: `device HEX` or `group HEX` expected")),
            }
        }
        if devices.is_empty() || groups.is_empty() {
            return Err("at least one device and one group are needed".into());
        }
        Ok(Self {
            devices,
            groups,
            creates_groups: true,
            authority: None,
        })
    }

    /// Writes seeds and groups, for `--keys` of a later run, readable by nobody else.
    fn save(&self, path: &Path) -> Result<(), Error> {
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options
            .open(path)
            .and_then(|mut file| file.write_all(self.to_text().as_bytes()))
            .map_err(|source| Error::File {
                path: path.to_owned(),
                source,
            })
    }

    fn to_text(&self) -> String {
        let mut text =
            String::from("# drover bench --keys: seeds of admitted devices, and a group of theirs\n");
        for group in &self.groups {
            let _ = writeln!(text, "group {}", hex(&group.0));
        }
        for device in &self.devices {
            let _ = writeln!(text, "device {}", hex(device.as_bytes()));
        }
        text
    }

    /// Whoever founded it.
    ///
    /// # Errors
    /// When it was not founded here.
    pub(crate) fn authority(&mut self) -> Result<&mut Authority, Error> {
        self.authority.as_mut().ok_or_else(|| {
            Error::Usage(
                "this scenario founds its workspace: --spawn, or --invite with a bootstrap invite".into(),
            )
        })
    }

    /// A connection of the founder's that names these groups.
    pub(crate) fn connect_founder(&mut self, target: &Target, groups: &[GroupId]) -> Result<Peer, Error> {
        let named: Vec<GroupId> = self.groups[..1].iter().chain(groups).copied().collect();
        Peer::authenticated(target, &self.authority()?.key, &named)
    }

    /// A group that every connection names.
    pub(crate) fn root(&self) -> GroupId {
        self.groups[0]
    }

    /// Takes this device's place in the list.
    pub(crate) fn replace_device(&mut self, connection: usize, device: SigningKey) {
        let place = connection % self.devices.len();
        self.devices[place] = device;
    }

    /// The device of the connection with this number.
    pub(crate) fn device(&self, connection: usize) -> &SigningKey {
        &self.devices[connection % self.devices.len()]
    }

    /// `count` groups: new ones where the devices may create them, else those there are, over and over.
    pub(crate) fn groups(&self, count: usize) -> Vec<GroupId> {
        if self.creates_groups {
            (0..count).map(|_| GroupId(random())).collect()
        } else {
            self.groups.iter().copied().cycle().take(count).collect()
        }
    }

    /// Opens the connection with this number; it names (and so creates) this group.
    pub(crate) fn connect(&self, target: &Target, connection: usize, group: GroupId) -> Result<Peer, Error> {
        Peer::authenticated(target, self.device(connection), &self.named(group))
    }

    /// What a connection that works on `group` names in CONNECT.
    pub(crate) fn named(&self, group: GroupId) -> [GroupId; 2] {
        [self.groups[0], group]
    }
}

/// Founds the workspace over the founder's connection, with this many devices in its first access set.
fn found(mut peer: Peer, founder: SigningKey, devices: usize) -> Result<Workspace, Error> {
    let group = GroupId(random());
    peer.authenticate(&founder, &[group])?;
    peer.send(&encoded(&Frame::Access { body: &[] }))?;
    let state = peer.answer(|frame| match frame {
        Frame::Access { body } => AccessState::decode(body).ok(),
        _ => None,
    })?;
    let devices: Vec<SigningKey> = (0..devices.clamp(1, DEVICES_MAX)).map(|_| new_key()).collect();
    let authority = Authority::found(&mut peer, founder, &devices, state.salt)?;
    Ok(Workspace {
        devices,
        groups: vec![group],
        creates_groups: true,
        authority: Some(authority),
    })
}

/// One JOIN request and what is wanted of its answer.
fn request<T>(
    peer: &mut Peer,
    step: u8,
    request: &Request<'_>,
    pick: impl Fn(&Response<'_>) -> Option<T>,
) -> Result<T, Error> {
    peer.send(&encoded(&Frame::Join {
        body: &request.encode(),
    }))?;
    peer.answer(|frame| match frame {
        Frame::Join { body } => pick(&Response::decode(step, body)?),
        _ => None,
    })
}

/// A fresh device key.
pub(crate) fn new_key() -> SigningKey {
    SigningKey::from_bytes(&random())
}

/// Random bytes.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has random bytes");
    bytes
}

/// The token at the end of an invite link, or alone.
pub(crate) fn parse_token(invite: &str) -> Option<Token> {
    parse_hex(invite.rsplit('/').next()?).map(Token)
}

fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let mut out = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        let value = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(out)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_files_round_trip() {
        let workspace = Workspace {
            devices: vec![new_key(), new_key()],
            groups: vec![GroupId([3; 32])],
            creates_groups: true,
            authority: None,
        };
        let read = Workspace::parse(&workspace.to_text()).expect("a key file");
        assert_eq!(read.devices, workspace.devices);
        assert_eq!(read.groups, workspace.groups);
        assert!(
            Workspace::parse("device 00")
                .expect_err("short")
                .contains("line 1")
        );
        assert!(Workspace::parse("# nothing\n").is_err());
    }

    #[test]
    fn tokens() {
        let token = parse_token("https://h/join/00112233445566778899aabbccddeeff").expect("a token");
        assert_eq!(token.0[..3], [0, 0x11, 0x22]);
        assert_eq!(parse_token("00112233445566778899aabbccddeeff"), Some(token));
        assert_eq!(parse_token("https://h/join/0011"), None);
    }
}
