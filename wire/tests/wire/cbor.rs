//! The subset of 01 §1 and the order of its checks.

use drover_wire::cbor::{Error, HeadBuf, Reader, Writer, head_len};

use crate::support::bytes;

/// Head forms: low bits, argument bytes, the least argument that is legal in that form.
const WIDTHS: [(u8, usize, u64); 4] = [(24, 1, 24), (25, 2, 256), (26, 4, 65_536), (27, 8, 1 << 32)];

fn head(major: u8, low: u8, width: usize, argument: u64) -> Vec<u8> {
    let mut out = vec![major << 5 | low];
    out.extend_from_slice(&argument.to_be_bytes()[8 - width..]);
    out
}

/// W01.3
#[test]
fn each_head_width_begins_where_the_shorter_one_ends() {
    for (low, width, least) in WIDTHS {
        let at = |major| head(major, low, width, least);
        let below = |major| head(major, low, width, least - 1);

        assert_eq!(Reader::new(&at(0)).uint(), Ok(least));
        assert_eq!(Reader::new(&below(0)).uint(), Err(Error::NonShortest));

        // A string or an array of 2^32 elements isn't held here: its head being legal shows in what is missing.
        let fits = least < 1 << 32;
        let filled = |mut head: Vec<u8>| {
            head.extend(std::iter::repeat_n(0, if fits { least as usize } else { 0 }));
            head
        };
        let expected = |size| if fits { Ok(size) } else { Err(Error::Truncated) };
        assert_eq!(
            Reader::new(&filled(at(2))).bytes().map(<[u8]>::len),
            expected(least as usize)
        );
        assert_eq!(Reader::new(&filled(below(2))).bytes(), Err(Error::NonShortest));
        assert_eq!(
            Reader::new(&filled(at(3))).text().map(str::len),
            expected(least as usize)
        );
        assert_eq!(Reader::new(&filled(below(3))).text(), Err(Error::NonShortest));
        assert_eq!(Reader::new(&filled(at(4))).array(), expected(least as usize));
        assert_eq!(Reader::new(&filled(below(4))).array(), Err(Error::NonShortest));
    }
}

#[test]
fn checks_run_in_the_order_of_the_specification() {
    use Error::*;
    let uint = |spelt: &str| Reader::new(&bytes(spelt)).u8();
    assert_eq!(uint(""), Err(Truncated), "1: no byte left");
    for low in 28..=31 {
        assert_eq!(Reader::new(&[4 << 5 | low]).u8(), Err(Reserved), "2 before 5");
    }
    assert_eq!(uint("58"), Err(Truncated), "3 before 5");
    assert_eq!(uint("5817"), Err(NonShortest), "4 before 5");
    assert_eq!(uint("7817"), Err(NonShortest), "4 before 5");
    for wrong in ["40", "80", "f6", "f4", "f93c00", "fb3ff0000000000000"] {
        assert_eq!(uint(wrong), Err(WrongType), "{wrong}");
    }
    for wrong in ["20", "60", "a0", "c100"] {
        assert_eq!(uint(wrong), Err(UnsupportedMajor), "{wrong}");
    }
    assert_eq!(uint("190100"), Err(OutOfRange));

    let fixed = |spelt: &str| Reader::new(&bytes(spelt)).fixed::<2>().copied();
    assert_eq!(fixed("4300"), Err(Truncated), "6 before 7");
    assert_eq!(fixed("430000 00"), Err(WrongLength));
    assert_eq!(fixed("420102"), Ok([1, 2]));

    let pair = |spelt: &str| Reader::new(&bytes(spelt)).array_of(2);
    assert_eq!(pair("8300"), Err(Truncated), "6 before 8");
    assert_eq!(pair("83000000"), Err(WrongCount));
    assert_eq!(pair("820000"), Ok(()));
}

#[test]
fn simple_values_are_exactly_false_true_and_null() {
    for (value, spelt) in [(false, "f4"), (true, "f5")] {
        assert_eq!(Reader::new(&bytes(spelt)).bool(), Ok(value));
    }
    assert_eq!(Reader::new(&bytes("f6")).null(), Ok(()));
    for wrong in ["f0", "f6", "f7", "f820", "f8ff", "f93c00", "00", "40"] {
        assert_eq!(
            Reader::new(&bytes(wrong)).bool(),
            Err(Error::WrongType),
            "{wrong}"
        );
    }
    for wrong in ["f4", "f7", "f8ff", "40"] {
        assert_eq!(
            Reader::new(&bytes(wrong)).null(),
            Err(Error::WrongType),
            "{wrong}"
        );
    }
    // 20 and 22 in the long form: refused for their heads, before anyone asks for the type.
    assert_eq!(Reader::new(&bytes("f814")).bool(), Err(Error::NonShortest));
    assert_eq!(Reader::new(&bytes("f816")).null(), Err(Error::NonShortest));
}

#[test]
fn text_must_be_utf_8() {
    assert_eq!(Reader::new(&bytes("62c3a4")).text(), Ok("ä"));
    assert_eq!(Reader::new(&bytes("62c328")).text(), Err(Error::InvalidText));
    assert_eq!(Reader::new(&bytes("42c3a4")).text(), Err(Error::WrongType));
}

#[test]
fn integers_are_limited_to_the_width_of_their_field() {
    assert_eq!(Reader::new(&bytes("18ff")).u8(), Ok(u8::MAX));
    assert_eq!(Reader::new(&bytes("190100")).u8(), Err(Error::OutOfRange));
    assert_eq!(Reader::new(&bytes("19ffff")).u16(), Ok(u16::MAX));
    assert_eq!(Reader::new(&bytes("1a00010000")).u16(), Err(Error::OutOfRange));
    assert_eq!(Reader::new(&bytes("1affffffff")).u32(), Ok(u32::MAX));
    assert_eq!(
        Reader::new(&bytes("1b0000000100000000")).u32(),
        Err(Error::OutOfRange)
    );
    assert_eq!(Reader::new(&bytes("1b ff*8")).uint(), Ok(u64::MAX));
}

#[test]
fn the_length_of_a_head_is_the_length_written() {
    let boundaries = WIDTHS.iter().flat_map(|&(_, _, least)| [least - 1, least]);
    for argument in boundaries.chain([0, 1, u64::MAX]) {
        let mut heads = HeadBuf::new();
        Writer::new(&mut heads).uint(argument);
        assert_eq!(heads.len(), head_len(argument), "{argument}");
        assert_eq!(Reader::new(&heads).uint(), Ok(argument));
    }
}
