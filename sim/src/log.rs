//! What the engine logs, read as it is written: no line may carry an address, a key, a token, a code or a group's whole
//! name (architecture.md §9, invariant 7; 13 §d.1).

use std::cell::RefCell;
use std::fmt::{self, Write};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Runs with this thread's log caught.
pub(crate) fn caught<R>(run: impl FnOnce() -> R) -> R {
    LINES.with_borrow_mut(Vec::clear);
    tracing::subscriber::with_default(Catcher, run)
}

/// The lines since the last call.
pub(crate) fn lines() -> Vec<String> {
    LINES.with_borrow_mut(std::mem::take)
}

/// The beginning of a name in hexadecimal digits, longer than a line may show.
pub(crate) fn hex(name: &[u8], bytes: usize) -> String {
    name.iter().take(bytes).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

struct Catcher;

impl Subscriber for Catcher {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        LINES.with_borrow_mut(|lines| lines.push(line.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}
