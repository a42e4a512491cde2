/* As much of Linux as a static program of one thread asks for, for an emulated machine: it carries
 * out the records that it reads from the disk and writes what came of them back to it.
 *
 * A record is { uint32 kind, uint32 length of words, uint64 length of data }, words, data:
 *   1  keep the data as the file that the words name
 *   2  run a program: words are its arguments, each ended by a zero. Answers with the wait status
 *      and what it printed
 *   3  answer with 0 and the content of the file that the words name, or with 1
 *   0  the end
 * An answer is { uint32 status, uint32 nothing, uint64 length }, data.
 *
 * Programs run with all privileges, at their own addresses. A program that configures tiles which
 * it didn't ask for with arch_prctl, or that ends with tiles configured, is ended by SIGILL: Linux
 * would end the one at its first tile, and switch threads more slowly for the other.
 */
#include <cpuid.h>
#include <elf.h>
#include <stddef.h>
#include <stdint.h>

enum { SECTOR = 512, MANY = 128, PRINTED_MAX = 1 << 20, FILES = 256, OPEN = 16 };
enum { DATA = 0x1f0, COUNT = 0x1f2, DRIVE = 0x1f6, COMMAND = 0x1f7, CONTROL = 0x3f6 };
enum { SIGILL = 4, SIGTRAP = 5, SIGFPE = 8, SIGSEGV = 11, SIGSYS = 31 };
enum { ENOENT = 2, ENOSPC = 28, EINVAL = 22, ENOSYS = 38, ENOMEM = 12, EBADF = 9, EFAULT = 14 };
enum { TILE_STATES = 3 << 17, TILES_CONFIGURED = 1 << 17, TILE_STATE = 18 };
enum { LEAST_SIGNAL_STACK = 11952 };

/* Where things lie; programs at 4 MB, as they are linked. */
#define HEAP_END ((char *)0x10000000)
#define STACK_END ((char *)0x10000000)
#define FILES_AT ((char *)0x10000000)
#define MAPS_END ((char *)0x3f000000)

typedef struct stream {
  uint32_t sector;
  size_t at, held;
  unsigned char bytes[SECTOR * MANY];
} stream;

typedef struct file {
  const char *name;
  char *bytes;
  size_t size, room;
} file;

typedef struct registers { /* as system_call pushes them */
  uint64_t number, stack, fourth, sixth, fifth, third, second, first;
} registers;

/* Numbers of the first sectors to read and to write, set by bochs.py. */
__attribute__((section(".data.places"))) volatile uint32_t places[4] = {0x70616c63, 0, 0, 0};

void kernel_main(void);
int64_t handle_system_call(const registers *r);
void handle_exception(const uint64_t *frame, uint64_t address);
int enter_program(uint64_t entry, void *stack);
void leave_program(int status) __attribute__((noreturn));
void system_call(void);
extern char exception_handlers[];

static stream input, output;
static file files[FILES];
static size_t file_count;
static char *files_end = FILES_AT;
static struct { file *f; size_t at; } opened[OPEN];
static char printed[PRINTED_MAX];
static size_t printed_size;
static char *heap, *heap_start, *maps = MAPS_END;
static int tiles_are_allowed, signal_stack_is_small, has_xsave;
static struct { uint16_t low, segment; uint8_t none, kind; uint16_t middle; uint32_t high, rest; }
  gates[32];

/* ---- C without a library ---- */

void *memcpy(void *to, const void *from, size_t n);
void *memset(void *to, int byte, size_t n);
void *memcpy(void *to, const void *from, size_t n)
{
  void *const start = to;
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
  return start;
}
void *memset(void *to, int byte, size_t n)
{
  void *const start = to;
  __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(byte) : "memory");
  return start;
}
static size_t length(const char *s)
{
  size_t n = 0;
  while (s[n]) n++;
  return n;
}
static int same(const char *a, const char *b)
{
  while (*a && *a == *b) a++, b++;
  return *a == *b;
}
static void print(const char *bytes, size_t n)
{
  for (size_t k = 0; k < n && printed_size < PRINTED_MAX; k++) printed[printed_size++] = bytes[k];
}
static void print_text(const char *s) { print(s, length(s)); }
static void print_hex(uint64_t v)
{
  char digits[16];
  for (int k = 0; k < 16; k++) digits[k] = "0123456789abcdef"[v >> (60 - 4 * k) & 15];
  print(digits, 16);
}

/* ---- the machine ---- */

