/* Included before programs for Bochs (3.0, 3.1), for what it gets wrong of Intel's SDM, volume 2:
 * VCVTNE2PS2BF16 takes both halves of its result from one operand. (TDPBUSD and TDPBSSD take all
 * bytes as unsigned: tiles_emulated.h does too where BYTES_ARE_UNSIGNED is defined. Additions that
 * flush denormals flush numbers up to 2.35e-38 as well.) */
#if defined(__AVX512BF16__) && !defined(__ASSEMBLER__)
#if !defined(_GNU_SOURCE) /* for programs that define it themselves, too late then */
#define _GNU_SOURCE
#include <immintrin.h>
#undef _GNU_SOURCE
#endif
#include <immintrin.h>
#include <string.h>
static inline __attribute__((unused)) __m512bh two_halves(__m512 upper, __m512 lower)
{
  const __m256bh parts[2] = {_mm512_cvtneps_pbh(lower), _mm512_cvtneps_pbh(upper)};
  __m512bh pairs;
  memcpy(&pairs, parts, sizeof pairs);
  return pairs;
}
#undef _mm512_cvtne2ps_pbh
#define _mm512_cvtne2ps_pbh two_halves
#endif
