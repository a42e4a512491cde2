/* fake_cuda.c - a libcuda.so.1 for tests: it runs no kernel, but refuses what the driver refuses.
 *
 * It counts what is held, and says on the standard error output what it refuses, and counts that, too:
 * handles that are none, calls without a context, copies beyond an allocation, what may not be done while
 * a stream is captured (such as to copy memory of the host that may be paged out), tensor maps that the
 * copy engine couldn't follow, launches that a device couldn't begin. Of a kernel whose code is a cubin it
 * reads what a launch must obey: arguments and their sizes, threads, registers, shared memory, the
 * architecture; of any other image it knows nothing.
 *
 * FAKE_FAIL_AT=n: the n-th call that takes something fails, as for want of memory.
 * FAKE_ARCH=n: the device's compute capability, else 90. FAKE_NO_DEVICE: there is no device. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100,
  INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY = 209, INVALID_HANDLE = 400, ILLEGAL_STATE = 401,
  NOT_FOUND = 500, OUT_OF_RESOURCES = 701, UNSUPPORTED = 900, INVALIDATED = 901, UNJOINED = 904,
  CAPTURED_EVENT = 907, WRONG_THREAD = 908, RELAXED = 2
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int held, taken, refused, launched, begun, retained;
static const char in_context[] = "the device's context";

static __thread int entered;   /* contexts that the thread has pushed */
static __thread int capturing; /* captures that the thread has begun, other than relaxed ones */
static __thread int mode_of_thread; /* 0: other threads' captures bind it, too; 1: its own alone; 2: none */
static int everywhere;         /* captures that bind all threads */

int fake_held(void) { return held; }
int fake_taken(void) { return taken; }
int fake_refused(void) { return refused; }
int fake_launched(void) { return launched; }

static int refuse(int result, const char *call, const char *why)
{
  fprintf(stderr, "libcuda: %s: %s\n", call, why);
  refused++;
  return result;
}

/* What is taken and given back: a list, so that nothing is mistaken for it. */
typedef struct thing {
  struct thing *next;
  enum { MODULE, MEMORY, LOCKED, STREAM, EVENT, GRAPH, EXEC } kind;
  uint64_t begin;
  size_t size;
  unsigned capture;     /* its number: that a graph is, a stream takes part in, an event was recorded in */
  struct thing *origin; /* of a graph that is captured: the stream that this began on */
  struct thing *stream; /* of an event: that it was recorded on */
  pthread_t thread;     /* that a capture was begun by */
  int loose;            /* of a stream that is captured: nobody waits for what it did last */
  unsigned count;       /* what was captured on a stream so far, or had been when an event was recorded */
  int spoiled, recorded, timed, mode;
  const unsigned char *image;
  struct function *functions;
} thing;

typedef struct function {
  struct function *next;
  char name[256];
  int known, parameters, sizes[512];
  unsigned threads, registers, shared, most_dynamic;
} function;

static thing *all;

static thing *found(const void *handle, int kind)
{
  thing *at = all;
  while (at != NULL && (at != handle || (int)at->kind != kind)) at = at->next;
  return at;
}

/* Count a call that takes something; the one that shall fail does. */
static int count_taken(void)
{
  const char *const at = getenv("FAKE_FAIL_AT");
  taken++;
  if (at != NULL && atoi(at) == taken) return OUT_OF_MEMORY;
  held++;
  return SUCCESS;
}

static thing *made_thing(int kind)
{
  thing *const own = calloc(1, sizeof *own);
  own->kind = kind;
  own->next = all;
  all = own;
  return own;
}

static int take(int kind, thing **made)
{
  const int result = count_taken();
  if (result == SUCCESS) *made = made_thing(kind);
  return result;
}

static void drop(thing *own)
{
  thing **at = &all;
  while (*at != own) at = &(*at)->next;
  *at = own->next;
  while (own->functions != NULL) {
    function *const next = own->functions->next;
    free(own->functions);
    own->functions = next;
  }
  free(own);
}

static void give(thing *own)
{
  drop(own);
  held--;
}

