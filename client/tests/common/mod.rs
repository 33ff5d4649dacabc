//! The model relay behind a real socket, with the faults a network brings.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

pub mod model;
pub mod services;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use drover_client::clock::now_ms;
use drover_client::wire::access::verify;
use drover_client::wire::error::{Code, Refusal};
use drover_client::wire::frame::{Frame, encode_refusal};
use drover_client::wire::id::{GroupId, PublicKey};
use drover_client::wire::join::{Request, Response};
use drover_client::{Endpoint, RelayUrl};
use futures_util::{SinkExt, StreamExt};
use model::{Model, Out, bytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

/// `shared/vectors/weald`, found among the ancestors of this crate; `None` in a checkout without it.
pub fn vectors() -> Option<PathBuf> {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors()
        .map(|dir| dir.join("shared/vectors/weald"))
        .find(|dir| dir.is_dir())
}

enum ToPeer {
    Message(Vec<u8>),
    Close(Option<u16>),
}

pub struct State {
    pub model: Model,
    pub services: services::Services,
    peers: HashMap<u64, mpsc::UnboundedSender<ToPeer>>,
    next_peer: u64,
    /// What CONNECT_ACK says, legal or not.
    pub advertise_version: u64,
    /// Added to the relay's clock, milliseconds.
    pub clock_ahead_ms: i64,
    pub min_enc: u8,
    /// Upgrades to refuse with 503.
    pub refuse_upgrades: u32,
    /// Nobody else may connect, if set.
    pub admitted: Option<Vec<PublicKey>>,
    /// The one invite code that is good.
    pub code: String,
    pub connects: u64,
}

#[derive(Clone)]
pub struct FakeRelay {
    state: Arc<Mutex<State>>,
    pub url: RelayUrl,
}

impl FakeRelay {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let state = Arc::new(Mutex::new(State {
            model: Model::default(),
            services: services::Services::default(),
            peers: HashMap::new(),
            next_peer: 1,
            advertise_version: 4,
            clock_ahead_ms: 0,
            min_enc: 0,
            refuse_upgrades: 0,
            admitted: None,
            code: "000000000000".into(),
            connects: 0,
        }));
        let relay = Self { state, url };
        let this = relay.clone();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let this = this.clone();
                tokio::spawn(async move { this.serve(tcp).await });
            }
        });
        relay
    }

    pub fn endpoint(&self) -> Endpoint {
        self.url.clone().into()
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Cuts every connection, with a close code or without a word.
    pub fn kick(&self, code: Option<u16>) {
        for (_, peer) in self.lock().peers.drain() {
            let _ = peer.send(ToPeer::Close(code));
        }
    }

    /// As at shutdown: ERROR `retry/failover`, then close 1012 (02, decision 14).
    pub fn restart(&self, retry_after_s: u32) {
        let mut error = Vec::new();
        encode_refusal(&Refusal::plain(Code::Failover).after(retry_after_s), &mut error);
        for (_, peer) in self.lock().peers.drain() {
            let _ = peer.send(ToPeer::Message(error.clone()));
            let _ = peer.send(ToPeer::Close(Some(1012)));
        }
    }

    fn deliver(state: &State, out: Out) {
        for (peer, message) in out {
            if let Some(peer) = state.peers.get(&peer) {
                let _ = peer.send(ToPeer::Message(message));
            }
        }
    }

    async fn serve(self, mut tcp: TcpStream) {
        let refused = {
            let mut state = self.lock();
            let refused = state.refuse_upgrades > 0;
            state.refuse_upgrades = state.refuse_upgrades.saturating_sub(1);
            refused
        };
        if refused {
            let mut request = [0; 2048];
            let _ = tcp.read(&mut request).await;
            let answer = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 12\r\n\r\nat capacity\n";
            let _ = tcp.write_all(answer.as_bytes()).await;
            return;
        }
        let Ok(socket) = tokio_tungstenite::accept_async(tcp).await else {
            return;
        };
        let (mut sink, mut stream) = socket.split();
        let (to_peer, mut from_relay) = mpsc::unbounded_channel();
        let id = {
            let mut state = self.lock();
            let id = state.next_peer;
            state.next_peer += 1;
            state.peers.insert(id, to_peer);
            id
        };
        let mut session = Handshake::default();
        loop {
            tokio::select! {
                message = from_relay.recv() => match message {
                    Some(ToPeer::Message(message)) => {
                        if sink.send(Message::Binary(message.into())).await.is_err() {
                            break;
                        }
                    }
                    Some(ToPeer::Close(code)) => {
                        if let Some(code) = code {
                            let frame = CloseFrame { code: code.into(), reason: Default::default() };
                            let _ = sink.send(Message::Close(Some(frame))).await;
                        }
                        break;
                    }
                    None => break,
                },
                message = stream.next() => match message {
                    Some(Ok(Message::Binary(message))) => {
                        let mut state = self.lock();
                        let (out, close) = session.frame(&mut state, id, &message);
                        Self::deliver(&state, out);
                        if close && let Some(peer) = state.peers.get(&id) {
                            let _ = peer.send(ToPeer::Close(None));
                        }
                    }
                    Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                    Some(Ok(_)) => {}
                },
            }
        }
        let mut state = self.lock();
        state.peers.remove(&id);
        state.model.disconnect(id);
    }
}

