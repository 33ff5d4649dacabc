//! A file layer that fails on demand: a library preloaded (`LD_PRELOAD`) below a program, between it and the system.
//!
//! Whoever preloads it names a control file in `FAULTS_CONTROL`. As long as that file exists, the calls it names fail;
//! once it is removed they work again. The file is one line, `CALLS ERRNO [skip N] [times N] [half] [in PART]`:
//!
//! | Word | Meaning |
//! | --- | --- |
//! | `CALLS` | names joined by commas: `sync` (fsync, fdatasync, sync_file_range), `write` (write, pwrite, writev, pwritev and their later forms), `grow` (ftruncate, fallocate), `open` |
//! | `ERRNO` | `EIO`, `ENOSPC`, `EDQUOT`, `EMFILE` or `EINTR` |
//! | `skip N` | the first N of these calls work |
//! | `times N` | after N failures they work again |
//! | `half` | a write that fails has written half of its bytes before, as a full disk leaves it |
//! | `in PART` | only files whose path contains this; without it every file, and never a socket or a pipe |
//!
//! Each failure appends the line `CALL PATH` to the control file's name with `.hits` behind it, so that a test can wait
//! for it. Counting begins anew whenever the control file's text changes.
//!
//! `FAULTS_FORBID=io_uring` makes a kernel that forbids io_uring of the one there is (`forbid.rs`).
//!
//! Only calls through the C library are seen: a program that makes system calls itself passes by. The workspace sets
//! rustix to the C library for this reason.

mod calls;
mod control;
mod forbid;
