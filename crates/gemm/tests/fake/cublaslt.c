// A cuBLASLt that computes nothing: it records what it was asked, for the tests to read through fake_log, and
// fails where fake_fail says so.
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>

static char text[65536];

static void note(const char* format, ...) {
  size_t used = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + used, sizeof text - used, format, arguments);
  va_end(arguments);
}

const char* fake_log(void) { return text; }
void fake_clear(void) { text[0] = 0; }

static char failing[64];
static unsigned failure;
// `name` fails with `status` from now on; a null name ends that.
void fake_fail(const char* name, unsigned status) {
  snprintf(failing, sizeof failing, "%s", name == NULL ? "" : name);
  failure = status;
}

static unsigned answer(const char* name) { return strcmp(name, failing) == 0 ? failure : 0; }

struct layout {
  unsigned type;
  uint64_t rows, cols;
  int64_t ld;
  int32_t count;
  int64_t stride;
};

struct operation {
  unsigned trans[2];
  unsigned epilogue;
  uint64_t bias;
};

typedef struct {
  uint64_t algorithm[8];
  size_t workspace;
  unsigned state;
  float waves;
  int reserved[4];
} heuristic;

unsigned cublasLtCreate(void** handle) {
  *handle = malloc(1);
  return answer("cublasLtCreate");
}
unsigned cublasLtDestroy(void* handle) {
  note("destroy handle\n");
  free(handle);
  return 0;
}
#ifndef VERSION
#define VERSION 130100
#endif
#ifndef WITHOUT_VERSION
size_t cublasLtGetVersion(void) { return VERSION; }
#endif
const char* cublasLtGetStatusName(unsigned status) {
  return status == 14 ? "CUBLAS_STATUS_INTERNAL_ERROR" : status == 7 ? "CUBLAS_STATUS_INVALID_VALUE" : NULL;
}
unsigned cublasLtMatmulDescCreate(void** desc, unsigned compute, unsigned scale) {
  note("operation compute=%u scale=%u\n", compute, scale);
  *desc = calloc(1, sizeof(struct operation));
  return answer("cublasLtMatmulDescCreate");
}
unsigned cublasLtMatmulDescDestroy(void* desc) {
  note("destroy operation\n");
  free(desc);
  return 0;
}
unsigned cublasLtMatmulDescSetAttribute(void* desc, unsigned attribute, const void* value, size_t size) {
  struct operation* operation = desc;
  void* place = attribute == 3   ? (void*)&operation->trans[0]
                : attribute == 4 ? (void*)&operation->trans[1]
                : attribute == 7 ? (void*)&operation->epilogue
                : attribute == 8 ? (void*)&operation->bias
                                 : NULL;
  if (place == NULL || size != (attribute == 8 ? 8u : 4u)) return 7;
  memcpy(place, value, size);
  return answer("cublasLtMatmulDescSetAttribute");
}
unsigned cublasLtMatrixLayoutCreate(void** out, unsigned type, uint64_t rows, uint64_t cols, int64_t ld) {
  unsigned status = answer("cublasLtMatrixLayoutCreate");
  if (status != 0) return status;
  struct layout* layout = malloc(sizeof *layout);
  *layout = (struct layout){type, rows, cols, ld, 1, 0};
  *out = layout;
  return 0;
}
unsigned cublasLtMatrixLayoutSetAttribute(void* out, unsigned attribute, const void* value, size_t size) {
  struct layout* layout = out;
  if (attribute == 5 && size == sizeof layout->count) {
    memcpy(&layout->count, value, size);
  } else if (attribute == 6 && size == sizeof layout->stride) {
    memcpy(&layout->stride, value, size);
  } else {
    return 7;
  }
  return answer("cublasLtMatrixLayoutSetAttribute");
}
unsigned cublasLtMatrixLayoutDestroy(void* layout) {
  note("destroy layout\n");
  free(layout);
  return 0;
}
unsigned cublasLtMatmulPreferenceCreate(void** preference) {
  *preference = malloc(1);
  return 0;
}
unsigned cublasLtMatmulPreferenceDestroy(void* preference) {
  free(preference);
  return 0;
}
unsigned cublasLtMatmulPreferenceSetAttribute(void* preference, unsigned attribute, const void* value, size_t size) {
  uint64_t number = 0;
  (void)preference;
  if (size > sizeof number) return 7;
  memcpy(&number, value, size);
  note("preference %u=%llu\n", attribute, (unsigned long long)number);
  return 0;
}

static void note_layout(const char* name, const struct layout* l) {
  note("%s type=%u rows=%llu cols=%llu ld=%lld", name, l->type, (unsigned long long)l->rows,
       (unsigned long long)l->cols, (long long)l->ld);
  if (l->count != 1) note(" batch=%d by %lld", l->count, (long long)l->stride);
  note("\n");
}

static void note_bias(const char* call, const struct operation* operation) {
  if (operation->epilogue != 0)
    note("%s epilogue=%u bias=%#llx\n", call, operation->epilogue, (unsigned long long)operation->bias);
}

// Three proposals: the second needs 4096 bytes, the third is not usable.
unsigned cublasLtMatmulAlgoGetHeuristic(void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference,
                                        int wanted, heuristic* results, int* count) {
  (void)handle, (void)preference, (void)d;
  note_bias("heuristic", desc);
  note_layout("A", a), note_layout("B", b), note_layout("C", c);
  int made = wanted < 3 ? wanted : 3;
  for (int i = 0; i < made; ++i) {
    memset(&results[i], 0, sizeof results[i]);
    results[i].algorithm[0] = 40 + (uint64_t)i;
    results[i].workspace = i == 1 ? 4096 : 0;
    results[i].state = i == 2 ? 15 : 0;
    results[i].waves = 1.5f;
  }
  unsigned status = answer("cublasLtMatmulAlgoGetHeuristic");
  *count = status == 0 ? made : 0;
  return status;
}

// An algorithm needs as many bytes as the problem has rows of A.
unsigned cublasLtMatmulAlgoCheck(void* handle, void* desc, void* a, void* b, void* c, void* d,
                                 const uint64_t* algorithm, heuristic* result) {
  (void)handle, (void)d;
  note_bias("check", desc);
  note("check algorithm=%llu\n", (unsigned long long)algorithm[0]);
  note_layout("A", a), note_layout("B", b), note_layout("C", c);
  memset(result, 0, sizeof *result);
  memcpy(result->algorithm, algorithm, sizeof result->algorithm);
  result->workspace = ((struct layout*)b)->cols;
  return answer("cublasLtMatmulAlgoCheck");
}

unsigned cublasLtMatmul(void* handle, void* desc, const void* alpha, const void* a, void* a_layout, const void* b,
                        void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                        const uint64_t* algorithm, void* workspace, size_t bytes, void* stream) {
  const struct operation* operation = desc;
  (void)handle;
  // Long enough for another thread to change the bias, if nothing keeps it from doing so.
  if (operation->epilogue != 0) thrd_sleep(&(struct timespec){.tv_nsec = 200000}, NULL);
  note_bias("matmul", operation);
  note("matmul trans=%u%u alpha=%g beta=%g a=%p b=%p c=%p d=%p algorithm=%llu workspace=%p+%zu stream=%p\n",
       operation->trans[0], operation->trans[1], *(const float*)alpha, *(const float*)beta, a, b, c, d,
       (unsigned long long)algorithm[0], workspace, bytes, stream);
  note_layout("A", a_layout), note_layout("B", b_layout), note_layout("C", c_layout), note_layout("D", d_layout);
  return answer("cublasLtMatmul");
}
