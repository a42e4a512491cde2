/* simd.h - the vector vocabulary for x86-64 with AVX-512 (F, BW, DQ, VL): sixteen lanes.
 *
 * Kernels and math functions are written in these names only. Each instruction set has its own
 * simd.h with the same names and the same meaning; V_LANES is the number of floats in a vector.
 * Pointers need no alignment. Float arithmetic follows IEEE 754 in the default rounding mode and
 * must be compiled without -ffast-math.
 */
#ifndef SIMD_H
#define SIMD_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || \
    !defined(__AVX512VL__)
#error "compile with -mavx512f -mavx512bw -mavx512dq -mavx512vl"
#endif

#define V_LANES 16     /* floats in a vector */
#define V_REGISTERS 32 /* vector registers of the machine */
#if defined(__AVX512BF16__)
#define V_ROUNDS_BF16 1 /* whether the table itself rounds to bfloat16 */
#else
#define V_ROUNDS_BF16 0
#endif
#define V_ROUNDS_F16 1 /* whether the table itself rounds to float16 */
#if defined(__AVX512FP16__)
#define V_HALVES 1 /* and computes in it */
#else
#define V_HALVES 0
#endif
#define V_PARTS_32 1 /* whether it loads and stores parts of vectors of 32 bits */
#define V_PARTS_16 1 /* and those of 8 and 16 bits */
#define V_FACTORS 0 /* whether vectors are multiplied by numbers that are no vectors */
#define V_SCALES 1 /* whether it multiplies by powers of two in its own way */
#define V_TABLES 16 /* the numbers of tables that it looks up at once */
#define V_EXP_LEAST -360.0f /* where exponentials are held, see math.h */
#define V_READS_FACTORS 1 /* whether a multiply-add reads such a number from memory */

typedef __m512 vf32;     /* V_LANES floats */
typedef __m512i vi32;    /* V_LANES integers */
typedef __m512d vf64;    /* half as many doubles */
typedef __mmask16 vmask; /* V_LANES booleans */

/* --- Memory --- */

