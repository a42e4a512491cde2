/* emulated_driver.c - CUDA's driver and its GPU, imitated by the host.
 *
 * Every allocation lies between two bands that nobody may write; who waits for a stream learns of it
 * as of an illegal address. A warp runs as far as it can before another one does, so that what lacks a
 * barrier shows: the first warp of a block first, with ATC_EMULATED_ORDER=reverse in the environment the
 * last one, with a number there warps and lanes in an order that is drawn anew, by this seed, each time
 * that they have met. In the reverse order, too, boxes of tensors and what a graph copies beside kernels
 * come when they are waited for, else at once, boxes in a drawn one as it happens: nothing of this may
 * matter. ATC_EMULATED_DEVICES says how many devices there are, else one; ATC_EMULATED_MEMORY how many
 * bytes of memory each has, else 4 GiB.
 *
 * Compiled with ATC_EMULATED_RACES, beside kernels that are with -fsanitize=thread, it tells
 * ThreadSanitizer of threads and of what orders them: that reports what else they share. */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* which forbids jumps from stack to stack */
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#include "driver.h"
#include "emulation.h"

#ifdef ATC_EMULATED_RACES
#include <sanitizer/tsan_interface.h>
#define NEW_THREAD() __tsan_create_fiber(0)
#define END_THREAD(thread) __tsan_destroy_fiber(thread)
#define THIS_THREAD() __tsan_get_current_fiber()
#define BE_THREAD(thread) __tsan_switch_to_fiber(thread, __tsan_switch_to_fiber_no_sync)
#define ORDER_AFTER(place) __tsan_acquire(place)
#define ORDER_BEFORE(place) __tsan_release(place)
enum { STACK = 1 << 18 }; /* the sanitizer takes its part */
#else
#define NEW_THREAD() NULL
#define END_THREAD(thread) (void)(thread)
#define THIS_THREAD() NULL
#define BE_THREAD(thread) (void)(thread)
#define ORDER_AFTER(place) (void)(place)
#define ORDER_BEFORE(place) (void)(place)
enum { STACK = 1 << 16 };
#endif

/* POISON is in what nobody has written: a large number of any type, and a finite one. */
enum { BAND = 4096, MOST_SHARED = 227 << 10, POISON = 0x4b, WARP = 32, STACK_END = 64,
  ILLEGAL_ADDRESS = 700, MISALIGNED_ADDRESS = 716, LAUNCH_FAILED = 719, CAPTURE_UNSUPPORTED = 900,
  CAPTURE_UNJOINED = 904, INVALID_DEVICE = 101, INVALID_VALUE = 1, INVALID_CONTEXT = 201 };

static __thread unsigned entered; /* contexts that the operating system's thread has made its own */
static __thread int capturing, relaxed; /* captures that it has begun; its mode if these forbid it nothing */

/* ---- threads of a block ---- */

__thread struct emulated_place emulated;
__thread struct emulated_handed emulated_handed;
__thread unsigned char *emulated_shared;
__thread struct emulated_queue *emulated_queues;

enum { MOST_COPIES = 256, MOST_LOADS = 256, MOST_SHARES = 16,
  SWIZZLED = 1024 /* bytes that a swizzle repeats after */ };

typedef struct copy {
  void *to;
  const void *from;
  unsigned size, group;
} copy;

/* A box that is to be brought to shared memory. The map is a copy: the thread that asks for the box may
 * have ended, and its stack with the kernel's parameters, when the box comes. */
typedef struct box {
  unsigned char *to;
  struct emulated_map map;
  void *barrier;
  int at[8];
} box;

/* Where a thread goes on: with the context that it begins with, later where it jumped from. */
typedef struct place {
  ucontext_t context;
  jmp_buf jump;
  int jumped;
} place;

/* Of those that wait, MEETING ones do for `count` threads from `first` on, PAUSED ones for a barrier in
 * memory. They meet as a warp, as a warpgroup or as a block. */
enum { KINDS = 3 };
typedef struct fiber {
  place place;
  struct emulated_index thread;
  enum { READY, MEETING, PAUSED, DONE } state;
  unsigned first, count;
  unsigned meetings[KINDS];
  char met[KINDS][2]; /* places that stand for the meetings of those from this one on, by turns */
  void *seen;         /* what ThreadSanitizer knows it as */
  unsigned pending, group; /* copies, and the number of their groups so far */
  copy copies[MOST_COPIES];
} fiber;

static __thread fiber *fibers;
static __thread place home;
static __thread unsigned running;
static __thread const struct emulated_kernel *kernel;
static __thread void *const *arguments;
static __thread int reversed, failed; /* the last one first; the status of a launch that failed */
static __thread uint32_t drawn;       /* the last number that was drawn; 0: none are */
static __thread box loads[MOST_LOADS];
static __thread unsigned load_count, moves; /* how often a thread came further */
static __thread const void *shares[MOST_SHARES]; /* arrays that the block shares, as far as it came to them */
static __thread unsigned share_count;
static __thread void *home_seen, *engine_seen;

/* A number below `end`, by xorshift. */
static unsigned draw(unsigned end)
{
  drawn ^= drawn << 13;
  drawn ^= drawn >> 17;
  drawn ^= drawn << 5;
  return drawn % end;
}

/* Go on elsewhere until somebody comes back. A jump saves no mask of signals, for which contexts ask the
 * operating system each time; ThreadSanitizer follows contexts alone. */
