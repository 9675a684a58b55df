/* A stand-in for NCCL whose "device memory" is host memory, and whose ranks are threads of one process that hand each
 * other messages. Macros choose its version and how it misbehaves; it counts what no caller may do. */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifndef VERSION
#define VERSION 22803
#endif
/* Polls until a communicator has come up; negative: never. */
#ifndef POLLS
#define POLLS 3
#endif
#ifndef INIT_RESULT
#define INIT_RESULT 7
#endif
#ifndef ABORT_SECONDS
#define ABORT_SECONDS 0
#endif
#ifndef REDUCE_RESULT
#define REDUCE_RESULT 0
#endif
/* Whether a split never ends. */
#ifndef SPLIT_HANGS
#define SPLIT_HANGS 0
#endif
/* How long an all-reduce stays inside the call. */
#ifndef REDUCE_SECONDS
#define REDUCE_SECONDS 0
#endif
/* The rank whose window registration fails, which leaves its peers waiting for it. */
#ifndef WINDOW_FAILS_ON
#define WINDOW_FAILS_ON -1
#endif
/* The rank that gets no window, and no error either. */
#ifndef WINDOW_NULL_ON
#define WINDOW_NULL_ON -1
#endif
#ifndef WINDOW_SECONDS
#define WINDOW_SECONDS 0
#endif
#ifndef DEREGISTER_SECONDS
#define DEREGISTER_SECONDS 0
#endif
#ifndef MEMORY_RESULT
#define MEMORY_RESULT 0
#endif

struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga, min_ctas, max_ctas;
    const char *net;
    int split_share, traffic_class;
    const char *name;
    int collnet, policy, shrink_share, nvls_ctas, per_peer, nvlink;
};
struct comm {
    int rank, world, polls, blocking, dead, inside, grouped, registered;
    void **place; /* of a window that is being registered */
    const char *name;
};
struct handle { struct comm *comm; char *from, *to; int window, live; };
typedef struct { char internal[128]; } id_t128;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t posted = PTHREAD_COND_INITIALIZER;
static __thread int group_depth;
static int aborts, destroys, finalizes, splits, calls, config_errors, misuses, allocations, windows, buffers, natives;
static struct config last;
static struct comm comms[256];
static struct handle handles[256];
static int next_comm, next_handle;
static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

#define COUNTER(name) int fake_##name(void) { return name; }
COUNTER(aborts) COUNTER(destroys) COUNTER(finalizes) COUNTER(splits) COUNTER(calls) COUNTER(config_errors)
COUNTER(misuses) COUNTER(allocations) COUNTER(windows) COUNTER(buffers) COUNTER(natives)
int fake_policy(void) { return last.policy; }
int fake_min_ctas(void) { return last.min_ctas; }
int fake_max_ctas(void) { return last.max_ctas; }
int fake_traffic_class(void) { return last.traffic_class; }

#define ADD(counter, by) __sync_fetch_and_add(&(counter), by)

int ncclGetVersion(int *version) { *version = VERSION; return 0; }
const char *ncclGetErrorString(int code) { return code == 4 ? "invalid argument" : "some error"; }

#if VERSION >= 21800
const char *ncclGetLastError(void *comm) { (void)comm; return "the fake says no"; }

int ncclGetUniqueId(id_t128 *id) {
    for (int i = 0; i < 128; i++) id->internal[i] = (char)(i + 1);
    return 0;
}

static int live(struct comm *comm) {
    if (!comm || comm->dead) ADD(misuses, 1);
    return comm && !comm->dead;
}

static void check_config(const struct config *config) {
    unsigned version = VERSION >= 22800 ? 22800 : VERSION >= 22700 ? 22700 : VERSION >= 22600 ? 22600 : 21800;
    size_t size = VERSION >= 22800 ? 80 : VERSION >= 22700 ? 72 : 48;
    if (config->magic != 0xcafebeef || config->version != version || config->size != size) ADD(config_errors, 1);
    if (config->min_ctas > config->max_ctas) ADD(config_errors, 1);
    memset(&last, 0, sizeof last);
    memcpy(&last, config, size);
}

static struct comm *new_comm(int rank, int world, int polls, const struct config *config) {
    struct comm *comm = &comms[ADD(next_comm, 1)];
    *comm = (struct comm){.rank = rank, .world = world, .polls = polls, .blocking = config->blocking};
    if (config->size > 48) comm->name = config->name;
    return comm;
}