/* Whether captures forbid the thread what they don't take. */
static int is_bound(void)
{
  return (mode_of_thread != RELAXED && capturing > 0) || (mode_of_thread == 0 && everywhere > 0);
}

/* Every call but those that prepare a context runs in one, one at a time. */
#define BEGIN(NAME)                                                                                 \
  static const char *const call = #NAME;                                                            \
  if (begun == 0) return refuse(NOT_INITIALIZED, call, "before cuInit");                            \
  if (entered == 0) return refuse(INVALID_CONTEXT, call, "no context is current");                  \
  pthread_mutex_lock(&lock);                                                                        \
  int result = SUCCESS
#define END                                                                                         \
  pthread_mutex_unlock(&lock);                                                                      \
  return result
#define REFUSE_IF(CONDITION, CODE, WHY)                                                             \
  if (result == SUCCESS && (CONDITION)) result = refuse(CODE, call, WHY)

/* The memory of a kind that holds all of some bytes; NULL: none does. */
static thing *within(int kind, uint64_t begin, size_t size)
{
  thing *at = all;
  while (at != NULL && !((int)at->kind == kind && begin >= at->begin && size <= at->size
                         && begin - at->begin <= at->size - size)) {
    at = at->next;
  }
  return at;
}

static thing *holding(uint64_t begin, size_t size) { return within(MEMORY, begin, size); }

/* Whether memory of the host's can't be paged out. */
static int is_locked(const void *memory, size_t size)
{
  return within(LOCKED, (uint64_t)(uintptr_t)memory, size) != NULL;
}

static int is_default(const void *stream) { return (uintptr_t)stream <= 2; }

/* A stream that isn't a default one. */
static thing *stream_of(const void *stream) { return is_default(stream) ? NULL : found(stream, STREAM); }

static int is_stream(const void *stream) { return is_default(stream) || found(stream, STREAM) != NULL; }

/* The graph that is captured as this number. */
static thing *graph_of(unsigned capture)
{
  thing *at = all;
  while (at != NULL && !(capture != 0 && at->kind == GRAPH && at->capture == capture && at->origin != NULL)) {
    at = at->next;
  }
  return at;
}

static thing *capture_of(const void *stream)
{
  const thing *const own = stream_of(stream);
  return own != NULL ? graph_of(own->capture) : NULL;
}

/* ---- devices and contexts ---- */

static unsigned capability(void)
{
  const char *const given = getenv("FAKE_ARCH");
  return given != NULL ? (unsigned)atoi(given) : 90;
}

int cuInit(unsigned flags)
{
  if (flags != 0) return refuse(INVALID_VALUE, "cuInit", "flags");
  begun = 1;
  return SUCCESS;
}
int cuDeviceGetCount(int *count) { return *count = 1, begun ? SUCCESS : NOT_INITIALIZED; }
int cuDeviceGet(int *device, int ordinal)
{
  if (begun == 0) return refuse(NOT_INITIALIZED, "cuDeviceGet", "before cuInit");
  *device = ordinal;
  return getenv("FAKE_NO_DEVICE") ? NO_DEVICE : SUCCESS;
}
/* The parts of its compute capability, all that anybody asks for. */
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
  (void)device;
  if (attribute != 75 && attribute != 76) return refuse(INVALID_VALUE, "cuDeviceGetAttribute", "nobody needs it");
  *value = attribute == 75 ? (int)capability() / 10 : (int)capability() % 10;
  return SUCCESS;
}
int cuDeviceGetName(char *name, int room, int device)
{
  (void)device;
  snprintf(name, (size_t)room, "no GPU of capability %u", capability());
  return SUCCESS;
}
int cuDevicePrimaryCtxRetain(const void **context, int device)
{
  const int result = count_taken();
  (void)device;
  if (result != SUCCESS) return result;
  retained++;
  *context = in_context;
  return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int device)
{
  (void)device;
  if (retained == 0) return refuse(INVALID_CONTEXT, "cuDevicePrimaryCtxRelease", "nobody has it");
  held--;
  retained--;
  return SUCCESS;
}
int cuCtxPushCurrent_v2(const void *context)
{
  if (context != in_context || retained == 0) {
    return refuse(INVALID_CONTEXT, "cuCtxPushCurrent", "it isn't the device's, or nobody has retained it");
  }
  entered++;
  return SUCCESS;
}
int cuCtxPopCurrent_v2(const void **context)
{
  if (entered == 0) return refuse(INVALID_CONTEXT, "cuCtxPopCurrent", "none is current");
  *context = in_context;
  entered--;
  return SUCCESS;
}

