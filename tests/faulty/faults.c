/* SPDX-License-Identifier: Apache-2.0
 *
 * What fails, from the environment.  $GPU_FAKE_FAIL=NAME:N: that function has no memory
 * once, after N calls that are good.  $GPU_FAKE_IDLE=1: kernels and copies of small pieces
 * end well and did nothing. */
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
