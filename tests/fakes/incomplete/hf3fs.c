/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake libhf3fs_api_shared.so of another version, with a single function. */
__attribute__((visibility("default"))) int hf3fs_is_hf3fs(int fd);

int
hf3fs_is_hf3fs(int fd)
{
    (void)fd;
    return 0;
}
