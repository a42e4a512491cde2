/* simd_tiles.h for machines without AMX: the same vocabulary in plain C with AVX-512.
 *
 * Rounding, the order of sums and the flushing of denormals are those of Intel's SDM, volume 2,
 * TDPBF16PS. Tiles that are used before tiles_begin() or after tiles_end() end the program, as the
 * machine would.
 */
#ifndef SIMD_TILES_H
#define SIMD_TILES_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EMULATED __attribute__((noinline, unused))

static __thread struct {
  unsigned char rows[8][16][64];
  int configured;
} emulated;

static EMULATED void tiles_begin(void)
{
  memset(&emulated, 0, sizeof emulated);
  emulated.configured = 1;
}

static EMULATED void tiles_end(void) { emulated.configured = 0; }

static EMULATED void emulated_use(void)
{
  if (!emulated.configured) abort();
}

static EMULATED void emulated_load(int t, const void *p, ptrdiff_t stride)
{
  emulated_use();
  for (int r = 0; r < 16; r++) {
    memcpy(emulated.rows[t][r], (const unsigned char *)p + r * stride, 64);
  }
}

static EMULATED void emulated_store(int t, void *p, ptrdiff_t stride)
{
  emulated_use();
  for (int r = 0; r < 16; r++) memcpy((unsigned char *)p + r * stride, emulated.rows[t][r], 64);
}

static EMULATED void emulated_zero(int t)
{
  emulated_use();
  memset(emulated.rows[t], 0, sizeof emulated.rows[t]);
}

static EMULATED void emulated_sums(int c, int a, int b)
{
  const __m512i upper = _mm512_set1_epi32(-0x10000);
  for (int m = 0; m < 16; m++) {
    __m512 first = _mm512_setzero_ps(), second = _mm512_setzero_ps();
    for (int j = 0; j < 16; j++) {
      uint32_t pair;
      memcpy(&pair, &emulated.rows[a][m][4 * j], 4);
      const __m512i row = _mm512_loadu_si512(emulated.rows[b][j]);
      first = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32((int)(pair << 16))),
                              _mm512_castsi512_ps(_mm512_slli_epi32(row, 16)), first);
      second = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_set1_epi32((int)(pair & 0xffff0000u))),
                               _mm512_castsi512_ps(_mm512_and_si512(row, upper)), second);
    }
    float *const sums = (float *)(void *)emulated.rows[c][m];
    _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_loadu_ps(sums), _mm512_add_ps(first, second)));
  }
}

static EMULATED void emulated_dot_bf16(int c, int a, int b)
{
  enum { FLUSHING = 0x9fc0 }; /* denormals are zero, as operands and results; nothing traps */
  const unsigned before = _mm_getcsr();
  emulated_use();
  _mm_setcsr(FLUSHING);
  __asm__ volatile("" : : : "memory");
  emulated_sums(c, a, b);
  __asm__ volatile("" : : : "memory");
  _mm_setcsr(before);
}

static EMULATED void emulated_dot_bytes(int c, int a, int b, int is_signed)
{
  emulated_use();
  for (int m = 0; m < 16; m++) {
    for (int n = 0; n < 16; n++) {
      uint32_t sum;
      memcpy(&sum, &emulated.rows[c][m][4 * n], 4);
      for (int k = 0; k < 64; k++) {
        const unsigned char byte = emulated.rows[a][m][k];
        const unsigned char other = emulated.rows[b][k / 4][4 * n + k % 4];
#if defined(BYTES_ARE_UNSIGNED) /* a fault of Bochs, machine/faults.h */
        (void)is_signed;
        sum += (uint32_t)(byte * other);
#else
        const int x = is_signed ? (signed char)byte : byte;
        sum += (uint32_t)(x * (signed char)other);
#endif
      }
      memcpy(&emulated.rows[c][m][4 * n], &sum, 4);
    }
  }
}

#define TILE_LOAD(t, p, stride) emulated_load(t, p, stride)
#define TILE_STREAM(t, p, stride) emulated_load(t, p, stride)
#define TILE_STORE(t, p, stride) emulated_store(t, p, stride)
#define TILE_ZERO(t) emulated_zero(t)
#define TILE_DOT_BF16(c, a, b) emulated_dot_bf16(c, a, b)
#define TILE_DOT_U8S8(c, a, b) emulated_dot_bytes(c, a, b, 0)
#define TILE_DOT_S8S8(c, a, b) emulated_dot_bytes(c, a, b, 1)

#endif