/* ---- code ---- */

static uint64_t number(const unsigned char *at, int bytes)
{
  uint64_t value = 0;
  memcpy(&value, at, (size_t)bytes);
  return value;
}

/* The section of an ELF file of this name; its size in `size`. */
static const unsigned char *section(const unsigned char *image, const char *name, size_t *size)
{
  const unsigned char *const headers = image + number(image + 40, 8);
  const size_t each = number(image + 58, 2), count = number(image + 60, 2), names = number(image + 62, 2);
  const unsigned char *const texts = image + number(headers + names * each + 24, 8);
  for (size_t k = 0; k < count; k++) {
    const unsigned char *const own = headers + k * each;
    if (strcmp((const char *)texts + number(own, 4), name) != 0) continue;
    *size = number(own + 32, 8);
    return image + number(own + 24, 8);
  }
  return NULL;
}

static int is_cubin(const unsigned char *image) { return memcmp(image, "\177ELF", 4) == 0; }

/* Read what a launch must obey; 0 where there is no such kernel. */
static int read_function(const unsigned char *image, function *own)
{
  enum { FOLLOWED = 4, AT_HAND = 3, PARAMETER = 0x17, MOST_THREADS = 0x05, REGISTERS = 0x2f, RESERVED = 1024 };
  char name[300];
  size_t size = 0;
  snprintf(name, sizeof name, ".text.%s", own->name);
  if (section(image, name, &size) == NULL) return 0;
  snprintf(name, sizeof name, ".nv.shared.%s", own->name);
  if (section(image, name, &size) != NULL && size > RESERVED) own->shared = (unsigned)size - RESERVED;
  for (int pass = 0; pass < 2; pass++) {
    if (pass == 0) snprintf(name, sizeof name, ".nv.info");
    else snprintf(name, sizeof name, ".nv.info.%s", own->name);
    const unsigned char *at = section(image, name, &size);
    const unsigned char *const end = at == NULL ? NULL : at + size;
    while (at < end) {
      const unsigned format = at[0], kind = at[1];
      const unsigned char *const value = at + 4;
      at += 4 + (format == FOLLOWED ? number(at + 2, 2) : 0);
      if (kind == REGISTERS) own->registers = (unsigned)number(value + 4, 4);
      if (kind == MOST_THREADS) own->threads = (unsigned)number(value, 4);
      if (kind != PARAMETER) continue;
      const unsigned ordinal = (unsigned)number(value + 4, 2);
      own->sizes[ordinal] = (int)(number(value + 8, 4) >> 18);
      own->parameters++;
    }
  }
  own->known = 1;
  return 1;
}

int cuModuleLoadData(void **module, const void *image)
{
  BEGIN(cuModuleLoadData);
  const unsigned device = capability();
  thing *own = NULL;
  REFUSE_IF(is_bound(), UNSUPPORTED, "a stream is being captured");
  REFUSE_IF(image == NULL, INVALID_VALUE, "no image");
  if (result == SUCCESS && is_cubin(image)) {
    const unsigned code = (unsigned)number((const unsigned char *)image + 48, 4) >> 8 & 0xff;
    if (code / 10 != device / 10 || code > device) result = NO_BINARY; /* what a library must live with */
  }
  if (result == SUCCESS) result = take(MODULE, &own);
  if (result == SUCCESS) own->image = image;
  *module = own;
  END;
}

int cuModuleUnload(void *module)
{
  BEGIN(cuModuleUnload);
  REFUSE_IF(found(module, MODULE) == NULL, INVALID_HANDLE, "no module");
  REFUSE_IF(is_bound(), UNSUPPORTED, "a stream is being captured");
  if (result == SUCCESS) give(module);
  END;
}

