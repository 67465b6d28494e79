/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors: a sentence is made once, where something failed, and kept for the
 * calling thread; callers pass the code up.  Any thread, never blocks. */
#ifndef KVT_BASE_ERROR_H
#define KVT_BASE_ERROR_H

/* Remember a sentence and return -err.  err is an errno, > 0.  Its own text is
 * appended after ": " unless the format ends with '.'. */
int kvt__fail(int err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The thread's sentence, "" when nothing failed yet. */
const char *kvt__why(void);

/* Set the sentence as it stands (one that an asynchronous request carried). */
void kvt__set_why(const char *why);

#define KVT__WHY_BYTES 512 /* of a sentence, with its end */

/* An error that goes from thread to thread. */
struct kvt__error {
    int code; /* 0 or -errno */
    char why[KVT__WHY_BYTES]; /* the sentence, if code is not 0 */
};

/* Set *error to err.  If err is not 0, copy the calling thread's sentence. */
void kvt__error_set(struct kvt__error *error, int err);

/* Return the code.  If the code is not 0, the sentence becomes the calling thread's. */
int kvt__error_raise(const struct kvt__error *error);

#endif
