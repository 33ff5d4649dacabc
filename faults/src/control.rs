//! What is to fail, and what has failed. Everything here uses raw system calls: the C library's are the ones replaced.

use libc::{c_char, c_int, c_long};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStringExt;
use std::sync::{Mutex, OnceLock, PoisonError};

/// A family of calls.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Sync,
    Write,
    Grow,
    Open,
}

/// What a call is to do instead of its work.
pub(crate) struct Fault {
    pub(crate) errno: c_int,
    /// Half of the work comes first.
    pub(crate) half: bool,
}

struct Paths {
    control: CString,
    hits: CString,
}

/// What the control file said when it was last looked at, and how often that came up.
struct Counted {
    text: Vec<u8>,
    seen: u64,
    failed: u64,
}

static COUNTED: Mutex<Counted> = Mutex::new(Counted {
    text: Vec::new(),
    seen: 0,
    failed: 0,
});

fn paths() -> Option<&'static Paths> {
    static PATHS: OnceLock<Option<Paths>> = OnceLock::new();
    let paths = PATHS.get_or_init(|| {
        let control = std::env::var_os("FAULTS_CONTROL")?.into_vec();
        let hits = [&control[..], b".hits"].concat();
        Some(Paths {
            control: CString::new(control).ok()?,
            hits: CString::new(hits).ok()?,
        })
    });
    paths.as_ref()
}

fn open(path: &CStr, flags: c_int) -> Option<c_int> {
    // SAFETY: the path ends with a zero byte and outlives the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags | libc::O_CLOEXEC,
            0o600,
        )
    };
    (fd >= 0).then_some(fd as c_int)
}

fn close(fd: c_int) {
    // SAFETY: the descriptor was opened here and is used no more.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// The control file's text, if there is one.
fn read_control(paths: &Paths) -> Option<Vec<u8>> {
    let fd = open(&paths.control, libc::O_RDONLY)?;
    let mut text = vec![0; 512];
    // SAFETY: the buffer is as long as is said.
    let read = unsafe { libc::syscall(libc::SYS_read, fd, text.as_mut_ptr(), text.len()) };
    close(fd);
    text.truncate(usize::try_from(read).ok()?);
    Some(text)
}

/// Where an open file lies, as the system tells.
pub(crate) fn path_of(fd: c_int) -> Vec<u8> {
    let Ok(link) = CString::new(format!("/proc/self/fd/{fd}")) else {
        return Vec::new();
    };
    let mut path = vec![0; libc::PATH_MAX as usize];
    // SAFETY: the buffer is as long as is said, and the link's name ends with a zero byte.
    let length = unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            libc::AT_FDCWD,
            link.as_ptr(),
            path.as_mut_ptr(),
            path.len(),
        )
    };
    path.truncate(usize::try_from(length).unwrap_or(0));
    path
}

/// The bytes of a C string.
///
/// # Safety
/// `path` is null or ends with a zero byte.
pub(crate) unsafe fn bytes_of(path: *const c_char) -> Vec<u8> {
    if path.is_null() {
        return Vec::new();
    }
    // SAFETY: as this function asks for.
    unsafe { CStr::from_ptr(path) }.to_bytes().to_vec()
}

fn errno_named(name: &str) -> Option<c_int> {
    Some(match name {
        "EIO" => libc::EIO,
        "ENOSPC" => libc::ENOSPC,
        "EDQUOT" => libc::EDQUOT,
        "EMFILE" => libc::EMFILE,
        "EINTR" => libc::EINTR,
        _ => return None,
    })
}

fn contains(all: &[u8], part: &[u8]) -> bool {
    part.is_empty() || all.windows(part.len()).any(|window| window == part)
}

/// Whether this call is to fail, and how. `path` is asked for only if something is to fail at all.
pub(crate) fn fault(call: Call, name: &str, path: impl FnOnce() -> Vec<u8>) -> Option<Fault> {
    let paths = paths()?;
    let text = read_control(paths)?;
    let line = std::str::from_utf8(&text).ok()?;
    let mut words = line.split_whitespace();
    let calls = words.next()?;
    let is_named = calls.split(',').any(|named| {
        matches!(
            (named, call),
            ("sync", Call::Sync) | ("write", Call::Write) | ("grow", Call::Grow) | ("open", Call::Open)
        )
    });
    if !is_named {
        return None;
    }
    let errno = errno_named(words.next()?)?;
    let (mut skip, mut times, mut half, mut part) = (0, u64::MAX, false, None);
    while let Some(word) = words.next() {
        match word {
            "skip" => skip = words.next()?.parse().ok()?,
            "times" => times = words.next()?.parse().ok()?,
            "half" => half = true,
            "in" => part = words.next(),
            _ => return None,
        }
    }
    let path = path();
    if !path.starts_with(b"/") || !contains(&path, part.unwrap_or_default().as_bytes()) {
        return None;
    }
    {
        let mut counted = COUNTED.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.text != text {
            *counted = Counted {
                text: text.clone(),
                seen: 0,
                failed: 0,
            };
        }
        counted.seen += 1;
        if counted.seen <= skip || counted.failed >= times {
            return None;
        }
        counted.failed += 1;
    }
    report(paths, name, &path);
    Some(Fault { errno, half })
}

fn report(paths: &Paths, name: &str, path: &[u8]) {
    let line = [name.as_bytes(), b" ", path, b"\n"].concat();
    if let Some(fd) = open(&paths.hits, libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND) {
        // SAFETY: the buffer is as long as is said.
        unsafe { libc::syscall(libc::SYS_write, fd, line.as_ptr(), line.len()) };
        close(fd);
    }
}

/// Sets what the caller finds as the reason; the answer of a call that failed.
pub(crate) fn fail(errno: c_int) -> c_long {
    // SAFETY: the place is this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}