static void leave(place *from, place *to)
{
#ifdef ATC_EMULATED_RACES
  swapcontext(&from->context, &to->context);
#else
  from->jumped = 1;
  if (_setjmp(from->jump) != 0) return;
  if (to->jumped) _longjmp(to->jump, 1);
  setcontext(&to->context);
#endif
}

static void go_home(void)
{
  BE_THREAD(home_seen);
  leave(&fibers[running].place, &home);
}

void emulated_meet(unsigned first, unsigned count)
{
  if (fibers == NULL) abort(); /* a kernel that says that its threads don't wait */
  fiber *const own = &fibers[running];
  const unsigned kind = count == WARP ? 0 : count == emulated.threads.x ? 2 : 1;
  char *const met = &fibers[first].met[kind][own->meetings[kind]++ % 2];
  own->state = MEETING;
  own->first = first;
  own->count = count;
  ORDER_BEFORE(met);
  go_home();
  ORDER_AFTER(met);
}

/* Let the launch fail; the thread goes no further. */
static void fail_by(int status)
{
  failed = status;
  fibers[running].state = DONE;
  go_home();
}

void emulated_fail(void) { fail_by(LAUNCH_FAILED); }

void emulated_barrier(void) { emulated_meet(0, emulated.threads.x); }

void emulated_begin(void *barrier, unsigned count)
{
  *(struct emulated_mbarrier *)barrier = (struct emulated_mbarrier){0, (uint8_t)count, (uint8_t)count, 0, 0};
}

/* A phase ends when all have arrived and all bytes are there. */
static void advance(struct emulated_mbarrier *own)
{
  if (own->left != 0 || own->bytes != 0) return;
  own->left = own->count;
  own->phase ^= 1;
}

void emulated_arrive(void *barrier, unsigned bytes)
{
  struct emulated_mbarrier *const own = barrier;
  if (own->left == 0) emulated_fail(); /* more arrive than it counts on */
  ORDER_BEFORE(barrier);
  own->bytes += (int32_t)bytes;
  own->left--;
  advance(own);
}

/* Write element `e` of a box: that at these indices, or 0 where there is none. */
static void put(const box *own, unsigned e, const int *indices)
{
  const struct emulated_map *const map = &own->map;
  const unsigned char *from = map->address;
  unsigned inside = 1;
  for (unsigned k = 0; k < map->rank && inside; k++) {
    inside = indices[k] >= 0 && (uint32_t)indices[k] < map->extents[k];
    if (inside) from += (uint64_t)indices[k] * (k == 0 ? map->size : map->strides[k - 1]);
  }
  const size_t at = (size_t)(own->to - emulated_shared) + (size_t)e * map->size;
  unsigned char *const to = emulated_shared + (at ^ (at >> 7 & 7) << 4);
  uint32_t bits;
  if (!inside) {
    memset(to, 0, map->size);
  } else if (map->rounds) {
    memcpy(&bits, from, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u) bits += 0xfffu + (bits >> 13 & 1);
    bits &= 0xffffe000u;
    memcpy(to, &bits, sizeof bits);
  } else {
    memcpy(to, from, map->size);
  }
}

/* A box of neighbours along each axis. */
static unsigned bring_box(const box *own)
{
  const struct emulated_map *const map = &own->map;
  unsigned count = 1;
  for (unsigned k = 0; k < map->rank; k++) count *= map->box[k];
  for (unsigned e = 0; e < count; e++) {
    unsigned rest = e;
    int indices[5];
    for (unsigned k = 0; k < map->rank; k++) {
      indices[k] = own->at[k] + (int)(rest % map->box[k]);
      rest /= map->box[k];
    }
    put(own, e, indices);
  }
  return count;
}

/* Channels of pixels that windows begin with, one after the other, and then those of the next image;
 * each is read some pixels further on. */
static unsigned bring_windows(const box *own)
{
  const struct emulated_map *const map = &own->map;
  const unsigned images = map->rank - 1u;
  int begin[5];
  memcpy(begin, own->at, sizeof begin);
  for (unsigned p = 0; p < map->box[1]; p++) {
    int indices[5];
    for (unsigned k = 1; k < images; k++) indices[k] = begin[k] + own->at[images + k];
    indices[images] = begin[images];
    for (unsigned c = 0; c < map->box[0]; c++) {
      indices[0] = begin[0] + (int)c;
      put(own, p * map->box[0] + c, indices);
    }
    unsigned k = 1;
    while (k < images && begin[k] + map->steps[k] > map->upper[k - 1]) {
      begin[k] = map->lower[k - 1];
      k++;
    }
    begin[k] += k < images ? map->steps[k] : 1;
  }
  return map->box[0] * map->box[1];
}

static void bring(const box *own)
{
  struct emulated_mbarrier *const barrier = own->barrier;
  BE_THREAD(engine_seen);
  ORDER_AFTER(own->to);
  const unsigned count = own->map.steps[0] != 0 ? bring_windows(own) : bring_box(own);
  ORDER_BEFORE(barrier);
  BE_THREAD(fibers[running].seen);
  barrier->bytes -= (int32_t)(count * own->map.size);
  advance(barrier);
}

/* The bytes of a box. */
static unsigned size_of(const struct emulated_map *map)
{
  unsigned size = map->size;
  for (unsigned k = 0; k < (map->steps[0] != 0 ? 2 : map->rank); k++) size *= map->box[k];
  return size;
}