int cuModuleGetFunction(void **made, void *module, const char *name)
{
  BEGIN(cuModuleGetFunction);
  thing *const own = found(module, MODULE);
  REFUSE_IF(own == NULL, INVALID_HANDLE, "no module");
  if (result == SUCCESS) {
    function *const first = calloc(1, sizeof *first);
    snprintf(first->name, sizeof first->name, "%s", name);
    first->most_dynamic = 48 << 10;
    const int there = is_cubin(own->image) ? read_function(own->image, first) : strcmp(name, "unknown") != 0;
    if (!there) {
      free(first);
      result = NOT_FOUND;
    } else {
      first->next = own->functions;
      own->functions = first;
      *made = first;
    }
  }
  END;
}

static function *function_of(const void *handle)
{
  for (thing *at = all; at != NULL; at = at->next) {
    for (function *own = at->functions; own != NULL; own = own->next) {
      if (own == handle) return own;
    }
  }
  return NULL;
}

/* The shared memory that a block may ask for. */
static unsigned most_shared(void)
{
  const unsigned device = capability();
  return (device >= 90 && device < 120 ? 227u : device == 80 ? 163u : device == 75 ? 64u : 99u) << 10;
}

int cuFuncSetAttribute(void *handle, int attribute, int value)
{
  BEGIN(cuFuncSetAttribute);
  function *const own = function_of(handle);
  REFUSE_IF(own == NULL, INVALID_HANDLE, "no function");
  REFUSE_IF(attribute != 8, INVALID_VALUE, "an attribute that nobody needs");
  if (result == SUCCESS && (value < 0 || (unsigned)value + own->shared > most_shared())) result = INVALID_VALUE;
  if (result == SUCCESS) own->most_dynamic = (unsigned)value;
  END;
}

/* ---- memory ---- */

int cuMemAlloc_v2(uint64_t *memory, size_t size)
{
  BEGIN(cuMemAlloc);
  thing *own = NULL;
  REFUSE_IF(size == 0, INVALID_VALUE, "no bytes");
  REFUSE_IF(is_bound(), UNSUPPORTED, "a stream is being captured");
  if (result == SUCCESS) result = take(MEMORY, &own);
  if (result == SUCCESS) {
    own->begin = (uint64_t)(uintptr_t)aligned_alloc(256, (size + 255) / 256 * 256);
    own->size = size;
    *memory = own->begin;
  }
  END;
}
int cuMemGetInfo_v2(size_t *unused, size_t *total)
{
  BEGIN(cuMemGetInfo);
  *unused = 1 << 26;
  *total = 1 << 28;
  END;
}
int cuMemFree_v2(uint64_t memory)
{
  BEGIN(cuMemFree);
  thing *const own = holding(memory, 1);
  REFUSE_IF(own == NULL || own->begin != memory, INVALID_VALUE, "nothing was allocated there");
  REFUSE_IF(is_bound(), UNSUPPORTED, "a stream is being captured");
  if (result == SUCCESS) {
    free((void *)(uintptr_t)memory);
    give(own);
  }
  END;
}

int cuMemHostAlloc(void **memory, size_t size, unsigned flags)
{
  BEGIN(cuMemHostAlloc);
  thing *own = NULL;
  REFUSE_IF(size == 0 || flags != 0, INVALID_VALUE, "no bytes, or flags");
  REFUSE_IF(is_bound(), UNSUPPORTED, "a stream is being captured");
  if (result == SUCCESS) result = take(LOCKED, &own);
  if (result == SUCCESS) {
    *memory = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    own->begin = (uint64_t)(uintptr_t)*memory;
    own->size = size;
  }
  END;
}
int cuMemFreeHost(void *memory)
{
  BEGIN(cuMemFreeHost);
  thing *const own = within(LOCKED, (uint64_t)(uintptr_t)memory, 1);
  REFUSE_IF(own == NULL || own->begin != (uint64_t)(uintptr_t)memory, INVALID_VALUE, "nothing was allocated there");
  REFUSE_IF(is_bound(), UNSUPPORTED, "a stream is being captured");
  if (result == SUCCESS) {
    free(memory);
    give(own);
  }
  END;
}

