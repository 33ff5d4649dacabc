//! The last line of defence for logs (13 §d.2): what looks like a secret in a finished line becomes `[redacted]`. The
//! program is written so that nothing here should ever match.
//!
//! Works on bytes, since every pattern is ASCII: text in other scripts is never cut, and a line that is not UTF-8 is
//! still written.

use crate::config::is_setting;
use std::ops::Range;

const MARKER: &[u8] = b"[redacted]";

/// Names whose value is a secret.
const NAMES: [&[u8]; 15] = [
    b"password",
    b"passwd",
    b"secret",
    b"token",
    b"authorization",
    b"api_key",
    b"apikey",
    b"access_key",
    b"secret_key",
    b"session",
    b"cookie",
    b"private_key",
    b"credential",
    b"handle",
    b"push_handle",
];

/// The shortest run of key characters that counts as a key.
const RUN_BYTES_MIN: usize = 20;

/// More passes than any line needs; each one has fewer hits left to find.
const PASSES_MAX: usize = 16;

/// The line with every hit replaced. Texts in `safe` were marked by the program and are left alone where they stand by
/// themselves. Scrubbing the result again changes nothing.
pub(super) fn scrub(line: &[u8], safe: &[String]) -> Vec<u8> {
    let mut line = pass(line, safe);
    // A marker can swallow what ended a value; the next pass then sees a longer one.
    for _ in 0..PASSES_MAX {
        let next = pass(&line, safe);
        if next == line {
            break;
        }
        line = next;
    }
    line
}

fn pass(line: &[u8], safe: &[String]) -> Vec<u8> {
    let mut out = Vec::with_capacity(line.len() + MARKER.len());
    let mut from = 0;
    while let Some(span) = next_safe(line, from, safe) {
        scrub_piece(&line[from..span.start], &mut out);
        out.extend_from_slice(&line[span.clone()]);
        from = span.end;
    }
    scrub_piece(&line[from..], &mut out);
    out
}

/// The first place at or after `from` where a safe text stands between delimiters; the longest one there.
fn next_safe(line: &[u8], from: usize, safe: &[String]) -> Option<Range<usize>> {
    let opens = |at: usize| at == 0 || matches!(line[at - 1], b'"' | b'=' | b' ');
    let ends = |at: usize| line.get(at).is_none_or(|b| matches!(b, b'"' | b' ' | b'\n'));
    (from..line.len()).filter(|at| opens(*at)).find_map(|at| {
        let here = safe.iter().map(|text| text.as_bytes());
        let fits =
            here.filter(|text| !text.is_empty() && line[at..].starts_with(text) && ends(at + text.len()));
        fits.map(<[u8]>::len).max().map(|len| at..at + len)
    })
}

fn scrub_piece(piece: &[u8], out: &mut Vec<u8>) {
    let mut hits = Vec::new();
    for at in 0..piece.len() {
        hits.extend(url_password(piece, at));
        hits.extend(bearer(piece, at));
        hits.extend(named_value(piece, at));
    }
    hits.extend(key_runs(piece));
    hits.sort_by_key(|hit| (hit.bytes.start, hit.bytes.end));
    let mut done = 0;
    let mut hits = hits.into_iter().peekable();
    while let Some(mut hit) = hits.next() {
        while let Some(next) = hits.next_if(|next| next.bytes.start <= hit.bytes.end) {
            hit.bytes.end = hit.bytes.end.max(next.bytes.end);
            hit.quote |= next.quote && next.bytes == hit.bytes;
        }
        out.extend_from_slice(&piece[done..hit.bytes.start]);
        let quote: &[u8] = if hit.quote { b"\"" } else { b"" };
        out.extend([quote, MARKER, quote].concat());
        done = hit.bytes.end;
    }
    out.extend_from_slice(&piece[done..]);
}

struct Hit {
    bytes: Range<usize>,
    /// The marker needs quotes, or a JSON line would not be JSON any more.
    quote: bool,
}

impl Hit {
    fn of(bytes: Range<usize>) -> Option<Self> {
        (!bytes.is_empty()).then_some(Self { bytes, quote: false })
    }
}

fn ends_word(b: u8) -> bool {
    b.is_ascii_whitespace() || matches!(b, b'"' | b'\'' | b'\\' | b'<' | b'>')
}

