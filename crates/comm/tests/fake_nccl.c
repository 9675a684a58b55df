/* A stand-in for NCCL whose "device memory" is host memory. Macros choose how it misbehaves. */
#include <stddef.h>
#include <string.h>
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

struct comm { int rank, world, polls, blocking, grouped; };
typedef struct { char internal[128]; } id_t128;
struct config { size_t size; unsigned magic, version; int blocking; };

static __thread int group_depth;
static int aborts, destroys, finalizes, splits, calls, config_errors;
static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

int fake_aborts(void) { return aborts; }
int fake_destroys(void) { return destroys; }
int fake_finalizes(void) { return finalizes; }
int fake_splits(void) { return splits; }
int fake_calls(void) { return calls; }
int fake_config_errors(void) { return config_errors; }

int ncclGetVersion(int *version) { *version = VERSION; return 0; }
const char *ncclGetErrorString(int code) { return code == 4 ? "invalid argument" : "some error"; }

#if VERSION >= 21800
static struct comm comms[64];
static int next_comm;

const char *ncclGetLastError(void *comm) { (void)comm; return "the fake says no"; }

int ncclGetUniqueId(id_t128 *id) {
    for (int i = 0; i < 128; i++) id->internal[i] = (char)(i + 1);
    return 0;
}

static void check_config(const struct config *config) {
    if (config->magic != 0xcafebeef || config->version != 21800 || config->size > 48) config_errors++;
}

int ncclCommInitRankConfig(struct comm **out, int world, id_t128 id, int rank, const struct config *config) {
    check_config(config);
    for (int i = 0; i < 128; i++) if (id.internal[i] != (char)(i + 1)) return 4;
    if (INIT_RESULT != 0 && INIT_RESULT != 7) return INIT_RESULT;
    struct comm *comm = &comms[__sync_fetch_and_add(&next_comm, 1)];
    *comm = (struct comm){rank, world, INIT_RESULT == 0 ? 0 : POLLS, config->blocking, 0};
    *out = comm;
    return INIT_RESULT;
}

int ncclCommSplit(struct comm *parent, int color, int key, struct comm **out, const struct config *config) {
    check_config(config);
    __sync_fetch_and_add(&splits, 1);
    if (color != 0) return 4;
    struct comm *comm = &comms[__sync_fetch_and_add(&next_comm, 1)];
    *comm = (struct comm){key, parent->world, 0, config->blocking, 0};
    *out = comm;
    return 0;
}

int ncclCommGetAsyncError(struct comm *comm, int *state) {
    if (comm->polls > 0) comm->polls--;
    *state = comm->polls ? 7 : 0;
    return 0;
}

int ncclCommFinalize(struct comm *comm) { finalizes++; comm->polls = 2; return 7; }
int ncclCommDestroy(struct comm *comm) { (void)comm; destroys++; return 0; }
int ncclCommAbort(struct comm *comm) {
    (void)comm;
    __sync_fetch_and_add(&aborts, 1);
    if (ABORT_SECONDS) sleep(ABORT_SECONDS);
    return 0;
}

int ncclGroupStart(void) { group_depth++; return 0; }
int ncclGroupEnd(void) { return --group_depth < 0 ? 5 : 0; }

static int launched(struct comm *comm) {
    __sync_fetch_and_add(&calls, 1);
    if (group_depth || comm->blocking) return 0;
    comm->polls = 2;
    return 7;
}

int ncclAllGather(const char *send, char *recv, size_t count, int type, struct comm *comm, void *stream) {
    (void)stream;
    memmove(recv + comm->rank * count * sizes[type], send, count * sizes[type]);
    return launched(comm);
}
int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, struct comm *comm, void *stream) {
    (void)op; (void)stream;
    if (REDUCE_RESULT) return REDUCE_RESULT;
    memmove(recv, send, count * sizes[type]);
    return launched(comm);
}
int ncclReduceScatter(const char *send, char *recv, size_t count, int type, int op, struct comm *comm, void *stream) {
    (void)op; (void)stream;
    memmove(recv, send + comm->rank * count * sizes[type], count * sizes[type]);
    return launched(comm);
}
int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, struct comm *comm, void *stream) {
    (void)stream;
    if (!group_depth && comm->world > 1 && count == 0) return 4;
    if (root == comm->rank) memmove(recv, send, count * sizes[type]);
    return launched(comm);
}
int ncclSend(const void *send, size_t count, int type, int peer, struct comm *comm, void *stream) {
    (void)send; (void)count; (void)type; (void)stream;
    return peer < comm->world ? launched(comm) : 4;
}
int ncclRecv(void *recv, size_t count, int type, int peer, struct comm *comm, void *stream) {
    (void)recv; (void)count; (void)type; (void)stream;
    return peer < comm->world ? launched(comm) : 4;
}
#endif