static void out8(uint16_t port, uint8_t v)
{
  __asm__ volatile("outb %0, %1" : : "a"(v), "Nd"(port));
}
static uint8_t in8(uint16_t port)
{
  uint8_t v;
  __asm__ volatile("inb %1, %0" : "=a"(v) : "Nd"(port));
  return v;
}
static void set_msr(uint32_t which, uint64_t v)
{
  __asm__ volatile("wrmsr" : : "c"(which), "a"((uint32_t)v), "d"((uint32_t)(v >> 32)));
}
static uint32_t extended_state(uint32_t which) /* 0: what is kept, 1: what is in use */
{
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(which));
  return low;
}

/* End the emulator: a word to a port of its BIOS. */
static void power_off(void)
{
  for (const char *s = "Shutdown"; *s; s++) out8(0x8900, (uint8_t)*s);
  for (;;) __asm__ volatile("hlt");
}

/* ---- the disk ---- */

static void ask_disk(uint32_t sector, uint8_t command)
{
  while (in8(COMMAND) & 0x80) continue;
  out8(DRIVE, (uint8_t)(0xe0 | (sector >> 24 & 15)));
  out8(COUNT, MANY);
  for (int k = 0; k < 3; k++) out8((uint16_t)(COUNT + 1 + k), (uint8_t)(sector >> 8 * k));
  out8(COMMAND, command);
}

static void move_sectors(stream *s, int writing)
{
  ask_disk(s->sector, writing ? 0x30 : 0x20);
  for (int k = 0; k < MANY; k++) {
    void *at = s->bytes + k * SECTOR;
    size_t words = SECTOR / 2;
    uint8_t status;
    while ((status = in8(COMMAND)) & 0x80 || !(status & 0x08)) {
      if (!(status & 0x80) && status & 0x21) power_off();
    }
    if (writing) __asm__ volatile("rep outsw" : "+S"(at), "+c"(words) : "d"(DATA) : "memory");
    else __asm__ volatile("rep insw" : "+D"(at), "+c"(words) : "d"(DATA) : "memory");
  }
  while (in8(COMMAND) & 0x80) continue;
  s->sector += MANY;
  s->at = 0;
}

static void take(void *to, size_t n)
{
  for (size_t done = 0; done < n;) {
    if (input.at == input.held) {
      move_sectors(&input, 0);
      input.held = sizeof input.bytes;
    }
    const size_t left = input.held - input.at, some = n - done < left ? n - done : left;
    memcpy((char *)to + done, input.bytes + input.at, some);
    input.at += some;
    done += some;
  }
}

static void give(const void *from, size_t n)
{
  for (size_t done = 0; done < n;) {
    if (output.at == sizeof output.bytes) move_sectors(&output, 1);
    const size_t left = sizeof output.bytes - output.at, some = n - done < left ? n - done : left;
    memcpy(output.bytes + output.at, (const char *)from + done, some);
    output.at += some;
    done += some;
  }
}

static void answer(uint32_t status, const char *data, uint64_t size)
{
  const uint32_t head[2] = {status, 0};
  give(head, sizeof head);
  give(&size, sizeof size);
  give(data, size);
}

/* ---- files ---- */

static file *find_file(const char *name)
{
  for (size_t k = 0; k < file_count; k++) {
    if (same(files[k].name, name)) return &files[k];
  }
  return NULL;
}

static char *take_room(size_t n)
{
  char *const at = files_end;
  files_end += (n + 4095) / 4096 * 4096;
  if (files_end > maps) power_off();
  return at;
}

static file *new_file(const char *name, size_t room)
{
  file *f = find_file(name);
  if (f == NULL) {
    if (file_count == FILES) power_off();
    f = &files[file_count++];
    char *const kept = take_room(length(name) + 1);
    memcpy(kept, name, length(name) + 1);
    f->name = kept;
    f->room = 0;
  }
  if (f->room < room) {
    f->bytes = take_room(room);
    f->room = room;
  }
  f->size = 0;
  return f;
}

/* ---- programs ---- */

static int64_t open_file(const char *name, uint64_t flags)
{
  file *f = find_file(name);
  if (f == NULL && !(flags & 0x40)) return -ENOENT;
  if (f == NULL || flags & 0x200) f = new_file(name, f ? f->room : 4096);
  for (int k = 3; k < OPEN; k++) {
    if (opened[k].f == NULL) {
      opened[k].f = f;
      opened[k].at = 0;
      return k;
    }
  }
  return -EBADF;
}

