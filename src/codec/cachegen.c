/* SPDX-License-Identifier: Apache-2.0
 *
 * The codec cachegen: the forms of this build.  cachegen.h describes the format. */
#include "codec/cachegen.h"

const struct kvt__cachegen_form *const *
kvt__cachegen_forms(void)
{
    static const struct kvt__cachegen_form *const all[] = {
#ifdef __x86_64__
        &kvt__cachegen_avx512, &kvt__cachegen_avx2,
#elif defined(__aarch64__)
        &kvt__cachegen_neon,
#endif
        &kvt__cachegen_plain, NULL,
    };
    const struct kvt__cachegen_form *const *form = all;

    while (!(*form)->is_supported())
        form++;
    return form;
}

static size_t
encode(const struct kvt__plane_shape *shape, const unsigned char *plane, unsigned char *out)
{
    return kvt__cachegen_encode(kvt__cachegen_forms()[0], shape, plane, out);
}

static bool
decode(const struct kvt__plane_shape *shape, const unsigned char *in, size_t n,
       unsigned char *plane)
{
    return kvt__cachegen_decode(kvt__cachegen_forms()[0], shape, in, n, plane);
}

const struct kvt__codec kvt__codec_cachegen = { "cachegen", kvt__cachegen_room, encode, decode };
