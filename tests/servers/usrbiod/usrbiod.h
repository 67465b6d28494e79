/* SPDX-License-Identifier: Apache-2.0
 *
 * Interfaces of the files of usrbiod.
 *
 * Threads: the main thread reads commands, FUSE threads process requests of the kernel, a watcher
 * waits for each submit semaphore, workers move bytes, and a thread runs the timers.
 *
 * Order of locks: the table, a ring, then the locks of work, timers, counts and faults.  The lock
 * of the nodes may only be taken inside the table's lock. */
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
    char mount[4096]; /* canonical path */
    unsigned n_workers, n_threads;
    uint64_t rate;     /* bytes per second of each I/O; 0: no limit */
    uint64_t delay_us; /* delay of each lookup and open */
    size_t max_iovs;
    bool cache, holes, lazy_length, serial_lookups;
} opt;

int64_t now_ns(void);
void sleep_ns(int64_t ns);                 /* for a FUSE thread; returns early when the session
                                            * ends */
int report_failure(const char *what, int err);     /* print the error; return 1 */

/* ------------------------------------------------------------------------- mount */

int mount_point(const char *path); /* set opt.mount; return 0 or an errno */
int mount_start(void);             /* return 0, or 1 after printing the error */
void mount_stop(void);

/* -------------------------------------------------------------------------- nodes
 *
 * A file or directory that the kernel knows.  The node's number is the number of the backing
 * inode, which the file system cannot reuse while path_fd is open.  The root's number is 1. */

struct node {
    fuse_ino_t ino;
    int path_fd; /* O_PATH */
    int data_fd; /* open while the file is open or I/Os use the file; otherwise -1 */
    bool regular;
    uint64_t n_lookups;
    unsigned n_opens, n_ios;
    off_t visible_bytes; /* length that requests see; -1: the real length */
    char name[256];      /* name of the last lookup */
    struct node *next;
};

int nodes_init(const char *backing);
void nodes_fini(void);

/* Return a node of a request.  The kernel's reference keeps the node until the response.  NULL:
 * the number is unknown. */
struct node *node_get(fuse_ino_t ino);

/* Look up a name in a directory; add a node for a new, open file.  Both count as a lookup, which
 * node_forget() takes back.  Return 0 or an errno.  node_add_open() takes over data_fd. */
int node_look_up(struct node *parent, const char *name, struct stat *st,
                 struct node **out);
int node_add_open(int data_fd, const char *name, struct stat *st, struct node **out);
void node_forget(fuse_ino_t ino, uint64_t n);

int node_stat(struct node *n, struct stat *st);
void node_rename(fuse_ino_t ino, const char *name);
int node_open(struct node *n);
void node_release(struct node *n);

/* Return a regular file that is open, for an I/O, or NULL.  node_unuse() ends the use. */
struct node *node_use(uint64_t ino);
void node_unuse(struct node *n);
void node_name(struct node *n, char name[static 256]);

/* For --lazy-length: from now on, exclude growth of the file from its visible length; include the
 * growth again. */
void node_hide_growth(struct node *n);
void node_show_growth(struct node *n);

/* Return the number of open nodes. */
size_t nodes_open(void);

/* --------------------------------------------------------------------------- keys */

enum { PRIO_HIGH, PRIO_NORMAL, PRIO_LOW, N_PRIOS };

struct key {
    uint8_t id[16];
    size_t block_bytes; /* 0: the memory is one block */
    bool is_ring, for_read;
    int depth, timeout_ms, priority;
    uint64_t flags;
};

enum { RING_FORBIDS_HOLES = 2 };

/* Parse the name of a link.  Return 0 or an errno. */
int key_parse(const char *text, struct key *out);
bool key_id(const char *text, uint8_t id[static 16]); /* parse the first 36 characters; false: no
                                                       * UUID */

/* ---------------------------------------------------------------------- the table */

struct ring;

/* A registration: the shared memory that a link in 3fs-virt/iovs announces. */
struct reg {
    char name[256], target[512];
    struct key key;
    uid_t uid;
    gid_t gid;
    pid_t pid;
    uint8_t *base;
    size_t bytes;
    struct ring *ring; /* NULL: the memory is an iov */

    size_t slot;
    uint64_t generation; /* generation of the slot */
    struct reg *next;    /* next registration with the same hash */
    atomic_uint refs;
};

/* Register the link `name`.  Return 0 or an errno.  The caller drops *out. */
int table_add(const char *name, const char *target, const struct fuse_ctx *who,
              struct reg **out);

