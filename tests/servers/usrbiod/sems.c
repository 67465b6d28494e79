/* SPDX-License-Identifier: Apache-2.0
 *
 * The named semaphores that clients post.  A lock on each semaphore's file shows that the daemon
 * is alive: the next daemon removes the semaphores of killed daemons. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include "usrbiod.h"

#define PREFIX "hf3fs-submit-ios."
/* Beginning of the UUIDs of usrbiod; a UUID of another program has this beginning with negligible
 * probability. */
#define OURS "75737262-"

static struct {
    char name[80];
    sem_t *sem;
    int lock_fd;
} sems[N_PRIOS];

sem_t *
sems_get(int priority)
{
    return sems[priority].sem;
}

const char *
sems_name(int priority)
{
    return sems[priority].name;
}

static void
remove_dead(void)
{
    DIR *dir = opendir("/dev/shm");
    struct dirent *e;

    while (dir && (e = readdir(dir))) {
        if (strncmp(e->d_name, "sem." PREFIX OURS, strlen("sem." PREFIX OURS)))
            continue;
        int fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
            continue;
        if (!flock(fd, LOCK_EX | LOCK_NB))
            unlinkat(dirfd(dir), e->d_name, 0);
        close(fd);
    }
    if (dir)
        closedir(dir);
}

/* Create a semaphore.  The file gets its final name after the lock, so that another daemon does
 * not remove the file. */
static int
open_one(int priority, const uint64_t random[static 2])
{
    char *name = sems[priority].name, temp[96], from[128], to[128];
    unsigned long long low = random[1] & 0xffffffffffff;

    snprintf(name, sizeof sems[0].name, PREFIX OURS "%04x-%04x-%04x-%012llx",
             (unsigned)(random[0] >> 32 & 0xffff), (unsigned)(random[0] >> 16 & 0xffff),
             (unsigned)(random[0] & 0xffff), low);
    snprintf(temp, sizeof temp, "/t.%.80s", name);
    snprintf(from, sizeof from, "/dev/shm/sem.%.90s", temp + 1);
    snprintf(to, sizeof to, "/dev/shm/sem.%.80s", name);
    sems[priority].sem = sem_open(temp, O_CREAT | O_EXCL, 0666, 0);
    if (sems[priority].sem == SEM_FAILED)
        return errno;
    sems[priority].lock_fd = open(from, O_RDONLY | O_CLOEXEC);
    if (sems[priority].lock_fd < 0 || flock(sems[priority].lock_fd, LOCK_SH) < 0 ||
        rename(from, to) < 0) {
        int err = errno;
        sem_unlink(temp);
        return err;
    }
    return 0;
}

int
sems_open(void)
{
    uint64_t random[N_PRIOS][2];

    remove_dead();
    if (getrandom(random, sizeof random, 0) != sizeof random)
        return EIO;
    for (int i = 0; i < N_PRIOS; i++) {
        int err = open_one(i, random[i]);
        if (err)
            return err;
    }
    return 0;
}

void
sems_close(void)
{
    char name[96];

    for (int i = 0; i < N_PRIOS; i++) {
        if (!sems[i].sem || sems[i].sem == SEM_FAILED)
            continue;
        snprintf(name, sizeof name, "/%.80s", sems[i].name);
        sem_unlink(name);
        sem_close(sems[i].sem);
        close(sems[i].lock_fd);
    }
}