/* What is queued on a stream: copies from and to memory that may be paged out can't be captured. */
static int queued(const char *call, void *stream, int captured)
{
  if (!is_stream(stream)) return refuse(INVALID_HANDLE, call, "no stream");
  thing *const graph = capture_of(stream);
  if (graph != NULL) {
    stream_of(stream)->loose = 1;
    stream_of(stream)->count++;
  }
  if (graph == NULL || captured) return SUCCESS;
  graph->spoiled = 1;
  return refuse(UNSUPPORTED, call, "the stream is captured");
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream)
{
  BEGIN(cuMemcpyHtoDAsync);
  result = queued(call, stream, is_locked(from, size));
  REFUSE_IF(holding(to, size) == NULL, INVALID_VALUE, "beyond an allocation");
  REFUSE_IF(from == NULL, INVALID_VALUE, "from nowhere");
  if (result == SUCCESS && capture_of(stream) == NULL) memcpy((void *)(uintptr_t)to, from, size);
  END;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream)
{
  BEGIN(cuMemcpyDtoHAsync);
  result = queued(call, stream, is_locked(to, size));
  REFUSE_IF(holding(from, size) == NULL, INVALID_VALUE, "beyond an allocation");
  REFUSE_IF(to == NULL, INVALID_VALUE, "to nowhere");
  if (result == SUCCESS && capture_of(stream) == NULL) memcpy(to, (const void *)(uintptr_t)from, size);
  END;
}
int cuMemsetD8Async(uint64_t at, unsigned char value, size_t size, void *stream)
{
  BEGIN(cuMemsetD8Async);
  result = queued(call, stream, 1);
  REFUSE_IF(holding(at, size) == NULL, INVALID_VALUE, "beyond an allocation");
  if (result == SUCCESS && capture_of(stream) == NULL) memset((void *)(uintptr_t)at, value, size);
  END;
}

/* ---- streams and events ---- */

int cuStreamCreate(void **stream, unsigned flags)
{
  BEGIN(cuStreamCreate);
  thing *own = NULL;
  REFUSE_IF(flags > 1, INVALID_VALUE, "flags");
  if (result == SUCCESS) result = take(STREAM, &own);
  *stream = own;
  END;
}
int cuStreamDestroy_v2(void *stream)
{
  BEGIN(cuStreamDestroy);
  REFUSE_IF(found(stream, STREAM) == NULL, INVALID_HANDLE, "no stream");
  REFUSE_IF(capture_of(stream) != NULL, UNSUPPORTED, "it is captured");
  if (result == SUCCESS) give(stream);
  END;
}
int cuStreamSynchronize(void *stream)
{
  BEGIN(cuStreamSynchronize);
  result = queued(call, stream, 0);
  END;
}
int cuStreamIsCapturing(void *stream, int *status)
{
  BEGIN(cuStreamIsCapturing);
  REFUSE_IF(!is_stream(stream), INVALID_HANDLE, "no stream");
  *status = capture_of(stream) == NULL ? 0 : capture_of(stream)->spoiled ? 2 : 1;
  END;
}
int cuEventCreate(void **event, unsigned flags)
{
  BEGIN(cuEventCreate);
  thing *own = NULL;
  REFUSE_IF(flags > 3, INVALID_VALUE, "flags");
  if (result == SUCCESS) result = take(EVENT, &own);
  if (result == SUCCESS) own->timed = (flags & 2) == 0;
  *event = own;
  END;
}
int cuEventDestroy_v2(void *event)
{
  BEGIN(cuEventDestroy);
  REFUSE_IF(found(event, EVENT) == NULL, INVALID_HANDLE, "no event");
  if (result == SUCCESS) give(event);
  END;
}
int cuEventRecord(void *event, void *stream)
{
  BEGIN(cuEventRecord);
  thing *const own = found(event, EVENT);
  REFUSE_IF(own == NULL || !is_stream(stream), INVALID_HANDLE, "no event, or no stream");
  if (result == SUCCESS) {
    own->recorded = 1;
    own->stream = stream_of(stream);
    own->capture = own->stream != NULL ? own->stream->capture : 0;
    own->count = own->stream != NULL ? own->stream->count : 0;
  }
  END;
}