static inline vf32 v_zero(void) { return _mm512_setzero_ps(); }
static inline vf32 v_set1(float x) { return _mm512_set1_ps(x); }
static inline vf32 v_broadcast(const float *p) { return _mm512_set1_ps(*p); } /* in every lane */
static inline vf32 v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vf32 a) { _mm512_storeu_ps(p, a); }
/* 2 * V_LANES floats from p on: the first, third, ... of them, and the second, fourth, ... */
static inline void v_load_pairs(const float *p, vf32 *even, vf32 *odd) {
  const vf32 a = v_load(p), b = v_load(p + V_LANES);
  const __m512i first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  *even = _mm512_permutex2var_ps(a, first, b);
  *odd = _mm512_permutex2var_ps(a, _mm512_or_si512(first, _mm512_set1_epi32(1)), b);
}
static inline vmask v_mask_n(size_t n) { return (vmask)((1u << n) - 1u); } /* the first n lanes */
/* The first n lanes, 0 <= n <= V_LANES; memory past n is not touched, other lanes load as 0. */
static inline vf32 v_load_n(const float *p, size_t n) {
  return _mm512_maskz_loadu_ps(v_mask_n(n), p);
}
static inline void v_store_n(float *p, vf32 a, size_t n) {
#if defined(__GNUC__)
  if (__builtin_constant_p(n) && n % 4 == 0 && n < V_LANES) { /* a store by a mask hinders loads from beside it */
    const __m256 high = _mm512_extractf32x8_ps(a, 1), low = _mm512_castps512_ps256(a);
    if (n & 8) _mm256_storeu_ps(p, low);
    if (n & 4) _mm_storeu_ps(p + (n & 8), _mm256_castps256_ps128(n & 8 ? high : low));
    return;
  }
#endif
  _mm512_mask_storeu_ps(p, v_mask_n(n), a);
}
/* Halves to the upper halves of lanes. */
static inline vf32 widen_halves(__m256i halves) {
  const __m512i order = _mm512_slli_epi32(
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 16);
  const __m512i words = _mm512_castsi256_si512(halves);
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, order, words));
}
/* V_LANES numbers of 16 bits, float16 or bfloat16, as floats: exactly, whatever they are. */
static inline vf32 v_load_f16(const uint16_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
static inline vf32 v_load_bf16(const uint16_t *p) {
  return widen_halves(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
/* V_LANES bytes as floats; and back, to the nearest (ties to even), saturating, NaN as lowest. */
static inline vf32 v_load_u8(const uint8_t *p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}
static inline vf32 v_load_i8(const int8_t *p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
static inline void v_store_u8(uint8_t *p, vf32 a) {
  const __m512i whole = _mm512_cvtps_epu32(_mm512_max_ps(a, v_zero())); /* 0 for NaN */
  _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtusepi32_epi8(whole));
}
static inline void v_store_i8(int8_t *p, vf32 a) {
  const __m512i whole = _mm512_cvtps_epi32(_mm512_min_ps(v_set1(127.0f), a)); /* NaN: the least */
  _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtsepi32_epi8(whole));
}
/* Four vectors of floats as 4 * V_LANES bytes in a row, each as by v_store_u8 or v_store_i8. */
static inline void v_store4_u8(uint8_t *p, vf32 a, vf32 b, vf32 c, vf32 d) {
  const vf32 top = v_set1(255.0f); /* below, what is packed saturates */
  const __m512i ab = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_min_ps(top, a)),
                                        _mm512_cvtps_epi32(_mm512_min_ps(top, b)));
  const __m512i cd = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_min_ps(top, c)),
                                        _mm512_cvtps_epi32(_mm512_min_ps(top, d)));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(ab, cd));
  _mm512_storeu_si512(p, bytes);
}
static inline void v_store4_i8(int8_t *p, vf32 a, vf32 b, vf32 c, vf32 d) {
  const vf32 top = v_set1(127.0f); /* below, what is packed saturates */
  const __m512i ab = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_min_ps(top, a)),
                                        _mm512_cvtps_epi32(_mm512_min_ps(top, b)));
  const __m512i cd = _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_min_ps(top, c)),
                                        _mm512_cvtps_epi32(_mm512_min_ps(top, d)));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(ab, cd));
  _mm512_storeu_si512(p, bytes);
}
/* Parts of them: the first n lanes, 0 <= n <= V_LANES; memory past n is not touched. */
static inline vf32 v_load_u8_n(const uint8_t *p, size_t n) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(v_mask_n(n), p)));
}
static inline vf32 v_load_i8_n(const int8_t *p, size_t n) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(v_mask_n(n), p)));
}
static inline void v_store_u8_n(uint8_t *p, vf32 a, size_t n) {
  const __m512i whole = _mm512_cvtps_epu32(_mm512_max_ps(a, v_zero()));
  _mm_mask_storeu_epi8(p, v_mask_n(n), _mm512_cvtusepi32_epi8(whole));
}
static inline void v_store_i8_n(int8_t *p, vf32 a, size_t n) {
  const __m512i whole = _mm512_cvtps_epi32(_mm512_min_ps(v_set1(127.0f), a));
  _mm_mask_storeu_epi8(p, v_mask_n(n), _mm512_cvtsepi32_epi8(whole));
}
/* The upper halves of lanes: floats as bfloat16, cut off. */
static inline __m256i to_halves(vf32 a) {
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(a), 16));
}
static inline void v_store_halves(uint16_t *p, vf32 a) {
  _mm256_storeu_si256((__m256i *)(void *)p, to_halves(a));
}
static inline vf32 v_load_bf16_n(const uint16_t *p, size_t n) {
  return widen_halves(_mm256_maskz_loadu_epi16(v_mask_n(n), p));
}
static inline void v_store_halves_n(uint16_t *p, vf32 a, size_t n) {
  _mm256_mask_storeu_epi16(p, v_mask_n(n), to_halves(a));
}
#if V_ROUNDS_BF16
/* The nearest bfloat16 (ties to even), denormals as zero. */
static inline void v_store_bf16(uint16_t *p, vf32 a) {
  _mm256_storeu_si256((__m256i *)(void *)p, (__m256i)_mm512_cvtneps_pbh(a));
}
static inline void v_store_bf16_n(uint16_t *p, vf32 a, size_t n) {
  _mm256_mask_storeu_epi16(p, v_mask_n(n), (__m256i)_mm512_cvtneps_pbh(a));
}
#endif
/* The bytes of a table of 256 in t at places p, all in words. */
static inline __m512i lookup_words(const __m512i *t, __m512i p) {
  const __m512i pair = _mm512_srli_epi16(p, 1);
  const __m512i low = _mm512_permutex2var_epi16(t[0], pair, t[1]);
  const __m512i high = _mm512_permutex2var_epi16(t[2], pair, t[3]);
  const __mmask32 upper = _mm512_movepi16_mask(_mm512_slli_epi16(p, 8));
  const __m512i both = _mm512_mask_blend_epi16(upper, low, high);
  const __m512i odd = _mm512_slli_epi16(_mm512_and_si512(p, _mm512_set1_epi16(1)), 3);
  return _mm512_and_si512(_mm512_srlv_epi16(both, odd), _mm512_set1_epi16(255));
}
/* y[i] = table[x[i]] for i < n, of 256 bytes; y may be x. */
static inline void v_lookup(uint8_t *y, const uint8_t *x, size_t n, const uint8_t *table) {
  __m512i t[4];
  size_t i = 0;
  for (int k = 0; k < 4; k++) t[k] = _mm512_loadu_si512(table + 64 * k);
  for (; i + 64 <= n; i += 64) {
    const __m512i p = _mm512_loadu_si512(x + i);
    const __m512i even = lookup_words(t, _mm512_and_si512(p, _mm512_set1_epi16(255)));
    const __m512i odd = lookup_words(t, _mm512_srli_epi16(p, 8));
    _mm512_storeu_si512(y + i, _mm512_or_si512(even, _mm512_slli_epi16(odd, 8)));
  }
  for (; i < n; i++) y[i] = table[x[i]];
}
/* Ask for the cache line at p, which need not be a valid address. */
static inline void v_prefetch_l1(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
static inline void v_prefetch_l2(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

/* --- Integers: add, sub, mul and shl wrap; shr keeps the sign --- */

static inline vi32 v_i32_set1(int32_t x) { return _mm512_set1_epi32(x); }
static inline vi32 v_i32_load(const int32_t *p) { return _mm512_loadu_si512(p); }
static inline void v_i32_store(int32_t *p, vi32 a) { _mm512_storeu_si512(p, a); }
static inline vi32 v_i32_load_n(const int32_t *p, size_t n) { /* other lanes load as 0 */
  return _mm512_maskz_loadu_epi32(v_mask_n(n), p);
}
static inline void v_i32_store_n(int32_t *p, vi32 a, size_t n) {
  _mm512_mask_storeu_epi32(p, v_mask_n(n), a);
}
/* p[i] of each lane's i. */
static inline vf32 v_gather(const float *p, vi32 i) { return _mm512_i32gather_ps(i, p, 4); }
#define v_entry(table, i) _mm512_permutexvar_ps(i, _mm512_loadu_ps(table))
static inline vi32 v_i32_gather(const int32_t *p, vi32 i) {
  return _mm512_i32gather_epi32(i, p, 4);
}
/* V_LANES bytes, unsigned, as integers. */
static inline vi32 v_i32_load_u8(const uint8_t *p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline vi32 v_i32_add(vi32 a, vi32 b) { return _mm512_add_epi32(a, b); }
static inline vi32 v_i32_sub(vi32 a, vi32 b) { return _mm512_sub_epi32(a, b); }
static inline vi32 v_i32_mul(vi32 a, vi32 b) { return _mm512_mullo_epi32(a, b); }
static inline vi32 v_i32_and(vi32 a, vi32 b) { return _mm512_and_si512(a, b); }
static inline vi32 v_i32_or(vi32 a, vi32 b) { return _mm512_or_si512(a, b); }
static inline vi32 v_i32_xor(vi32 a, vi32 b) { return _mm512_xor_si512(a, b); }
static inline vi32 v_i32_shl(vi32 a, int n) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n)); }
static inline vi32 v_i32_shr(vi32 a, int n) { return _mm512_sra_epi32(a, _mm_cvtsi32_si128(n)); }
/* acc + the sum of two products in each lane, exact but for wrapping, of integers of 16 bits. */
static inline vi32 v_dot2(vi32 acc, vi32 a, vi32 b) {
#if defined(__AVX512VNNI__) && defined(__GNUC__)
  __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b)); /* acc stays in place */
  return acc;
