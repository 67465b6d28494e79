/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults of a fake GPU driver, from the environment. $GPU_FAKE_FAIL=NAME:N: the function NAME
 * fails once with "out of memory", after N successful calls. $GPU_FAKE_IDLE=1: kernels and small
 * copies report success without any effect. */
#include <stdio.h>
#include <stdlib.h>

#include "core.h"

#define SMALL 512

int __wrap_core_launch(void *function, const unsigned grid[3], const unsigned block[3],
                       void *stream, void **params);
int __real_core_launch(void *function, const unsigned grid[3], const unsigned block[3],
                       void *stream, void **params);
int __wrap_core_copy(void *to, const void *from, size_t to_pitch, size_t from_pitch,
                     size_t width, size_t height, void *stream);
int __real_core_copy(void *to, const void *from, size_t to_pitch, size_t from_pitch,
                     size_t width, size_t height, void *stream);

static char failing[64];

__attribute__((constructor)) static void
read_environment(void)
{
    const char *fail = getenv("GPU_FAKE_FAIL");
    int after;

    if (fail && sscanf(fail, "%63[^:]:%d", failing, &after) == 2)
        core.fail_on(failing, after, OUT_OF_MEMORY, true);
}

int
__wrap_core_launch(void *function, const unsigned grid[3], const unsigned block[3],
                   void *stream, void **params)
{
    return getenv("GPU_FAKE_IDLE") ? 0
         : __real_core_launch(function, grid, block, stream, params);
}

int
__wrap_core_copy(void *to, const void *from, size_t to_pitch, size_t from_pitch,
                 size_t width, size_t height, void *stream)
{
    return getenv("GPU_FAKE_IDLE") && width <= SMALL ? 0
         : __real_core_copy(to, from, to_pitch, from_pitch, width, height, stream);
}
