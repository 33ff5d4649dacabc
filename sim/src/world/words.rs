//! What a frame is, in a few words for traces, and by its tag.

use drover_wire::envelope::Envelope;
use drover_wire::frame::Frame;
use drover_wire::id::Hash;
use drover_wire::map::{self, MapFrame};

/// The tag of a frame in the array form.
///
/// Of a map, the tag of its counterpart.
pub fn tag_of(message: &[u8]) -> u8 {
    if map::is_map(message) {
        return match message.get(2) {
            Some(1) => 2,
            Some(2) => 3,
            Some(3) => 7,
            Some(4) => 9,
            Some(5) => 10,
            Some(8) => 15,
            _ => 0,
        };
    }
    match message.get(1) {
        Some(0x18) => message.get(2).copied().unwrap_or_default(),
        Some(tag) => *tag,
        None => 0,
    }
}

/// A frame in a few words.
pub(super) fn describe(message: &[u8]) -> String {
    if map::is_map(message) {
        return match MapFrame::decode(message) {
            Ok(MapFrame::Send(e)) => format!("SEND (map) {:?} {:?}, {} bytes", e.group, e.hash, e.ct.len()),
            Ok(MapFrame::Push(e)) => format!("PUSH (map) {:?} {} {:?}", e.group, e.seq, e.hash),
            Ok(MapFrame::Error { code, .. }) => format!("ERROR (map) {code:?}"),
            Ok(_) => format!("tag {} as a map, {} bytes", tag_of(message), message.len()),
            Err(_) => format!("{} bytes that don't decode", message.len()),
        };
    }
    match Frame::decode(message) {
        Ok(Frame::Send { envelope }) => match Envelope::decode(envelope) {
            Ok(e) => format!("SEND {:?} {:?}, {} bytes", e.group, e.hash, e.ct.len()),
            Err(_) => "SEND".to_owned(),
        },
        Ok(Frame::Push { envelope }) => match Envelope::decode(envelope) {
            Ok(e) => format!("PUSH {:?} {} {:?}", e.group, e.seq, e.hash),
            Err(_) => "PUSH".to_owned(),
        },
        Ok(Frame::SendAck { hash, seq }) => format!("SEND_ACK {hash:?} {seq}"),
        Ok(Frame::Sub { group, from_seq }) => format!("SUB {group:?} from {from_seq}"),
        Ok(Frame::SubAck { group, head_seq }) => format!("SUB_ACK {group:?} head {head_seq}"),
        Ok(Frame::Handshake { group, seq, message }) => {
            format!("HANDSHAKE {group:?} {seq} {:?}", Hash::of(&[&group.0, message]))
        }
        Ok(Frame::Recon { group, payload }) => format!("RECON {group:?}, {} bytes", payload.len()),
        Ok(Frame::Error {
            code, retry_after_s, ..
        }) => format!("ERROR {code:?} after {retry_after_s} s"),
        Ok(Frame::Access { body }) => format!("ACCESS, {} bytes", body.len()),
        Ok(Frame::Call {
            call_id, group, kind, ..
        }) => format!("CALL {call_id:?} {group:?} kind {kind}"),
        Ok(Frame::Media {
            call_id,
            stream,
            seq,
            ct,
        }) => format!("MEDIA {call_id:?} {stream:?} {seq}, {} bytes", ct.len()),
        Ok(frame) => frame.name().to_owned(),
        Err(_) => format!("{} bytes that don't decode", message.len()),
    }
}