/* What pixels a window may begin with, and how far it may reach: in 16 bits along one axis, in 8 along two,
 * in 5 along three. */
static int is_window(const struct emulated_map *map, const int *at)
{
  static const int most[] = {1 << 16, 1 << 8, 1 << 5};
  for (unsigned k = 1; k + 1 < map->rank; k++) {
    const int behind = at[map->rank - 1 + k];
    if (at[k] < map->lower[k - 1] || at[k] > map->upper[k - 1]) return 0;
    if (behind < 0 || behind >= most[map->rank - 3]) return 0;
  }
  return 1;
}

void emulated_load(void *to, const struct emulated_map *map, void *barrier, int windows, const int *at,
                   unsigned count)
{
  const unsigned expected = windows ? 2u * map->rank - 2 : map->rank;
  if (load_count == MOST_LOADS) emulated_fail(); /* nobody waits for them */
  if (windows != (map->steps[0] != 0) || count != expected || (windows && !is_window(map, at))) emulated_fail();
  if ((size_t)((unsigned char *)to - emulated_shared) % SWIZZLED != 0) fail_by(MISALIGNED_ADDRESS);
  box own = {to, *map, barrier, {0}};
  memcpy(own.at, at, count * sizeof *at);
  memset(to, POISON, size_of(map)); /* from now on it may be written */
  ORDER_BEFORE(to);
  if (drawn != 0 ? draw(2) : (unsigned)reversed) loads[load_count++] = own;
  else bring(&own);
}

void emulated_await(void *barrier, unsigned parity)
{
  const struct emulated_mbarrier *const own = barrier;
  moves += own->phase != parity;
  while (own->phase == parity) {
    const unsigned before = load_count;
    load_count = 0;
    for (unsigned k = 0; k < before; k++) {
      if (loads[k].barrier == barrier) bring(&loads[k]);
      else loads[load_count++] = loads[k];
    }
    if (load_count != before) continue;
    fibers[running].state = PAUSED;
    go_home();
    moves += own->phase != parity;
  }
  ORDER_AFTER(barrier);
}

void emulated_share(void *array, size_t size)
{
  volatile unsigned char *const bytes = array; /* what the sanitizer doesn't see isn't a thread's own */
  for (unsigned k = 0; k < share_count; k++) {
    if (shares[k] == array) return;
  }
  if (share_count == MOST_SHARES) abort();
  shares[share_count++] = array;
  for (size_t k = 0; k < size; k++) bytes[k] = POISON;
}

void emulated_copy(void *to, const void *from, unsigned size)
{
  fiber *const own = &fibers[running];
  if (own->pending == MOST_COPIES) abort(); /* nobody waits for them */
  if ((uintptr_t)to % size != 0 || (uintptr_t)from % size != 0) fail_by(MISALIGNED_ADDRESS);
  own->copies[own->pending++] = (copy){to, from, size, own->group};
  memset(to, POISON, size); /* from now on it may be written */
}

void emulated_commit(void) { fibers[running].group++; }

void emulated_wait(unsigned groups)
{
  fiber *const own = &fibers[running];
  unsigned done = 0;
  for (; done < own->pending && own->copies[done].group + groups < own->group; done++) {
    const copy each = own->copies[done];
    if (each.from == NULL) memset(each.to, 0, each.size);
    else memcpy(each.to, each.from, each.size);
  }
  own->pending -= done;
  memmove(own->copies, own->copies + done, own->pending * sizeof *own->copies);
}

static void run_fiber(void)
{
  kernel->run(arguments);
  fibers[running].state = DONE;
  ORDER_BEFORE(&home);
  go_home();
}

/* Let those from `begin` to `end` go on all of whose group, of so many at most, are there; returns how
 * many do. */
static unsigned let_go(unsigned begin, unsigned end, unsigned most)
{
  unsigned free = 0;
  for (unsigned k = begin; k < end; k++) {
    const fiber *const own = &fibers[k];
    if (own->state != MEETING || own->first != k || own->count > most) continue;
    unsigned there = 0;
    while (there < own->count && fibers[k + there].state == MEETING && fibers[k + there].first == k) there++;
    if (there < own->count) continue;
    for (unsigned r = 0; r < there; r++) fibers[k + r].state = READY;
    free += there;
  }
  return free;
}

static int is_poisoned(const unsigned char *place, size_t size)
{
  for (size_t k = 0; k < size; k++) {
    if (place[k] != POISON) return 0;
  }
  return 1;
}

/* Whether something is begun that nobody has waited for. */
static int is_left(unsigned threads)
{
  for (unsigned k = 0; k < threads; k++) {
    if (emulated_queues[k].count != 0 || fibers[k].pending != 0) return 1;
  }
  return load_count != 0;
}

/* Run the threads of a warp as far as they come without others. */
static void run_warp(unsigned first, unsigned threads)
{
  const unsigned end = first + WARP < threads ? first + WARP : threads;
  unsigned freed;
  do {
    const unsigned turned = drawn != 0 ? draw(WARP) : reversed ? WARP - 1u : 0;
    for (unsigned k = 0; k < WARP; k++) {
      running = first + (k ^ turned);
      if (running >= end) continue;
      fiber *const own = &fibers[running];
      if (own->state != READY && own->state != PAUSED) continue;
      moves += own->state == READY;
      emulated.thread = own->thread;
      BE_THREAD(own->seen);
      leave(&home, &own->place);
    }
    freed = let_go(first, end, WARP);
  } while (freed != 0 && !failed);
}