#elif defined(__AVX512VNNI__)
  return _mm512_dpwssd_epi32(acc, a, b);
#elif defined(__GNUC__)
  const vi32 sum = _mm512_madd_epi16(a, b);
  __asm__("vpaddd %1, %0, %0" : "+v"(acc) : "v"(sum)); /* at once, or gcc keeps many in memory */
  return acc;
#else
  return v_i32_add(acc, _mm512_madd_epi16(a, b));
#endif
}
/* acc + the sum of four products in each lane, exact but for wrapping: the bytes of a, unsigned,
 * times those of b, signed. */
static inline vi32 v_dot4(vi32 acc, vi32 a, vi32 b) {
#if defined(__AVX512VNNI__) && defined(__GNUC__)
  __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b)); /* acc stays, as above */
  return acc;
#elif defined(__AVX512VNNI__)
  return _mm512_dpbusd_epi32(acc, a, b);
#else
  const vi32 even = _mm512_madd_epi16(_mm512_and_si512(a, v_i32_set1(0x00ff00ff)),
                                      _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8));
  const vi32 odd = _mm512_madd_epi16(_mm512_srli_epi16(a, 8), _mm512_srai_epi16(b, 8));
  return v_i32_add(acc, v_i32_add(even, odd));
#endif
}
/* acc + both sums of 16 bits in each lane. */
static inline vi32 avx_join_pairs(vi32 acc, vi32 sums) {
  return v_dot2(acc, sums, _mm512_set1_epi16(1));
}
/* v_dot4 where sums of two products fit 16 bits, as those of bytes of a below 128 do. */
static inline vi32 v_dot4_small(vi32 acc, vi32 a, vi32 b) {
#if defined(__AVX512VNNI__)
  return v_dot4(acc, a, b);
#else
  return avx_join_pairs(acc, _mm512_maddubs_epi16(a, b));
#endif
}
/* Both sums of 16 bits in each lane, each + two products of such bytes: of numbers of 4 bits they
 * hold the products of 32. */