int ncclCommInitRankConfig(struct comm **out, int world, id_t128 id, int rank, const struct config *config) {
    check_config(config);
    for (int i = 0; i < 128; i++) if (id.internal[i] != (char)(i + 1)) return 4;
    if (INIT_RESULT != 0 && INIT_RESULT != 7) return INIT_RESULT;
    *out = new_comm(rank, world, INIT_RESULT == 0 ? 0 : POLLS, config);
    return INIT_RESULT;
}

int ncclCommSplit(struct comm *parent, int color, int key, struct comm **out, const struct config *config) {
    check_config(config);
    ADD(splits, 1);
    if (color != 0 || !live(parent)) return 4;
    *out = new_comm(key, parent->world, SPLIT_HANGS ? -1 : 0, config);
    if (!SPLIT_HANGS) return 0;
    parent->polls = -1;
    return 7;
}

static void *new_handle(struct comm *comm, char *at, size_t bytes, int window) {
    struct handle *handle = &handles[ADD(next_handle, 1)];
    *handle = (struct handle){comm, at, at + bytes, window, 1};
    ADD(comm->registered, 1);
    if (window) ADD(windows, 1); else ADD(buffers, 1);
    return handle;
}

static void end_handle(struct handle *handle) {
    handle->live = 0;
    ADD(handle->comm->registered, -1);
    if (handle->window) ADD(windows, -1); else ADD(buffers, -1);
}

int ncclCommGetAsyncError(struct comm *comm, int *state) {
    if (!live(comm)) return 4;
    if (comm->polls > 0) comm->polls--;
    *state = comm->polls ? 7 : 0;
    if (comm->place && comm->polls < 0 && aborts > 0) *state = 6;
    if (comm->place && !comm->polls) {
        *comm->place = comm->rank == WINDOW_NULL_ON ? NULL : &handles[(intptr_t)*comm->place];
        comm->place = NULL;
    }
    return 0;
}

int ncclCommFinalize(struct comm *comm) {
    if (!live(comm) || comm->registered) ADD(misuses, 1);
    ADD(finalizes, 1);
    comm->polls = 2;
    return comm->blocking ? 0 : 7;
}

static void end(struct comm *comm) {
    if (!live(comm) || comm->inside || comm->grouped) ADD(misuses, 1);
    for (int i = 0; i < next_handle; i++) if (handles[i].live && handles[i].comm == comm) end_handle(&handles[i]);
    if (comm->name && strlen(comm->name) != 5) ADD(misuses, 1);
    comm->dead = 1;
}

int ncclCommDestroy(struct comm *comm) { end(comm); ADD(destroys, 1); return 0; }
int ncclCommAbort(struct comm *comm) {
    ADD(aborts, 1);
    if (ABORT_SECONDS) sleep(ABORT_SECONDS);
    end(comm);
    return 0;
}

/* Messages: first in, first out, between each pair of ranks. */
struct message { struct message *next; int from, to; size_t bytes; char data[]; };
static struct message *messages;

static void post(int from, int to, const char *data, size_t bytes) {
    struct message *message = malloc(sizeof *message + bytes), **at = &messages;
    *message = (struct message){NULL, from, to, bytes};
    memcpy(message->data, data, bytes);
    pthread_mutex_lock(&lock);
    while (*at) at = &(*at)->next;
    *at = message;
    pthread_cond_broadcast(&posted);
    pthread_mutex_unlock(&lock);
}

static struct message *await(int from, int to) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5;
    pthread_mutex_lock(&lock);
    for (;;) {
        for (struct message **at = &messages; *at; at = &(*at)->next) {
            struct message *message = *at;
            if (message->from != from || message->to != to) continue;
            *at = message->next;
            pthread_mutex_unlock(&lock);
            return message;
        }
        if (pthread_cond_timedwait(&posted, &lock, &until)) break;
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static int take(int from, int to, char *out, size_t bytes) {
    struct message *message = await(from, to);
    if (!message) return 6;
    int result = message->bytes == bytes ? 0 : 5;
    if (!result) memcpy(out, message->data, bytes);
    free(message);
    return result;
}

/* `into` combined with `with`; the mean is a sum that is divided at the end. */
#define COMBINE(T) do { T *a = (T *)into; const T *b = (const T *)with; \
    for (size_t i = 0; i < count; i++) { \
        if (op == 1) a[i] = (T)(a[i] * b[i]); \
        else if (op == 2) a[i] = a[i] > b[i] ? a[i] : b[i]; \
        else if (op == 3) a[i] = a[i] < b[i] ? a[i] : b[i]; \
        else a[i] = (T)(a[i] + b[i]); } } while (0)
