//! The system calls that the running daemon makes, and no others (seccomp).
//!
//! The list is what a Rust program with threads, sockets and clocks uses, found by running the daemon and the self-test with
//! [`Refusal::Log`]. Not on it: execve, ptrace, mount, bpf (but for taking a socket
//! out of a map), unshare, setns, set*id, kernel modules, key rings, io_uring,
//! and sockets of other families than those of [`FAMILIES`]: AF_PACKET and AF_XDP above all.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::failure::Failure;

/// What a system call off the list meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// EPERM.
    Error,
    /// The process ends.
    Kill,
    /// Goes on, and the kernel's log names it: for finding the list.
    Log,
}

impl Refusal {
    /// Its name in the configuration.
    pub fn label(self) -> &'static str {
        match self {
            Refusal::Error => "error",
            Refusal::Kill => "kill",
            Refusal::Log => "log",
        }
    }
}

/// Socket families that may still be made: local ones, netlink for re-synchronising, IPv4 and IPv6 for device ioctls.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_NETLINK, libc::AF_INET, libc::AF_INET6];

/// enum bpf_cmd of linux/bpf.h.
const BPF_MAP_DELETE_ELEM: u64 = 3;

const ALLOWED: &[libc::c_long] = &[
    // Descriptors.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_lseek,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    // Files; Landlock says which.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_mkdirat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_ftruncate,
    libc::SYS_memfd_create,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    // Sockets; `socket` itself is below.
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_socketpair,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    // Memory; mmap and mprotect are below.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_membarrier,
    // Threads.
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_futex,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_tgkill,
    libc::SYS_sched_yield,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getcpu,
    libc::SYS_prctl,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_wait4,
    libc::SYS_waitid,
    // Signals.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    // Time and identity.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_capget,
    libc::SYS_getrusage,
    libc::SYS_prlimit64,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Older forms that only some architectures have.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_mkdir,
    libc::SYS_readlink,
    libc::SYS_chmod,
    libc::SYS_arch_prctl,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[libc::c_long] = &[];

fn program(refusal: Refusal) -> Result<BpfProgram, seccompiler::BackendError> {
    let condition = |argument, op, value: u64| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALLOWED.iter().chain(ALLOWED_HERE).map(|n| (*n, vec![])).collect();
    let mut families = Vec::new();
    for family in FAMILIES {
        families.push(SeccompRule::new(vec![condition(0, SeccompCmpOp::Eq, family as u64)?])?);
    }
    rules.insert(libc::SYS_socket, families);
    // A queue that closes takes its socket out of the redirect program's map first: BPF_MAP_DELETE_ELEM, no other command.
    let delete = SeccompRule::new(vec![condition(0, SeccompCmpOp::Eq, BPF_MAP_DELETE_ELEM)?])?;
    rules.insert(libc::SYS_bpf, vec![delete]);
    // Nothing writable becomes executable, and nothing new does.
    let not_executable = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![SeccompRule::new(vec![condition(2, not_executable.clone(), 0)?])?]);
    }
    let action = match refusal {
        Refusal::Error => SeccompAction::Errno(libc::EPERM as u32),
        Refusal::Kill => SeccompAction::KillProcess,
        Refusal::Log => SeccompAction::Log,
    };
    let architecture = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, action, SeccompAction::Allow, architecture)?.try_into()
}

/// Narrows the system calls of this thread and of those that it makes.
///
/// # Errors
/// When the kernel has no seccomp.
pub fn narrow(refusal: Refusal) -> Result<(), Failure> {
    let program = program(refusal).map_err(|e| Failure::runtime(format!("cannot build the seccomp filter: {e}")))?;
    seccompiler::apply_filter(&program)
        .map_err(|e| Failure::runtime(format!("cannot narrow system calls (seccomp): {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles_and_leaves_the_dangerous_ones_out() {
        for refusal in [Refusal::Error, Refusal::Kill, Refusal::Log] {
            assert!(!program(refusal).unwrap().is_empty(), "{}", refusal.label());
        }
        for call in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_ptrace,
            libc::SYS_bpf,
            libc::SYS_mount,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_setresuid,
            libc::SYS_capset,
            libc::SYS_init_module,
            libc::SYS_io_uring_setup,
            libc::SYS_keyctl,
            libc::SYS_kill,
            libc::SYS_process_vm_writev,
            libc::SYS_perf_event_open,
            libc::SYS_socket,
            libc::SYS_mmap,
            libc::SYS_mprotect,
        ] {
            assert!(!ALLOWED.contains(&call) && !ALLOWED_HERE.contains(&call), "{call}");
        }
        assert!(!FAMILIES.contains(&libc::AF_PACKET) && !FAMILIES.contains(&libc::AF_XDP));
    }
}