static inline vi32 avx_add_pairs(vi32 sums, vi32 a, vi32 b) {
#if defined(__GNUC__)
  const vi32 pairs = _mm512_maddubs_epi16(a, b);
  __asm__("vpaddw %1, %0, %0" : "+v"(sums) : "v"(pairs)); /* at once, too */
  return sums;
#else
  return _mm512_add_epi16(sums, _mm512_maddubs_epi16(a, b));
#endif
}
/* v_dot4_small for b at p, which stays in memory: gcc would load it ahead, and spill sums. */
static inline vi32 avx_dot4_small_at(vi32 acc, vi32 a, const int8_t *p) {
#if defined(__GNUC__)
  vi32 pairs;
  __asm__("vpmaddubsw %2, %1, %0" : "=v"(pairs) : "v"(a), "m"(*(const char(*)[64])p));
  return avx_join_pairs(acc, pairs);
#else
  return v_dot4_small(acc, a, v_i32_load((const int32_t *)(const void *)p));
#endif
}
/* The word at p in every lane, its bytes in `order`. */
static inline vi32 avx_shuffled_word(const void *p, vi32 order) {
  int32_t word;
  memcpy(&word, p, sizeof word);
  return _mm512_shuffle_epi8(_mm512_set1_epi32(word), order);
}
/* Places of 16 bytes, for avx_stage. */
static inline vi32 avx_order(const void *p) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
}
/* The 16 bytes of pixels in a row at p in `order`, changed by `flip`, to those at `to`; q are those
 * of vectors half as wide. */
