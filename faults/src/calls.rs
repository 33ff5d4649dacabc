//! The C library's calls that are replaced. Each asks [`fault`] first and then makes the system call itself: looking up
//! what was replaced is not needed for calls this thin.
//!
//! SAFETY of them all: arguments are handed on to the system as they came, under the rules of the call of that name;
//! nothing here reads or writes what they point to, beyond what is said at each place.
#![allow(missing_docs, reason = "each is what the C library's manual says of it")]
#![allow(unreachable_pub, reason = "reached by name, not by path")]
#![allow(
    clippy::missing_safety_doc,
    reason = "under the rules of the call of that name"
)]

use crate::control::{Call, Fault, bytes_of, fail, fault, path_of};
use libc::{c_char, c_int, c_long, c_uint, c_void, iovec, mode_t, off64_t, size_t, ssize_t};

fn sync(name: &str, fd: c_int) -> Option<c_int> {
    let fault = fault(Call::Sync, name, || path_of(fd))?;
    Some(fail(fault.errno) as c_int)
}

fn grow(name: &str, fd: c_int) -> Option<c_int> {
    let fault = fault(Call::Grow, name, || path_of(fd))?;
    Some(fail(fault.errno) as c_int)
}

/// A write that is to fail; `half` writes the first half of the buffer, whatever the answer.
fn write_fault(name: &str, fd: c_int, half: impl FnOnce()) -> Option<ssize_t> {
    let Fault { errno, half: torn } = fault(Call::Write, name, || path_of(fd))?;
    if torn {
        half();
    }
    Some(fail(errno) as ssize_t)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fsync(fd: c_int) -> c_int {
    sync("fsync", fd).unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_fsync, fd) } as c_int)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync("fdatasync", fd).unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_fdatasync, fd) } as c_int)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sync_file_range(fd: c_int, at: off64_t, bytes: off64_t, flags: c_uint) -> c_int {
    sync("sync_file_range", fd)
        .unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_sync_file_range, fd, at, bytes, flags) } as c_int)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, bytes: size_t) -> ssize_t {
    let half = || unsafe {
        libc::syscall(libc::SYS_write, fd, from, bytes / 2);
    };
    write_fault("write", fd, half)
        .unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_write, fd, from, bytes) } as ssize_t)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(fd: c_int, from: *const c_void, bytes: size_t, at: off64_t) -> ssize_t {
    let half = || unsafe {
        libc::syscall(libc::SYS_pwrite64, fd, from, bytes / 2, at);
    };
    write_fault("pwrite", fd, half)
        .unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_pwrite64, fd, from, bytes, at) } as ssize_t)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(fd: c_int, from: *const c_void, bytes: size_t, at: off64_t) -> ssize_t {
    unsafe { pwrite64(fd, from, bytes, at) }
}

/// How many of the pieces make the first half: whole ones, which is torn enough.
fn half_of(pieces: c_int) -> c_int {
    pieces / 2
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t {
    let half = || unsafe {
        libc::syscall(libc::SYS_writev, fd, pieces, half_of(count));
    };
    write_fault("writev", fd, half)
        .unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_writev, fd, pieces, count) } as ssize_t)
}

/// The system takes the position in two halves; on 64 bits the first holds all of it.
unsafe fn system_pwritev2(
    fd: c_int,
    pieces: *const iovec,
    count: c_int,
    at: off64_t,
    flags: c_int,
) -> ssize_t {
    let high: c_long = if size_of::<c_long>() < 8 {
        (at >> 32) as c_long
    } else {
        0
    };
    (unsafe { libc::syscall(libc::SYS_pwritev2, fd, pieces, count, at as c_long, high, flags) }) as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev64v2(
    fd: c_int,
    pieces: *const iovec,
    count: c_int,
    at: off64_t,
    flags: c_int,
) -> ssize_t {
    let half = || unsafe {
        system_pwritev2(fd, pieces, half_of(count), at, flags);
    };
    // With these flags the write is a sync as well.
    if flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0
        && let Some(failed) = sync("pwritev2", fd)
    {
        unsafe { system_pwritev2(fd, pieces, count, at, 0) };
        return fail_again(failed);
    }
    write_fault("pwritev2", fd, half)
        .unwrap_or_else(|| unsafe { system_pwritev2(fd, pieces, count, at, flags) })
}

/// The write before has left another reason.
fn fail_again(failed: c_int) -> ssize_t {
    fail(libc::EIO);
    failed as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev2(
    fd: c_int,
    pieces: *const iovec,
    count: c_int,
    at: off64_t,
    flags: c_int,
) -> ssize_t {
    unsafe { pwritev64v2(fd, pieces, count, at, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev64(fd: c_int, pieces: *const iovec, count: c_int, at: off64_t) -> ssize_t {
    unsafe { pwritev64v2(fd, pieces, count, at, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev(fd: c_int, pieces: *const iovec, count: c_int, at: off64_t) -> ssize_t {
    unsafe { pwritev64v2(fd, pieces, count, at, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftruncate64(fd: c_int, bytes: off64_t) -> c_int {
    grow("ftruncate", fd).unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_ftruncate, fd, bytes) } as c_int)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftruncate(fd: c_int, bytes: off64_t) -> c_int {
    unsafe { ftruncate64(fd, bytes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fallocate64(fd: c_int, mode: c_int, at: off64_t, bytes: off64_t) -> c_int {
    grow("fallocate", fd)
        .unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_fallocate, fd, mode, at, bytes) } as c_int)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fallocate(fd: c_int, mode: c_int, at: off64_t, bytes: off64_t) -> c_int {
    unsafe { fallocate64(fd, mode, at, bytes) }
}

/// posix_fallocate answers the reason itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_fallocate64(fd: c_int, at: off64_t, bytes: off64_t) -> c_int {
    match unsafe { fallocate64(fd, 0, at, bytes) } {
        0 => 0,
        _ => unsafe { *libc::__errno_location() },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_fallocate(fd: c_int, at: off64_t, bytes: off64_t) -> c_int {
    unsafe { posix_fallocate64(fd, at, bytes) }
}

// The C library takes a mode only with some flags; whatever stands in its place otherwise, the system ignores.

#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    match fault(Call::Open, "open", || unsafe { bytes_of(path) }) {
        Some(fault) => fail(fault.errno) as c_int,
        None => (unsafe { libc::syscall(libc::SYS_openat, folder, path, flags, mode) }) as c_int,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    unsafe { openat64(folder, path, flags, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    unsafe { openat64(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    unsafe { openat64(libc::AT_FDCWD, path, flags, mode) }
}
