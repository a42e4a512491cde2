/* simd_tiles.h - AMX's matrix registers for x86-64: eight tiles, 0 to 7, of 16 rows of 64 bytes.
 *
 * A kernel calls tiles_begin() before its first tile instruction and tiles_end() on every way out:
 * that takes a fraction of a microsecond together, any thread may run any call, and no thread
 * carries the 8 KB of tiles through its context switches. The process must have been allowed to use
 * them (arch_prctl), which a network's init asks for.
 *
 * Tiles are numbered in the code, so the vocabulary is macros. The compilers' own intrinsics would
 * not do: GCC's loads have no memory clobber, and its _tile_loadconfig (12.2) reads 8 bytes only,
 * so that the rest of a configuration is never stored.
 */
#ifndef SIMD_TILES_H
#define SIMD_TILES_H

#include <stddef.h>
#include <stdint.h>

#if !defined(__AMX_TILE__) && !defined(__AMXTILE__)
#error "compile with -mamx-tile -mamx-bf16 -mamx-int8"
#endif

typedef struct tile_shapes { uint8_t bytes[64]; } tile_shapes;

/* Eight tiles of 16 rows of 64 bytes; their content is zero. */
static inline void tiles_begin(void) {
  static const tile_shapes shapes = {{
    [0] = 1, /* the palette */
    [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
    [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16,
  }};
  __asm__ volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
}
static inline void tiles_end(void) { __asm__ volatile("tilerelease" : : : "memory"); }

#define TILE_TEXT_(t) "%%tmm" #t

/* Rows of tile t from and to memory, `stride` bytes apart. */
#define TILE_LOAD(t, p, stride)                                                                 \
  __asm__ volatile("tileloadd (%0,%1,1), " TILE_TEXT_(t)                                        \
                   :                                                                            \
                   : "r"((const void *)(p)), "r"((ptrdiff_t)(stride))                           \
                   : "memory")
/* The same, past the first cache: what is read once leaves the room there to what is read again. */
#define TILE_STREAM(t, p, stride)                                                               \
  __asm__ volatile("tileloaddt1 (%0,%1,1), " TILE_TEXT_(t)                                      \
                   :                                                                            \
                   : "r"((const void *)(p)), "r"((ptrdiff_t)(stride))                           \
                   : "memory")
#define TILE_STORE(t, p, stride)                                                                \
  __asm__ volatile("tilestored " TILE_TEXT_(t) ", (%0,%1,1)"                                    \
                   :                                                                            \
                   : "r"((void *)(p)), "r"((ptrdiff_t)(stride))                                 \
                   : "memory")
#define TILE_ZERO(t) __asm__ volatile("tilezero " TILE_TEXT_(t) : : :)

#define TILE_DOT_(op, c, a, b)                                                                  \
  __asm__ volatile(op " " TILE_TEXT_(b) ", " TILE_TEXT_(a) ", " TILE_TEXT_(c) : : :)
/* c[m][n] += the sum over j of a[m][j] * b[j][n]: 16 x 16 sums c of 32 bits, j a pair of bfloat16 or
 * four bytes. Products of bfloat16 are summed from zero, the pairs' first and second numbers apart;
 * then both sums are added, and that to c, each step rounded to nearest, denormals to zero. */
#define TILE_DOT_BF16(c, a, b) TILE_DOT_("tdpbf16ps", c, a, b)
/* Bytes of a unsigned, or signed; those of b signed. Exact but for wrapping. */
#define TILE_DOT_U8S8(c, a, b) TILE_DOT_("tdpbusd", c, a, b)
#define TILE_DOT_S8S8(c, a, b) TILE_DOT_("tdpbssd", c, a, b)

#endif