/* Return a registration by name, by slot, the first at or after a slot, or the iov with an id;
 * NULL: none.  The caller drops the registration. */
struct reg *table_find(const char *name);
struct reg *table_at(size_t slot);
struct reg *table_next(size_t from); /* first at or after this slot */
struct reg *table_iov(const uint8_t id[static 16]);

/* Remove a registration; remove all registrations of a thread; remove all at the end. */
void table_remove(struct reg *reg);
void table_reap(pid_t pid);
void table_fini(void);
void table_count(size_t *iovs, size_t *rings);
void reg_hold(struct reg *reg);
void reg_drop(struct reg *reg);

/* Take the jobs from all rings of the priority, at most 32 jobs of each ring.  Return the number
 * of jobs. */
size_t table_scan(int priority);

/* -------------------------------------------------------------------------- rings */

struct io {
    uint8_t buffer_id[16];
    uint64_t buffer_at, file, file_at, bytes, userdata;
    int32_t index;
    int64_t result;

    struct node *node; /* set while the I/O runs, as iov */
    struct reg *iov;
    bool corrupt, fixed; /* fixed: a fault or a check has determined the result */
    uint64_t at_most;    /* bytes to move, at most */
};

/* I/Os that are executed together. */
struct job {
    struct ring *ring;
    int end; /* index after the job's last entry in the ring */
    bool done;
    struct job *later; /* next job of the same ring */
    struct job *next;  /* next job of the queue */

    int64_t taken_ns;
    bool prepared, moved, reverse, silent;
    size_t n;
    struct io io[];
};

int ring_open(struct reg *reg, struct ring **out); /* return 0 or an errno */
void ring_free(struct ring *ring);
int ring_priority(const struct ring *ring);
struct reg *ring_reg(struct ring *ring);
void ring_withdraw(struct ring *ring); /* stop taking jobs from the ring */

/* Take the next job of a ring, or return NULL.  The job holds the ring's registration. */
struct job *ring_take(struct ring *ring);

/* Write the results, wake the client and free the job. */
void ring_complete(struct job *job);

/* --------------------------------------------------------------------------- work */

int work_start(void);
void work_stop(void);
void work_push(struct job *job);
size_t work_release(void); /* release all stuck jobs; return their number */

void job_run(struct job *job);    /* on a worker thread */
void job_finish(struct job *job); /* complete the job and take the ring's next job */
void job_park(struct job *job, unsigned generation); /* until the next release */

int timers_start(void);
void timers_hurry(void); /* all timers are due now */
void timers_stop(void);
void timers_add(struct job *job, int64_t at_ns);

int watch_start(void);
void watch_stop(void);

/* --------------------------------------------------------------------- semaphores */

int sems_open(void);
void sems_close(void);
sem_t *sems_get(int priority);
const char *sems_name(int priority); /* without the leading slash */

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
    OP_LINK = 1 << 10, /* visibility of a link in 3fs-virt/iovs */
};

/* The combined effect of all matching faults. */
struct effect {
    bool has_result, stuck, reorder, lost_wakeup, corrupt, refuse_uid;
    int64_t result;
    uint64_t at_most; /* bytes to move, at most; UINT64_MAX: no limit */
    int64_t delay_ns;
    unsigned generation; /* number of releases before the fault was found */
};

/* Find the faults of an operation.  False: no fault matches. */
bool fault_find(unsigned op, const char *name, uint64_t at, struct effect *out);

/* Apply the faults of a request about a name: wait, if a fault says so.  Return the errno of the
 * response, or 0. */
int fault_request(unsigned op, const char *name);

/* Add a fault "OP WHAT [WORD...]".  Return NULL, or the error in the text. */
const char *fault_add(const char *line);
void fault_clear(void);
void fault_release(void); /* release stuck requests, and jobs that are about to park */
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

/* 3fs-virt and its contents. */
#define VIRT_NAME "3fs-virt"
bool is_virtual(fuse_ino_t ino);
void virt_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void virt_getattr(fuse_req_t req, fuse_ino_t ino);
void virt_readlink(fuse_req_t req, fuse_ino_t ino);
void virt_symlink(fuse_req_t req, const char *target, fuse_ino_t parent,
                  const char *name);
void virt_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);

/* Return the entry of a directory at *at and advance *at.  False: no more entries. */
bool virt_list(fuse_ino_t dir, uid_t uid, off_t *at, struct stat *st,
               char name[static 256]);
void virt_releasedir(fuse_ino_t ino, pid_t opened_by);

#endif
