/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels are told, made from what the engine says, and CRCs made from what they
 * answer.  Pure functions: any thread. */
#ifndef KVT_GPU_PLAN_H
#define KVT_GPU_PLAN_H

#include <stdint.h>

#include "gpu/copy.h"
#include "gpu/kernels.h"

/* The tables that sums need. */
void kvt__plan_sums(struct kvt__sums *sums);

/* Logarithm of the widest element, up to 16 bytes, that divides all addresses and lengths:
 * those of the view (NULL: of none), and flat, where a chunk lies. */
uint32_t kvt__plan_width(const struct kvt__view *view, uint64_t flat);

/* Chunks and blocks up to this many bytes can be counted in elements of any width. */
#define KVT__MAX_JOB_BYTES ((UINT64_C(1) << 31) - 1)

/* A job for a chunk of n_tokens tokens of a view, in elements of 1 << log bytes; flat,
 * bases and blocks are the device's addresses, flat that of the chunk's begin.  view
 * NULL: it is only summed. */
void kvt__plan_job(struct kvt__job *job, enum kvt__job_what what,
                   const struct kvt__view *view, uint32_t n_tokens, uint32_t log,
                   uint64_t flat, uint64_t bases, uint64_t blocks);

/* Bytes of a unit that keep n_processors busy with so many bytes: a power of two.  At most
 * KVT__MAX_UNITS are needed, and one more for each piece, unless they are the largest. */
uint64_t kvt__plan_unit_bytes(uint64_t bytes, uint32_t n_processors);

#define KVT__MAX_UNITS 1024
#define KVT__MIN_UNIT_BYTES ((uint64_t)16 << 10)
#define KVT__MAX_UNIT_BYTES ((uint64_t)1 << 20)

/* Cut the bytes [from, to) of a job's chunk.  How many units that made. */
uint32_t kvt__plan_units(struct kvt__unit *units, uint32_t job, uint32_t log,
                         uint64_t from, uint64_t to, uint64_t unit_bytes);

/* Join the units' sums to that of what lies before them, 0 at first. */
uint32_t kvt__plan_join(uint32_t sum, const uint32_t *sums, const struct kvt__unit *units,
                        uint32_t n, uint32_t log);

/* The CRC32C of bytes whose sum this is. */
uint32_t kvt__plan_crc(uint32_t sum, uint64_t bytes);

#endif