static int64_t write_file(uint64_t fd, const char *from, size_t n)
{
  if (fd == 1 || fd == 2) {
    print(from, n);
    return (int64_t)n;
  }
  if (fd >= OPEN || opened[fd].f == NULL) return -EBADF;
  file *const f = opened[fd].f;
  if (opened[fd].at + n > f->room) {
    char *const before = f->bytes;
    f->room = 2 * (opened[fd].at + n);
    f->bytes = take_room(f->room);
    memcpy(f->bytes, before, f->size);
  }
  memcpy(f->bytes + opened[fd].at, from, n);
  opened[fd].at += n;
  if (f->size < opened[fd].at) f->size = opened[fd].at;
  return (int64_t)n;
}

static int64_t read_file(uint64_t fd, char *to, size_t n)
{
  if (fd == 0) return 0;
  if (fd >= OPEN || opened[fd].f == NULL) return -EBADF;
  const size_t left = opened[fd].f->size - opened[fd].at, some = n < left ? n : left;
  memcpy(to, opened[fd].f->bytes + opened[fd].at, some);
  opened[fd].at += some;
  return (int64_t)some;
}

static int64_t seek_file(uint64_t fd, int64_t to, uint64_t from)
{
  if (fd >= OPEN || opened[fd].f == NULL) return -EBADF;
  const size_t base = from == 1 ? opened[fd].at : from == 2 ? opened[fd].f->size : 0;
  opened[fd].at = base + (size_t)to;
  return (int64_t)opened[fd].at;
}

static int64_t describe_file(uint64_t fd, char *about)
{
  memset(about, 0, 144);
  if (fd < 3) {
    *(uint32_t *)(about + 24) = 0010644; /* a pipe */
    return 0;
  }
  if (fd >= OPEN || opened[fd].f == NULL) return -EBADF;
  *(uint32_t *)(about + 24) = 0100644;
  *(int64_t *)(about + 48) = (int64_t)opened[fd].f->size;
  *(int64_t *)(about + 56) = 4096;
  return 0;
}

static int64_t map_memory(uint64_t size, uint64_t fd, uint64_t offset, uint64_t flags)
{
  const size_t rounded = (size + 4095) / 4096 * 4096;
  if ((size_t)(maps - files_end) < rounded) return -ENOMEM;
  maps -= rounded;
  memset(maps, 0, rounded);
  if (!(flags & 0x20) && fd < OPEN && opened[fd].f != NULL && offset < opened[fd].f->size) {
    const size_t left = opened[fd].f->size - offset;
    memcpy(maps, opened[fd].f->bytes + offset, left < size ? left : size);
  }
  return (int64_t)maps;
}

static int64_t control_cpu(uint64_t which, uint64_t argument)
{
  switch (which) {
  case 0x1002: /* ARCH_SET_FS */
    set_msr(0xc0000100, argument);
    return 0;
  case 0x1021: /* ARCH_GET_XCOMP_SUPP */
    *(uint64_t *)argument = has_xsave ? extended_state(0) : 3;
    return 0;
  case 0x1023: /* ARCH_REQ_XCOMP_PERM */
    if (argument != TILE_STATE || !has_xsave || !(extended_state(0) & TILE_STATES)) return -EINVAL;
    if (signal_stack_is_small) return -ENOSPC;
    tiles_are_allowed = 1;
    return 0;
  default:
    return -EINVAL;
  }
}

/* Whether nothing is wrong with the tiles' state, at a system call or the end. Only whether they
 * are configured is asked: Bochs (3.1) reports their data as in use where it is zero. */
static int tiles_are_well(int at_end)
{
  unsigned a, b, c, d;
  if (!has_xsave || !(extended_state(0) & TILES_CONFIGURED)) return 1;
  __cpuid_count(13, 1, a, b, c, d);
  if (!(a >> 2 & 1) || !(extended_state(1) & TILES_CONFIGURED)) return 1;
  if (tiles_are_allowed && !at_end) return 1;
  print_text(at_end ? "kernel: tiles are configured at the end\n"
                    : "kernel: tiles are configured without permission\n");
  return 0;
}

static int64_t set_heap_end(char *to)
{
  if (to >= heap_start && to < HEAP_END - (8 << 20)) {
    if (to > heap) memset(heap, 0, (size_t)(to - heap));
    heap = to;
  }
  return (int64_t)heap;
}

