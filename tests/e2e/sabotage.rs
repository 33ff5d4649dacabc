//! A proxy between client and relay that breaks one thing: what a conformance run has to notice.

use drover_client::RelayUrl;
use drover_client::wire::envelope::Envelope;
use drover_client::wire::error::Code;
use drover_client::wire::frame::Frame;
use futures_util::{SinkExt, StreamExt};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{accept_async, connect_async};

/// What the proxy does to what the relay sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    None,
    /// The last bit of a PUSH's ciphertext.
    FlipsABitOfPushes,
    DropsPushes,
    /// Every other PUSH waits for the next.
    SwapsPushes,
    DropsAcks,
    /// Every refusal becomes another of its class.
    ChangesCodes,
    DoublesPushes,
    /// An acknowledgement names the next cursor.
    ChangesSeqs,
    /// The socket ends where an ERROR is due.
    ClosesInsteadOfRefusing,
    /// The socket stays where the relay ends it.
    KeepsOpen,
    /// A beat comes behind what was sent after it.
    DelaysBeats,
    /// The first connection that the relay has to end ends with the relay.
    CrashesAtAnEnd,
}

/// See the module; it ends with the runtime.
pub(crate) struct Proxy(RelayUrl);

impl Proxy {
    pub(crate) async fn start(relay: RelayUrl, sabotage: Sabotage) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        tokio::spawn(async move {
            let (crash, mut crashed) = mpsc::channel(1);
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    Ok((stream, _)) = listener.accept() => {
                        connections.spawn(serve(stream, relay.clone(), sabotage, crash.clone()));
                    }
                    // Who sees a connection end finds nobody who takes a new one.
                    _ = crashed.recv() => return drop((listener, connections)),
                }
            }
        });
        Self(url)
    }

    pub(crate) fn url(&self) -> RelayUrl {
        self.0.clone()
    }
}

async fn serve(
    stream: TcpStream,
    relay: RelayUrl,
    sabotage: Sabotage,
    crash: mpsc::Sender<()>,
) -> Option<()> {
    let client = accept_async(stream).await.ok()?;
    let (relay, _) = connect_async(relay.to_string()).await.ok()?;
    let (mut to_client, mut from_client) = client.split();
    let (mut to_relay, mut from_relay) = relay.split();
    let client_ended = Arc::new(AtomicBool::new(false));
    let ended = client_ended.clone();
    // It ends with this one.
    let mut upward = JoinSet::new();
    upward.spawn(async move {
        while let Some(Ok(message)) = from_client.next().await {
            ended.fetch_or(message.is_close(), Ordering::Relaxed);
            if to_relay.send(message).await.is_err() {
                break;
            }
        }
        ended.store(true, Ordering::Relaxed);
        let _ = to_relay.close().await;
    });
    let mut saboteur = Saboteur { sabotage, held: None };
    while let Some(Ok(message)) = from_relay.next().await {
        let Message::Binary(bytes) = message else {
            continue; // Pings are answered, and the end is seen below.
        };
        match saboteur.pass(bytes.to_vec()) {
            Some(messages) => {
                for message in messages {
                    to_client.send(Message::Binary(message.into())).await.ok()?;
                }
            }
            None => break,
        }
    }
    match sabotage {
        // The client's own end still ends it.
        Sabotage::KeepsOpen => drop(upward.join_next().await),
        Sabotage::CrashesAtAnEnd if !client_ended.load(Ordering::Relaxed) => {
            crash.send(()).await.ok()?;
            pending().await
        }
        _ => {
            let _ = to_client.close().await;
        }
    }
    Some(())
}

struct Saboteur {
    sabotage: Sabotage,
    held: Option<Vec<u8>>,
}

impl Saboteur {
    /// What the client is sent instead; `None` ends the connection.
    fn pass(&mut self, bytes: Vec<u8>) -> Option<Vec<Vec<u8>>> {
        let frame = Frame::decode(&bytes).unwrap();
        let changed = match (self.sabotage, frame) {
            (Sabotage::FlipsABitOfPushes, Frame::Push { envelope }) => {
                let envelope = Envelope::decode(envelope).unwrap();
                let mut ct = envelope.ct.to_vec();
                *ct.last_mut().unwrap() ^= 1;
                let mut flipped = Vec::new();
                Envelope { ct: &ct, ..envelope }.encode(&mut flipped);
                vec![encoded(&Frame::Push { envelope: &flipped })]
            }
            (Sabotage::DropsPushes, Frame::Push { .. }) | (Sabotage::DropsAcks, Frame::SendAck { .. }) => {
                vec![]
            }
            (Sabotage::DoublesPushes, Frame::Push { .. }) => vec![bytes.clone(), bytes],
            (Sabotage::SwapsPushes, Frame::Push { .. }) => match self.held.take() {
                Some(earlier) => vec![bytes, earlier],
                None => {
                    self.held = Some(bytes);
                    vec![]
                }
            },
            (Sabotage::DelaysBeats, Frame::Live { .. }) if self.held.is_none() => {
                self.held = Some(bytes);
                vec![]
            }
            (Sabotage::DelaysBeats, _) => [Some(bytes), self.held.take()].into_iter().flatten().collect(),
            (
                Sabotage::ChangesCodes,
                Frame::Error {
                    retry_after_s,
                    detail,
                    ..
                },
            ) => vec![encoded(&Frame::Error {
                code: Code::EnvelopeTooLarge,
                retry_after_s,
                detail,
            })],
            (Sabotage::ChangesSeqs, Frame::SendAck { hash, seq }) => {
                vec![encoded(&Frame::SendAck { hash, seq: seq + 1 })]
            }
            (Sabotage::ClosesInsteadOfRefusing, Frame::Error { .. }) => return None,
            _ => vec![bytes],
        };
        Some(changed)
    }
}

fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame.encode(&mut out);
    out
}
