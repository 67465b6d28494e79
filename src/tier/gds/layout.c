/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of LMCache's GDS back end: a safetensors header of 4096 bytes, then the payload.
 * kvtier's trailer, which other layouts store behind the payload, is in hex in the header's
 * metadata, where LMCache ignores unknown fields. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/bytes.h"
#include "tier/gds/layout.h"

#define TEXT_BYTES (KVT__GDS_HEADER_BYTES - 8) /* JSON behind the length, padded with blanks */
#define OUR_DIGITS ((size_t)2 * KVT__TRAILER_BYTES)

/* -------------------------------------------------------------------- header */

/* The first N_NUMBERED rows are indexed by LMCache's dtype code, and have the names that LMCache
 * writes. */
static const struct dtype {
    const char *name;
    unsigned bytes;  /* of an element */
    uint32_t number; /* the dtype code after reading */
    unsigned unit;   /* elements of `number` for one element of this type */
} dtypes[] = {
    { "U8", 1, 6, 1 }, { "F16", 2, 2, 1 }, { "F16", 2, 2, 1 }, { "BF16", 2, 3, 1 },
    { "F32", 4, 4, 1 }, { "F64", 8, 5, 1 }, { "U8", 1, 6, 1 }, { "F8E4M3FN", 1, 7, 1 },
    { "F8E5M2", 1, 8, 1 },
    /* Types without a dtype code, never written: kvtier reads their elements as bytes. */
    { "U16", 2, 6, 2 }, { "U32", 4, 6, 4 }, { "U64", 8, 6, 8 }, { "I8", 1, 6, 1 },
    { "I16", 2, 6, 2 }, { "I32", 4, 6, 4 }, { "I64", 8, 6, 8 },
};
#define N_DTYPES (sizeof dtypes / sizeof *dtypes)
#define N_NUMBERED 9u

/* Write the dimensions to out, like "2, 32, 256, 1024".  Trailing zeros are no dimensions. */
static void
shape_text(const struct kvt__shape *shape, uint64_t payload, char *out, size_t size)
{
    size_t n = 4, used = 0;

    while (n > 1 && !shape->dims[n - 1])
        n--;
    if (n == 1) { /* bytes, possibly more than fit in 32 bits */
        snprintf(out, size, "%" PRIu64, payload);
        return;
    }
    for (size_t i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%" PRIu32, i ? ", " : "",
                                 shape->dims[i]);
}

static void
hex(const unsigned char *in, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[in[i] >> 4];
        out[2 * i + 1] = digits[in[i] & 15];
    }
    out[2 * n] = '\0';
}