#define DIVIDE(T) do { T *a = (T *)into; for (size_t i = 0; i < count; i++) a[i] = (T)(a[i] / by); } while (0)
#define BY_TYPE(WHAT) switch (type) { \
    case 0: WHAT(int8_t); break; case 1: WHAT(uint8_t); break; case 2: WHAT(int32_t); break; \
    case 3: WHAT(uint32_t); break; case 4: WHAT(int64_t); break; case 5: WHAT(uint64_t); break; \
    case 7: WHAT(float); break; case 8: WHAT(double); break; default: return 4; }

static int combine(char *into, const char *with, size_t count, int type, int op) { BY_TYPE(COMBINE) return 0; }
static int divide(char *into, size_t count, int type, int by) { BY_TYPE(DIVIDE) return 0; }

enum kind { ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, REDUCE, BROADCAST, ALL_TO_ALL, GATHER, SCATTER, SEND, RECV };
struct call { enum kind kind; const char *send; char *recv; size_t count; int type, op, root; struct comm *comm; };
static __thread struct call pending[256];
static __thread int waiting;

static void outgoing(const struct call *c) {
    int me = c->comm->rank, world = c->comm->world, to_root = c->kind == REDUCE || c->kind == GATHER || c->kind == SEND;
    int parts = c->kind == REDUCE_SCATTER || c->kind == ALL_TO_ALL || c->kind == SCATTER;
    size_t bytes = c->count * sizes[c->type];
    if (c->kind == RECV || ((c->kind == BROADCAST || c->kind == SCATTER) && me != c->root)) return;
    for (int to = 0; to < world; to++)
        if (!to_root || to == c->root) post(me, to, c->send + (parts ? to * bytes : 0), bytes);
}

static int reduced(const struct call *c, int me) {
    size_t bytes = c->count * sizes[c->type];
    int result = take(0, me, c->recv, bytes);
    for (int from = 1; from < c->comm->world && !result; from++) {
        struct message *message = await(from, me);
        if (!message) return 6;
        result = combine(c->recv, message->data, c->count, c->type, c->op);
        free(message);
    }
    return result || c->op != 4 ? result : divide(c->recv, c->count, c->type, c->comm->world);
}

static int incoming(const struct call *c) {
    int me = c->comm->rank, world = c->comm->world, result = 0;
    size_t bytes = c->count * sizes[c->type];
    switch (c->kind) {
    case SEND: return 0;
    case RECV: case BROADCAST: case SCATTER: return take(c->root, me, c->recv, bytes);
    case REDUCE: return me == c->root ? reduced(c, me) : 0;
    case ALL_REDUCE: case REDUCE_SCATTER: return reduced(c, me);
    case GATHER: if (me != c->root) return 0; /* fall through */
    default:
        for (int from = 0; from < world && !result; from++) result = take(from, me, c->recv + from * bytes, bytes);
        return result;
    }
}

/* All that goes out before anything is waited for, as within a group of NCCL's. */
static int run(void) {
    int result = 0, background = 0, n = waiting;
    waiting = 0;
    for (int i = 0; i < n; i++) outgoing(&pending[i]);
    for (int i = 0; i < n; i++) {
        int one = incoming(&pending[i]);
        if (!result) result = one;
        pending[i].comm->grouped = 0;
        if (!pending[i].comm->blocking) { pending[i].comm->polls = 2; background = 1; }
    }
    return result ? result : background ? 7 : 0;
}

int ncclGroupStart(void) { group_depth++; return 0; }
int ncclGroupEnd(void) {
    if (--group_depth < 0) { group_depth = 0; ADD(misuses, 1); return 5; }
    return group_depth ? 0 : run();
}

static int enqueue(struct call call) {
    if (!live(call.comm)) return 4;
    if (call.root < 0 || call.root >= call.comm->world || waiting == 256) return 4;
    ADD(calls, 1);
    ADD(call.comm->inside, 1);
    if (call.kind == ALL_REDUCE && REDUCE_SECONDS) sleep(REDUCE_SECONDS);
    if (group_depth) call.comm->grouped = 1;
    pending[waiting++] = call;
    int result = group_depth ? 0 : run();
    ADD(call.comm->inside, -1);
    return result;
}