/* A stream that waits for one that is captured takes part in that. */
int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
  BEGIN(cuStreamWaitEvent);
  thing *const own = found(event, EVENT), *const waits = stream_of(stream);
  REFUSE_IF(own == NULL || !is_stream(stream), INVALID_HANDLE, "no event, or no stream");
  REFUSE_IF(flags != 0, INVALID_VALUE, "flags");
  const unsigned recorded = result == SUCCESS ? own->capture : 0, now = waits != NULL ? waits->capture : 0;
  REFUSE_IF(recorded != 0 && graph_of(recorded) == NULL, CAPTURED_EVENT, "its capture has ended");
  REFUSE_IF(recorded != 0 && waits == NULL, UNSUPPORTED, "a default stream can't be captured");
  REFUSE_IF(recorded != 0 && now != 0 && now != recorded, ILLEGAL_STATE, "two captures");
  REFUSE_IF(recorded == 0 && now != 0 && own->recorded, UNSUPPORTED, "it waits for what isn't captured");
  if (result == SUCCESS && recorded != 0 && own->stream != waits) {
    if (own->count == own->stream->count) own->stream->loose = 0; /* not where it went on since */
    waits->capture = recorded;
    waits->loose = 1;
  }
  END;
}
int cuEventSynchronize(void *event)
{
  BEGIN(cuEventSynchronize);
  thing *const own = found(event, EVENT);
  REFUSE_IF(own == NULL, INVALID_HANDLE, "no event");
  REFUSE_IF(own->capture != 0, CAPTURED_EVENT, "it was recorded in a capture");
  END;
}
int cuEventElapsedTime(float *milliseconds, void *begin, void *end)
{
  BEGIN(cuEventElapsedTime);
  thing *const events[] = {found(begin, EVENT), found(end, EVENT)};
  for (int k = 0; k < 2; k++) {
    REFUSE_IF(events[k] == NULL, INVALID_HANDLE, "no event");
    REFUSE_IF(!events[k]->recorded || !events[k]->timed, INVALID_HANDLE, "never recorded, or without times");
    REFUSE_IF(events[k]->capture != 0, CAPTURED_EVENT, "it was recorded in a capture");
  }
  *milliseconds = 1;
  END;
}

/* ---- graphs ---- */

int cuStreamBeginCapture_v2(void *stream, int mode)
{
  BEGIN(cuStreamBeginCapture);
  static unsigned captures;
  REFUSE_IF(is_default(stream), UNSUPPORTED, "a default stream can't be captured");
  REFUSE_IF(!is_stream(stream), INVALID_HANDLE, "no stream");
  REFUSE_IF(capture_of(stream) != NULL, ILLEGAL_STATE, "it is captured already");
  REFUSE_IF(mode < 0 || mode > 2, INVALID_VALUE, "mode");
  if (result == SUCCESS) {
    thing *const own = made_thing(GRAPH);
    own->origin = stream_of(stream);
    own->thread = pthread_self();
    own->mode = mode;
    own->capture = own->origin->capture = ++captures;
    capturing += mode != RELAXED;
    everywhere += mode == 0;
  }
  END;
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
  const int before = mode_of_thread;
  if (*mode < 0 || *mode > RELAXED) return refuse(INVALID_VALUE, "cuThreadExchangeStreamCaptureMode", "mode");
  mode_of_thread = *mode;
  *mode = before;
  return SUCCESS;
}

