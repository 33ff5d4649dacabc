//! The attackers' sockets: each says its words as fast as they are taken, and is opened anew when it is closed.

use super::attack::{Opening, Scene};
use crate::link::Target;
use crate::peer::{Peer, upgrade_request, upgraded};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes one socket says before the next one's turn.
const TURN_BYTES: usize = 64 << 10;
/// Without progress anywhere, the crowd waits so long.
const REST: Duration = Duration::from_millis(1);
/// An attacker that isn't answered gives up.
const ANSWER: Duration = Duration::from_secs(5);
/// Sockets opened in a row before the others' turn.
const OPENED_MAX: usize = 64;
/// After a socket could not be opened none is for this long: the relay has no place for it, and without a pause this
/// would measure the system's connecting and closing alone.
const REFUSED: Duration = Duration::from_millis(20);

struct Member {
    stream: TcpStream,
    /// Bytes said.
    said: usize,
}

/// See the module.
pub(super) struct Crowd {
    scene: Scene,
    target: Target,
    members: Vec<Option<Member>>,
    refused_until: Option<Instant>,
    pub(super) bytes: u64,
    pub(super) opened: u64,
}

impl Crowd {
    pub(super) fn new(scene: Scene, target: Target) -> Self {
        Self {
            members: (0..scene.sockets).map(|_| None).collect(),
            scene,
            target,
            refused_until: None,
            bytes: 0,
            opened: 0,
        }
    }

    /// Each socket's turn once.
    pub(super) fn pass(&mut self, over: &AtomicBool) {
        let (mut progress, mut opened) = (false, 0);
        for number in 0..self.members.len() {
            if over.load(Ordering::Relaxed) {
                return;
            }
            if self.members[number].is_none() && opened < OPENED_MAX && self.may_open() {
                opened += 1;
                match self.open(number) {
                    Ok(stream) => {
                        self.opened += 1;
                        progress = true;
                        self.members[number] = Some(Member { stream, said: 0 });
                    }
                    Err(_) => self.refused_until = Some(Instant::now() + REFUSED),
                }
            }
            if let Some(member) = &mut self.members[number] {
                match turn(member, &self.scene) {
                    Ok(bytes) => {
                        self.bytes += bytes as u64;
                        progress |= bytes > 0;
                    }
                    Err(_) => {
                        self.members[number] = None;
                        progress = true;
                    }
                }
            }
        }
        // A byte at a time is meant to be slow.
        if !progress || self.scene.pace == 1 {
            thread::sleep(REST);
        }
    }

    fn may_open(&self) -> bool {
        self.refused_until.is_none_or(|until| until <= Instant::now())
    }

    fn open(&self, number: usize) -> io::Result<TcpStream> {
        let source = Ipv4Addr::new(127, 0, 0, 10 + (number % usize::from(self.scene.sources)) as u8);
        let stream = match self.scene.opening {
            Opening::Bare => self.connect(source)?,
            Opening::Upgraded => {
                let mut stream = self.connect(source)?;
                stream.set_read_timeout(Some(ANSWER))?;
                stream.write_all(upgrade_request(&self.target).as_bytes())?;
                let (mut head, mut byte) = (Vec::new(), [0]);
                while upgraded(&head).map_err(io::Error::other)?.is_none() {
                    stream.read_exact(&mut byte)?;
                    head.push(byte[0]);
                }
                stream
            }
            Opening::Member => {
                let (device, named) = &*self.scene.member;
                let peer = Peer::authenticated(&self.target, device, named).map_err(io::Error::other)?;
                peer.into_tcp()
                    .ok_or_else(|| io::Error::other("attacks are plain"))?
            }
        };
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    fn connect(&self, source: Ipv4Addr) -> io::Result<TcpStream> {
        let to = self.target.address()?;
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(IpAddr::V4(source), 0).into())?;
        socket.connect(&to.into())?;
        Ok(socket.into())
    }
}

/// Says as much as is taken, and reads what there is. An error: it is over.
fn turn(member: &mut Member, scene: &Scene) -> io::Result<usize> {
    let mut said = 0;
    while said < TURN_BYTES.min(scene.pace) {
        let words = match scene.first.get(member.said..) {
            Some(rest) if !rest.is_empty() => rest,
            _ if scene.then.is_empty() => break,
            _ => &scene.then[(member.said - scene.first.len()) % scene.then.len()..],
        };
        let most = scene.pace.min(scene.life - member.said).min(words.len());
        if most == 0 {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        match member.stream.write(&words[..most]) {
            Ok(taken) => {
                member.said += taken;
                said += taken;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    // Whoever says nothing notices its end only so.
    if scene.reads || scene.then.is_empty() {
        let mut buffer = [0; 16 << 10];
        loop {
            match member.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(said)
}
