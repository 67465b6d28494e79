/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of usrbiod.  Threads: one reads commands (main), some answer FUSE, one waits
 * for each submit semaphore, some move bytes, one runs the timers.  Order of the locks
 * where one is taken inside another: the table's, a ring's, then those of work, timers,
 * counts and faults; nodes' inside none of them but the table's. */
#ifndef USRBIOD_H
#define USRBIOD_H

#define FUSE_USE_VERSION 35
#include <fuse_lowlevel.h>

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

extern struct options {
    const char *backing;
    char mount[4096]; /* canonical */
    unsigned n_workers, n_threads;
    uint64_t rate;     /* bytes a second of each I/O; 0: as they come */
    uint64_t delay_us; /* of each look-up and open */
    size_t max_iovs;
    bool cache, holes, lazy_length, serial_lookups;
} opt;

int64_t now_ns(void);
void sleep_ns(int64_t ns);                 /* of a thread that answers FUSE */
int failed(const char *what, int err);     /* says so; 1 */

/* ------------------------------------------------------------------------- mount */

int mount_point(const char *path); /* sets opt.mount; 0 or an errno */
int mount_start(void);             /* 0, or it has said what failed */
void mount_stop(void);

/* -------------------------------------------------------------------------- nodes
 *
 * A file or directory that the kernel knows.  Its number is the backing inode's, which
 * cannot be used again while path_fd is open; the root's is 1. */

struct node {
    fuse_ino_t ino;
    int path_fd; /* O_PATH */
    int data_fd; /* while it is open or I/Os use it; else -1 */
    bool regular;
    uint64_t n_lookups;
    unsigned n_opens, n_ios;
    off_t visible_bytes; /* -1: all there are */
    char name[256];      /* the last one it was found by */
    struct node *next;
};

int nodes_init(const char *backing);
void nodes_fini(void);

/* The kernel asks about it, so it stays until the answer. */
struct node *node_get(fuse_ino_t ino);

/* Each counts as a look-up, which node_forget() takes back; 0 or an errno. */
int node_look_up(struct node *parent, const char *name, struct stat *st,
                 struct node **out);
int node_add_open(int data_fd, const char *name, struct stat *st, struct node **out);
void node_forget(fuse_ino_t ino, uint64_t n);

int node_stat(struct node *n, struct stat *st);
void node_rename(fuse_ino_t ino, const char *name);
int node_open(struct node *n);
void node_release(struct node *n);

/* For an I/O: a regular file that is open.  NULL: there is none. */
struct node *node_use(uint64_t ino);
void node_unuse(struct node *n);
void node_name(struct node *n, char name[static 256]);

/* With lazy_length: what is written from here on is not seen in the length, and is. */
void node_hide_growth(struct node *n);
void node_show_growth(struct node *n);

size_t nodes_open(void);

/* --------------------------------------------------------------------------- keys */

enum { PRIO_HIGH, PRIO_NORMAL, PRIO_LOW, N_PRIOS };

struct key {
    uint8_t id[16];
    size_t block_bytes; /* 0: one block */
    bool is_ring, for_read;
    int depth, timeout_ms, priority;
    uint64_t flags;
};

enum { RING_FORBIDS_HOLES = 2 };

/* 0 or an errno. */
int key_parse(const char *text, struct key *out);
bool key_id(const char *text, uint8_t id[static 16]); /* of its first 36 characters */

/* ---------------------------------------------------------------------- the table */

struct ring;

/* What a link in 3fs-virt/iovs stands for. */
struct reg {
    char name[256], target[512];
    struct key key;
    uid_t uid;
    gid_t gid;
    pid_t pid;
    uint8_t *base;
    size_t bytes;
    struct ring *ring; /* NULL: an iov */

    size_t slot;
    uint64_t generation; /* of the slot */
    struct reg *next;    /* of those with the same hash */
    atomic_uint refs;
};

/* 0 or an errno.  *out is held. */
int table_add(const char *name, const char *target, const struct fuse_ctx *who,
              struct reg **out);

/* Held, or NULL. */
struct reg *table_find(const char *name);
struct reg *table_at(size_t slot);
struct reg *table_next(size_t from); /* from that slot on */
struct reg *table_iov(const uint8_t id[static 16]);

void table_remove(struct reg *reg);
void table_reap(pid_t pid);
void table_fini(void);
void table_count(size_t *iovs, size_t *rings);
void reg_hold(struct reg *reg);
void reg_drop(struct reg *reg);

/* Takes what is there from all rings of the priority, at most 32 jobs of each; how many
 * jobs that were. */
size_t table_scan(int priority);

/* -------------------------------------------------------------------------- rings */

struct io {
    uint8_t buffer_id[16];
    uint64_t buffer_at, file, file_at, bytes, userdata;
    int32_t index;
    int64_t result;