/* Run the threads from barrier to barrier; nonzero where they wait for what never comes. */
static int run_threads(unsigned threads)
{
  enum { MOST_WARPS = EMULATED_THREADS / WARP };
  const unsigned warps = (threads + WARP - 1) / WARP;
  unsigned order[MOST_WARPS];
  for (unsigned k = 0; k < warps; k++) order[k] = reversed ? warps - 1 - k : k;
  for (;;) {
    const unsigned before = moves;
    unsigned done = 0;
    for (unsigned k = 0; k < warps; k++) {
      if (drawn != 0) {
        const unsigned other = k + draw(warps - k), next = order[other];
        order[other] = order[k];
        order[k] = next;
      }
      run_warp(order[k] * WARP, threads);
      if (failed) return failed;
    }
    for (unsigned k = 0; k < threads; k++) done += fibers[k].state == DONE;
    if (done == threads) return is_left(threads) ? LAUNCH_FAILED : CUDA_SUCCESS;
    if (let_go(0, threads, threads) == 0 && moves == before) return LAUNCH_FAILED;
  }
}

static int run_block(unsigned threads, char *stacks)
{
  failed = 0;
  load_count = 0;
  share_count = 0;
  home_seen = THIS_THREAD();
  engine_seen = NEW_THREAD();
  for (unsigned k = 0; k < threads; k++) {
    fibers[k].thread.x = k;
    fibers[k].state = READY;
    fibers[k].pending = 0;
    memset(fibers[k].meetings, 0, sizeof fibers[k].meetings);
    fibers[k].seen = NEW_THREAD();
    memset(stacks + (size_t)k * STACK, POISON, STACK_END);
    emulated_queues[k].count = 0;
    ucontext_t *const context = &fibers[k].place.context;
    fibers[k].place.jumped = 0;
    getcontext(context);
    context->uc_stack.ss_sp = stacks + (size_t)k * STACK;
    context->uc_stack.ss_size = STACK;
    context->uc_link = NULL;
    makecontext(context, run_fiber, 0);
  }
  const int status = run_threads(threads);
  ORDER_AFTER(&home);
  for (unsigned k = 0; k < threads; k++) {
    if (!is_poisoned((unsigned char *)stacks + (size_t)k * STACK, STACK_END)) abort(); /* too small */
    END_THREAD(fibers[k].seen);
  }
  END_THREAD(engine_seen);
  return status;
}


static int run_grid(unsigned blocks, unsigned threads, unsigned shared)
{
  const char *const order = getenv("ATC_EMULATED_ORDER");
  char *stacks = NULL;
  void *memory = NULL;
  int bad = posix_memalign(&memory, BAND, shared + BAND) != 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  reversed = order != NULL && strcmp(order, "reverse") == 0;
  drawn = order != NULL ? (uint32_t)strtoul(order, NULL, 10) : 0;
  emulated.blocks.x = blocks;
  emulated.threads.x = threads;
  fibers = NULL;
  if (kernel->barriers) {
    fibers = calloc(threads, sizeof *fibers);
    stacks = malloc((size_t)threads * STACK);
    emulated_queues = calloc(threads, sizeof *emulated_queues);
    if (fibers == NULL || stacks == NULL || emulated_queues == NULL) bad = CUDA_ERROR_OUT_OF_MEMORY;
  }
  emulated_shared = memory;
  for (unsigned b = 0; b < blocks && !bad; b++) {
    emulated.block.x = reversed ? blocks - 1 - b : b;
    if (kernel->barriers) {
      memset(memory, POISON, shared + BAND);
      bad = run_block(threads, stacks);
      if (!bad && !is_poisoned(emulated_shared + shared, BAND)) bad = ILLEGAL_ADDRESS;
      continue;
    }
    for (unsigned k = 0; k < threads; k++) {
      emulated.thread.x = reversed ? threads - 1 - k : k;
      kernel->run(arguments);
    }
  }
  free(stacks);
  free(fibers);
  free(emulated_queues);
  free(memory);
  fibers = NULL;
  emulated_queues = NULL;
  return bad;
}

/* ---- streams, graphs and events ---- */

/* A launch that was captured: the kernel, its blocks, threads and shared memory, and its arguments, a
 * word each, and maps; or a copy, as there is no kernel: to where, from where, how many bytes. */
typedef struct work {
  struct work *next;
  const struct emulated_kernel *kernel;
  unsigned blocks, threads, shared;
  size_t number; /* among those of its stream */
  unsigned long long values[];
} work;

enum { MAP_WORDS = sizeof(CUtensorMap) / sizeof(unsigned long long) };

struct CUgraph_st {
  work *first, **end;
  CUstream origin;
  unsigned unjoined; /* streams that take part in the capture, and that its origin must still wait for */
};

struct CUstream_st {
  CUgraph captured; /* NULL: launches run at once */
  size_t count;     /* what was captured on it so far */
  work *late;       /* copies among that that are yet to come, when they are waited for */
};

/* The default streams, of all threads and of each, have small numbers as handles. */
static int is_default(CUstream stream) { return (uintptr_t)stream <= 2; }

/* What a stream is captured to; NULL: it isn't. */
static CUgraph capture_of(CUstream stream) { return is_default(stream) ? NULL : stream->captured; }

enum { WITHOUT_ASKING = 48 << 10 };

struct CUfunc_st {
  const struct emulated_kernel *kernel;
  unsigned most_shared;
};

