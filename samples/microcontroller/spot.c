/* spot.c - the program of the sample: says which words it hears, and whether those were spoken. */
#include <string.h>

#include "board.h"
#include "kws.h"
#include "words.h"

static kws_arena arena;
static kws_context ctx;
static int8_t features[FEATURES];
static float scores[WORDS];

static void print_number(int number)
{
  char digits[4] = {0};
  int k = 3;
  do {
    digits[--k] = (char)('0' + number % 10);
    number /= 10;
  } while (number > 0 && k > 0);
  board_print(digits + k);
}

int main(void)
{
  kws_difference difference = {0};
  int right = 0;
  int status = kws_init(&ctx, &arena, sizeof arena);
  if (status == KWS_OK) status = kws_selftest(&ctx, features, scores, &difference);
  board_print("selftest: ");
  board_print(kws_status_string(status));
  board_print("\nheard:");
  for (int k = 0; k < SOUNDS && status == KWS_OK; k++) {
    int word = 0;
    memcpy(features, sounds[k], sizeof features);
    status = kws_run(&ctx, features, scores);
    for (int i = 1; i < WORDS; i++) word = scores[i] > scores[word] ? i : word;
    right += word == spoken[k];
    board_print(" ");
    board_print(words[word]);
  }
  board_print("\n");
  print_number(right);
  board_print(" of ");
  print_number(SOUNDS);
  board_print(" words are right\n");
  return status == KWS_OK && right >= SOUNDS - SOUNDS / 10 ? 0 : 1;
}