static bool
unhex(const char *in, unsigned char *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int high = kvt__hex_digit(in[2 * i]), low = kvt__hex_digit(in[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        out[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

void
kvt__gds_header_put(const struct kvt__shape *shape, uint64_t payload_bytes,
                    const struct kvt__trailer *trailer,
                    unsigned char out[KVT__GDS_HEADER_BYTES])
{
    char text[1024], dims[64], ours[sizeof ", \"kvtier\": \"\"" + OUR_DIGITS] = "";
    unsigned char bytes[KVT__TRAILER_BYTES];
    uint32_t dtype = shape->dtype < N_NUMBERED ? shape->dtype : 0;

    shape_text(shape, payload_bytes, dims, sizeof dims);
    if (trailer) {
        char digits[OUR_DIGITS + 1];

        kvt__trailer_put(trailer, bytes);
        hex(bytes, sizeof bytes, digits);
        snprintf(ours, sizeof ours, ", \"kvtier\": \"%s\"", digits);
    }
    int n = snprintf(text, sizeof text,
                     "{\"kvcache\": {\"dtype\": \"%s\", \"shape\": [%s], "
                     "\"data_offsets\": [0, %" PRIu64 "], \"fmt\": %" PRIu32 ", "
                     "\"__metadata__\": {\"lmcache_version\": \"1\"%s}}}",
                     dtypes[dtype].name, dims, payload_bytes, shape->format, ours);
    assert(n > 0 && n < (int)sizeof text && n <= TEXT_BYTES);
    kvt__put_le64(out, TEXT_BYTES);
    memset(out + 8, ' ', TEXT_BYTES);
    memcpy(out + 8, text, (size_t)n);
}

/* ------------------------------------------------------------------- reading */

/* Convert a JSON number to the type of a shape's fields.  0: not a positive 32-bit integer. */
static uint32_t
as_u32(const json_t *number)
{
    json_int_t n = json_is_integer(number) ? json_integer_value(number) : 0;

    return n > 0 && n <= UINT32_MAX ? (uint32_t)n : 0;
}

/* Find a dtype by name.  NULL: a type that LMCache does not have yet. */
static const struct dtype *
dtype_named(const char *name)
{
    for (size_t i = 0; i < N_DTYPES; i++)
        if (!strcmp(name, dtypes[i].name))
            return &dtypes[i];
    return NULL;
}

/* Read the shape of a payload that LMCache wrote.  False: dtype and dimensions contradict the
 * payload's size.  With an unknown dtype the size cannot be checked, and the shape stays 0. */
static bool
read_shape(const json_t *kvcache, struct kvt__found *found)
{
    const char *name = json_string_value(json_object_get(kvcache, "dtype"));
    const json_t *dims = json_object_get(kvcache, "shape"), *dim;
    const json_t *format = json_object_get(kvcache, "fmt");
    const struct dtype *dtype = name ? dtype_named(name) : NULL;
    struct kvt__shape shape = { .format = as_u32(format) };
    bool fits = json_array_size(dims) <= 4;
    size_t i;

    found->has_shape = true;
    if (!name || !json_array_size(dims))
        return false;
    if (!dtype)
        return true;
    uint64_t product = dtype->bytes;
    shape.dtype = dtype->number;
    json_array_foreach(dims, i, dim) {
        json_int_t n = json_is_integer(dim) ? json_integer_value(dim) : -1;
        uint64_t unit = i + 1 == json_array_size(dims) ? dtype->unit : 1;

        if (n < 0 || __builtin_mul_overflow(product, (uint64_t)n, &product))
            return false;
        fits = fits && (uint64_t)n * unit <= UINT32_MAX;
        if (fits)
            shape.dims[i] = (uint32_t)((uint64_t)n * unit);
    }
    if (fits)
        found->shape = shape;
    return product == found->payload_bytes;
}

/* Read the metadata: LMCache's version, and kvtier's trailer if kvtier wrote the file. */
static int
read_metadata(const json_t *metadata, struct kvt__found *found)
{
    const char *version = json_string_value(json_object_get(metadata, "lmcache_version"));
    const json_t *ours = json_object_get(metadata, "kvtier"), *value;
    unsigned char bytes[KVT__TRAILER_BYTES];
    struct kvt__trailer trailer;
    const char *name;

    if (!version)
        return -EBADMSG;
    if (strcmp(version, "1"))
        return -ENOENT;
    if (!ours) {
        /* A value with the length of kvtier's: a flipped bit has changed the name "kvtier". */
        json_object_foreach((json_t *)metadata, name, value)
            if (json_is_string(value) && json_string_length(value) == OUR_DIGITS)
                return -EBADMSG;
        return 0;
    }
    if (!json_is_string(ours) || json_string_length(ours) != OUR_DIGITS ||
        !unhex(json_string_value(ours), bytes, sizeof bytes) ||
        !kvt__trailer_get(bytes, &trailer) ||
        trailer.payload_at != KVT__GDS_HEADER_BYTES ||
        trailer.payload_bytes != found->payload_bytes)
        return -EBADMSG;
    kvt__found_from_trailer(&trailer, found);
    return 0;
}

static int
read_json(const json_t *root, struct kvt__found *found)
{
    const json_t *kvcache = json_object_get(root, "kvcache");
    const json_t *offsets = json_object_get(kvcache, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);

    if (!json_is_integer(first) || json_integer_value(first) || !json_is_integer(end) ||
        json_integer_value(end) < 0)
        return -EBADMSG;
    found->payload_bytes = (uint64_t)json_integer_value(end);
    int err = read_metadata(json_object_get(kvcache, "__metadata__"), found);
    if (err || read_shape(kvcache, found))
        return err;
    found->has_shape = false;
    /* A file of LMCache has no checksum: the shape is the only check. */
    return found->has_id ? 0 : -EBADMSG;
}

int
kvt__gds_header_get(const unsigned char in[KVT__GDS_HEADER_BYTES],
                    struct kvt__found *found)
{
    uint64_t n = kvt__get_le64(in);

    if (n > TEXT_BYTES)
        return -EBADMSG;
    while (n && in[8 + n - 1] == ' ')
        n--;
    json_t *root = json_loadb((const char *)in + 8, (size_t)n, 0, NULL);
    int err = root ? read_json(root, found) : -EBADMSG;
    json_decref(root);
    return err;
}

/* -------------------------------------------------------------------- layout */

static struct kvt__form
gds_form(const struct kvt__object *o, bool header)
{
    (void)o;
    (void)header;
    return (struct kvt__form){ KVT__GDS_HEADER_BYTES, 0, true };
}

static int
gds_frame(const struct kvt__form *form, const struct kvt__object *o,
          const struct kvt__slot *slot, uint32_t crc)
{
    const struct kvt__trailer trailer = {
        .payload_bytes = slot->bytes, .crc = crc, .tokens = o->tokens, .id = o->id,
        .id_of_key = o->id_of_key, .payload_at = (uint32_t)form->header_bytes };

    kvt__gds_header_put(&o->shape, slot->bytes, &trailer,
                        slot->payload - form->header_bytes);
    return 0;
}

static int
gds_parse(const unsigned char *start, size_t n, uint64_t file_bytes,
          struct kvt__found *found)
{
    if (n < KVT__GDS_HEADER_BYTES)
        return -EBADMSG;
    int err = kvt__gds_header_get(start, found);

    if (!err && found->payload_bytes != file_bytes - KVT__GDS_HEADER_BYTES)
        err = -EBADMSG;
    return err;
}

_Static_assert(KVT__GDS_HEADER_BYTES <= KVT__MAX_PARSE_BYTES, "parse() needs the whole header");

static const struct kvt__form gds_forms[] = { { KVT__GDS_HEADER_BYTES, 0, true } };

#define GDS                               \
    .encoding = KVT__KEY_PERCENT,         \
    .spread = true,                       \
    .sidecar_suffix = ".metadata",        \
    .choose_path = kvt__path_by_rank,     \
    .form = gds_form,                     \
    .forms = gds_forms,                   \
    .n_forms = 1,                         \
    .frame = gds_frame,                   \
    .parse = gds_parse,                   \
    .parse_bytes = KVT__GDS_HEADER_BYTES

const struct kvt__layout kvt__layout_gds = { .suffix = ".kvcache.safetensors", GDS };
const struct kvt__layout kvt__layout_gds_weka = { .suffix = ".weka1", GDS };
