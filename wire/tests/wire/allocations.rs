//! What is promised not to allocate, measured by an allocator that counts.
#![allow(unsafe_code)] // GlobalAlloc is an unsafe trait; see the reason at the block.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use drover_wire::access::AccessSet;
use drover_wire::envelope::Envelope;
use drover_wire::frame::{Frame, List32Buf};
use drover_wire::invite::Record;
use drover_wire::map::MapFrame;
use drover_wire::retention::Policy;
use drover_wire::{blob, drop, invite_admin, join, recon};

use crate::support::{AB, ZERO, bytes, encoded};

thread_local! {
    static ALLOCATED_BYTES: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed to the system's allocator unchanged. Counting touches a thread-local without a
// destructor, which neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED_BYTES.set(ALLOCATED_BYTES.get() + layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes that `f` asked the allocator for.
fn allocated<R>(f: impl FnOnce() -> R) -> (usize, R) {
    let before = ALLOCATED_BYTES.get();
    let result = f();
    (ALLOCATED_BYTES.get() - before, result)
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocated(|| Vec::<u8>::with_capacity(1000)).0, 1000);
}

#[test]
fn frames_and_envelopes_are_decoded_without_allocation() {
    let groups: List32Buf = (0..200).map(|n| [n; 32]).collect();
    let connect = encoded(&Frame::Connect {
        version: 4,
        groups: groups.as_list(),
        sent_at_ms: 1,
    });
    let (cost, frame) = allocated(|| Frame::decode(&connect));
    assert!(frame.is_ok());
    assert_eq!(cost, 0);

    let ct = vec![7; 1 << 20];
    let sent = Envelope {
        v: 1,
        enc: 1,
        group: AB,
        epoch: 7,
        seq: 0,
        ts_ms: 0,
        hash: ZERO,
        ct: &ct,
    };
    let mut envelope = Vec::new();
    sent.encode(&mut envelope);
    let send = encoded(&Frame::Send { envelope: &envelope });
    let (cost, hash) = allocated(|| match Frame::decode(&send) {
        Ok(Frame::Send { envelope }) => Envelope::decode(envelope).unwrap().content_hash(),
        other => panic!("{other:?}"),
    });
    assert_eq!(hash, sent.content_hash());
    assert_eq!(cost, 0);
}

/// The same of a SEND as a map.
#[test]
fn a_map_send_is_decoded_without_allocating() {
    let ct = vec![7; 1 << 20];
    let mut send = Vec::new();
    MapFrame::Send(Envelope {
        v: 1,
        enc: 1,
        group: AB,
        epoch: 7,
        seq: 0,
        ts_ms: 0,
        hash: ZERO,
        ct: &ct,
    })
    .encode(&mut send);
    let (cost, borrows) = allocated(|| match MapFrame::decode(&send) {
        Ok(MapFrame::Send(envelope)) => send.as_ptr_range().contains(&envelope.ct.as_ptr()),
        other => panic!("{other:?}"),
    });
    assert_eq!((cost, borrows), (0, true));
}

#[test]
fn ct_is_a_slice_of_the_message() {
    let mut message = Vec::new();
    Envelope {
        v: 1,
        enc: 1,
        group: AB,
        epoch: 7,
        seq: 0,
        ts_ms: 0,
        hash: ZERO,
        ct: b"sealed",
    }
    .encode(&mut message);
    let ct = Envelope::decode(&message).unwrap().ct;
    assert!(message.as_ptr_range().contains(&ct.as_ptr()));
}

/// The fields of an access set before its first list.
const HEAD: &str = "5820 00*32 00 5820 00*32 00";