static void name_system(char *to) /* six fields of 65 characters */
{
  static const char *const fields[] = {"Linux", "machine", "6.12.0", "#1", "x86_64", ""};
  memset(to, 0, 6 * 65);
  for (int k = 0; k < 6; k++) memcpy(to + 65 * k, fields[k], length(fields[k]));
}

int64_t handle_system_call(const registers *r)
{
  const uint64_t a = r->first, b = r->second, c = r->third;
  if (!tiles_are_well(r->number == 231)) leave_program(SIGILL);
  switch (r->number) {
  case 0: return read_file(a, (char *)b, c);
  case 1: return write_file(a, (const char *)b, c);
  case 20: { /* writev */
    const struct { const char *at; size_t n; } *const parts = (const void *)b;
    int64_t sum = 0;
    for (uint64_t k = 0; k < c; k++) sum += write_file(a, parts[k].at, parts[k].n);
    return sum;
  }
  case 2: return open_file((const char *)a, b);
  case 257: return open_file((const char *)b, c);
  case 3:
    if (a >= OPEN) return -EBADF;
    opened[a].f = NULL;
    return 0;
  case 5: return describe_file(a, (char *)b);
  case 262: return describe_file(a, (char *)c);
  case 8: return seek_file(a, (int64_t)b, c);
  case 9: return map_memory(b, r->fifth, r->sixth, r->fourth);
  case 12: return set_heap_end((char *)a);
  case 63: name_system((char *)a); return 0;
  case 131: { /* sigaltstack */
    const struct { void *at; int flags; size_t size; } *const stack = (const void *)a;
    if (stack == NULL) return 0;
    const int small = !(stack->flags & 2) && stack->size < LEAST_SIGNAL_STACK;
    if (small && tiles_are_allowed) return -ENOMEM;
    signal_stack_is_small = small;
    return 0;
  }
  case 158: return control_cpu(a, b);
  case 228: { /* clock_gettime: cycles as nanoseconds */
    const uint64_t cycles = __builtin_ia32_rdtsc();
    ((uint64_t *)b)[0] = cycles / 1000000000;
    ((uint64_t *)b)[1] = cycles % 1000000000;
    return 0;
  }
  case 234: case 62: case 200: /* signals to itself */
    leave_program((int)(r->number == 234 ? c : b) & 127);
  case 60: case 231: leave_program((int)(a & 255) << 8);
  case 318: /* getrandom */
    for (uint64_t k = 0; k < b; k++) ((char *)a)[k] = (char)(37 * k + 11);
    return (int64_t)b;
  case 39: case 186: case 218: return 1;
  /* protections, signals, limits, scheduling: accepted and ignored */
  case 10: case 11: case 13: case 14: case 28: case 24: case 273: return 0;
  case 302: case 334: case 16: case 267: case 89: case 204: return -ENOSYS;
  default:
    print_text("kernel: no system call ");
    print_hex(r->number);
    print_text("\n");
    return -ENOSYS;
  }
}

void handle_exception(const uint64_t *frame, uint64_t address)
{
  const uint64_t number = frame[0];
  print_text("kernel: exception ");
  print_hex(number);
  print_text(" error ");
  print_hex(frame[1]);
  print_text(" at ");
  print_hex(frame[2]);
  print_text(" address ");
  print_hex(address);
  print_text("\n");
  leave_program(number == 6 || number == 7 ? SIGILL : number == 0 || number == 16 || number == 19
                ? SIGFPE : number == 3 || number == 1 ? SIGTRAP : SIGSEGV);
}

/* Put a static program where it belongs; returns where it starts, 0 if it is none. */
static const Elf64_Ehdr *load_program(const file *f)
{
  const Elf64_Ehdr *const head = (const void *)f->bytes;
  char *end = 0;
  if (f->size < sizeof *head || head->e_ident[0] != 0x7f || head->e_type != ET_EXEC) return NULL;
  for (int k = 0; k < head->e_phnum; k++) {
    const Elf64_Phdr *const part = (const void *)(f->bytes + head->e_phoff + k * head->e_phentsize);
    char *const at = (char *)part->p_vaddr;
    if (part->p_type != PT_LOAD) continue;
    if (at < (char *)0x400000 || at + part->p_memsz > HEAP_END) return NULL;
    memcpy(at, f->bytes + part->p_offset, part->p_filesz);
    memset(at + part->p_filesz, 0, part->p_memsz - part->p_filesz);
    if (at + part->p_memsz > end) end = at + part->p_memsz;
  }
  heap = heap_start = (char *)(((uintptr_t)end + 4095) / 4096 * 4096);
  return head;
}

