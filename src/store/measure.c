/* SPDX-License-Identifier: Apache-2.0
 *
 * Measurements of the codecs on a chunk in memory, for kvtier.h. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "codec/dtype.h"
#include "kvtier.h"
#include "store/private.h"

/* A pass over a small chunk is short, so passes repeat; the fastest pass counts. */
#define MAX_PASSES 5
#define ENOUGH_NS (50 * KVT__NS_PER_MS)

/* The chunk that is measured. */
struct subject {
    struct kvt_codec_chunk info;
    struct kvt__chunk_shape shape;
    const unsigned char *bytes;
    unsigned char *decoded; /* allocated if the stored chunk is encoded */
};

/* ------------------------------------------------------------------------ shape */

/* Set the shape from the header of the object.  False: the header has no layout of this many
 * bytes. */
static bool
set_layout(const struct kvt_op *op, const struct kvt__dtype *dtype, struct kvt__chunk_shape *out)
{
    enum { KV_2LTD = 1, KV_MLA = 6 }; /* LMCache's codes */
    const uint32_t *dims = op->dims;
    uint32_t bytes = kvt__element_bytes(dtype->element);
    uint64_t row = (uint64_t)dims[3] * (dtype->bytes / bytes), n = row * dims[2];
    bool has_both = op->format == KV_2LTD;
    uint32_t n_kv = has_both ? 2 : 1;

    if (!(op->found & KVT_FOUND_SHAPE) || (!has_both && op->format != KV_MLA) || dims[0] != n_kv)
        return false;
    *out = (struct kvt__chunk_shape){
        .element = dtype->element, .packing = has_both ? KVT__PACKING_2LTD : KVT__PACKING_MLA,
        .n_layers = dims[1], .n_heads = 1, .row = (uint32_t)row, .n = (uint32_t)n,
        .n_planes = n_kv * dims[1] };
    return out->n == n && kvt__chunk_shape_is_valid(out) &&
           kvt__chunk_shape_bytes(out) == op->found_bytes;
}

/* Set a shape without layout and with planes of n elements, at least 1.  False: the planes do not
 * divide the chunk. */
static bool
assume_planes(uint64_t n_elements, enum kvt__element element, uint32_t row, uint64_t n,
              struct kvt__chunk_shape *out)
{
    *out = (struct kvt__chunk_shape){ .element = element, .packing = KVT__PACKING_NONE,
                                      .n_heads = 1, .row = row, .n = (uint32_t)n,
                                      .n_planes = (uint32_t)(n_elements / n) };
    return (uint64_t)out->n * out->n_planes == n_elements && kvt__chunk_shape_is_valid(out);
}

/* Set the subject's shape if lossless encodes the chunk in the shape to fewer bytes than *least, or
 * if *least is 0.  False: no memory. */
static bool
try_shape(struct subject *s, const struct kvt__chunk_shape *shape, size_t *least)
{
    const struct kvt__id no_id = { 0 };
    unsigned char *frame = malloc(kvt__frame_room(KVT__SERDE_LOSSLESS, shape));

    if (!frame)
        return false;
    size_t bytes = kvt__frame_encode(KVT__SERDE_LOSSLESS, shape, &no_id, s->bytes, 0, frame);
    free(frame);
    if (!*least || (bytes && bytes < *least)) {
        s->shape = *shape;
        *least = bytes;
    }
    return true;
}

/* Set the shape without layout that lossless encodes to the fewest bytes.  0; -ENOTSUP, -ENOMEM
 * with a sentence. */
static int
assume_shape(struct subject *s, uint64_t n_elements, enum kvt__element element, uint32_t n_tokens)
{
    enum { FIRST_ROW = 64, LAST_ROW = 8192, USUAL_TOKENS = 256, LONG_PLANE = 1 << 20 };
    struct kvt__chunk_shape shape;
    uint64_t n = n_elements;
    size_t least = 0;

    while (n > LONG_PLANE && n % 2 == 0)
        n /= 2;
    if (!assume_planes(n_elements, element, FIRST_ROW, n, &s->shape))
        return kvt__fail(ENOTSUP, "%llu elements have no known layout and do not divide into "
                         "planes.", (unsigned long long)n_elements);
    for (uint32_t row = FIRST_ROW; row <= LAST_ROW; row *= 2) {
        n = (uint64_t)row * (n_tokens ? n_tokens : USUAL_TOKENS);
        if (assume_planes(n_elements, element, row, n, &shape) && !try_shape(s, &shape, &least))
            return kvt__fail(ENOMEM, "measure codecs");
    }
    return 0;
}

