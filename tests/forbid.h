/* SPDX-License-Identifier: Apache-2.0
 *
 * Forbids a system call for this thread and for the threads that this thread starts later, with a
 * seccomp filter, as containers do. */
#ifndef KVT_TEST_FORBID_H
#define KVT_TEST_FORBID_H

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

/* Apply a filter of n instructions to all later system calls.  0 or -1. */
static inline int
add_filter(struct sock_filter *code, unsigned short n)
{
    struct sock_fprog program = { n, code };

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* Make system call nr fail with err from now on.  0 or -1. */
static inline int
forbid(long nr, int err)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)nr, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)err),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };

    return add_filter(code, sizeof code / sizeof *code);
}

/* Make system call nr fail with err from now on if argument number arg is not 0.  0 or -1. */
static inline int
forbid_with(long nr, unsigned arg, int err)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)nr, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                 offsetof(struct seccomp_data, args) + arg * 8), /* little-endian */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)err),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };

    return add_filter(code, sizeof code / sizeof *code);
}

#endif
