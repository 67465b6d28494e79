/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/dtype.h"

#include <ctype.h>
#include <string.h>

/* vLLM's FP8 caches are uint8 for LMCache. */
static const struct kvt__dtype dtypes[] = {
    { "uint8", 6, 1, KVT__ELEMENT_E4M3 },      { "half", 2, 2, KVT__ELEMENT_F16 },
    { "bfloat16", 3, 2, KVT__ELEMENT_BF16 },   { "float", 4, 4, KVT__ELEMENT_F32 },
    { "double", 5, 8, KVT__ELEMENT_BYTE },     { "fp8_e4m3fn", 7, 1, KVT__ELEMENT_E4M3 },
    { "fp8_e5m2", 8, 1, KVT__ELEMENT_E5M2 },
};

#define N_DTYPES (sizeof dtypes / sizeof *dtypes)

const struct kvt__dtype *
kvt__dtype_named(const char *name)
{
    for (size_t i = 0; i < N_DTYPES; i++)
        if (!strcmp(name, dtypes[i].name))
            return &dtypes[i];
    return NULL;
}

const struct kvt__dtype *
kvt__dtype_of_code(uint32_t code)
{
    for (size_t i = 0; i < N_DTYPES; i++)
        if (code == dtypes[i].code)
            return &dtypes[i];
    return NULL;
}

const struct kvt__dtype *
kvt__dtype_in_text(const char *text)
{
    for (const char *at = text; (at = strpbrk(at, "@%")); at++) {
        const char *field = *at == '@' ? at + 1 : strncmp(at, "%40", 3) ? at : at + 3;

        for (size_t i = 0; i < N_DTYPES; i++) {
            size_t n = strlen(dtypes[i].name);

            if (!strncmp(field, dtypes[i].name, n) && !isalnum((unsigned char)field[n]) &&
                field[n] != '_')
                return &dtypes[i];
        }
    }
    return NULL;
}
