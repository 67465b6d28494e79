/* SPDX-License-Identifier: Apache-2.0
 *
 * Prepare the input of the kernels (kernels.h) from an engine's view, and compute CRCs from the
 * sums that the kernels return.  Pure functions: any thread. */
#ifndef KVT_GPU_PLAN_H
#define KVT_GPU_PLAN_H

#include <stdint.h>

#include "gpu/copy.h"
#include "gpu/kernels.h"

/* Fill in the constant tables that the kernels need for sums. */
void kvt__plan_sums(struct kvt__sums *sums);

/* Return the binary logarithm of the element width: the largest power of two, at most 16 bytes,
 * that divides `flat` and all addresses and lengths of the view.  flat: the address of a chunk, or
 * the bitwise or of the address and a length.  view NULL: only `flat` counts. */
uint32_t kvt__plan_width(const struct kvt__view *view, uint64_t flat);

/* Bytes of the largest chunk and of the largest block for the kernels, which count elements with
 * 31 bits. */
#define KVT__MAX_JOB_BYTES ((UINT64_C(1) << 31) - 1)

/* Fill in the table of the offsets of n blocks in a plane. */
void kvt__plan_offsets(uint64_t *offsets, const struct kvt__view *view, const int32_t *blocks,
                       size_t n);

/* Fill in the job for a chunk of n_tokens tokens of a view, in elements of 1 << log bytes.
 * Device addresses: flat of the chunk's first byte, bases of the table of plane addresses, offsets
 * of the table of kvt__plan_offsets().  view NULL: the job only sums the chunk. */
void kvt__plan_job(struct kvt__copy_job *job, enum kvt__copy_job_kind kind,
                   const struct kvt__view *view, uint32_t n_tokens, uint32_t log,
                   uint64_t flat, uint64_t bases, uint64_t offsets);

/* Return the unit size, a power of two, that keeps n_processors multiprocessors busy with `bytes`
 * bytes.  The bytes then need at most KVT__MAX_UNITS units plus one unit for each piece, unless
 * the result is KVT__MAX_UNIT_BYTES. */
uint64_t kvt__plan_unit_bytes(uint64_t bytes, uint32_t n_processors);

#define KVT__MAX_UNITS 1024
#define KVT__MIN_UNIT_BYTES ((uint64_t)16 << 10)
#define KVT__MAX_UNIT_BYTES ((uint64_t)1 << 20)

/* Cut the bytes [from, to) of a job's chunk into units.  job: the index of the job.  Return the
 * number of units. */
uint32_t kvt__plan_units(struct kvt__unit *units, uint32_t job, uint32_t log,
                         uint64_t from, uint64_t to, uint64_t unit_bytes);

/* Join the sums of n consecutive units to `sum`, the sum of the bytes before the first unit (0 at
 * the chunk's first byte), and return the joined sum. */
uint32_t kvt__plan_join(uint32_t sum, const uint32_t *sums, const struct kvt__unit *units,
                        uint32_t n, uint32_t log);

/* Return the CRC32C of a chunk of `bytes` bytes from the chunk's sum. */
uint32_t kvt__plan_crc(uint32_t sum, uint64_t bytes);

#endif
