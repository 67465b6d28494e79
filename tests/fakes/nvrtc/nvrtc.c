/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake libnvrtc.so.12, or with WITH_HIP libhiprtc.so.6, with the functions that kvtier uses.  An
 * image contains a digest of the source.  Only one program can exist at a time. */
#include <stdio.h>
#include <string.h>

#include "../gpu/gpu.h"
#include "gpu/abi.h"

#if defined(WITH_HIP)
#define NAME(nv, hip) hiprtc##hip
#define COMPILER(member, nvrtc, hiprtc)                                                    \
    __typeof__(*((struct kvt__compiler *)0)->member) hiprtc;
#else
#define NAME(nv, hip) nvrtc##nv
#define COMPILER(member, nvrtc, hiprtc)                                                    \
    __typeof__(*((struct kvt__compiler *)0)->member) nvrtc;
#endif
#include "gpu/functions.def" /* declares the functions with kvtier's types */
fake_compiler_fn fake_compiler;

static struct fake_compiler fake;
static char image[64];

struct fake_compiler *
fake_compiler(void)
{
    return &fake;
}

int
NAME(Version, Version)(int *major, int *minor)
{
    *major = 12;
    *minor = 99;
    return 0;
}

int
NAME(CreateProgram, CreateProgram)(void **program, const char *source, const char *name,
                                   int n_headers, const char *const *headers,
                                   const char *const *names)
{
    uint64_t digest = UINT64_C(14695981039346656037);

    (void)name;
    if (n_headers || headers || names || !strstr(source, "kvt_fetch"))
        return 1;
    for (; *source; source++)
        digest = (digest ^ (unsigned char)*source) * UINT64_C(1099511628211);
    snprintf(image, sizeof image, FAKE_IMAGE "%016llx", (unsigned long long)digest);
    *program = image;
    return 0;
}

int
NAME(CompileProgram, CompileProgram)(void *program, int n_options,
                                     const char *const *options)
{
    (void)program;
#if defined(WITH_HIP)
    (void)options;
    if (n_options)
        return 5;
#else
    if (n_options != 1 || strcmp(options[0], "--gpu-architecture=sm_90") != 0)
        return 5;
#endif
    fake.n_compiled++;
    return fake.error;
}

int
NAME(GetCUBINSize, GetCodeSize)(void *program, size_t *n)
{
    *n = strlen(program) + 1;
    return 0;
}

int
NAME(GetCUBIN, GetCode)(void *program, char *to)
{
    memcpy(to, program, strlen(program) + 1);
    return 0;
}

int
NAME(GetProgramLogSize, GetProgramLogSize)(void *program, size_t *n)
{
    (void)program;
    *n = sizeof "kernels.c(1): error: fake";
    return 0;
}

int
NAME(GetProgramLog, GetProgramLog)(void *program, char *to)
{
    (void)program;
    strcpy(to, "kernels.c(1): error: fake");
    return 0;
}

int
NAME(DestroyProgram, DestroyProgram)(void **program)
{
    *program = NULL;
    return 0;
}
