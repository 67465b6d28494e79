/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of nodes: files that the kernel knows, and open files.  A single lock guards the
 * table. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "usrbiod.h"

enum { N_BUCKETS = 1 << 14 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct node *buckets[N_BUCKETS];
static size_t n_open;

static struct node **
find_locked(uint64_t ino)
{
    struct node **at = &buckets[ino % N_BUCKETS];

    while (*at && (*at)->ino != ino)
        at = &(*at)->next;
    return at;
}

static void
set_name(struct node *n, const char *name)
{
    snprintf(n->name, sizeof n->name, "%s", name);
}

/* Add a node, or return the existing node.  The function takes over the O_PATH descriptor. */
static struct node *
add_locked(int path_fd, fuse_ino_t ino, const struct stat *st)
{
    struct node **at = find_locked(ino), *n = *at;

    if (n) {
        close(path_fd);
        return n;
    }
    n = calloc(1, sizeof *n);
    if (!n) {
        close(path_fd);
        return NULL;
    }
    n->ino = ino;
    n->path_fd = path_fd;
    n->data_fd = -1;
    n->regular = S_ISREG(st->st_mode);
    n->visible_bytes = -1;
    *at = n;
    return n;
}

int
nodes_init(const char *backing)
{
    int fd = open(backing, O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return errno;
    struct node *root = add_locked(fd, FUSE_ROOT_ID, &st);
    if (!root)
        return ENOMEM;
    root->n_lookups = 1;
    return 0;
}

static void
free_node(struct node *n)
{
    if (n->data_fd >= 0)
        close(n->data_fd);
    close(n->path_fd);
    free(n);
}

void
nodes_fini(void)
{
    for (size_t i = 0; i < N_BUCKETS; i++)
        while (buckets[i]) {
            struct node *n = buckets[i];

            buckets[i] = n->next;
            free_node(n);
        }
}

struct node *
node_get(fuse_ino_t ino)
{
    pthread_mutex_lock(&lock);
    struct node *n = *find_locked(ino);
    pthread_mutex_unlock(&lock);
    return n;
}

/* Find a node by the inode's number and count a lookup.  The number identifies the file, because
 * an existing node keeps its inode from being reused.  Return false if the node does not exist. */
static bool
look_up_known(const struct stat *st, const char *name, struct node **out)
{
    pthread_mutex_lock(&lock);
    *out = *find_locked(st->st_ino);
    if (*out) {
        (*out)->n_lookups++;
        set_name(*out, name);
    }
    pthread_mutex_unlock(&lock);
    return *out != NULL;
}

static int
add_looked_up(int path_fd, const char *name, const struct stat *st, struct node **out)
{
    pthread_mutex_lock(&lock);
    *out = add_locked(path_fd, st->st_ino, st);
    if (*out) {
        (*out)->n_lookups++;
        set_name(*out, name);
    }
    pthread_mutex_unlock(&lock);
    return *out ? 0 : ENOMEM;
}

/* Replace the length by the visible length of --lazy-length. */
static void
apply_visible_length(struct node *n, struct stat *st)
{
    pthread_mutex_lock(&lock);
    if (n->visible_bytes >= 0 && st->st_size > n->visible_bytes)
        st->st_size = n->visible_bytes;
    pthread_mutex_unlock(&lock);
}

int
node_look_up(struct node *parent, const char *name, struct stat *st, struct node **out)
{
    int fd, err;

    if (fstatat(parent->path_fd, name, st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno;
    if (!look_up_known(st, name, out)) {
        fd = openat(parent->path_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            return errno;
        if (fstat(fd, st) < 0) {
            err = errno;
            close(fd);
            return err;
        }
        err = add_looked_up(fd, name, st, out);
        if (err)
            return err;
    }
    apply_visible_length(*out, st);
    return 0;
}

static void
descriptor_path(int fd, char path[static 32])
{
    snprintf(path, 32, "/proc/self/fd/%d", fd);
}

int
node_add_open(int data_fd, const char *name, struct stat *st, struct node **out)
{
    char path[32];
    int path_fd = -1, err = 0;

    descriptor_path(data_fd, path);
    if (fstat(data_fd, st) == 0)
        path_fd = open(path, O_PATH | O_CLOEXEC);
    err = path_fd < 0 ? errno : add_looked_up(path_fd, name, st, out);
    if (err) {
        close(data_fd);
        return err;
    }
    pthread_mutex_lock(&lock);
    n_open += !(*out)->n_opens++;
    if ((*out)->data_fd < 0) {
        (*out)->data_fd = data_fd;
        data_fd = -1;
    }
    pthread_mutex_unlock(&lock);
    if (data_fd >= 0)
        close(data_fd);
    return 0;
}

/* Close the shared descriptor, and free the node, if neither lookups nor openers nor I/Os use
 * them. */
static void
end_locked(struct node *n)
{
    if (n->data_fd >= 0 && !n->n_opens && !n->n_ios) {
        close(n->data_fd);
        n->data_fd = -1;
    }
    if (!n->n_lookups && !n->n_opens && !n->n_ios) {
        *find_locked(n->ino) = n->next;
        free_node(n);
    }
}

void
node_forget(fuse_ino_t ino, uint64_t n_lookups)
{
    pthread_mutex_lock(&lock);
    struct node *n = *find_locked(ino);
    if (n && ino != FUSE_ROOT_ID) {
        n->n_lookups -= n_lookups < n->n_lookups ? n_lookups : n->n_lookups;
        end_locked(n);
    }
    pthread_mutex_unlock(&lock);
}

int
node_stat(struct node *n, struct stat *st)
{
    if (fstat(n->path_fd, st) < 0)
        return errno;
    apply_visible_length(n, st);
    return 0;
}

void
node_rename(fuse_ino_t ino, const char *name)
{
    pthread_mutex_lock(&lock);
    struct node *n = *find_locked(ino);
    if (n)
        set_name(n, name);
    pthread_mutex_unlock(&lock);
}

/* Open the descriptor that all openers of a file share, for reading and writing if permitted. */
static int
open_data(struct node *n)
{
    char path[32];

    descriptor_path(n->path_fd, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 && (errno == EACCES || errno == EROFS || errno == EPERM))
        fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd;
}

int
node_open(struct node *n)
{
    int err = 0;

    pthread_mutex_lock(&lock);
    if (n->data_fd < 0) {
        n->data_fd = open_data(n);
        err = n->data_fd < 0 ? errno : 0;
    }
    if (!err)
        n_open += !n->n_opens++;
    pthread_mutex_unlock(&lock);
    return err;
}

void
node_release(struct node *n)
{
    pthread_mutex_lock(&lock);
    if (!--n->n_opens) {
        n_open--;
        n->visible_bytes = -1;
    }
    end_locked(n);
    pthread_mutex_unlock(&lock);
}

struct node *
node_use(uint64_t ino)
{
    pthread_mutex_lock(&lock);
    struct node *n = *find_locked(ino);
    if (n && n->regular && n->n_opens)
        n->n_ios++;
    else
        n = NULL;
    pthread_mutex_unlock(&lock);
    return n;
}

void
node_unuse(struct node *n)
{
    pthread_mutex_lock(&lock);
    n->n_ios--;
    end_locked(n);
    pthread_mutex_unlock(&lock);
}

void
node_name(struct node *n, char name[static 256])
{
    pthread_mutex_lock(&lock);
    memcpy(name, n->name, 256);
    pthread_mutex_unlock(&lock);
}

void
node_hide_growth(struct node *n)
{
    struct stat st;

    pthread_mutex_lock(&lock);
    if (n->visible_bytes < 0 && fstat(n->data_fd, &st) == 0)
        n->visible_bytes = st.st_size;
    pthread_mutex_unlock(&lock);
}

void
node_show_growth(struct node *n)
{
    pthread_mutex_lock(&lock);
    n->visible_bytes = -1;
    pthread_mutex_unlock(&lock);
}

size_t
nodes_open(void)
{
    pthread_mutex_lock(&lock);
    size_t n = n_open;
    pthread_mutex_unlock(&lock);
    return n;
}
