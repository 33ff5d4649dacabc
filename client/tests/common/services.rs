//! What the model relay keeps besides groups: shelves, wraps, records, registrations. One workspace, one device, and no
//! rule that the client does not depend on.

use std::collections::HashMap;

use drover_client::wire::blob::{self, Position};
use drover_client::wire::drop::{self, Answer, Verdict};
use drover_client::wire::error::{Code, Detail, Refusal};
use drover_client::wire::frame::{BytesListBuf, Frame, Keys, Wake, encode_refusal};
use drover_client::wire::id::{Hash, WrapTag};
use drover_client::wire::invite_admin;
use drover_client::wire::retention::{Control, Manifest};
use drover_client::wire::wrap::Wrap;

use super::model::bytes;

#[derive(Default)]
pub struct Services {
    pub shelf: Vec<Vec<u8>>,
    pub wraps: HashMap<WrapTag, u64>,
    pub control: Option<Control>,
    pub manifest: Option<Manifest>,
    pub refreshed: Vec<Vec<u8>>,
    pub push: bool,
    pub registered: Option<([u8; 16], u8)>,
    /// Answers with a digest that is not the record's.
    pub lies: bool,
}

fn refused(refusal: impl Into<Refusal>) -> Vec<u8> {
    let mut out = Vec::new();
    encode_refusal(&refusal.into(), &mut out);
    out
}

impl Services {
    /// The answer to a frame of this kind; `None` for any other.
    pub fn answer(&mut self, frame: &Frame<'_>) -> Option<Vec<u8>> {
        Some(match frame {
            Frame::Keys(Keys::Publish { packages }) => {
                if self.shelf.len() + packages.len() > 100 {
                    return Some(refused(
                        Refusal::plain(Code::SeatsExhausted).with(Detail::Number(100)),
                    ));
                }
                self.shelf.extend(packages.iter().map(<[u8]>::to_vec));
                bytes(&Frame::Keys(Keys::Published {
                    remaining: self.shelf.len() as u32,
                }))
            }
            Frame::Keys(Keys::Fetch { count, .. }) => {
                let taken = self.shelf.len().min(usize::from(*count));
                let list: BytesListBuf = self.shelf.drain(..taken).collect();
                bytes(&Frame::Keys(match taken {
                    0 => Keys::None,
                    _ => Keys::Bundles {
                        packages: list.as_list(),
                    },
                }))
            }
            Frame::Wrap { body } => {
                let wrap = Wrap::decode(body).unwrap();
                match self.wraps.get(&wrap.tag) {
                    Some(stored) if wrap.epoch <= *stored => {
                        refused(Refusal::plain(Code::WrapNotNewer).with(Detail::Number(*stored)))
                    }
                    _ => {
                        self.wraps.insert(wrap.tag, wrap.epoch);
                        bytes(&Frame::Wrap { body: &wrap.tag.0 })
                    }
                }
            }
            Frame::Drop { payload } => {
                let request = drop::Request::decode(payload).unwrap();
                let answer = match &self.control {
                    None => Answer::Against(Verdict::NoRetentionChain),
                    Some(control) if control.epoch != request.epoch => {
                        Answer::Against(Verdict::StaleEpoch(control.epoch))
                    }
                    Some(_) => Answer::Ran {
                        deleted: 3,
                        bytes: 45,
                        kept: request.snapshots.len() as u64,
                    },
                };
                bytes(&Frame::Drop {
                    payload: &answer.encode(),
                })
            }
            Frame::Blob { payload } => {
                let response = self.blob(blob::Request::decode(payload).unwrap());
                bytes(&Frame::Blob {
                    payload: &response.encode(),
                })
            }
            Frame::Invite { body } => match invite_admin::Request::decode(body).unwrap() {
                invite_admin::Request::Refresh { ct, .. } => {
                    self.refreshed.push(ct.to_vec());
                    bytes(&Frame::Invite {
                        body: &invite_admin::Response::Refreshed.encode(),
                    })
                }
                _ => return None,
            },
            Frame::Wake(Wake::Query) if self.push => bytes(&Frame::Wake(Wake::Capability {
                enabled: true,
                register_url: "https://ringer.example/v1/handles",
            })),
            Frame::Wake(Wake::Register { .. } | Wake::Clear) if !self.push => {
                refused(Code::PushNotConfigured)
            }
            Frame::Wake(Wake::Register {
                handle,
                categories,
                expires_at_ms,
            }) => {
                self.registered = Some((*handle, *categories));
                bytes(&Frame::Wake(Wake::Registered {
                    expires_at_ms: *expires_at_ms,
                }))
            }
            Frame::Wake(Wake::Clear) => {
                self.registered = None;
                bytes(&Frame::Wake(Wake::Cleared))
            }
            _ => return None,
        })
    }

    fn blob(&mut self, request: blob::Request<'_>) -> blob::Response<'static> {
        let ack = |digest| blob::Response::Ack(if self.lies { Hash([0; 32]) } else { digest });
        match request {
            blob::Request::Control(control) => {
                let answer = ack(control.digest());
                self.control = Some(control);
                answer
            }
            blob::Request::Manifest(manifest) => {
                let answer = ack(manifest.digest());
                self.manifest = Some(manifest);
                answer
            }
            blob::Request::Policy(policy) => ack(policy.digest()),
            blob::Request::Destruction(destruction) => ack(destruction.digest()),
            blob::Request::Resolution(_) => blob::Response::Resolved,
            blob::Request::Position { .. } => blob::Response::Position(Position {
                control_epoch: self.control.as_ref().map_or(0, |control| control.epoch),
                control_digest: self.control.as_ref().map(Control::digest),
                next_sequence: self.manifest.as_ref().map_or(1, |manifest| manifest.sequence + 1),
                prev_manifest: self.manifest.as_ref().map(Manifest::digest),
                blobs: self
                    .manifest
                    .as_ref()
                    .map_or(vec![], |manifest| manifest.blobs.clone()),
            }),
            other => panic!("the model does not speak form {}", other.form()),
        }
    }
}