static inline void avx_stage4(uint8_t *to, const void *p, const void *q, vi32 order, vi32 flip) {
  (void)q;
  _mm512_storeu_si512(to, v_i32_xor(_mm512_shuffle_epi8(_mm512_loadu_si512(p), order), flip));
}
static inline void avx_stage2(uint8_t *to, const void *p, const void *q, vi32 order, vi32 flip) {
  const __m256i bytes = _mm256_loadu_si256((const __m256i *)p);
  const __m256i shuffled = _mm256_shuffle_epi8(bytes, _mm512_castsi512_si256(order));
  (void)q;
  _mm256_storeu_si256((__m256i *)(void *)to, _mm256_xor_si256(shuffled, _mm512_castsi512_si256(flip)));
}
static inline void avx_stage1(uint8_t *to, const void *p, const void *q, vi32 order, vi32 flip) {
  const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  const __m128i shuffled = _mm_shuffle_epi8(bytes, _mm512_castsi512_si128(order));
  (void)q;
  _mm_storeu_si128((__m128i *)(void *)to, _mm_xor_si128(shuffled, _mm512_castsi512_si128(flip)));
}
/* Places of 32 bytes, and eight bytes again and again, for avx_stage_row. */
static inline vi32 avx_row_order(const void *p) {
  return _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)p));
}
static inline vi32 avx_mask(const void *p) {
  return _mm512_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)p));
}
/* Bytes of the 16 from p on, eight for each of some windows, in `order`, changed by `mask`. */
static inline void avx_stage_row4(uint8_t *to, const void *p, vi32 order, vi32 mask) {
  const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
  const __m256i shuffled = _mm256_shuffle_epi8(bytes, _mm512_castsi512_si256(order));
  _mm256_storeu_si256((__m256i *)(void *)to, _mm256_xor_si256(shuffled, _mm512_castsi512_si256(mask)));
}
static inline void avx_stage_row2(uint8_t *to, const void *p, vi32 order, vi32 mask) {
  const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  const __m128i shuffled = _mm_shuffle_epi8(bytes, _mm512_castsi512_si128(order));
  _mm_storeu_si128((__m128i *)(void *)to, _mm_xor_si128(shuffled, _mm512_castsi512_si128(mask)));
}
static inline void avx_stage_row1(uint8_t *to, const void *p, vi32 order, vi32 mask) {
  const __m128i bytes = _mm_loadl_epi64((const __m128i *)p);
  const __m128i shuffled = _mm_shuffle_epi8(bytes, _mm512_castsi512_si128(order));
  _mm_storel_epi64((__m128i *)(void *)to, _mm_xor_si128(shuffled, _mm512_castsi512_si128(mask)));
}
/* Bytes 0 and 2 of each lane, and 1 and 3, as unsigned integers of 16 bits. */
static inline vi32 v_even_bytes(vi32 a) { return _mm512_and_si512(a, v_i32_set1(0x00ff00ff)); }
static inline vi32 v_odd_bytes(vi32 a) { return _mm512_srli_epi16(a, 8); }
/* The bits of a, read as the other type. */
static inline vi32 v_cast_i32(vf32 a) { return _mm512_castps_si512(a); }
static inline vf32 v_cast_f32(vi32 a) { return _mm512_castsi512_ps(a); }
/* Toward zero, as a C cast, and to nearest (ties to even); NaN and what does not fit give an
 * unspecified integer. */
static inline vi32 v_cvt_i32(vf32 a) { return _mm512_cvttps_epi32(a); }
static inline vi32 v_round_i32(vf32 a) { return _mm512_cvtps_epi32(a); }
static inline vf32 v_cvt_f32(vi32 a) { return _mm512_cvtepi32_ps(a); }
/* The signed numbers of 4 bits number k, from the low bits up, of the words w: an index has no
 * other bits. */
#define v_cvt_nibble(w, k) \
  _mm512_permutexvar_ps(_mm512_srli_epi32(w, 4 * (k)), \
                        _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1))

/* --- Arithmetic --- */