int ncclAllGather(const char *s, char *r, size_t n, int type, struct comm *comm, void *stream) {
    (void)stream;
    return enqueue((struct call){ALL_GATHER, s, r, n, type, 0, 0, comm});
}
int ncclAllReduce(const char *s, char *r, size_t n, int type, int op, struct comm *comm, void *stream) {
    (void)stream;
    if (REDUCE_RESULT) return REDUCE_RESULT;
    return enqueue((struct call){ALL_REDUCE, s, r, n, type, op, 0, comm});
}
int ncclReduceScatter(const char *s, char *r, size_t n, int type, int op, struct comm *comm, void *stream) {
    (void)stream;
    return enqueue((struct call){REDUCE_SCATTER, s, r, n, type, op, 0, comm});
}
int ncclReduce(const char *s, char *r, size_t n, int type, int op, int root, struct comm *comm, void *stream) {
    (void)stream;
    return enqueue((struct call){REDUCE, s, r, n, type, op, root, comm});
}
int ncclBroadcast(const char *s, char *r, size_t n, int type, int root, struct comm *comm, void *stream) {
    (void)stream;
    return enqueue((struct call){BROADCAST, s, r, n, type, 0, root, comm});
}
int ncclSend(const char *s, size_t n, int type, int peer, struct comm *comm, void *stream) {
    (void)stream;
    return enqueue((struct call){SEND, s, NULL, n, type, 0, peer, comm});
}
int ncclRecv(char *r, size_t n, int type, int peer, struct comm *comm, void *stream) {
    (void)stream;
    return enqueue((struct call){RECV, NULL, r, n, type, 0, peer, comm});
}
#endif

#if VERSION >= 22800
int ncclAlltoAll(const char *s, char *r, size_t n, int type, struct comm *comm, void *stream) {
    (void)stream;
    ADD(natives, 1);
    return enqueue((struct call){ALL_TO_ALL, s, r, n, type, 0, 0, comm});
}
#ifndef LACKS_GATHER
int ncclGather(const char *s, char *r, size_t n, int type, int root, struct comm *comm, void *stream) {
    (void)stream;
    ADD(natives, 1);
    return enqueue((struct call){GATHER, s, r, n, type, 0, root, comm});
}
#endif
int ncclScatter(const char *s, char *r, size_t n, int type, int root, struct comm *comm, void *stream) {
    (void)stream;
    ADD(natives, 1);
    return enqueue((struct call){SCATTER, s, r, n, type, 0, root, comm});
}
#endif

#if VERSION >= 21900
int ncclMemAlloc(void **out, size_t bytes) {
    if (MEMORY_RESULT) return MEMORY_RESULT;
    if (posix_memalign(out, 4096, bytes)) return 1;
    ADD(allocations, 1);
    return 0;
}
int ncclMemFree(char *at) {
    for (int i = 0; i < next_handle; i++) if (handles[i].live && handles[i].from <= at && at < handles[i].to) ADD(misuses, 1);
    ADD(allocations, -1);
    free(at);
    return 0;
}
int ncclCommRegister(struct comm *comm, char *at, size_t bytes, void **out) {
    if (!live(comm)) return 4;
    *out = comm->rank == WINDOW_NULL_ON ? NULL : new_handle(comm, at, bytes, 0);
    return 0;
}
static int deregister(struct comm *comm, struct handle *handle, int window) {
    if (DEREGISTER_SECONDS) sleep(DEREGISTER_SECONDS);
    if (!live(comm) || !handle->live || handle->comm != comm || handle->window != window) { ADD(misuses, 1); return 4; }
    end_handle(handle);
    return 0;
}
int ncclCommDeregister(struct comm *comm, struct handle *handle) { return deregister(comm, handle, 0); }
#endif

#if VERSION >= 22700
int ncclCommWindowRegister(struct comm *comm, char *at, size_t bytes, void **out, int flags) {
    if (!live(comm)) return 4;
    if ((uintptr_t)at % 4096 || (flags & ~1)) return 4;
    ADD(comm->inside, 1);
    if (WINDOW_SECONDS) sleep(WINDOW_SECONDS);
    ADD(comm->inside, -1);
    if (comm->rank == WINDOW_FAILS_ON) return 1;
    struct handle *handle = comm->rank == WINDOW_NULL_ON ? handles : new_handle(comm, at, bytes, 1);
    if (comm->blocking) { *out = comm->rank == WINDOW_NULL_ON ? NULL : handle; return 0; }
    /* The handle comes later, to a place that the caller has to keep. */
    *out = (void *)(intptr_t)(handle - handles);
    comm->place = out;
    comm->polls = WINDOW_FAILS_ON >= 0 ? -1 : 4;
    return 7;
}
int ncclCommWindowDeregister(struct comm *comm, struct handle *handle) { return deregister(comm, handle, 1); }
#endif