/// Offers `body` to everything with lists in it: nothing accepts it, and what each keeps of an element is never more
/// than twelve times its encoding (a skipped range: 4 bytes become 48), nor more than what is there.
fn refused_within_bounds(case: &str, body: &[u8]) {
    let decoders: [fn(&[u8]) -> bool; 10] = [
        |body| AccessSet::decode(body).is_ok(),
        |body| Record::decode(body).is_ok(),
        |body| recon::decode(body).is_ok(),
        |body| join::Response::decode(1, body).is_some(),
        |body| invite_admin::Response::decode(body).is_ok(),
        |body| blob::Request::decode(body).is_ok(),
        |body| blob::Response::decode(body).is_ok(),
        |body| drop::Request::decode(body).is_ok(),
        |body| Policy::decode(body).is_ok(),
        |body| MapFrame::decode(body).is_ok(),
    ];
    for decoder in decoders {
        let (cost, accepted) = allocated(|| decoder(body));
        assert!(!accepted, "{case}");
        assert!(cost <= 12 * body.len(), "{case}: {cost} bytes for {}", body.len());
    }
}

/// W01.4: a count or length over the remaining input, wherever one is read.
#[test]
fn no_count_or_length_allocates_more_than_the_input_can_hold() {
    for oversized in [
        "9aff ffffff",
        "9b7fffffffffffffff",
        "990400",
        "991000",
        "5aff ffffff",
        "5b7fffffffffffffff",
    ] {
        let oversized = oversized.replace(' ', "");
        for around in [
            "82018304 LIST",
            "82018304 98ff 5820 00*32 LIST",
            "82168201 LIST",
            "820b81 LIST",
            "8218198201 83 LIST",
        ] {
            let message = bytes(&around.replace("LIST", &oversized));
            let (cost, frame) = allocated(|| Frame::decode(&message));
            assert!(frame.is_err(), "{around} {oversized}");
            assert_eq!(cost, 0, "{around} {oversized}");
        }
        // In front: what is decoded before the list. Behind it follows one element, so that a count that fits is
        // not refused for being empty.
        let cases = [
            format!("8201 {oversized} 8300 00f6"),
            format!("820181 831bffffffffffffffff02 {oversized} 5820 00*32"),
            format!("8b {HEAD} {oversized} 5820 00*32"),
            format!("8b {HEAD} 80 80 80 8301 80 {oversized} 825820 00*32 5840 00*64"),
            format!("8c 50 00*16 5820 00*32 5820 00*32 00 00 01 5820 00*32 {oversized} 5820 00*32"),
            format!("8201 {oversized} 835820 00*32 0040"),
            format!("8202 {oversized} 87 50 00*16 00 00 00 00 00 44 6c697665"),
            format!("8207 86 5820 00*32 00 01 f6 {oversized} 5820 00*32"),
            format!("8204 82 40 {oversized} 82 00 40"),
            format!("8208 87 5820 00*32 00 00 00 00 81 5820 00*32 {oversized} 82 5820 00*32 5840 00*64"),
            format!("820a 81 {oversized} 82 40 00"),
            format!("8201 87 5820 00*32 5820 00*32 {oversized} 5820 00*32"),
            format!("87 5820 00*32 00 00 00 00 {oversized} 5820 00*32"),
            format!("a3 0001 0101 02 {oversized} 5820 00*32"),
            format!("a3 0004 01 5820 00*32 02 {oversized} a3 0100 0201 03 5820 00*32"),
        ];
        for case in cases {
            refused_within_bounds(&case, &bytes(&case));
        }
    }
    // Counts that the bytes left could just hold, if an element took one byte.
    for case in [
        "82 01 98fa 00*250".to_owned(),
        "82 01 81 83 1b ff*8 02 98fa 00*250".to_owned(),
        format!("8b {HEAD} 98fa 00*250"),
        format!("8b {HEAD} 80 80 80 83 01 80 98fa 00*250"),
        "8c 50 00*16 5820 00*32 5820 00*32 00 00 01 5820 00*32 98fa 00*250".to_owned(),
        "82 02 98fa 00*250".to_owned(),
        "82 04 82 40 98fa 00*250".to_owned(),
        "82 0a 81 98fa 00*250".to_owned(),
        "82 07 86 5820 00*32 00 01 f6 98fa 00*250".to_owned(),
        "82 01 87 5820 00*32 5820 00*32 98fa 00*250".to_owned(),
        "a3 0004 01 5820 00*32 02 98fa a3 00*249".to_owned(),
    ] {
        refused_within_bounds(&case, &bytes(&case));
    }
}
