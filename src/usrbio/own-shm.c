/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared memory, announced to the daemon by a link in 3fs-virt/iovs.  The daemon maps the memory
 * before symlink() returns.
 *
 * The file's mode permits access only to this user.  A daemon of root may map the memory all the
 * same, and a daemon of another user refuses links of this user anyway.  The pages are reserved
 * during allocation, so an access never raises SIGBUS. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/error.h"
#include "mem/numa.h"
#include "usrbio/own.h"
#include "usrbio/usrbio.h"

#define SHM_DIR "/dev/shm"
#define STEP ((size_t)2 << 20) /* bytes reserved at a time: a signal undoes only one step */
#define NUMA_KEY "hf3fs_numa_id"

_Atomic unsigned kvt__own_generation;

static int
make_uuid(char id[16])
{
    if (getrandom(id, 16, 0) != 16)
        return kvt__fail(errno, "random bytes for the name of shared memory");
    id[6] = (char)((id[6] & 0x0f) | 0x40);
    id[8] = (char)((id[8] & 0x3f) | 0x80);
    return 0;
}

static size_t
uuid_text(const char id[16], char *out)
{
    size_t n = 0;

    for (size_t i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            out[n++] = '-';
        n += (size_t)sprintf(out + n, "%02x", (unsigned char)id[i]);
    }
    return n;
}

static size_t
binary_text(uint64_t v, char *out)
{
    size_t n = 0;

    for (int bit = 63 - __builtin_clzll(v); bit >= 0; bit--)
        out[n++] = v >> bit & 1 ? '1' : '0';
    out[n] = '\0';
    return n;
}

void
kvt__own_key_text(const struct kvt__own_key *key, char out[KVT__OWN_KEY_BYTES])
{
    char *at = out + uuid_text(key->id, out);

    *at = '\0';
    if (key->block_size)
        at += sprintf(at, ".b%zu", key->block_size);
    if (!key->direction)
        return;
    at += sprintf(at, ".%c%d", key->direction, key->io_depth);
    if (key->priority)
        at += sprintf(at, ".p%c", key->priority < 0 ? 'h' : 'l');
    at += sprintf(at, ".t%d", key->timeout);
    if (key->flags) {
        at += sprintf(at, ".f");
        binary_text(key->flags, at);
    }
}

/* Reserve the pages in /dev/shm now, on the node that the mapping prefers. */
static int
reserve_pages(int fd, size_t size)
{
    for (size_t at = 0; at < size;) {
        size_t n = size - at < STEP ? size - at : STEP;

        if (!fallocate(fd, 0, (off_t)at, (off_t)n))
            at += n;
        else if (errno == EOPNOTSUPP)
            return 0;
        else if (errno != EINTR)
            return kvt__fail(errno, "reserve %zu bytes of " SHM_DIR, size);
    }
    return 0;
}

/* Map the new file fd and reserve its pages. */
static int
map_file(struct kvt__own_shm *shm, int fd, int numa)
{
    if (ftruncate(fd, (off_t)shm->size))
        return kvt__fail(EIO, "make a file of %zu bytes in " SHM_DIR " (%s).", shm->size,
                         strerror(errno));
    void *at = mmap(NULL, shm->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return kvt__fail(EIO, "map %zu bytes of " SHM_DIR " (%s).", shm->size,
                         strerror(errno));
    shm->base = at;
    madvise(at, shm->size, MADV_DONTFORK);
    if (numa >= 0)
        kvt__numa_prefer(at, shm->size, numa, NUMA_KEY);
    return reserve_pages(fd, shm->size);
}

/* Link the file into /dev/shm, where the daemon finds the memory by name.  The name comes last: a
 * process killed before this call leaves nothing behind. */
static int
link_name(struct kvt__own_shm *shm, int fd)
{
    char uuid[16], from[32], to[sizeof SHM_DIR + sizeof shm->name];
    int err = make_uuid(uuid);

    if (err)
        return err;
    memcpy(shm->name, "/hf3fs-iov-", 12);
    shm->name[11 + uuid_text(uuid, shm->name + 11)] = '\0';
    snprintf(from, sizeof from, "/proc/self/fd/%d", fd);
    snprintf(to, sizeof to, SHM_DIR "%s", shm->name);
    if (!linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW))
        return 0;
    err = kvt__fail(EIO, "make %s (%s).", to, strerror(errno));
    shm->name[0] = '\0';
    return err;
}