#[derive(Default)]
struct Handshake {
    groups: Vec<GroupId>,
    ready: bool,
}

impl Handshake {
    fn frame(&mut self, state: &mut State, peer: u64, message: &[u8]) -> (Out, bool) {
        let challenge = [0x11; 32];
        let Ok(frame) = Frame::decode(message) else {
            return (Out::new(), true);
        };
        match frame {
            Frame::Connect { groups, .. } => {
                state.connects += 1;
                self.groups = groups.iter().map(|group| GroupId(*group)).collect();
                let now = now_ms().saturating_add_signed(state.clock_ahead_ms);
                let ack = match state.advertise_version {
                    1..=4 => bytes(&Frame::ConnectAck {
                        version: state.advertise_version as u16,
                        server_time_ms: now,
                        min_enc: state.min_enc,
                    }),
                    // No encoder makes this.
                    odd => vec![0x82, 0x02, 0x83, odd as u8, 0x00, 0x00],
                };
                (
                    vec![
                        (peer, ack),
                        (
                            peer,
                            bytes(&Frame::AuthChallenge {
                                challenge: &challenge,
                            }),
                        ),
                    ],
                    false,
                )
            }
            Frame::Auth {
                device_key,
                signature,
            } => {
                let admitted = state
                    .admitted
                    .as_ref()
                    .is_none_or(|keys| keys.contains(&device_key));
                if !admitted || !verify(&device_key, &challenge, &signature) {
                    let mut out = Vec::new();
                    encode_refusal(&Code::WriterNotInAccessSet.into(), &mut out);
                    return (vec![(peer, out)], true);
                }
                self.ready = true;
                state.model.connect(peer, self.groups.iter().copied());
                let ack = Frame::AuthAck {
                    key_packages_remaining: 3,
                    write_mode: 0,
                    build_digest: b"fake",
                    access_set: 1,
                    min_enc: state.min_enc,
                };
                (vec![(peer, bytes(&ack))], false)
            }
            Frame::Join { body } => {
                let response = match Request::decode(body) {
                    Some(Request::Reserve { code, .. }) if code == state.code => Some(Response::Reserved {
                        expires_at_ms: now_ms() + 600_000,
                    }),
                    Some(Request::Bundles { .. }) => Some(Response::Bundles(vec![])),
                    _ => None,
                };
                let out = match response {
                    Some(response) => bytes(&Frame::Join {
                        body: &response.encode(),
                    }),
                    None => {
                        let mut out = Vec::new();
                        encode_refusal(&Code::SeatsExhausted.into(), &mut out);
                        out
                    }
                };
                (vec![(peer, out)], false)
            }
            Frame::Bye { .. } => (vec![], true),
            frame if self.ready => match state.services.answer(&frame) {
                Some(answer) => (vec![(peer, answer)], false),
                None => (state.model.frame(peer, message), false),
            },
            _ => (vec![], true),
        }
    }
}