struct CUmod_st {
  struct CUfunc_st function; /* one in each */
};

struct CUevent_st {
  struct timespec at;
  CUstream stream; /* that it was recorded on */
  CUgraph graph;   /* that this was captured to then, after so many things */
  size_t count;
};

static void free_work(work *each)
{
  while (each != NULL) {
    work *const next = each->next;
    free(each);
    each = next;
  }
}

static int run_kernel(const struct emulated_kernel *own, unsigned blocks, unsigned threads,
                      unsigned shared, void *const *given)
{
  kernel = own;
  arguments = given;
  return run_grid(blocks, threads, shared);
}

static work *made_work(unsigned words)
{
  work *const made = malloc(sizeof *made + words * sizeof *made->values);
  if (made != NULL) *made = (work){0};
  return made;
}

static void add_work(CUgraph graph, work *own)
{
  own->next = NULL;
  *graph->end = own;
  graph->end = &own->next;
}

/* Let a stream do what it is yet to do of the first things that were captured on it. */
static void do_late(CUgraph graph, CUstream stream, size_t count)
{
  while (stream->late != NULL && stream->late->number < count) {
    work *const first = stream->late;
    stream->late = first->next;
    add_work(graph, first);
  }
}

static int capture(CUstream stream, const struct emulated_kernel *own, unsigned blocks,
                   unsigned threads, unsigned shared, void *const *given)
{
  work *const made = made_work(own->arguments + own->maps * MAP_WORDS);
  if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
  made->kernel = own;
  made->blocks = blocks;
  made->threads = threads;
  made->shared = shared;
  for (unsigned k = 0; k < own->arguments; k++) {
    memcpy(&made->values[k], given[k], sizeof *made->values);
  }
  for (unsigned k = 0; k < own->maps; k++) {
    memcpy(&made->values[own->arguments + k * MAP_WORDS], given[own->arguments + k], sizeof(CUtensorMap));
  }
  do_late(stream->captured, stream, stream->count);
  stream->count++;
  add_work(stream->captured, made);
  return CUDA_SUCCESS;
}

static void copy_now(const work *own)
{
  memcpy((void *)(uintptr_t)own->values[0], (const void *)(uintptr_t)own->values[1], own->values[2]);
}

/* In the reverse order it is done when another stream waits for it. */
static int capture_copy(CUstream stream, uintptr_t to, uintptr_t from, size_t size)
{
  const char *const order = getenv("ATC_EMULATED_ORDER");
  const int late = order != NULL && strcmp(order, "reverse") == 0;
  work *const made = made_work(3);
  if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
  made->values[0] = to;
  made->values[1] = from;
  made->values[2] = size;
  made->number = stream->count++;
  if (late && stream != stream->captured->origin) {
    work **at = &stream->late;
    while (*at != NULL) at = &(*at)->next;
    *at = made;
  } else {
    add_work(stream->captured, made);
  }
  return CUDA_SUCCESS;
}

/* ---- memory ---- */

typedef struct block {
  struct block *next;
  size_t size;
} block; /* then a band, the memory, and a band */

static block *allocated; /* of the device's memory */
static block *locked;    /* of the host's, page-locked */
static size_t taken;
static char lock;

static void take_lock(void)
{
  while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE)) {}
}

static void leave_lock(void) { __atomic_clear(&lock, __ATOMIC_RELEASE); }

static unsigned char *band_of(block *b) { return (unsigned char *)b + BAND; }

static unsigned char *memory_of(block *b) { return band_of(b) + BAND; }

static size_t total_memory(void)
{
  const char *const given = getenv("ATC_EMULATED_MEMORY");
  return given != NULL ? (size_t)strtoull(given, NULL, 10) : (size_t)1 << 32;
}

static int memory_info(size_t *unused, size_t *total)
{
  if (entered == 0) return INVALID_CONTEXT;
  *total = total_memory();
  take_lock();
  *unused = taken < *total ? *total - taken : 0;
  leave_lock();
  return CUDA_SUCCESS;
}

