/* SPDX-License-Identifier: Apache-2.0
 *
 * The types of KV elements: LMCache's names in key texts, LMCache's codes in headers of files, and
 * the types for codecs.  Pure functions: any thread. */
#ifndef KVT_CODEC_DTYPE_H
#define KVT_CODEC_DTYPE_H

#include "codec/codec.h"

struct kvt__dtype {
    const char *name;
    uint32_t code;
    uint32_t bytes; /* of an element in LMCache */
    enum kvt__element element;
};

/* Find a type by name, or by code.  NULL: the type is unknown. */
const struct kvt__dtype *kvt__dtype_named(const char *name);
const struct kvt__dtype *kvt__dtype_of_code(uint32_t code);

/* Find the type in a key text, or in the name of a chunk's file: the type's name follows '@' or
 * "%40".  NULL: the text contains no known type. */
const struct kvt__dtype *kvt__dtype_in_text(const char *text);

#endif
