//! Frames to bytes: each has one encoding, appended to a buffer of the caller.

use super::{Frame, Keys, Wake};
use crate::cbor::Writer;
use crate::error::Refusal;

impl Frame<'_> {
    /// Appends the frame's only encoding to `out`. The caller keeps it under
    /// [`FRAME_BYTES_MAX`](super::FRAME_BYTES_MAX).
    pub fn encode(&self, out: &mut Vec<u8>) {
        let w = &mut Writer::new(out);
        w.array(2).uint(self.tag());
        match *self {
            Frame::Connect {
                version,
                groups,
                sent_at_ms,
            } => {
                w.array(3).uint(version);
                groups.write(w);
                w.uint(sent_at_ms);
            }
            Frame::ConnectAck {
                version,
                server_time_ms,
                min_enc,
            } => {
                w.array(3).uint(version).uint(server_time_ms).uint(min_enc);
            }
            Frame::AuthChallenge { challenge } => {
                w.array(1).bytes(challenge);
            }
            Frame::Auth {
                device_key,
                signature,
            } => {
                w.array(2).bytes(device_key).bytes(signature);
            }
            Frame::AuthAck {
                key_packages_remaining,
                write_mode,
                build_digest,
                access_set,
                min_enc,
            } => {
                w.array(5).uint(key_packages_remaining).uint(write_mode);
                w.bytes(build_digest).uint(access_set).uint(min_enc);
            }
            Frame::Sub { group, from_seq: seq } | Frame::SubAck { group, head_seq: seq } => {
                w.array(2).bytes(group).uint(seq);
            }
            Frame::Recon { group, payload } => {
                w.array(2).bytes(group).bytes(payload);
            }
            Frame::SendAck { hash, seq } => {
                w.array(2).bytes(hash).uint(seq);
            }
            Frame::Access { body }
            | Frame::Push { envelope: body }
            | Frame::Send { envelope: body }
            | Frame::Blob { payload: body }
            | Frame::Bye { reason: body }
            | Frame::Wrap { body }
            | Frame::Join { body }
            | Frame::Drop { payload: body }
            | Frame::Invite { body } => {
                w.array(1).bytes(body);
            }
            Frame::Error {
                code,
                retry_after_s,
                detail,
            } => {
                w.array(4).bytes(code.class().as_str()).bytes(code.as_str());
                w.uint(retry_after_s).bytes(detail);
            }
            Frame::Handshake { group, seq, message } => {
                w.array(3).bytes(group).uint(seq).bytes(message);
            }
            Frame::Live { group, epoch, ct } => {
                w.array(3).bytes(group).uint(epoch).bytes(ct);
            }
            Frame::Keys(keys) => keys.write(w),
            Frame::Call {
                call_id,
                group,
                epoch,
                kind,
                body,
            } => {
                w.array(5)
                    .bytes(call_id)
                    .bytes(group)
                    .uint(epoch)
                    .uint(kind)
                    .bytes(body);
            }
            Frame::Media {
                call_id,
                stream,
                seq,
                ct,
            } => {
                w.array(4).bytes(call_id).bytes(stream).uint(seq).bytes(ct);
            }
            Frame::Wake(wake) => wake.write(w),
        }
    }
}

impl Keys<'_> {
    fn write(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.array(2);
        match *self {
            Keys::Publish { packages } => packages.write(w.uint(1u8)),
            Keys::Published { remaining } => {
                w.uint(2u8).array(1).uint(remaining);
            }
            Keys::Fetch { device, count } => {
                w.uint(3u8).array(2).bytes(device).uint(count);
            }
            Keys::Bundles { packages } => packages.write(w.uint(4u8)),
            Keys::None => {
                w.uint(5u8).array(0);
            }
        }
    }
}

impl Wake<'_> {
    fn write(&self, w: &mut Writer<&mut Vec<u8>>) {
        w.array(2);
        match *self {
            Wake::Register {
                handle,
                categories,
                expires_at_ms,
            } => w
                .uint(1u8)
                .array(3)
                .bytes(handle)
                .uint(categories)
                .uint(expires_at_ms),
            Wake::Registered { expires_at_ms } => w.uint(2u8).array(1).uint(expires_at_ms),
            Wake::Clear => w.uint(3u8).array(0),
            Wake::Cleared => w.uint(4u8).array(0),
            Wake::Query => w.uint(5u8).array(0),
            Wake::Capability {
                enabled,
                register_url,
            } => w.uint(6u8).array(2).bool(enabled).text(register_url),
        };
    }
}

/// Appends an ERROR frame.
pub fn encode_refusal(refusal: &Refusal, out: &mut Vec<u8>) {
    refusal.detail.with_bytes(|detail| {
        Frame::Error {
            code: refusal.code,
            retry_after_s: refusal.retry_after_s,
            detail,
        }
        .encode(out);
    });
}

/// Appends the head of a PUSH frame that carries `envelope_bytes` bytes of envelope: the envelope follows unchanged.
pub fn push_head(envelope_bytes: usize, out: &mut Vec<u8>) {
    // Of a PUSH only the tag matters here; an empty one gives it without a second copy of the number.
    let tag = Frame::Push { envelope: &[] }.tag();
    Writer::new(out)
        .array(2)
        .uint(tag)
        .array(1)
        .bytes_head(envelope_bytes);
}
