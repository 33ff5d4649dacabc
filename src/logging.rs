//! Log lines (13 §d): one JSON object or one text line each, on stdout, through the scrubber. What the scrubber would
//! eat and operators need is marked with [`Safe`] by the code that logs it.

mod scrub;

use crate::config::{Config, Key};
use std::cell::RefCell;
use std::fmt;
use std::io::{self, Write};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

thread_local! {
    /// Texts marked safe in the line this thread is formatting. A line is formatted and written by one thread.
    static SAFE: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A field the scrubber must leave alone: `info!(listen = %Safe(address))`.
pub(crate) struct Safe<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Display for Safe<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        f.write_str(&text)?;
        SAFE.with_borrow_mut(|safe| safe.push(text));
        Ok(())
    }
}

/// Installs the log writer for the process.
pub(crate) fn install(config: &Config) {
    // A level our list of words has and the parser lacks does not exist.
    let level = config.word(Key::LogLevel).parse().unwrap_or(LevelFilter::INFO);
    let _ = subscriber(level, config.word(Key::LogFormat) == "json", Scrubbed(io::stdout)).try_init();
    if log::set_logger(&StoreErrors).is_ok() {
        log::set_max_level(log::LevelFilter::Error);
    }
}

/// The one library heard through `log`: when the store's background work dies, only it knows of what.
struct StoreErrors;

impl log::Log for StoreErrors {
    fn enabled(&self, about: &log::Metadata<'_>) -> bool {
        let is_store = ["fjall", "lsm_tree"]
            .into_iter()
            .any(|name| about.target().split("::").next() == Some(name));
        is_store && about.level() == log::Level::Error
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            // No error of fjall carries content.
            tracing::error!(error = %record.args(), "the store's library failed");
        }
    }

    fn flush(&self) {}
}

/// Other people's crates never speak below info: they don't know what must not be logged (13 §d.1).
fn subscriber<W>(level: LevelFilter, json: bool, writer: W) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = Targets::new()
        .with_default(level.min(LevelFilter::INFO))
        .with_target("drover", level);
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(writer);
    if json {
        let lines = lines.json().with_current_span(false).with_span_list(false);
        Box::new(registry.with(lines))
    } else {
        Box::new(registry.with(lines))
    }
}

/// A writer whose every line goes through the scrubber.
struct Scrubbed<F>(F);

impl<'a, F, W> MakeWriter<'a> for Scrubbed<F>
where
    F: Fn() -> W,
    W: Write,
{
    type Writer = Line<W>;

    fn make_writer(&'a self) -> Self::Writer {
        Line(self.0())
    }
}

/// One line on its way out. The formatter hands over whole lines.
struct Line<W>(W);

impl<W: Write> Write for Line<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let safe = SAFE.take();
        self.0.write_all(&scrub::scrub(line, &safe))?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no test panics while writing").write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(level: LevelFilter, json: bool, body: impl FnOnce()) -> String {
        let sink = Sink::default();
        let copy = sink.clone();
        tracing::subscriber::with_default(subscriber(level, json, Scrubbed(move || copy.clone())), body);
        let bytes = sink.0.lock().expect("no test panics while writing").clone();
        String::from_utf8(bytes).expect("log lines are UTF-8")
    }

    /// W13.59: marked fields arrive, unmarked secrets don't, and the line stays one JSON object.
    #[test]
    fn a_line_is_one_json_object_with_its_safe_fields() {
        let path = "file:///tmp/weald-relay-0123456789/blobs";
        let out = logged(LevelFilter::INFO, true, || {
            tracing::info!(storage = %Safe(path), secret_thing = "0123456789abcdef0123", "wealdrelay listening");
            tracing::info!(storage = path, "not marked");
        });
        let lines: Vec<serde_json::Value> = out
            .lines()
            .map(|l| serde_json::from_str(l).expect("JSON"))
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0]["fields"]["message"], "wealdrelay listening");
        assert_eq!(lines[0]["fields"]["storage"], path);
        assert_eq!(lines[0]["fields"]["secret_thing"], "[redacted]");
        assert_eq!(
            lines[1]["fields"]["storage"], "file:[redacted]",
            "a mark holds for one line"
        );
        for line in &lines {
            assert!(line["timestamp"].as_str().is_some_and(|t| t.ends_with('Z')));
            assert_eq!(line["level"], "INFO");
            assert_eq!(line["target"], "drover::logging::tests");
        }
    }

    /// W13.43: the level can be raised, and only ours is.
    #[test]
    fn the_level_is_ours_alone() {
        let speak = || {
            tracing::debug!("ours");
            tracing::debug!(target: "hyper::proto", "theirs");
            tracing::info!(target: "hyper::proto", "their info");
        };
        assert!(!logged(LevelFilter::INFO, false, speak).contains("ours"));
        let raised = logged(LevelFilter::DEBUG, false, speak);
        assert!(
            raised.contains("ours") && !raised.contains("theirs") && raised.contains("their info"),
            "{raised}"
        );
        assert_eq!(logged(LevelFilter::ERROR, false, speak), "");
    }

    #[test]
    fn of_the_store_s_library_errors_are_heard_and_nothing_else() {
        use log::{Level, Log as _, Record};
        let say = |target: &str, level, what: &str| {
            StoreErrors.log(
                &Record::builder()
                    .target(target)
                    .level(level)
                    .args(format_args!("{what}"))
                    .build(),
            );
        };
        let out = logged(LevelFilter::INFO, true, || {
            say("fjall::worker_pool", Level::Error, "Too many open files");
            say("fjall::worker_pool", Level::Warn, "slow");
            say("fjallraven", Level::Error, "cold");
            say("rustls", Level::Error, "alert");
        });
        assert_eq!(out.lines().count(), 1, "{out}");
        assert!(out.contains("Too many open files"), "{out}");
    }

    #[test]
    fn a_failed_write_is_told() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert_eq!(
            Line(Full).write(b"x").unwrap_err().kind(),
            io::ErrorKind::StorageFull
        );
    }
}