int cuStreamEndCapture(void *stream, void **graph)
{
  BEGIN(cuStreamEndCapture);
  thing *const own = capture_of(stream);
  *graph = NULL;
  REFUSE_IF(own == NULL || own->origin != stream, ILLEGAL_STATE, "no capture began on it");
  REFUSE_IF(own->mode != RELAXED && !pthread_equal(own->thread, pthread_self()), WRONG_THREAD, "another thread began");
  if (own != NULL && result == SUCCESS) {
    capturing -= own->mode != RELAXED;
    everywhere -= own->mode == 0;
    REFUSE_IF(own->spoiled, INVALIDATED, "something couldn't be captured");
    for (thing *each = all; each != NULL; each = each->next) {
      if (each->kind != STREAM || each->capture != own->capture) continue;
      REFUSE_IF(each->loose && each != own->origin, UNJOINED, "a stream of it isn't waited for");
      each->capture = 0;
    }
    own->origin = NULL;
    if (result == SUCCESS) result = count_taken();
    if (result == SUCCESS) *graph = own;
    else drop(own);
  }
  END;
}

int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
  BEGIN(cuGraphInstantiateWithFlags);
  thing *own = NULL;
  REFUSE_IF(found(graph, GRAPH) == NULL, INVALID_HANDLE, "no graph");
  REFUSE_IF(flags != 0, INVALID_VALUE, "flags");
  if (result == SUCCESS) result = take(EXEC, &own);
  *exec = own;
  END;
}
int cuGraphDestroy(void *graph)
{
  BEGIN(cuGraphDestroy);
  thing *const own = found(graph, GRAPH);
  REFUSE_IF(own == NULL || own->origin != NULL, INVALID_HANDLE, "no graph, or one that is being captured");
  if (result == SUCCESS) give(own);
  END;
}
int cuGraphLaunch(void *exec, void *stream)
{
  BEGIN(cuGraphLaunch);
  REFUSE_IF(found(exec, EXEC) == NULL, INVALID_HANDLE, "no graph that can run");
  if (result == SUCCESS) result = queued(call, stream, 0);
  END;
}
int cuGraphExecDestroy(void *exec)
{
  BEGIN(cuGraphExecDestroy);
  REFUSE_IF(found(exec, EXEC) == NULL, INVALID_HANDLE, "no graph that can run");
  if (result == SUCCESS) give(exec);
  END;
}

/* ---- launches ---- */

#define MARK UINT64_C(0x70616d726f736e74) /* what a map that was encoded begins with */

static const char *wrong_launch(const function *own, const unsigned *grid, const unsigned *block, unsigned dynamic,
                                void **arguments)
{
  const unsigned threads = block[0] * block[1] * block[2];
  size_t room = 0;
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || threads == 0) return "no blocks, or no threads";
  if (grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535) return "too many blocks";
  if (threads > 1024 || block[2] > 64) return "too many threads";
  if (dynamic > own->most_dynamic) return "more shared memory than was asked for";
  if (!own->known) return NULL;
  if (own->threads != 0 && threads > own->threads) return "more threads than it was compiled for";
  const unsigned warps = (threads + 31) / 32, each = (own->registers + 7) / 8 * 8 * 32;
  if ((warps + 3) / 4 * 4 * each > 1u << 16) return "too many registers";
  if (own->shared + dynamic > most_shared()) return "too much shared memory";
  if (arguments == NULL && own->parameters > 0) return "no arguments";
  for (int k = 0; k < own->parameters; k++) {
    uint64_t first;
    if (arguments[k] == NULL) return "an argument is missing";
    memcpy(&first, arguments[k], own->sizes[k] < 8 ? (size_t)own->sizes[k] : sizeof first);
    if (own->sizes[k] == 128 && first != MARK) return "an argument isn't the tensor map that the kernel takes";
    if (own->sizes[k] != 128 && own->sizes[k] > 8) return "the kernel takes an argument of another size";
    room += (size_t)own->sizes[k];
  }
  return room > 4096 ? "too many arguments" : NULL;
}

int cuLaunchKernel(void *handle, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f,
                   unsigned shared, void *stream, void **arguments, void **extra)
{
  BEGIN(cuLaunchKernel);
  const unsigned grid[] = {a, b, c}, block[] = {d, e, f};
  const function *const own = function_of(handle);
  result = queued(call, stream, 1);
  REFUSE_IF(own == NULL, INVALID_HANDLE, "no function");
  REFUSE_IF(extra != NULL, INVALID_VALUE, "extra options");
  const char *const wrong = result == SUCCESS ? wrong_launch(own, grid, block, shared, arguments) : NULL;
  REFUSE_IF(wrong != NULL, OUT_OF_RESOURCES, wrong);
  launched += result == SUCCESS;
  END;
}