/* Create, map and name the file of the memory. */
static int
make_memory(struct kvt__own_shm *shm, int numa)
{
    int err = kvt__usrbio_check_space(shm->size);

    if (err)
        return err;
    int fd = open(SHM_DIR, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return kvt__fail(EIO, "make a file in " SHM_DIR " (%s).", strerror(errno));
    err = map_file(shm, fd, numa);
    if (!err)
        err = link_name(shm, fd);
    close(fd);
    return err;
}

/* Create the link that announces the memory to the daemon. */
static int
announce(struct kvt__own_shm *shm)
{
    char target[sizeof shm->name + 16];

    snprintf(target, sizeof target, SHM_DIR "%s", shm->name);
    if (!symlinkat(target, shm->mount->dir, shm->key))
        return 0;
    int err = errno;
    shm->key[0] = '\0';
    if (err == EACCES)
        return kvt__fail(err, "%s: the daemon cannot map memory of this process: do both "
                         "have the same /dev/shm, and does the daemon run as root or as "
                         "this user? (%s).", shm->mount->path, strerror(err));
    if (err == EMFILE)
        return kvt__fail(err, "%s: the daemon has reached its limit of shared memories "
                         "(iov_limit).", shm->mount->path);
    return kvt__fail(err, "announce %zu bytes of shared memory to the daemon of %s",
                     shm->size, shm->mount->path);
}

int
kvt__own_shm_open(struct kvt__own_shm *shm, const char *mount, size_t size, int numa,
                  struct kvt__own_key *key)
{
    memset(shm, 0, sizeof *shm);
    if (!mount || !*mount || strlen(mount) >= KVT__HF3FS_MAX_MOUNT || !size ||
        size > PTRDIFF_MAX)
        return kvt__fail(EINVAL, "allocate %zu bytes of shared memory for a 3FS at '%s'", size,
                         mount ? mount : "");
    if (numa >= KVT__MAX_NODES)
        return kvt__fail(EINVAL, NUMA_KEY ": there is no memory node %d.", numa);
    int err = numa < 0 ? 0 : kvt__numa_check(numa, NUMA_KEY);
    shm->size = size;
    if (!err)
        err = kvt__own_mount_acquire(mount, &shm->mount);
    if (err)
        return err;
    shm->generation = atomic_load(&kvt__own_generation);
    err = make_memory(shm, numa);
    if (!err)
        err = make_uuid(shm->id);
    if (!err) {
        key->id = shm->id;
        kvt__own_key_text(key, shm->key);
        err = announce(shm);
    }
    if (err)
        kvt__own_shm_close(shm);
    return err;
}

void
kvt__own_shm_unlink(struct kvt__own_shm *shm)
{
    if (shm->name[0] && shm->generation == atomic_load(&kvt__own_generation))
        shm_unlink(shm->name);
    shm->name[0] = '\0';
}

/* In a forked child the memory is not mapped, and the names belong to the parent. */
void
kvt__own_shm_close(struct kvt__own_shm *shm)
{
    if (shm->generation == atomic_load(&kvt__own_generation)) {
        if (shm->key[0])
            unlinkat(shm->mount->dir, shm->key, 0);
        kvt__own_shm_unlink(shm);
        if (shm->base)
            munmap(shm->base, shm->size);
    }
    kvt__own_mount_release(shm->mount);
}

/* --------------------------------------------------------------------- iov */

int
kvt__own_iovcreate(struct kvt__hf3fs_iov *iov, const char *mount, size_t size,
                   size_t block_size, int numa)
{
    struct kvt__own_key key = { .block_size = block_size };

    if (!iov || block_size > size)
        return kvt__fail(EINVAL, "allocate %zu bytes of shared memory in blocks of %zu", size,
                         block_size);
    struct kvt__own_shm *shm = malloc(sizeof *shm);
    if (!shm)
        return kvt__fail(ENOMEM, "allocate shared memory");
    int err = kvt__own_shm_open(shm, mount, size, numa, &key);
    if (err) {
        free(shm);
        return err;
    }
    *iov = (struct kvt__hf3fs_iov){ .base = shm->base, .iovh = shm, .size = size,
                                    .block_size = block_size, .numa = numa };
    memcpy(iov->id, shm->id, sizeof iov->id);
    memcpy(iov->mount_point, mount, strlen(mount) + 1);
    return 0;
}

void
kvt__own_iovunlink(struct kvt__hf3fs_iov *iov)
{
    if (iov && iov->iovh)
        kvt__own_shm_unlink(iov->iovh);
}

void
kvt__own_iovdestroy(struct kvt__hf3fs_iov *iov)
{
    if (!iov || !iov->iovh)
        return;
    kvt__own_shm_close(iov->iovh);
    free(iov->iovh);
    *iov = (struct kvt__hf3fs_iov){ 0 };
}
