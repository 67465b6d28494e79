/* SPDX-License-Identifier: Apache-2.0
 *
 * 3fs-virt: links of iovs and rings, links of the submit semaphores, and directories of the real
 * daemon, which are empty here.  Inode numbers are equal to the real daemon's. */
#include <errno.h>
#include <string.h>

#include "usrbiod.h"

#define VIRT ((fuse_ino_t)-2)
#define IOVS ((fuse_ino_t)-(1LL << 31))
#define FIRST_SEM (IOVS - 1)
#define FIRST_REG (IOVS - 65535)

static const struct dir {
    const char *name;
    fuse_ino_t parent, ino;
    mode_t mode;
} dirs[] = {
    { VIRT_NAME, FUSE_ROOT_ID, VIRT, 0555 },
    { "rm-rf", VIRT, (fuse_ino_t)-3, 0777 },
    { "iovs", VIRT, IOVS, 0777 },
    { "get-conf", VIRT, (fuse_ino_t)(-2 * (1LL << 31)), 0555 },
    { "set-conf", VIRT, (fuse_ino_t)(-3 * (1LL << 31)), 0777 },
};

enum { N_DIRS = sizeof dirs / sizeof dirs[0] };

static const char *const sem_links[N_PRIOS] = { "submit-ios.ph", "submit-ios",
                                                "submit-ios.pl" };

bool
is_virtual(fuse_ino_t ino)
{
    return (int64_t)ino < 0;
}

/* ----------------------------------------------------------------------- attributes */

static void
stat_dir(const struct dir *d, struct stat *st)
{
    *st = (struct stat){ .st_ino = d->ino, .st_mode = S_IFDIR | d->mode, .st_nlink = 2 };
}

static void
sem_target(int priority, char target[static 128])
{
    snprintf(target, 128, "/dev/shm/sem.%s", sems_name(priority));
}

static void
stat_sem(int priority, struct stat *st)
{
    char target[128];

    sem_target(priority, target);
    *st = (struct stat){ .st_ino = FIRST_SEM - (fuse_ino_t)priority,
                         .st_mode = S_IFLNK | 0666, .st_nlink = 1,
                         .st_size = (off_t)strlen(target) };
}

static void
stat_reg(const struct reg *reg, struct stat *st)
{
    *st = (struct stat){ .st_ino = FIRST_REG - reg->slot, .st_mode = S_IFLNK | 0400,
                         .st_nlink = 1, .st_uid = reg->uid, .st_gid = reg->gid,
                         .st_size = (off_t)strlen(reg->target) };
}

static bool
may_see(const struct reg *reg, uid_t uid)
{
    struct effect e;

    return reg->uid == uid && !fault_find(OP_LINK, reg->name, 0, &e);
}

/* Return the registration if the user may see its link.  Otherwise drop the registration, set
 * *err and return NULL. */
static struct reg *
visible(struct reg *reg, uid_t uid, int *err)
{
    *err = !reg ? ENOENT : may_see(reg, uid) ? 0 : EPERM;
    if (reg && *err)
        reg_drop(reg);
    return *err ? NULL : reg;
}

static struct reg *
reg_of(fuse_ino_t ino, uid_t uid, int *err)
{
    return visible(ino <= FIRST_REG ? table_at(FIRST_REG - ino) : NULL, uid, err);
}

/* Return the priority of a semaphore's link; -1: the name is no semaphore's link. */
static int
sem_named(const char *name)
{
    int i = N_PRIOS;

    while (--i >= 0 && strcmp(name, sem_links[i]))
        continue;
    return i;
}

static bool
is_sem(fuse_ino_t ino)
{
    return ino <= FIRST_SEM && ino > FIRST_SEM - N_PRIOS;
}

static int
stat_ino(fuse_ino_t ino, uid_t uid, struct stat *st)
{
    int err;

    for (int i = 0; i < N_DIRS; i++)
        if (dirs[i].ino == ino) {
            stat_dir(&dirs[i], st);
            return 0;
        }
    if (is_sem(ino)) {
        stat_sem((int)(FIRST_SEM - ino), st);
        return 0;
    }
    struct reg *reg = reg_of(ino, uid, &err);
    if (reg) {
        stat_reg(reg, st);
        reg_drop(reg);
    }
    return err;
}

