//! Random bytes from the operating system.

/// `N` fresh random bytes.
///
/// # Panics
/// When the operating system has no random source: nothing safe could be done then.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    getrandom::fill(&mut out).expect("the operating system's random source");
    out
}