/// Pattern 1, at the `://` of an address: what stands between the user's colon and the last `@`.
fn url_password(line: &[u8], at: usize) -> Option<Hit> {
    let start = at + 3;
    if !line[at..].starts_with(b"://") {
        return None;
    }
    let len = line[start..]
        .iter()
        .position(|b| ends_word(*b))
        .unwrap_or(line.len() - start);
    let address = &line[start..start + len];
    let end = address.iter().rposition(|b| *b == b'@')?;
    let colon = address[..end].iter().position(|b| *b == b':')?;
    Hit::of(start + colon + 1..start + end)
}

/// Pattern 2: what follows `Bearer` and blanks.
fn bearer(line: &[u8], at: usize) -> Option<Hit> {
    let word = b"bearer";
    if !line.get(at..at + word.len())?.eq_ignore_ascii_case(word) {
        return None;
    }
    let start = skip_blanks(line, at + word.len());
    if start == at + word.len() {
        return None;
    }
    let len = line[start..]
        .iter()
        .position(|b| ends_word(*b))
        .unwrap_or(line.len() - start);
    Hit::of(start..start + len)
}

/// Pattern 3: the value after a telling name, quoted or not, also within a quoted text of a JSON line.
fn named_value(line: &[u8], at: usize) -> Option<Hit> {
    let fits = |name: &&[u8]| {
        line.get(at..at + name.len())
            .is_some_and(|text| text.eq_ignore_ascii_case(name))
    };
    let name = NAMES.iter().copied().filter(fits).max_by_key(|name| name.len())?;
    let (_, after_name) = skip_quote(line, at + name.len());
    let quoted_name = after_name > at + name.len();
    let sign = skip_blanks(line, after_name);
    if !matches!(line.get(sign)?, b'=' | b':') {
        return None;
    }
    let value = skip_blanks(line, sign + 1);
    let (quote, start) = skip_quote(line, value);
    if start > value {
        // Closed by the same quote behind no more backslashes than opened it.
        let depth = start - value - 1;
        let mut backslashes = 0;
        let end = (start..line.len()).find(|i| {
            let closes = Some(line[*i]) == quote && backslashes <= depth;
            backslashes = if line[*i] == b'\\' { backslashes + 1 } else { 0 };
            closes || line[*i] == b'\n'
        });
        let end = end.unwrap_or(line.len());
        let escapes = line[start..end]
            .iter()
            .rev()
            .take(depth)
            .take_while(|b| **b == b'\\')
            .count();
        return Hit::of(start..end - escapes);
    }
    let ends = |b: &u8| ends_word(*b) || matches!(b, b',' | b';' | b'&' | b'}' | b')');
    let end = line[value..]
        .iter()
        .position(ends)
        .map_or(line.len(), |len| value + len);
    Hit::of(value..end).map(|hit| Hit {
        quote: quoted_name && line[at + name.len()] == b'"',
        ..hit
    })
}

fn skip_blanks(line: &[u8], mut at: usize) -> usize {
    while matches!(line.get(at), Some(b' ' | b'\t')) {
        at += 1;
    }
    at
}

/// A quote with the backslashes before it, if one stands here, and where it ends.
fn skip_quote(line: &[u8], at: usize) -> (Option<u8>, usize) {
    let backslashes = line[at..].iter().take_while(|b| **b == b'\\').count();
    match line.get(at + backslashes) {
        Some(quote @ (b'"' | b'\'')) => (Some(*quote), at + backslashes + 1),
        _ => (None, at),
    }
}