/* ------------------------------------------------------------------------- requests */

static void
reply_entry(fuse_req_t req, const struct stat *st, uint64_t generation)
{
    struct fuse_entry_param e = { .ino = st->st_ino, .generation = generation,
                                  .attr = *st };

    fuse_reply_entry(req, &e);
}

static void
look_up_link(fuse_req_t req, const char *name)
{
    int err, priority = sem_named(name);
    struct stat st;

    if (priority >= 0) {
        stat_sem(priority, &st);
        reply_entry(req, &st, 0);
        return;
    }
    struct reg *reg = visible(table_find(name), fuse_req_ctx(req)->uid, &err);
    if (!reg) {
        fuse_reply_err(req, err);
        return;
    }
    stat_reg(reg, &st);
    reply_entry(req, &st, reg->generation);
    reg_drop(reg);
}

void
virt_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct stat st;

    if (parent == IOVS) {
        look_up_link(req, name);
        return;
    }
    for (int i = 0; i < N_DIRS; i++)
        if (dirs[i].parent == parent && !strcmp(dirs[i].name, name)) {
            stat_dir(&dirs[i], &st);
            reply_entry(req, &st, 0);
            return;
        }
    fuse_reply_err(req, ENOENT);
}

void
virt_getattr(fuse_req_t req, fuse_ino_t ino)
{
    struct stat st;
    int err = stat_ino(ino, fuse_req_ctx(req)->uid, &st);

    if (err)
        fuse_reply_err(req, err);
    else
        fuse_reply_attr(req, &st, 0);
}

void
virt_readlink(fuse_req_t req, fuse_ino_t ino)
{
    char target[128];
    int err;

    if (is_sem(ino)) {
        sem_target((int)(FIRST_SEM - ino), target);
        fuse_reply_readlink(req, target);
        return;
    }
    struct reg *reg = reg_of(ino, fuse_req_ctx(req)->uid, &err);
    if (!reg) {
        fuse_reply_err(req, err);
        return;
    }
    fuse_reply_readlink(req, reg->target);
    reg_drop(reg);
}

void
virt_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    struct reg *reg = NULL;
    struct stat st;
    int err = parent == IOVS ? fault_request(OP_SYMLINK, name) : EPERM;

    if (!err)
        err = table_add(name, target, fuse_req_ctx(req), &reg);
    if (err) {
        fuse_reply_err(req, err);
        return;
    }
    stat_reg(reg, &st);
    reply_entry(req, &st, reg->generation);
    reg_drop(reg);
}

void
virt_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    int err = EPERM;

    if (parent == IOVS && sem_named(name) < 0) {
        struct reg *reg = visible(table_find(name), fuse_req_ctx(req)->uid, &err);

        if (reg) {
            table_remove(reg);
            reg_drop(reg);
        }
    }
    fuse_reply_err(req, err);
}

/* ------------------------------------------------------------------------ directories */

static bool
list_links(uid_t uid, off_t *at, struct stat *st, char name[static 256])
{
    if (*at < N_PRIOS) {
        stat_sem((int)*at, st);
        snprintf(name, 256, "%s", sem_links[(*at)++]);
        return true;
    }
    struct reg *reg;
    while ((reg = table_next((size_t)(*at - N_PRIOS)))) {
        bool own = may_see(reg, uid);

        *at = (off_t)reg->slot + N_PRIOS + 1;
        stat_reg(reg, st);
        snprintf(name, 256, "%s", reg->name);
        reg_drop(reg);
        if (own)
            return true;
    }
    return false;
}

bool
virt_list(fuse_ino_t dir, uid_t uid, off_t *at, struct stat *st, char name[static 256])
{
    if (dir == IOVS)
        return list_links(uid, at, st, name);
    for (; *at < N_DIRS; ++*at)
        if (dirs[*at].parent == dir) {
            stat_dir(&dirs[*at], st);
            snprintf(name, 256, "%s", dirs[(*at)++].name);
            return true;
        }
    return false;
}

/* The request's pid is the number of the thread that opened the directory.  Remove the
 * registrations of this thread; registrations of other threads of the process remain. */
void
virt_releasedir(fuse_ino_t ino, pid_t opened_by)
{
    if (ino == IOVS)
        table_reap(opened_by);
}