#ifndef FAKE_OLD
/* What is asked of all maps; the tensor has to be in memory that was allocated. */
static const char *wrong_tensor(void *map, int type, unsigned rank, uint64_t address, const uint64_t *extents,
                                const uint64_t *strides, const uint32_t *steps, unsigned inner, int interleave,
                                int swizzle, int promotion, int fill)
{
  static const unsigned sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  enum { ROOM = 128 };
  if (capability() < 90) return "the device has no copy engine";
  if ((uintptr_t)map % 64 != 0) return "the map isn't aligned to 64 bytes";
  if (type < 0 || type >= (int)(sizeof sizes / sizeof *sizes)) return "no such type";
  if (rank < 1 || rank > 5) return "a rank beyond 5";
  if (address % 16 != 0) return "an address that isn't a multiple of 16";
  if (interleave != 0 || swizzle != 3) return "a layout that no kernel of ours reads";
  if (promotion < 0 || promotion > 3 || fill != 0) return "promotion or fill";
  uint64_t size = extents[0] * sizes[type];
  for (unsigned k = 0; k < rank; k++) {
    if (extents[k] == 0 || extents[k] > (uint64_t)1 << 32) return "an extent beyond 2^32, or of 0";
    if (steps[k] == 0 || steps[k] > 8) return "a step beyond 8, or of 0";
    if (k == 0) continue;
    if (strides[k - 1] % 16 != 0 || strides[k - 1] >= (uint64_t)1 << 40) return "a stride that is no multiple of 16";
    size += (extents[k] - 1) * strides[k - 1];
  }
  if (inner * sizes[type] % 16 != 0 || inner * sizes[type] > ROOM) return "rows that a swizzle can't have";
  return holding(address, size) == NULL ? "the tensor isn't in memory that was allocated" : NULL;
}

int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, uint64_t address, const uint64_t *extents,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill)
{
  BEGIN(cuTensorMapEncodeTiled);
  const char *const wrong = wrong_tensor(map, type, rank, address, extents, strides, steps, box[0], interleave,
                                         swizzle, promotion, fill);
  REFUSE_IF(wrong != NULL, INVALID_VALUE, wrong);
  for (unsigned k = 0; k < rank; k++) REFUSE_IF(box[k] == 0 || box[k] > 256, INVALID_VALUE, "a box beyond 256");
  if (result == SUCCESS) memcpy(map, (const uint64_t[16]){MARK}, 128);
  END;
}

int cuTensorMapEncodeIm2col(void *map, int type, unsigned rank, uint64_t address, const uint64_t *extents,
                            const uint64_t *strides, const int *lower, const int *upper, uint32_t channels,
                            uint32_t pixels, const uint32_t *steps, int interleave, int swizzle, int promotion,
                            int fill)
{
  BEGIN(cuTensorMapEncodeIm2col);
  static const int most[] = {1 << 15, 1 << 7, 1 << 4};
  const char *const wrong = wrong_tensor(map, type, rank, address, extents, strides, steps, channels, interleave,
                                         swizzle, promotion, fill);
  REFUSE_IF(wrong != NULL, INVALID_VALUE, wrong);
  REFUSE_IF(rank < 3, INVALID_VALUE, "no image");
  REFUSE_IF(channels == 0 || channels > 256 || pixels == 0 || pixels > 1024, INVALID_VALUE, "a box too large");
  for (unsigned k = 0; result == SUCCESS && k + 2 < rank; k++) {
    const int low = lower[k], high = upper[k], end = most[rank - 3];
    REFUSE_IF(low < -end || low >= end || high < -end || high >= end, INVALID_VALUE, "corners too far");
    REFUSE_IF(low > (int)extents[k + 1] - 1 + high, INVALID_VALUE, "no window");
  }
  if (result == SUCCESS) memcpy(map, (const uint64_t[16]){MARK}, 128);
  END;
}
#endif
