/* write_on.c - writes on after a text: write_on "Once upon a time" [words [temperature]]
 *
 * The decoder keeps its caches: a run of the whole text fills them, each run after it takes one word
 * and appends to them. Its words are bytes; a tokenizer of your own takes the place of `read_words` and
 * `print_word`. With a temperature of 0, the default, the likeliest word always follows.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

enum { MOST = 512, ROOM = 1024 }; /* words of a run, and of all, as the decoder was compiled */

/* The words of a text: its bytes, the last MOST of them. */
static int read_words(const char *text, int64_t *words)
{
  const size_t length = strlen(text), first = length > MOST ? length - MOST : 0;
  for (size_t k = first; k < length; k++) words[k - first] = (unsigned char)text[k];
  return (int)(length - first);
}

static void print_word(int64_t word)
{
  if (word == '\n' || (word >= ' ' && word <= '~')) {
    putchar((int)word);
  } else {
    printf("<%lld>", (long long)word);
  }
}

/* A number from 0 to 1. */
static double chance(void)
{
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return state / 4294967296.0;
}

/* Choose a word by the scores of all. */
static int64_t choose(const float *scores, int64_t words, double temperature)
{
  int64_t best = 0;
  double total = 0, left;

  for (int64_t k = 1; k < words; k++) {
    if (scores[k] > scores[best]) best = k;
  }
  if (temperature <= 0) return best;
  for (int64_t k = 0; k < words; k++) total += exp(((double)scores[k] - (double)scores[best]) / temperature);
  left = chance() * total;
  for (int64_t k = 0; k < words; k++) {
    left -= exp(((double)scores[k] - (double)scores[best]) / temperature);
    if (left < 0) return k;
  }
  return best;
}

/* Let the decoder read `count` words after `done` others; the scores are those of what may follow each. */
static int read_on(decoder_context *ctx, const int64_t *words, int64_t count, int64_t done, float *scores)
{
  static int64_t mask[ROOM];
  const int64_t own[] = {1, count}, all[] = {1, done + count};
  const int64_t *const shapes[] = {own, all};
  const int status = decoder_set_input_shapes(ctx, shapes);

  if (status != DECODER_OK) return status; /* the caches are full */
  for (int64_t k = done; k < done + count; k++) mask[k] = 1;
  return decoder_run(ctx, words, mask, scores);
}

int main(int argc, char **argv)
{
  const int64_t words = decoder_output_info(0)->shape[2];
  const int wanted = argc > 2 ? atoi(argv[2]) : 40;
  const double temperature = argc > 3 ? atof(argv[3]) : 0;
  unsigned char *memory = malloc(DECODER_ARENA_SIZE + DECODER_ALIGNMENT);
  float *scores = malloc(decoder_output_info(0)->size);
  int64_t text[MOST], done = 0;
  decoder_context ctx;
  int status = DECODER_ERROR_ARENA, count;

  if (argc < 2 || argv[1][0] == '\0') {
    fprintf(stderr, "usage: %s TEXT [WORDS [TEMPERATURE]]\n", argv[0]);
    return 2;
  }
  if (memory != NULL && scores != NULL) {
    unsigned char *const arena = memory + -(uintptr_t)memory % DECODER_ALIGNMENT;
    status = decoder_init(&ctx, arena, DECODER_ARENA_SIZE);
  }
  count = read_words(argv[1], text);
  if (status == DECODER_OK) status = read_on(&ctx, text, count, done, scores);
  fputs(argv[1], stdout);
  for (int k = 0; k < wanted && status == DECODER_OK; k++) {
    const int64_t next = choose(scores + (count - 1) * words, words, temperature);
    print_word(next);
    done += count;
    count = 1;
    status = read_on(&ctx, &next, count, done, scores);
  }
  putchar('\n');
  if (status == DECODER_ERROR_SHAPE) {
    fprintf(stderr, "the caches are full after %lld words\n", (long long)(done + count - 1));
  } else if (status != DECODER_OK) {
    fprintf(stderr, "decoder: %s\n", decoder_status_string(status));
  }
  free(scores);
  free(memory);
  return status == DECODER_OK ? 0 : 1;
}
