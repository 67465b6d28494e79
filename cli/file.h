/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of a command.  An output file appears whole, or an earlier file stays unchanged.  A device
 * or a pipe is written directly. */
#ifndef KVT_CLI_FILE_H
#define KVT_CLI_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct cli_file {
    FILE *out; /* NULL: the file is not open */
    char *path, *part; /* final and temporary name; NULL: written directly */
};

/* Open the file for writing.  0, or -errno: the file cannot be written. */
int cli_file_open(struct cli_file *file, const char *path);

/* Close the file.  keep: publish the file under its path; otherwise delete the written bytes.  Do
 * nothing if the file is not open.  0, or -errno: a write failed, and an earlier file of the path
 * is unchanged. */
int cli_file_close(struct cli_file *file, bool keep);

/* Read all bytes of a file, or of the standard input if path is "-".  max: most bytes to read.  The
 * caller frees *buf.  0, or -errno: the file cannot be read; -EFBIG: the file has more than max
 * bytes. */
int cli_file_read(const char *path, uint64_t max, unsigned char **buf, size_t *n);

#endif
