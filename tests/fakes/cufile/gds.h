/* SPDX-License-Identifier: Apache-2.0
 *
 * Control and inspection of the fake libcufile.so.0 or libhipfile.so.0 by a test that has loaded
 * the library.  When the library is loaded, the library reads switches from the environment
 * variable GDS_FAKE. */
#ifndef KVT_FAKE_GDS_H
#define KVT_FAKE_GDS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Set the switches: "word=number,word=number".  Other switches get the defaults of this list.
 *   nvfs=1      nvidia-fs is loaded
 *   p2pdma=0    1: P2PDMA works if a program requests P2PDMA
 *   compat=1    compat mode is allowed unless a program forbids compat mode
 *   setter=1    parameters can be set; 0: the setter returns 5030
 *   version=1200
 *   piece=16384 max_direct_io_size in KiB; 0: DriverGetProperties returns 5030
 *   open=0      result of DriverOpen; driver=0: the GPU driver's error beside this result
 *   hang=0      1: DriverOpen, 2: Read never returns
 *   file=0      result of HandleRegister
 *   buffer=0    result of BufRegister
 *   read=0, write=0  error of Read or Write: an errno, a status code, or an error of HIP
 *   form=0      form of this error: 0: -1 and errno, 1: the negative number
 *   only=0      number of the only transfer, counted from now, that fails; 0: all fail
 *   short=0     1: Read moves half of the bytes
 *   delay=0     duration of a transfer in ms, except for the transfer that `only` names
 *   meet=0      number of transfers that begin before the first transfer continues; ETIMEDOUT
 *               after a minute; setting the switches again lets the transfers continue
 *   damage=0    1: Write changes a byte
 * An unknown word ends the process. */
typedef void gds_fake_set_fn(const char *switches);

struct gds_fake {
    int count;        /* references to the driver */
    int n_opens;      /* times that count went from 0 to 1 */
    int compat;       /* the last open was in compat mode */
    int n_files, n_buffers; /* registered now */
    int n_dead;       /* transfers with a handle that was deregistered */
    int n_moves;      /* transfers: reads and writes */
    atomic_int in_flight; /* present transfers; a test may read this at any time */
    int max_in_flight;
    size_t largest;   /* bytes of the largest transfer */
    int n_overlaps;   /* pairs of concurrent transfers of equal memory, at least one a Read */
    int n_bare;       /* transfers in a thread without a current context */
    int (*context)(int *, int *); /* returns 201 if the calling thread has no context; NULL: no
                                   * check */
    void (*step)(void); /* hook: called at the registration and deregistration of a file, and
                         * before and after each transfer */
};
typedef struct gds_fake *gds_fake_fn(void);

/* Names of these functions in the libraries. */
#define GDS_FAKE_SET "gds_fake_set"
#define GDS_FAKE "gds_fake"

/* Return true if this program can start the helper; under qemu-user a program cannot. */
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
