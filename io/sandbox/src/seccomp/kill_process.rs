//! Calls for which the kernel kills the process: no code of ours makes them.

use libc::*;

pub(super) const CALLS: &[c_long] = &[
    // Execution of another program.
    SYS_execve,
    SYS_execveat,
    // Access to memory and descriptors of other processes.
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_getfd,
    SYS_kcmp,
    // Change of namespaces and root directory.
    SYS_setns,
    SYS_unshare,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_fsopen,
    SYS_fsmount,
    SYS_move_mount,
    SYS_open_tree,
    SYS_mount_setattr,
    SYS_open_by_handle_at,
    // Interfaces of the kernel with a large attack surface.
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
];
