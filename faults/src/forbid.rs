//! A kernel that forbids io_uring, as the default seccomp profiles of containers do: with `FAULTS_FORBID=io_uring` in the
//! environment, the program's `io_uring_setup` fails with `EPERM` from its first instruction on. By a real filter, so
//! whatever makes the call is refused.

use libc::{c_ulong, sock_filter, sock_fprog};
use std::ptr;

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// The number of the system call, in what a filter sees.
const NUMBER: u32 = 0;

extern "C" fn at_load() {
    if std::env::var_os("FAULTS_FORBID").is_none_or(|what| what != "io_uring") {
        return;
    }
    let step = |code, jt, jf, k| sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, NUMBER),
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_io_uring_setup as u32,
        ),
        step(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    let none: c_ulong = 0;
    // SAFETY: the filter lives through the call, which copies it.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as c_ulong, none, none, none) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                c_ulong::from(libc::SECCOMP_MODE_FILTER),
                ptr::from_ref(&program),
                none,
                none,
            ) == 0
    };
    assert!(installed, "no filter can be installed here");
}