/* What lies on a program's stack at its start (System V ABI, 3.4.1). */
static void *fill_stack(const char *words, size_t size, const Elf64_Ehdr *head)
{
  char *const text = STACK_END - 65536;
  uint64_t *const start = (uint64_t *)(STACK_END - 131072), *at = start + 1;
  memcpy(text, words, size);
  for (size_t k = 0; k < size; k += length(text + k) + 1) *at++ = (uint64_t)(text + k);
  *start = (uint64_t)(at - start - 1);
  *at++ = 0;
  *at++ = 0; /* no environment */
  const uint64_t facts[][2] = {
    {AT_PHDR, 0x400000 + head->e_phoff}, {AT_PHENT, head->e_phentsize}, {AT_PHNUM, head->e_phnum},
    {AT_PAGESZ, 4096}, {AT_ENTRY, head->e_entry}, {AT_RANDOM, (uint64_t)(text - 64)},
    {AT_SECURE, 0}, {AT_EXECFN, (uint64_t)text}, {51, LEAST_SIGNAL_STACK}, {AT_NULL, 0},
  };
  memcpy(at, facts, sizeof facts);
  return start;
}

static void run(const char *words, size_t size)
{
  const file *const f = find_file(words);
  const Elf64_Ehdr *head;
  char *const maps_before = maps;
  int status = 127 << 8;
  printed_size = 0;
  tiles_are_allowed = signal_stack_is_small = 0;
  memset(opened, 0, sizeof opened);
  if (f != NULL && (head = load_program(f)) != NULL) {
    const uint32_t control = 0x1f80;
    __asm__ volatile("fninit\n\tldmxcsr %0" : : "m"(control));
    status = enter_program(head->e_entry, fill_stack(words, size, head));
  } else {
    print_text("kernel: not a static program\n");
  }
  if (has_xsave && extended_state(0) & TILE_STATES) __asm__ volatile("tilerelease");
  maps = maps_before;
  answer((uint32_t)status, printed, printed_size);
}

/* ---- the start ---- */

static void set_up(void)
{
  unsigned a, b, c, d;
  const struct { uint16_t limit; uint64_t at; } __attribute__((packed)) table = {
    sizeof gates - 1, (uint64_t)gates};
  for (int k = 0; k < 32; k++) {
    const uint64_t at = (uint64_t)exception_handlers + 16 * (uint64_t)k;
    gates[k].low = (uint16_t)at;
    gates[k].segment = 8;
    gates[k].kind = 0x8e;
    gates[k].middle = (uint16_t)(at >> 16);
    gates[k].high = (uint32_t)(at >> 32);
  }
  __asm__ volatile("lidt %0" : : "m"(table));
  set_msr(0xc0000081, (uint64_t)8 << 32);      /* STAR: the code's segment */
  set_msr(0xc0000082, (uint64_t)system_call);  /* LSTAR */
  set_msr(0xc0000084, 0x700);                  /* flags to clear: direction, interrupts, trap */
  __cpuid(1, a, b, c, d);
  has_xsave = c >> 26 & 1;
  if (has_xsave) {
    uint64_t control;
    __asm__ volatile("mov %%cr4, %0" : "=r"(control));
    __asm__ volatile("mov %0, %%cr4" : : "r"(control | 1 << 18));
    __cpuid_count(13, 0, a, b, c, d);
    __asm__ volatile("xsetbv" : : "c"(0), "a"(a & (TILE_STATES | 0xe7)), "d"(0));
  }
  out8(CONTROL, 2); /* no interrupts of the disk */
}

void kernel_main(void)
{
  static char words[1 << 16];
  uint32_t head[2];
  uint64_t size;

  set_up();
  input.sector = places[1];
  output.sector = places[2];
  for (;;) {
    take(head, sizeof head);
    take(&size, sizeof size);
    if (head[0] == 0) break;
    if (head[1] >= sizeof words) power_off();
    take(words, head[1]);
    words[head[1]] = 0;
    if (head[0] == 1) {
      file *const f = new_file(words, size);
      take(f->bytes, size);
      f->size = size;
    } else if (head[0] == 2) {
      run(words, head[1]);
    } else {
      const file *const f = find_file(words);
      answer(f == NULL, f ? f->bytes : NULL, f ? f->size : 0);
    }
  }
  const uint32_t done[4] = {0x656e6f64, 0, 0, 0};
  give(done, sizeof done);
  move_sectors(&output, 1);
  power_off();
}