    struct node *node; /* while it runs */
    struct reg *iov;
    bool corrupt, fixed; /* fixed: the result is a fault's */
    uint64_t at_most;    /* bytes that are moved */
};

/* I/Os that are done together. */
struct job {
    struct ring *ring;
    int end; /* of its entries in the ring */
    bool done;
    struct job *later; /* of the same ring */
    struct job *next;  /* where it waits */

    int64_t taken_ns;
    bool prepared, moved, reverse, silent;
    size_t n;
    struct io io[];
};

int ring_open(struct reg *reg, struct ring **out); /* 0 or an errno */
void ring_free(struct ring *ring);
int ring_priority(const struct ring *ring);
struct reg *ring_reg(struct ring *ring);
void ring_withdraw(struct ring *ring); /* nothing more is taken from it */

/* NULL: there is nothing to take.  Holds the ring. */
struct job *ring_take(struct ring *ring);

/* Writes the results and wakes the client; the job is gone. */
void ring_complete(struct job *job);

/* --------------------------------------------------------------------------- work */

int work_start(void);
void work_stop(void);
void work_push(struct job *job);
size_t work_release(void); /* all that is stuck; how many jobs */

void job_run(struct job *job);    /* a worker's */
void job_finish(struct job *job); /* completes it and looks for the next */
void job_park(struct job *job, unsigned generation); /* until the next one */

int timers_start(void);
void timers_hurry(void); /* all are due */
void timers_stop(void);
void timers_add(struct job *job, int64_t at_ns);

int watch_start(void);
void watch_stop(void);

/* --------------------------------------------------------------------- semaphores */

int sems_open(void);
void sems_close(void);
sem_t *sems_get(int priority);
const char *sems_name(int priority); /* without the slash */

/* ------------------------------------------------------------------------- faults */

enum {
    OP_READ = 1 << 0,
    OP_WRITE = 1 << 1,
    OP_LOOKUP = 1 << 2,
    OP_OPEN = 1 << 3,
    OP_CREATE = 1 << 4,
    OP_RENAME = 1 << 5,
    OP_UNLINK = 1 << 6,
    OP_FLUSH = 1 << 7,
    OP_SYMLINK = 1 << 8,
    OP_SUBMIT = 1 << 9,
    OP_LINK = 1 << 10, /* who may see a link of 3fs-virt/iovs */
};

/* All that matches, together. */
struct effect {
    bool has_result, stuck, reorder, lost_wakeup, corrupt, refuse_uid;
    int64_t result;
    uint64_t at_most; /* bytes; UINT64_MAX: all */
    int64_t delay_ns;
    unsigned generation; /* of releases, when it was found */
};

/* False: there is none for this one. */
bool fault_find(unsigned op, const char *name, uint64_t at, struct effect *out);

/* For a request about a name: waits where that is the fault; an errno it is to fail
 * with, or 0. */
int fault_request(unsigned op, const char *name);

/* "OP WHAT [WORD...]".  NULL, or what is wrong with it. */
const char *fault_add(const char *line);
void fault_clear(void);
void fault_release(void); /* requests that are stuck, and jobs that will be */
unsigned fault_generation(void);
extern const char fault_help[];

/* ------------------------------------------------------------------------- counts */

void count_lookup_begins(void);
void count_lookup_ends(void);
void count_post(void);
void count_stuck(int more);
void count_taken(const struct job *job);
void count_done(const struct job *job, bool for_read);
size_t count_in_flight(void);
void count_reset(void);
void count_print(FILE *to);

/* --------------------------------------------------------------------------- FUSE */

extern const struct fuse_lowlevel_ops fs_ops;

void fill_entry(struct fuse_entry_param *e, struct node *n, const struct stat *st);
void delay_request(void);
void become_owner(fuse_req_t req, int dir_fd, const char *name);

void fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi);
void fs_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
             struct fuse_file_info *fi);
void fs_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
              struct fuse_file_info *fi);
void fs_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void fs_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
              struct fuse_file_info *fi, unsigned flags, const void *in, size_t in_bytes,
              size_t out_bytes);

void fs_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                struct fuse_file_info *fi);
void fs_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void dirs_fini(void);

/* 3fs-virt and what is in it. */
#define VIRT_NAME "3fs-virt"
bool is_virtual(fuse_ino_t ino);
void virt_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void virt_getattr(fuse_req_t req, fuse_ino_t ino);
void virt_readlink(fuse_req_t req, fuse_ino_t ino);
void virt_symlink(fuse_req_t req, const char *target, fuse_ino_t parent,
                  const char *name);
void virt_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);

/* The directory's entry at *at, which moves on.  False: no more. */
bool virt_list(fuse_ino_t dir, uid_t uid, off_t *at, struct stat *st,
               char name[static 256]);
void virt_releasedir(fuse_ino_t ino, pid_t opened_by);

#endif
