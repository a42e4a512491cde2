/* fine_tune.c - teaches a keyword network a speaker's words on the device itself: only the last layer is trained.
 *
 * The words are made up: each is a pattern of frequencies over time, spoken with noise. A word is known where its
 * probability, exp(-loss), is above a half. All memory is static: see RAM in the Makefile.
 */
#include <math.h>
#include <stdint.h>

#include "board.h"
#include "words_step_step.h"

enum { FRAMES = 16, BANDS = 20, WORDS = 8, HIDDEN = 32, ROUNDS = 60, TESTS = 80 };

static words_step_arena arena;
static words_step_context ctx;
static union {
  unsigned char bytes[WORDS_STEP_STATE_SIZE];
  double aligned;
} room[1 + WORDS_STEP_ALIGNMENT / sizeof(double)];
static const unsigned char saved[WORDS_STEP_SAVED_SIZE] = {
#include "words_state.h"
};
static float features[FRAMES * BANDS];
static const float silence[HIDDEN]; /* the recurrent layer begins at 0 */

/* Return bits that are well mixed from a number (Steele, Lea, Flood: splitmix64, OOPSLA 2014). */
static uint32_t mixed(uint64_t number)
{
  uint64_t z = (number + 1) * 0x9E3779B97F4A7C15u;

  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return (uint32_t)((z ^ (z >> 31)) >> 32);
}

/* Return a number from -1 to 1. */
static float centred(uint32_t bits)
{
  return (float)bits / 2147483648.0f - 1.0f;
}

/* Speak a word: its own pattern, and noise that is another each time. */
static void speak(int word, uint32_t time)
{
  for (int k = 0; k < FRAMES * BANDS; ++k) {
    float own = centred(mixed((uint64_t)word * 1000 + (uint64_t)k)), noise = centred(mixed(((uint64_t)time << 20) + k));

    features[k] = own + 0.3f * noise;
  }
}

/* One step of training, or with a rate of 0 only a look; returns the loss. */
static float step(unsigned char *state, int word, uint32_t time, double rate)
{
  int64_t label = word;
  float loss = 1e9f;

  speak(word, time);
  if (words_step_step(&ctx, state, features, silence, &label, rate, &loss)) board_exit(1);
  return loss;
}

/* Print how many of TESTS words are known; returns it. */
static int test(unsigned char *state, const char *when)
{
  int known = 0;
  char text[4] = "00\n";

  for (int k = 0; k < TESTS; ++k) known += expf(-step(state, k % WORDS, 1000000 + (uint32_t)k, 0.0)) > 0.5f;
  text[0] = (char)('0' + known / 10);
  text[1] = (char)('0' + known % 10);
  board_print(when);
  board_print(text);
  return known;
}

int main(void)
{
  unsigned char *state = room->bytes + (WORDS_STEP_ALIGNMENT - (uintptr_t)room % WORDS_STEP_ALIGNMENT);
  int before, after;

  if (words_step_init(&ctx, &arena, sizeof arena) || words_step_load(state, saved, sizeof saved)) return 1;
  before = test(state, "known of 80 before: ");
  for (uint32_t k = 0; k < ROUNDS * WORDS; ++k) step(state, (int)(k % WORDS), k, 0.1);
  after = test(state, "known of 80 after: ");
  return after > before && after >= 76 ? 0 : 1;
}