/* Fill in the subject from the bytes of a chunk that is not encoded. */
static int
describe_naive(const struct kvt_op *op, struct subject *s)
{
    const struct kvt__dtype *named = kvt__dtype_in_text(op->key);
    const struct kvt__dtype *dtype = kvt__dtype_of_code(op->dtype);

    s->bytes = op->buf;
    s->info.bytes = op->found_bytes;
    /* The header of a chunk without layout has the type uint8. */
    s->info.has_layout = dtype && set_layout(op, dtype, &s->shape);
    if (!s->info.has_layout)
        dtype = named ? named : op->found & KVT_FOUND_SHAPE && op->dtype != 6 ? dtype : NULL;
    if (!dtype)
        return kvt__fail(ENOTSUP, "%s: the type of the elements is unknown: neither a header nor "
                         "the name contains the type.", op->key);
    s->info.dtype = dtype->name;
    uint32_t bytes = kvt__element_bytes(dtype->element);
    if (!op->found_bytes || op->found_bytes % dtype->bytes)
        return kvt__fail(EBADMSG, "%s: %llu bytes are no whole number of elements of type %s.",
                         op->key, (unsigned long long)op->found_bytes, dtype->name);
    return s->info.has_layout ? 0
        : assume_shape(s, op->found_bytes / bytes, dtype->element, op->tokens);
}

/* Parse the frame of an operation, and decode the frame into allocated memory.  After an error
 * *chunk is NULL.  0; -EBADMSG, -ENOMEM with a sentence. */
static int
decode_new(const struct kvt_op *op, struct kvt__frame *frame, unsigned char **chunk)
{
    struct kvt_frame decoded = { .struct_size = sizeof decoded };
    int err = kvt__frame_parse(op->buf, op->found_bytes, op->found & KVT_FOUND_CHECKED, frame);

    *chunk = NULL;
    if (err)
        return err;
    uint64_t bytes = kvt__chunk_shape_bytes(&frame->shape);
    *chunk = malloc(bytes);
    if (!*chunk)
        return kvt__fail(ENOMEM, "allocate %llu bytes for a decoded chunk",
                         (unsigned long long)bytes);
    err = kvt_frame_decode(op->buf, op->found_bytes, &decoded, *chunk);
    if (err) {
        free(*chunk);
        *chunk = NULL;
    }
    return err;
}

/* Fill in the subject from an encoded chunk. */
static int
describe_frame(const struct kvt_op *op, struct subject *s)
{
    static const char *const names[KVT__N_ELEMENTS] = {
        [KVT__ELEMENT_BYTE] = "double", [KVT__ELEMENT_BF16] = "bfloat16",
        [KVT__ELEMENT_F16] = "half", [KVT__ELEMENT_F32] = "float", [KVT__ELEMENT_E4M3] = "uint8",
        [KVT__ELEMENT_E5M2] = "fp8_e5m2" };
    struct kvt__frame frame;
    char why[KVT__WHY_BYTES];

    int err = decode_new(op, &frame, &s->decoded);
    if (err) {
        snprintf(why, sizeof why, "%s", kvt__why());
        return kvt__fail(-err, "%s: %s", op->key, why);
    }
    s->shape = frame.shape;
    s->bytes = s->decoded;
    s->info.encoding = kvt__serde_name(frame.serde);
    s->info.is_lossy = kvt__serde_is_lossy(frame.serde);
    s->info.dtype = names[frame.shape.element];
    s->info.bytes = kvt__chunk_shape_bytes(&frame.shape);
    s->info.has_layout = frame.shape.packing != KVT__PACKING_NONE;
    return 0;
}

static int
describe(const struct kvt_op *op, struct subject *s)
{
    bool is_frame = kvt__serde_of_key(op->key) != KVT__SERDE_NAIVE ||
                    (op->found_bytes >= KVT__FRAME_HEADER_BYTES &&
                     !memcmp(op->buf, KVT__FRAME_MAGIC, 8));

    *s = (struct subject){ .info = { .struct_size = sizeof s->info, .encoding = "naive" } };
    return is_frame ? describe_frame(op, s) : describe_naive(op, s);
}

/* ----------------------------------------------------------------------- errors */

/* Return the value of a half.  NaN: infinite or NaN. */
static double
half_value(uint32_t bits)
{
    int exponent = bits >> 10 & 0x1f, mantissa = bits & 0x3ff;

    if (exponent == 0x1f)
        return NAN;
    double value = exponent ? ldexp(mantissa | 0x400, exponent - 25) : ldexp(mantissa, -24);
    return bits & 0x8000 ? -value : value;
}

/* Return the value of an element.  Lossy codecs restore the bits of types other than bfloat16, half
 * and float, so the values of other types do not matter. */
