/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_FAKE_ANY_FS_H
#define KVT_FAKE_ANY_FS_H

#include <stdbool.h>

/* true: regular files of every file system count as files of 3FS. */
extern _Atomic bool any_fs;

#endif