static inline vf32 v_add(vf32 a, vf32 b) { return _mm512_add_ps(a, b); }
static inline vf32 v_sub(vf32 a, vf32 b) { return _mm512_sub_ps(a, b); }
static inline vf32 v_mul(vf32 a, vf32 b) { return _mm512_mul_ps(a, b); }
static inline vf32 v_div(vf32 a, vf32 b) { return _mm512_div_ps(a, b); }
/* a * b + c and c - a * b; rounded once where the machine has fused multiply-add, else twice. */
static inline vf32 v_fma(vf32 a, vf32 b, vf32 c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf32 v_fnma(vf32 a, vf32 b, vf32 c) { return _mm512_fnmadd_ps(a, b, c); }
/* acc + a * b for the accumulators of a register tile: acc stays in its register. Left to choose
 * between the three operand orders of the instruction, gcc rotates accumulators and spills. */
static inline vf32 v_fmadd_acc(vf32 acc, vf32 a, vf32 b) {
#if defined(__GNUC__)
  __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
  return acc;
#else
  return _mm512_fmadd_ps(a, b, acc);
#endif
}
/* acc + the number at p * b: one instruction, where a broadcast of its own costs a third more. */
static inline vf32 v_fmadd_read(vf32 acc, const float *p, vf32 b) {
#if defined(__GNUC__)
  __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(b), "m"(*p));
  return acc;
#else
  return _mm512_fmadd_ps(v_broadcast(p), b, acc);
#endif
}
static inline vf32 v_sqrt(vf32 a) { return _mm512_sqrt_ps(a); }
static inline vf32 v_abs(vf32 a) { return _mm512_abs_ps(a); }
static inline vf32 v_neg(vf32 a) { return _mm512_xor_ps(a, v_set1(-0.0f)); }
static inline vf32 v_copysign(vf32 a, vf32 sign) {
  return _mm512_or_ps(v_abs(a), _mm512_and_ps(sign, v_set1(-0.0f)));
}
/* NaN in either operand gives NaN, as ONNX and numpy have it. */
static inline vf32 v_max(vf32 a, vf32 b) {
  return _mm512_mask_mov_ps(_mm512_max_ps(a, b), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
}
static inline vf32 v_min(vf32 a, vf32 b) {
  return _mm512_mask_mov_ps(_mm512_min_ps(a, b), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
}
/* The same at the price of one instruction, for a constant that is not NaN: with NaN in either
 * operand the instruction returns the second. */
static inline vf32 v_max_const(vf32 constant, vf32 a) { return _mm512_max_ps(constant, a); }
static inline vf32 v_min_const(vf32 constant, vf32 a) { return _mm512_min_ps(constant, a); }
static inline vf32 v_relu(vf32 a) { return v_max_const(v_zero(), a); }
static inline vf32 v_floor(vf32 a) { return _mm512_roundscale_ps(a, _MM_FROUND_FLOOR); }
static inline vf32 v_ceil(vf32 a) { return _mm512_roundscale_ps(a, _MM_FROUND_CEIL); }
static inline vf32 v_trunc(vf32 a) { return _mm512_roundscale_ps(a, _MM_FROUND_TRUNC); }
static inline vf32 v_round(vf32 a) { /* ties to even */
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* 2^n for -126 <= n <= 127; 0 for -127, infinity for 128. */
static inline vf32 v_pow2i(vi32 n) {
  return v_cast_f32(v_i32_shl(v_i32_add(n, v_i32_set1(127)), 23));
}
/* a * 2^n for whole n, |n| <= 252: rounds at most once when a is of ordinary size, underflows
 * gradually, overflows to infinity. */
static inline vf32 v_ldexp(vf32 a, vf32 n) { return _mm512_scalef_ps(a, n); }

/* --- Masks: comparisons with NaN are false --- */

static inline vmask v_lt(vf32 a, vf32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline vmask v_le(vf32 a, vf32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
static inline vmask v_gt(vf32 a, vf32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
static inline vmask v_ge(vf32 a, vf32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
static inline vmask v_eq(vf32 a, vf32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
static inline vmask v_isnan(vf32 a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
static inline vmask v_mask_and(vmask a, vmask b) { return (vmask)(a & b); }
static inline vmask v_mask_or(vmask a, vmask b) { return (vmask)(a | b); }
static inline vmask v_mask_not(vmask a) { return (vmask)~a; }
static inline bool v_mask_any(vmask a) { return a != 0; }
static inline vf32 v_select(vmask mask, vf32 a, vf32 b) { /* a where set, else b */
  return _mm512_mask_mov_ps(b, mask, a);
}
/* What v_store_i8 is to store for a: 0 where that is NaN. */
static inline vf32 v_without_nan(vf32 a) { return v_select(v_isnan(a), v_zero(), a); }

/* --- Doubles: a vector of them holds half as many lanes, low the first ones --- */

static inline vf64 v_f64_set1(double x) { return _mm512_set1_pd(x); }
static inline vf64 v_f64_low(vf32 a) { return _mm512_cvtps_pd(_mm512_castps512_ps256(a)); }
static inline vf64 v_f64_high(vf32 a) { return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)); }
static inline vf32 v_f64_join(vf64 low, vf64 high) { /* rounded to floats */
  const __m512 lower = _mm512_castps256_ps512(_mm512_cvtpd_ps(low));
  return _mm512_insertf32x8(lower, _mm512_cvtpd_ps(high), 1);
}
static inline vf64 v_f64_add(vf64 a, vf64 b) { return _mm512_add_pd(a, b); }
static inline vf64 v_f64_sub(vf64 a, vf64 b) { return _mm512_sub_pd(a, b); }
static inline vf64 v_f64_mul(vf64 a, vf64 b) { return _mm512_mul_pd(a, b); }
static inline vf64 v_f64_div(vf64 a, vf64 b) { return _mm512_div_pd(a, b); }
/* a * b + c and c - a * b, rounded as v_fma. */
static inline vf64 v_f64_fma(vf64 a, vf64 b, vf64 c) { return _mm512_fmadd_pd(a, b, c); }
static inline vf64 v_f64_fnma(vf64 a, vf64 b, vf64 c) { return _mm512_fnmadd_pd(a, b, c); }
/* a * 2^n for a number n in the last bits of `bits`; a and the result are normal. */
static inline vf64 v_f64_ldexp(vf64 a, vf64 bits) {
  const __m512i power = _mm512_slli_epi64(_mm512_castpd_si512(bits), 52);
  return _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(a), power));
}

/* --- Across lanes: sums are pairwise, maxima and minima propagate NaN --- */

static inline float v_reduce_add(vf32 a) { return _mm512_reduce_add_ps(a); }
/* Lane i is the sum of the V_LANES floats at p + i * V_LANES. */
static inline vf32 avx_sum_pairs(const float *p) { /* of two vectors, in halves of each quarter */
  const vf32 a = v_load(p), b = v_load(p + 16);
  return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
static inline vf32 avx_sum_fours(const float *p) { /* of four vectors, in each quarter */
  const __m512d a = _mm512_castps_pd(avx_sum_pairs(p)), b = _mm512_castps_pd(avx_sum_pairs(p + 32));
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
}
static inline vf32 avx_sum_quarters(vf32 a, vf32 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
static inline vf32 v_reduce_add_each(const float *p) {
  return avx_sum_quarters(avx_sum_quarters(avx_sum_fours(p), avx_sum_fours(p + 64)),
                          avx_sum_quarters(avx_sum_fours(p + 128), avx_sum_fours(p + 192)));
}
static inline float v_reduce_max(vf32 a) {
  return v_mask_any(v_isnan(a)) ? NAN : _mm512_reduce_max_ps(a);
}
static inline float v_reduce_min(vf32 a) {
  return v_mask_any(v_isnan(a)) ? NAN : _mm512_reduce_min_ps(a);
}
/* Lane i is lane at[i] of a, 0 <= at[i] < V_LANES. */
static inline vf32 v_permute(vf32 a, vi32 at) { return _mm512_permutexvar_ps(at, a); }
/* dst[j * dst_stride + i] = src[i * src_stride + j] for i, j < V_LANES; no overlap. First the
 * 4x4 blocks inside the 128-bit quarters of four rows, then the quarters themselves. */
static inline void v_transpose(float *dst, size_t dst_stride, const float *src,
                               size_t src_stride) {
  vf32 part[4][4];
  for (size_t g = 0; g < 4; g++) {
    const float *rows = src + 4 * g * src_stride;
    const vf32 r0 = v_load(rows), r1 = v_load(rows + src_stride);
    const vf32 r2 = v_load(rows + 2 * src_stride), r3 = v_load(rows + 3 * src_stride);
    const vf32 lo01 = _mm512_unpacklo_ps(r0, r1), hi01 = _mm512_unpackhi_ps(r0, r1);
    const vf32 lo23 = _mm512_unpacklo_ps(r2, r3), hi23 = _mm512_unpackhi_ps(r2, r3);
    part[g][0] = _mm512_shuffle_ps(lo01, lo23, 0x44);
    part[g][1] = _mm512_shuffle_ps(lo01, lo23, 0xee);
    part[g][2] = _mm512_shuffle_ps(hi01, hi23, 0x44);
    part[g][3] = _mm512_shuffle_ps(hi01, hi23, 0xee);
  }
  for (size_t j = 0; j < 4; j++) {
    float *rows = dst + j * dst_stride;
    const vf32 even01 = _mm512_shuffle_f32x4(part[0][j], part[1][j], 0x88);
    const vf32 odd01 = _mm512_shuffle_f32x4(part[0][j], part[1][j], 0xdd);
    const vf32 even23 = _mm512_shuffle_f32x4(part[2][j], part[3][j], 0x88);
    const vf32 odd23 = _mm512_shuffle_f32x4(part[2][j], part[3][j], 0xdd);
    v_store(rows, _mm512_shuffle_f32x4(even01, even23, 0x88));
    v_store(rows + 4 * dst_stride, _mm512_shuffle_f32x4(odd01, odd23, 0x88));
    v_store(rows + 8 * dst_stride, _mm512_shuffle_f32x4(even01, even23, 0xdd));
    v_store(rows + 12 * dst_stride, _mm512_shuffle_f32x4(odd01, odd23, 0xdd));
  }
}

/* The nearest float16 (ties to even; infinite from 65520 on), as a float; and stored in 16 bits,
 * whole vectors or their first n lanes. */
static inline vf32 v_round_f16(vf32 a) { return _mm512_cvtph_ps(_mm512_cvtps_ph(a, 0)); }
static inline void v_store_f16(uint16_t *p, vf32 a) {
  _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(a, 0));
}
static inline void v_store_f16_n(uint16_t *p, vf32 a, size_t n) {
  _mm256_mask_storeu_epi16(p, v_mask_n(n), _mm512_cvtps_ph(a, 0));
}
static inline vf32 v_load_f16_n(const uint16_t *p, size_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v_mask_n(n), p));
}

#if V_HALVES
/* V_LANES float16, and arithmetic of them: results are the nearest ones. */
typedef __m256h vf16;
__extension__ typedef _Float16 avx_half;
static inline vf16 v_f16_set1(float x) { return _mm256_set1_ph((avx_half)x); }
static inline vf16 v_f16_round(vf32 a) { return _mm256_castsi256_ph(_mm512_cvtps_ph(a, 0)); }
static inline vf32 v_f16_widen(vf16 a) { return _mm512_cvtph_ps(_mm256_castph_si256(a)); }
static inline vf16 v_f16_add(vf16 a, vf16 b) { return _mm256_add_ph(a, b); }
static inline vf16 v_f16_sub(vf16 a, vf16 b) { return _mm256_sub_ph(a, b); }
static inline vf16 v_f16_mul(vf16 a, vf16 b) { return _mm256_mul_ph(a, b); }
static inline vf16 v_f16_div(vf16 a, vf16 b) { return _mm256_div_ph(a, b); }
static inline vf16 v_f16_div_const(vf16 a, float b) { return _mm256_div_ph(a, v_f16_set1(b)); }
#endif

#endif