/// Pattern 4: long runs of characters that keys are written in, with at least one digit or capital. The name of a
/// setting is one too, and no secret.
fn key_runs(line: &[u8]) -> Vec<Hit> {
    let key = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=' | b'-' | b'_');
    let mut hits = Vec::new();
    let mut at = 0;
    for run in line.split(|b| !key(b)) {
        let is_key =
            run.len() >= RUN_BYTES_MIN && run.iter().any(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
        if is_key && !is_setting(run) {
            hits.extend(Hit::of(at..at + run.len()));
        }
        at += run.len() + 1;
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scrubbed(line: &str) -> String {
        String::from_utf8(scrub(line.as_bytes(), &[])).expect("text stays text")
    }

    /// W13.59: the four patterns with planted secrets.
    #[test]
    fn planted_secrets_become_the_marker() {
        for (line, want) in [
            (
                "postgres://weald:hunter2@db/weald",
                "postgres://weald:[redacted]@db/weald",
            ),
            (
                "postgres://weald:p@ss/w@db/weald",
                "postgres://weald:[redacted]@db/weald",
            ),
            (
                "Authorization: Bearer abc",
                "Authorization: [redacted] [redacted]",
            ),
            ("got bearer  abc, said no", "got bearer  [redacted] said no"),
            ("password=hunter2 rest", "password=[redacted] rest"),
            (
                "Secret_Key : \"two words\" rest",
                "Secret_Key : \"[redacted]\" rest",
            ),
            (
                "api_key='x', cookie: y; z",
                "api_key='[redacted]', cookie: [redacted]; z",
            ),
            ("push_handle=ab12", "push_handle=[redacted]"),
            (r#"{"token":"a","n":1}"#, r#"{"token":"[redacted]","n":1}"#),
            (r#"{"session":5,"n":1}"#, r#"{"session":"[redacted]","n":1}"#),
            (
                r#"{"message":"token=\"a b\" rest"}"#,
                r#"{"message":"token=\"[redacted]\" rest"}"#,
            ),
            (r#"{"token":"a\"b","n":1}"#, r#"{"token":"[redacted]","n":1}"#),
            ("token=\"unclosed", "token=\"[redacted]"),
            ("key 0123456789abcdef0123 end", "key [redacted] end"),
            ("key=AAAAAAAAAAAAAAAAAAAA=", "[redacted]"),
            ("x token=ABCDEFGHIJKLMNOPQRSTUVWXYZ y", "x [redacted] y"),
            ("ключ0123456789abcdef0123ключ", "ключ[redacted]ключ"),
            ("password=пароль конец", "password=[redacted] конец"),
        ] {
            assert_eq!(scrubbed(line), want, "{line}");
        }
    }

    #[test]
    fn ordinary_text_survives() {
        for line in [
            "a short id ab12cd and an ordinary sentence",
            "group 0123456789ab was downgraded",
            "averyveryverylongwordwithoutanything",
            r#"{"timestamp":"2026-01-02T03:04:05.678901Z","level":"INFO","fields":{"message":"wealdrelay listening"},"target":"drover::boot"}"#,
            "the token was refused",
            "WEALD_RELAY_TRUSTED_PROXY_HOPS is 0",
            "sessions: 5, handles: 3",
            "https://relay.example/path",
        ] {
            assert_eq!(scrubbed(line), line);
        }
    }

    #[test]
    fn a_safe_text_stays_where_it_stands_alone() {
        let path = "file:///tmp/weald-relay-0123456789/blobs".to_owned();
        let safe = [path.clone(), "mls".to_owned()];
        let json = format!(r#"{{"storage":"{path}","min_enc":"mls","other":"0123456789abcdef0123"}}"#);
        let kept = String::from_utf8(scrub(json.as_bytes(), &safe)).unwrap();
        assert_eq!(kept, json.replace("0123456789abcdef0123", "[redacted]"));
        let text = format!("storage={path} min_enc=mls\n");
        assert_eq!(scrub(text.as_bytes(), &safe), text.as_bytes());
        let within = b"0123456789mls0123456789abcdef";
        assert_eq!(
            scrub(within, &safe),
            MARKER,
            "part of a longer run is no safe text"
        );
    }

    #[test]
    fn a_line_that_is_not_text_is_still_written() {
        assert_eq!(
            scrub(b"\xff\xfe token=abc \xff", &[]),
            b"\xff\xfe token=[redacted] \xff"
        );
    }

    proptest! {
        /// W13.59: scrubbing twice is scrubbing once, whatever the line.
        #[test]
        fn scrubbing_is_idempotent(line in r#"([a-zA-Z0-9 =:;,@/\\"'{}&éж]|://|token|Bearer |password|handle|[A-Z0-9]{20}){0,30}"#) {
            let once = scrubbed(&line);
            prop_assert_eq!(&scrubbed(&once), &once);
        }

        #[test]
        fn a_planted_key_never_survives(before in "[a-zé \"=]{0,10}", key in "[A-Z][A-Za-z0-9+/=_-]{19,40}", after in "[ \"é]") {
            let line = format!("{before}{key}{after}");
            let out = scrubbed(&line);
            prop_assert!(!out.contains(&key));
        }
    }
}
