/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake libcufile.so.0 of another version, with missing functions. */

#pragma GCC visibility push(default)
int cuFileDriverOpen(void);
#pragma GCC visibility pop

int
cuFileDriverOpen(void)
{
    return 0;
}
