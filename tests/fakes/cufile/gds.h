/* SPDX-License-Identifier: Apache-2.0
 *
 * How a test that has opened the fake libcufile.so.0 or libhipfile.so.0 switches what it
 * answers, and asks what was done to it.  The environment variable GDS_FAKE is read the
 * same way when it is loaded. */
#ifndef KVT_FAKE_GDS_H
#define KVT_FAKE_GDS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* "word=number,word=number"; what is not named is as it stands behind the word.
 *   nvfs=1      nvidia-fs is loaded
 *   p2pdma=0    P2PDMA works where it is asked for
 *   compat=1    compat mode is allowed unless a program forbids it
 *   setter=1    settings can be set; 0: they answer 5030
 *   version=1200
 *   piece=16384 max_direct_io_size in KiB; 0: properties answer 5030
 *   open=0      what DriverOpen answers; driver=0: the driver's code beside it
 *   hang=0      1: DriverOpen, 2: Read never returns
 *   file=0      what HandleRegister answers
 *   buffer=0    what BufRegister answers
 *   read=0, write=0  what these fail with: an errno, a code, or HIP's
 *   form=0      how they tell: 0 -1 and errno, 1 the negative number
 *   only=0      the number of the one transfer from now on that fails so; 0: all do
 *   short=0     1: reads move half
 *   delay=0     milliseconds that a transfer takes, but for the one that only names
 *   meet=0      so many transfers begin before the first one goes on, which fails with
 *               ETIMEDOUT after a minute without them; other switches let it go on
 *   damage=0    1: what is written has another byte
 * Unknown words end the process. */
typedef void gds_fake_set_fn(const char *switches);

struct gds_fake {
    int count;        /* references to the driver */
    int n_opens;      /* from none to one */
    int compat;       /* the last opening was in compat mode */
    int n_files, n_buffers; /* registered now */
    int n_dead;       /* I/Os on handles that were gone */
    int n_moves;      /* reads and writes */
    atomic_int in_flight; /* moves now: to be looked at while they are */
    int max_in_flight;
    size_t largest;   /* of one move */
    int n_overlaps;   /* moves whose memory was read into by another, or the reverse */
    int n_bare;       /* moves where the next one found no context */
    int (*context)(int *, int *); /* 201: the calling thread has none; NULL: not asked */
    void (*step)(void); /* called where a file is registered and forgotten, and before and
                         * after each move */
};
typedef struct gds_fake *gds_fake_fn(void);

/* Their names in the libraries. */
#define GDS_FAKE_SET "gds_fake_set"
#define GDS_FAKE "gds_fake"

/* Whether a program can start the helper: one under qemu-user cannot. */
static inline bool
gds_probe_runs(const char *helper)
{
    char command[512], line[64] = "";

    snprintf(command, sizeof command, "'%s' 2>&1", helper);
    FILE *from = popen(command, "r");
    if (from && !fgets(line, sizeof line, from))
        line[0] = '\0';
    if (from)
        pclose(from);
    return !strncmp(line, "usage: kvtier-gds-probe", 23);
}

#endif
