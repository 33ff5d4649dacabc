//! The cases of the shared manifest that bytes alone decide, read as 04 ("Reading vectors/manifest.json") says.

use drover_wire::envelope::{CT_BYTES_MAX, Envelope};
use drover_wire::error::Code;
use drover_wire::frame::{BytesListBuf, Frame, Keys, Wake};
use drover_wire::id::{CallId, GroupId, PublicKey};

use crate::support::{AB, G, Row, ZERO, array, bytes, encoded, shared_rows};

/// Envelopes in array form, by the case of the manifest they stand for, and what decoding says of them. What is not
/// refused here is the accept path's to judge.
#[test]
fn envelopes_of_the_manifest_in_array_form() {
    let head = "01 01 5820 ab*32";
    let tail = "5820 aa*32 44 d0c0ffee";
    let cases: [(&str, String, Option<Code>); 10] = [
        (
            "env-valid-mls-first-link",
            format!("88 {head} 07 00 00 {tail}"),
            None,
        ),
        (
            "env-reject-version-unsupported",
            format!("88 02 01 5820 ab*32 07 00 00 {tail}"),
            None,
        ),
        (
            "env-reject-ct-empty",
            format!("88 {head} 07 00 00 5820 aa*32 40"),
            None,
        ),
        (
            "env-reject-ephemeral-retired",
            format!("89 {head} 07 00 00 {tail} 18f0"),
            Some(G),
        ),
        (
            "env-reject-unknown-map-key",
            format!("89 {head} 07 00 00 {tail} 01"),
            Some(G),
        ),
        (
            "env-reject-hash-wrong-length",
            format!("88 {head} 07 00 00 44 00112233 44 d0c0ffee"),
            Some(G),
        ),
        (
            "env-reject-indefinite-length-bstr",
            format!("88 {head} 07 00 00 5820 aa*32 5f44d0c0ffeeff"),
            Some(G),
        ),
        (
            "env-reject-nonshortest-integer",
            format!("88 {head} 1807 00 00 {tail}"),
            Some(G),
        ),
        (
            "env-reject-float-field",
            format!("88 {head} 07 00 f93c00 {tail}"),
            Some(G),
        ),
        (
            "env-reject-unsorted-map-keys",
            format!("a8 0201 0101 03 5820 ab*32 0407 0500 0600 07 {tail}"),
            Some(G),
        ),
    ];
    let manifest = shared_rows("manifest.json", "vectors");
    for (id, spelt, code) in cases {
        let refused = Envelope::decode(&bytes(&spelt)).err();
        assert_eq!(refused, code.map(Into::into), "{id}");
        assert!(
            manifest.is_empty() || manifest.iter().any(|row| row["id"] == id),
            "{id} is not in the manifest"
        );
    }
}

/// `hex:…`, `fill:N`, `fill:BB:N` or plain hex.
fn field(spelt: &str) -> Vec<u8> {
    match spelt
        .strip_prefix("fill:")
        .map(|fill| fill.split_once(':').unwrap_or(("00", fill)))
    {
        Some((byte, times)) => bytes(&format!("{byte}*{times}")),
        None => bytes(spelt.strip_prefix("hex:").unwrap_or(spelt)),
    }
}

/// Every frame and envelope the manifest spells out in fields survives the codec, whatever a relay says of it later,
/// except for what the codec itself refuses.
#[test]
fn fields_of_the_manifest_survive_the_codec() {
    let mut seen = 0;
    for row in shared_rows("manifest.json", "vectors") {
        let (id, fields) = (row.text("id"), &row["fields"]);
        let blob = |key: &str| field(fields.text(key));
        let (mut body, packages);
        let group = fields["group"].as_str().map_or(AB, |spelt| GroupId(array(spelt)));
        let frame = match (fields["tag"].as_u64(), fields["form"].as_u64()) {
            (Some(21), _) => {
                body = blob("ct");
                Frame::Live {
                    group,
                    epoch: fields.number("epoch"),
                    ct: &body,
                }
            }
            (Some(22), Some(1)) => {
                let spelt = fields["packages"].as_array().unwrap().iter();
                packages = spelt
                    .map(|spelt| field(spelt.as_str().unwrap()))
                    .collect::<BytesListBuf>();
                Frame::Keys(Keys::Publish {
                    packages: packages.as_list(),
                })
            }
            (Some(22), Some(3)) => {
                let (device, count) = (
                    PublicKey(array(fields.text("device"))),
                    fields.number("count") as u8,
                );
                Frame::Keys(Keys::Fetch { device, count })
            }
            (Some(23), _) => {
                body = blob("body");
                let (call_id, kind) = (CallId(array(fields.text("call_id"))), fields.number("kind") as u8);
                Frame::Call {
                    call_id,
                    group,
                    epoch: fields.number("epoch"),
                    kind,
                    body: &body,
                }
            }
            (Some(24), _) => {
                body = blob("ct");
                let (call_id, stream) = (
                    CallId(array(fields.text("call_id"))),
                    array(fields.text("stream")),
                );
                Frame::Media {
                    call_id,
                    stream,
                    seq: fields.number("seq"),
                    ct: &body,
                }
            }
            (Some(25), Some(1)) if id == "wake-reject-handle-wrong-length" => {
                let wire = bytes(&format!(
                    "8218198201834f {} 011b0000019fd5b02400",
                    fields.text("handle")
                ));
                let error = Frame::decode(&wire).expect_err(id);
                assert_eq!(
                    (error.refusal.code, error.closes),
                    (Code::PushHandleMalformed, false)
                );
                continue;
            }
            (Some(25), Some(1)) => {
                let (handle, categories) = (array(fields.text("handle")), fields.number("categories") as u8);
                Frame::Wake(Wake::Register {
                    handle,
                    categories,
                    expires_at_ms: fields.number("expires_at"),
                })
            }
            (Some(25), Some(3)) => Frame::Wake(Wake::Clear),
            (Some(25), Some(5)) => Frame::Wake(Wake::Query),
            _ if id.starts_with("env-") && fields["ct"].is_string() => {
                let ct = blob("ct");
                let (v, enc) = (fields.number("v") as u8, fields.number("enc") as u8);
                let epoch = fields.number("epoch");
                let envelope = Envelope {
                    v,
                    enc,
                    group,
                    epoch,
                    seq: 0,
                    ts_ms: 0,
                    hash: ZERO,
                    ct: &ct,
                };
                body = Vec::new();
                envelope.encode(&mut body);
                assert_eq!(Envelope::decode(&body), Ok(envelope), "{id}");
                assert!(ct.len() <= CT_BYTES_MAX + 1);
                Frame::Send { envelope: &body }
            }
            _ => continue,
        };
        assert_eq!(Frame::decode(&encoded(&frame)), Ok(frame), "{id}");
        seen += 1;
    }
    assert!(
        seen == 0 || seen > 25,
        "the manifest has changed its shape: {seen} cases"
    );
}
