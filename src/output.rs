//! What commands print. A write that failed is remembered here, so that no command has to look after each line: it ends
//! with 74 then, unless the reader only went away (`| head`), who has seen enough.

use crate::cli::Failure;
use std::io::{self, ErrorKind, Write};

/// Standard output, or what stands in for it in tests.
pub(crate) struct Output<'a> {
    inner: &'a mut dyn Write,
    failed: Option<io::Error>,
}

impl<'a> Output<'a> {
    /// Nothing printed yet.
    pub(crate) fn new(inner: &'a mut dyn Write) -> Self {
        Self { inner, failed: None }
    }

    /// Prints all of it now, so that nothing is left to fail later. A failure is told by [`end`](Self::end); whoever prints what can't be had again looks at it
    /// at once.
    pub(crate) fn print(&mut self, text: &str) -> io::Result<()> {
        self.write_all(text.as_bytes())?;
        self.flush()
    }

    /// For who tells of a failure in another way.
    pub(crate) fn inner(&mut self) -> &mut dyn Write {
        self.inner
    }

    /// Whether nothing more can be printed, hence a command that only prints may stop.
    pub(crate) fn is_closed(&self) -> bool {
        self.failed.is_some()
    }

    /// How a command ends that ended so: what it found out or could not do goes before what could not be printed.
    pub(crate) fn end(self, ended: Result<(), Failure>) -> Result<(), Failure> {
        match self.failed {
            Some(error) if ended.is_ok() && error.kind() != ErrorKind::BrokenPipe => Err(Failure::output(
                format!("cannot write to standard output: {error}"),
            )),
            _ => ended,
        }
    }

    fn remember<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &done
            && error.kind() != ErrorKind::Interrupted
            && self.failed.is_none()
        {
            self.failed = Some(match error.raw_os_error() {
                Some(number) => io::Error::from_raw_os_error(number),
                None => error.kind().into(),
            });
        }
        done
    }
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.inner.write(bytes);
        self.remember(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.inner.flush();
        self.remember(done)
    }
}