static int allocate(block **blocks, unsigned char **memory, size_t size)
{
  void *place = NULL;
  if (size > SIZE_MAX - 4 * BAND) return CUDA_ERROR_OUT_OF_MEMORY;
  if (posix_memalign(&place, BAND, size + 3 * BAND) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  block *const b = place;
  b->size = size;
  memset(band_of(b), POISON, size + 2 * BAND); /* nobody may count on what is in new memory */
  take_lock();
  b->next = *blocks;
  *blocks = b;
  leave_lock();
  *memory = memory_of(b);
  return CUDA_SUCCESS;
}

/* Give memory back: its size in `size`. */
static int give_back(block **at, const unsigned char *memory, size_t *size)
{
  take_lock();
  while (*at != NULL && memory_of(*at) != memory) at = &(*at)->next;
  block *const found = *at;
  if (found != NULL) *at = found->next;
  *size = found != NULL ? found->size : 0;
  leave_lock();
  free(found);
  return found != NULL ? CUDA_SUCCESS : ILLEGAL_ADDRESS;
}

static void count_taken(size_t more, size_t less)
{
  take_lock();
  taken = taken + more - less;
  leave_lock();
}

static int memory_alloc(CUdeviceptr *memory, size_t size)
{
  if (entered == 0) return INVALID_CONTEXT;
  if (capturing > 0 && !relaxed) return CAPTURE_UNSUPPORTED;
  unsigned char *place = NULL;
  size_t unused, total;
  memory_info(&unused, &total);
  if (size > unused) return CUDA_ERROR_OUT_OF_MEMORY;
  const int result = allocate(&allocated, &place, size);
  if (result == CUDA_SUCCESS) count_taken(size, 0);
  *memory = (CUdeviceptr)(uintptr_t)place;
  return result;
}

static int memory_free(CUdeviceptr memory)
{
  if (entered == 0) return INVALID_CONTEXT;
  if (capturing > 0 && !relaxed) return CAPTURE_UNSUPPORTED;
  size_t size;
  const int result = give_back(&allocated, (const unsigned char *)(uintptr_t)memory, &size);
  count_taken(0, size);
  return result;
}

static int host_alloc(void **memory, size_t size, unsigned flags)
{
  (void)flags;
  if (entered == 0) return INVALID_CONTEXT;
  if (capturing > 0 && !relaxed) return CAPTURE_UNSUPPORTED;
  unsigned char *place = NULL;
  const int result = allocate(&locked, &place, size);
  *memory = place;
  return result;
}

static int host_free(void *memory)
{
  if (entered == 0) return INVALID_CONTEXT;
  if (capturing > 0 && !relaxed) return CAPTURE_UNSUPPORTED;
  size_t size;
  return give_back(&locked, memory, &size);
}

/* Whether some bytes of the host's can't be paged out; others can't be copied in graphs of ours. */
static int is_locked(const void *memory, size_t size)
{
  const uintptr_t begin = (uintptr_t)memory;
  int found = 0;
  take_lock();
  for (block *b = locked; b != NULL && !found; b = b->next) {
    const uintptr_t own = (uintptr_t)memory_of(b);
    found = begin >= own && size <= b->size && begin - own <= b->size - size;
  }
  leave_lock();
  return found;
}

/* Whether nobody wrote into the bands around memory. */
static int are_whole(block *b)
{
  while (b != NULL && is_poisoned(band_of(b), BAND) && is_poisoned(memory_of(b) + b->size, BAND)) b = b->next;
  return b == NULL;
}

static int stream_wait(CUstream stream)
{
  if (entered == 0) return INVALID_CONTEXT;
  if (capture_of(stream) != NULL) return CAPTURE_UNSUPPORTED;
  take_lock();
  const int good = are_whole(allocated) && are_whole(locked);
  leave_lock();
  return good ? CUDA_SUCCESS : ILLEGAL_ADDRESS;
}

static int copy_to_device(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
  if (entered == 0) return INVALID_CONTEXT;
  if (capture_of(stream) != NULL) {
    return is_locked(from, size) ? capture_copy(stream, to, (uintptr_t)from, size) : CAPTURE_UNSUPPORTED;
  }
  memcpy((void *)(uintptr_t)to, from, size);
  return CUDA_SUCCESS;
}

static int copy_to_host(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
  if (entered == 0) return INVALID_CONTEXT;
  if (capture_of(stream) != NULL) {
    return is_locked(to, size) ? capture_copy(stream, (uintptr_t)to, from, size) : CAPTURE_UNSUPPORTED;
  }
  memcpy(to, (const void *)(uintptr_t)from, size);
  return CUDA_SUCCESS;
}

static int memory_set(CUdeviceptr at, unsigned char value, size_t size, CUstream stream)
{
  if (entered == 0) return INVALID_CONTEXT;
  if (capture_of(stream) != NULL) return CAPTURE_UNSUPPORTED; /* not in our graphs */
  memset((void *)(uintptr_t)at, value, size);
  return CUDA_SUCCESS;
}

/* ---- the rest ---- */

static int init(unsigned flags)
{
  (void)flags;
  return CUDA_SUCCESS;
}

static int device_count(int *count)
{
  const char *const given = getenv("ATC_EMULATED_DEVICES");
  *count = given != NULL ? atoi(given) : 1;
  return CUDA_SUCCESS;
}

static int device_get(int *device, int ordinal)
{
  int count;
  device_count(&count);
  if (ordinal < 0 || ordinal >= count) return INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

static int context_retain(CUcontext *context, int device)
{
  (void)device;
  *context = NULL;
  return CUDA_SUCCESS;
}

static int context_release(int device)
{
  (void)device;
  return CUDA_SUCCESS;
}

static int context_push(CUcontext context)
{
  (void)context;
  entered++;
  return CUDA_SUCCESS;
}

static int context_pop(CUcontext *context)
{
  *context = NULL;
  if (entered == 0) return INVALID_CONTEXT;
  entered--;
  return CUDA_SUCCESS;
}

static int module_load(CUmodule *module, const void *image)
{
  if (entered == 0) return INVALID_CONTEXT;
  *module = malloc(sizeof **module);
  if (*module == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
  **module = (struct CUmod_st){{image, WITHOUT_ASKING}};
  return CUDA_SUCCESS;
}

static int module_unload(CUmodule module)
{
  if (entered == 0) return INVALID_CONTEXT;
  free(module);
  return CUDA_SUCCESS;
}

static int module_function(CUfunction *function, CUmodule module, const char *name)
{
  if (entered == 0) return INVALID_CONTEXT;
  (void)name;
  *function = &module->function;
  return CUDA_SUCCESS;
}

static int stream_create(CUstream *stream, unsigned flags)
{
  if (entered == 0) return INVALID_CONTEXT;
  (void)flags;
  *stream = calloc(1, sizeof **stream);
  return *stream != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static int stream_destroy(CUstream stream)
{
  if (entered == 0) return INVALID_CONTEXT;
  free(stream);
  return CUDA_SUCCESS;
}

static int stream_capturing(CUstream stream, int *status)
{
  if (entered == 0) return INVALID_CONTEXT;
  *status = capture_of(stream) != NULL;
  return CUDA_SUCCESS;
}

enum { RELAXED = 2 };

/* Modes other than RELAXED are one: none lets memory be reserved. */
static int capture_mode(int *mode)
{
  const int before = relaxed ? RELAXED : 0;
  relaxed = *mode == RELAXED;
  *mode = before;
  return CUDA_SUCCESS;
}

static int capture_begin(CUstream stream, int mode)
{
  if (entered == 0) return INVALID_CONTEXT;
  (void)mode;
  if (is_default(stream) || stream->captured != NULL) return CAPTURE_UNSUPPORTED;
  CUgraph graph = calloc(1, sizeof *graph);
  if (graph == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
  graph->end = &graph->first;
  graph->origin = stream;
  stream->captured = graph;
  capturing++;
  return CUDA_SUCCESS;
}

static int capture_end(CUstream stream, CUgraph *graph)
{
  if (entered == 0) return INVALID_CONTEXT;
  *graph = stream->captured;
  stream->captured = NULL;
  if (*graph != NULL) capturing--;
  if (*graph != NULL && (*graph)->unjoined != 0) return CAPTURE_UNJOINED;
  return *graph != NULL ? CUDA_SUCCESS : CAPTURE_UNSUPPORTED;
}

static int graph_destroy(CUgraph graph)
{
  free_work(graph->first);
  free(graph);
  return CUDA_SUCCESS;
}

/* The runnable graph is the graph's own work: the graph itself is left with none. */
static int graph_instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
  if (entered == 0) return INVALID_CONTEXT;
  (void)flags;
  *exec = (CUgraphExec)(void *)graph->first;
  graph->first = NULL;
  return *exec != NULL ? CUDA_SUCCESS : CAPTURE_UNSUPPORTED;
}

static int exec_destroy(CUgraphExec exec)
{
  if (entered == 0) return INVALID_CONTEXT;
  free_work((work *)(void *)exec);
  return CUDA_SUCCESS;
}

static int graph_launch(CUgraphExec exec, CUstream stream)
{
  if (entered == 0) return INVALID_CONTEXT;
  int status = CUDA_SUCCESS;
  if (capture_of(stream) != NULL) return CAPTURE_UNSUPPORTED;
  for (work *each = (void *)exec; each != NULL && status == CUDA_SUCCESS; each = each->next) {
    if (each->kernel == NULL) {
      copy_now(each);
      continue;
    }
    const unsigned count = each->kernel->arguments;
    void *at[count + each->kernel->maps + 1];
    for (unsigned k = 0; k < count; k++) at[k] = &each->values[k];
    for (unsigned k = 0; k < each->kernel->maps; k++) at[count + k] = &each->values[count + k * MAP_WORDS];
    status = run_kernel(each->kernel, each->blocks, each->threads, each->shared, at);
  }
  return status;
}

static int event_create(CUevent *event, unsigned flags)
{
  if (entered == 0) return INVALID_CONTEXT;
  (void)flags;
  *event = calloc(1, sizeof **event);
  return *event != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static int event_destroy(CUevent event)
{
  if (entered == 0) return INVALID_CONTEXT;
  free(event);
  return CUDA_SUCCESS;
}

static int event_record(CUevent event, CUstream stream)
{
  if (entered == 0) return INVALID_CONTEXT;
  event->stream = stream;
  event->graph = capture_of(stream);
  event->count = event->graph != NULL ? stream->count : 0;
  clock_gettime(CLOCK_MONOTONIC, &event->at);
  return CUDA_SUCCESS;
}

/* What is captured goes into one graph, in the order of the launches: a stream that waits for one
 * that is captured is, too, until that waits for the last that it did. */
static int stream_wait_event(CUstream stream, CUevent event, unsigned flags)
{
  if (entered == 0) return INVALID_CONTEXT;
  (void)flags;
  const CUgraph graph = event->graph;
  const CUstream other = event->stream;
  if (graph == NULL || is_default(stream) || stream == other) return CUDA_SUCCESS;
  do_late(graph, other, event->count);
  if (stream == graph->origin) {
    if (event->count == other->count && other->captured == graph) {
      other->captured = NULL;
      graph->unjoined--;
    }
  } else if (stream->captured == NULL) {
    stream->captured = graph;
    graph->unjoined++;
  }
  return CUDA_SUCCESS;
}

static int event_wait(CUevent event)
{
  if (entered == 0) return INVALID_CONTEXT;
  (void)event;
  return CUDA_SUCCESS;
}

static int event_elapsed(float *milliseconds, CUevent begin, CUevent end)
{
  if (entered == 0) return INVALID_CONTEXT;
  const double seconds = (double)(end->at.tv_sec - begin->at.tv_sec);
  *milliseconds = (float)(seconds * 1e3 + (double)(end->at.tv_nsec - begin->at.tv_nsec) / 1e6);
  return CUDA_SUCCESS;
}

static int launch(CUfunction function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                  unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
                  CUstream stream, void **given, void **extra)
{
  if (entered == 0) return INVALID_CONTEXT;
  const struct emulated_kernel *const own = function->kernel;
  if (blocks_y * blocks_z * threads_y * threads_z != 1 || extra != NULL) {
    return LAUNCH_FAILED; /* none of our kernels asks for this */
  }
  if (blocks_x == 0 || threads_x == 0 || threads_x > EMULATED_THREADS || shared_bytes > function->most_shared) {
    return INVALID_VALUE;
  }
  if (capture_of(stream) != NULL) {
    return capture(stream, own, blocks_x, threads_x, shared_bytes, given);
  }
  return run_kernel(own, blocks_x, threads_x, shared_bytes, given);
}

static int function_set(CUfunction function, int attribute, int value)
{
  if (entered == 0) return INVALID_CONTEXT;
  enum { SHARED_AT_MOST = 8 };
  if (attribute != SHARED_AT_MOST || value < 0 || value > MOST_SHARED) return INVALID_VALUE;
  function->most_shared = (unsigned)value;
  return CUDA_SUCCESS;
}

/* What the driver checks of all maps, and what they have in common: alignments. */
static int describe(struct emulated_map *own, int type, unsigned rank, const void *address,
                    const uint64_t *extents, const uint64_t *strides, int interleave, int swizzle, int fill)
{
  static const uint16_t sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  enum { OF_128_BYTES = 3, TFLOAT32 = 11 };
  if (type < 0 || type > TFLOAT32 || rank < 1 || rank > 5 || (uintptr_t)address % 16 != 0
      || interleave != 0 || swizzle != OF_128_BYTES || fill != 0) {
    return 0;
  }
  memset(own, 0, sizeof *own);
  own->address = address;
  own->rank = (uint16_t)rank;
  own->size = sizes[type];
  own->rounds = type == TFLOAT32;
  for (unsigned k = 0; k < rank; k++) {
    if (extents[k] == 0 || extents[k] > UINT32_MAX) return 0;
    own->extents[k] = (uint32_t)extents[k];
    if (k == 0) continue;
    if (strides[k - 1] % 16 != 0 || strides[k - 1] >= (uint64_t)1 << 40) return 0;
    own->strides[k - 1] = strides[k - 1];
  }
  return 1;
}

static int encoded(CUtensorMap *map, const struct emulated_map *own)
{
  enum { SPAN = 128 };
  if (own->box[0] * own->size > SPAN || own->box[0] * own->size % 16 != 0) return INVALID_VALUE;
  memset(map, 0, sizeof *map);
  memcpy(map, own, sizeof *own);
  return CUDA_SUCCESS;
}

static int map_encode(CUtensorMap *map, int type, unsigned rank, void *address,
                      const uint64_t *extents, const uint64_t *strides, const uint32_t *box_of,
                      const uint32_t *steps, int interleave, int swizzle, int promotion, int fill)
{
  enum { MOST_OF_BOX = 256 };
  struct emulated_map own;
  (void)promotion;
  if (!describe(&own, type, rank, address, extents, strides, interleave, swizzle, fill)) return INVALID_VALUE;
  for (unsigned k = 0; k < rank; k++) {
    if (box_of[k] == 0 || box_of[k] > MOST_OF_BOX || steps[k] != 1) return INVALID_VALUE;
    own.box[k] = box_of[k];
  }
  return encoded(map, &own);
}

static int map_encode_windows(CUtensorMap *map, int type, unsigned rank, void *address,
                              const uint64_t *extents, const uint64_t *strides, const int *lower,
                              const int *upper, uint32_t channels, uint32_t pixels, const uint32_t *steps,
                              int interleave, int swizzle, int promotion, int fill)
{
  enum { MOST_PIXELS = 1024, MOST_STEPS = 8 };
  static const int corners[] = {1 << 15, 1 << 7, 1 << 4};
  struct emulated_map own;
  (void)promotion;
  if (!describe(&own, type, rank, address, extents, strides, interleave, swizzle, fill)) return INVALID_VALUE;
  if (rank < 3 || channels == 0 || pixels == 0 || pixels > MOST_PIXELS) return INVALID_VALUE;
  own.box[0] = channels;
  own.box[1] = pixels;
  for (unsigned k = 0; k < rank; k++) {
    if (steps[k] == 0 || steps[k] > MOST_STEPS) return INVALID_VALUE;
    own.steps[k] = (uint8_t)steps[k];
  }
  for (unsigned k = 0; k + 2 < rank; k++) {
    const int most = corners[rank - 3];
    if (lower[k] < -most || lower[k] >= most || upper[k] < -most || upper[k] >= most) return INVALID_VALUE;
    own.lower[k] = lower[k];
    own.upper[k] = (int)own.extents[k + 1] - 1 + upper[k];
    if (own.lower[k] > own.upper[k]) return INVALID_VALUE;
  }
  return encoded(map, &own);
}

int cuda_driver_open(cuda_driver *driver)
{
  static const cuda_driver own = {
    init, device_count, device_get, context_retain, context_release, context_push, context_pop,
    module_load, module_unload, module_function, memory_alloc, memory_free, host_alloc,
    host_free, copy_to_device, copy_to_host, stream_create, stream_destroy, stream_wait, launch,
    stream_capturing, capture_begin, capture_end, capture_mode, graph_instantiate, graph_destroy,
    graph_launch, exec_destroy, event_create, event_destroy, event_record, event_wait, event_elapsed, memory_info,
    stream_wait_event, memory_set, function_set, map_encode, map_encode_windows,
  };
  *driver = own;
  return 1;
}
