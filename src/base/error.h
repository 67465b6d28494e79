/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors.  The function that detects an error writes a sentence, which is stored for the calling
 * thread; all callers only return the code.  Any thread, never blocks. */
#ifndef KVT_BASE_ERROR_H
#define KVT_BASE_ERROR_H

/* Store the sentence and return -err.  err is an errno, > 0.  Unless the sentence ends with '.',
 * ": " and the text of err are appended. */
int kvt__fail(int err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Return the calling thread's sentence, "" before the first error.  The text is valid until the
 * thread's next error. */
const char *kvt__why(void);

/* Store a copy of a sentence, for example of an asynchronous request, as the calling thread's. */
void kvt__set_why(const char *why);

#define KVT__WHY_BYTES 512 /* longest sentence, with the NUL; longer sentences are truncated */

/* An error that one thread passes to another thread. */
struct kvt__error {
    int code; /* 0 or -errno */
    char why[KVT__WHY_BYTES]; /* the sentence, if code is not 0 */
};

/* Set *error to err.  If err is not 0, copy the calling thread's sentence. */
void kvt__error_set(struct kvt__error *error, int err);

/* Return the code.  If the code is not 0, store the sentence as the calling thread's. */
int kvt__error_raise(const struct kvt__error *error);

#endif