static double
value_of(enum kvt__element element, const unsigned char *at)
{
    uint32_t bits;
    float value;

    switch (element) {
    case KVT__ELEMENT_BF16:
    case KVT__ELEMENT_F32:
        bits = element == KVT__ELEMENT_F32
            ? kvt__get_le32(at) : (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
        memcpy(&value, &bits, sizeof value);
        return value;
    case KVT__ELEMENT_F16:
        return half_value(at[0] | (uint32_t)at[1] << 8);
    default:
        return at[0];
    }
}

/* Set the errors of a decoded chunk.  NaN and infinite elements do not count: each codec restores
 * their bits. */
static void
compare(const struct subject *s, const unsigned char *decoded, struct kvt_codec_result *out)
{
    double errors = 0, squares = 0, largest = 0, n = 0;
    uint32_t step = kvt__element_bytes(s->shape.element);

    if (!memcmp(decoded, s->bytes, s->info.bytes))
        return;
    for (size_t i = 0; i < s->info.bytes; i += step) {
        double x = value_of(s->shape.element, s->bytes + i);
        double error = fabs(value_of(s->shape.element, decoded + i) - x);

        if (!isfinite(x))
            continue;
        errors += error * error;
        squares += x * x;
        largest = error > largest ? error : largest;
        n++;
    }
    if (!(squares > 0))
        return;
    out->rms_error = sqrt(errors / squares);
    out->max_error = largest / sqrt(squares / n);
}

/* ------------------------------------------------------------------ measurement */

/* A codec at work. */
struct trial {
    const struct subject *subject;
    enum kvt__serde serde;
    unsigned char *frame, *decoded;
    size_t n; /* bytes of the frame; 0: the frame is not smaller than the chunk */
    bool is_decoded;
};

static void
encode(struct trial *t)
{
    const struct kvt__id no_id = { 0 };

    t->n = kvt__frame_encode(t->serde, &t->subject->shape, &no_id, t->subject->bytes, 0, t->frame);
}

static void
decode(struct trial *t)
{
    struct kvt__frame frame;

    t->is_decoded = !kvt__frame_parse(t->frame, t->n, true, &frame) &&
                    kvt__frame_decode(&frame, t->decoded);
}

/* Return the time of the fastest pass. */
static int64_t
time_of(void (*pass)(struct trial *), struct trial *t)
{
    int64_t fastest = INT64_MAX, begin = kvt__now_ns(), now = begin;

    for (int i = 0; i < MAX_PASSES && (!i || now - begin < ENOUGH_NS); i++) {
        int64_t from = kvt__now_ns();

        pass(t);
        now = kvt__now_ns();
        fastest = now - from < fastest ? now - from : fastest;
    }
    return fastest > 0 ? fastest : 1;
}

/* Run the codec.  0; -EIO with a sentence: the codec has an error. */
static int
run(struct trial *t, struct kvt_codec_result *out)
{
    out->encode_ns = time_of(encode, t);
    out->encoded_bytes = t->n ? t->n : t->subject->info.bytes;
    if (!t->n)
        return 0;
    out->decode_ns = time_of(decode, t);
    if (t->is_decoded)
        compare(t->subject, t->decoded, out);
    return t->is_decoded && (kvt__serde_is_lossy(t->serde) || !out->rms_error)
        ? 0 : kvt__fail(EIO, "the codec %s does not decode the chunk; report this error.",
                        kvt__serde_name(t->serde));
}

static int
measure(const struct subject *s, enum kvt__serde serde, struct kvt_codec_result *out)
{
    struct trial t = { .subject = s, .serde = serde };

    if (!s->info.has_layout && kvt__serde_is_lossy(serde))
        return kvt__fail(ENOTSUP, "the layout of the chunk is unknown.");
    t.frame = malloc(kvt__frame_room(serde, &s->shape));
    t.decoded = malloc(s->info.bytes);
    int err = t.frame && t.decoded ? run(&t, out) : kvt__fail(ENOMEM, "measure a codec");
    free(t.frame);
    free(t.decoded);
    return err;
}

int
kvt_codec_measure(const struct kvt_op *op, kvt_codec_fn fn, void *ctx)
{
    struct subject s;

    if (op->struct_size < offsetof(struct kvt_op, expires_ns) || !op->key ||
        (!op->buf && op->found_bytes))
        return kvt__fail(EINVAL, "kvt_codec_measure: struct_size, key and buf must be set.");
    int err = describe(op, &s);
    for (int serde = KVT__SERDE_NAIVE + 1; !err && serde < KVT__N_SERDES; serde++) {
        struct kvt_codec_result result = KVT_INIT(struct kvt_codec_result);

        result.codec = kvt__serde_name((enum kvt__serde)serde);
        result.status = measure(&s, (enum kvt__serde)serde, &result);
        result.why = result.status ? kvt__why() : "";
        fn(ctx, &s.info, &result);
    }
    free(s.decoded);
    return err;
}
