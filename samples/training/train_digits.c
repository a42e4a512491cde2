/* train_digits.c - trains a network that reads digits, from random weights: train_digits STATE_FILE [STEPS]
 *
 * digits_step is one step of training, digits_reader the network alone, which is handed the weights. Both bring no
 * memory of their own: all of it is static here. The trained state is written to STATE_FILE.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "digits_reader.h"
#include "digits_step_step.h"
#include "draw.h"

enum { BATCH = 50, WEIGHTS = 6, TESTED = 2000 };

static digits_step_arena arena;
static digits_reader_arena reading_arena;
static union {
  unsigned char bytes[DIGITS_STEP_STATE_SIZE];
  double aligned;
} room[1 + DIGITS_STEP_ALIGNMENT / sizeof(double)];
static float images[BATCH][SIDE * SIDE], scores[BATCH][DIGITS];
static int64_t labels[BATCH];

static void draw_batch(uint64_t *random)
{
  for (int k = 0; k < BATCH; ++k) {
    labels[k] = (int64_t)(random_bits(random) % DIGITS);
    draw((int)labels[k], random, images[k]);
  }
}

/* Fill weights of normal numbers whose variance is 2 over what a result is summed from; biases stay 0. */
static int fill(unsigned char *state, size_t index, size_t summed, uint64_t *random)
{
  static float values[DIGITS * 784];
  size_t count = digits_step_state(index)->size / sizeof *values;

  for (size_t k = 0; k < count; ++k) values[k] = (float)normal(random, sqrt(2.0 / (double)summed));
  return digits_step_set(state, index, values);
}

static const float *weight(const unsigned char *state, const char *name)
{
  for (size_t k = 0; k < DIGITS_STEP_STATE_COUNT; ++k) {
    const digits_step_state_info *info = digits_step_state(k);

    if (strcmp(info->name, name) == 0) return (const float *)(const void *)(state + info->offset);
  }
  return NULL;
}

/* Return how many of TESTED new digits are read. */
static int tested(digits_reader_context *reader, const unsigned char *state, uint64_t *random)
{
  int right = 0;

  for (int done = 0; done < TESTED; done += BATCH) {
    draw_batch(random);
    if (digits_reader_run(reader, images[0], weight(state, "conv1.weight"), weight(state, "conv1.bias"),
                          weight(state, "conv2.weight"), weight(state, "conv2.bias"),
                          weight(state, "dense.weight"), weight(state, "dense.bias"), scores[0])) {
      return -1;
    }
    for (int k = 0; k < BATCH; ++k) {
      int best = 0;

      for (int digit = 1; digit < DIGITS; ++digit) {
        if (scores[k][digit] > scores[k][best]) best = digit;
      }
      right += best == labels[k];
    }
  }
  return right;
}

int main(int argc, char **argv)
{
  static unsigned char saved[DIGITS_STEP_SAVED_SIZE];
  static const size_t summed[WEIGHTS] = {9, 0, 72, 0, 784, 0}; /* in the order of the state; 0: a bias */
  unsigned char *state = room->bytes + (DIGITS_STEP_ALIGNMENT - (uintptr_t)room % DIGITS_STEP_ALIGNMENT);
  digits_step_context ctx;
  digits_reader_context reader;
  uint64_t random = 1, unseen = 2;
  int steps = argc > 2 ? atoi(argv[2]) : 400, right, status;
  float loss = 0;
  FILE *file;

  if (argc < 2) {
    fprintf(stderr, "usage: train_digits STATE_FILE [STEPS]\n");
    return 1;
  }
  status = digits_step_init(&ctx, &arena, sizeof arena);
  if (status == 0) status = digits_step_load(state, saved, sizeof saved); /* zeros */
  for (size_t k = 0; k < WEIGHTS && status == 0; ++k) {
    if (summed[k]) status = fill(state, k, summed[k], &random);
  }
  for (int k = 0; k < steps && status == 0; ++k) {
    draw_batch(&random);
    status = digits_step_step(&ctx, state, images[0], labels, 3e-3 * (1.0 - (double)k / steps), &loss);
    if (k % 100 == 0) printf("step %d: loss %.3f\n", k, (double)loss);
  }
  if (status == 0) status = digits_reader_init(&reader, &reading_arena, sizeof reading_arena);
  if (status != 0) {
    fprintf(stderr, "digits: %s\n", digits_step_status_string(status));
    return 1;
  }
  right = tested(&reader, state, &unseen);
  printf("%.1f %% of %d new digits are read\n", 100.0 * right / TESTED, TESTED);
  file = fopen(argv[1], "wb");
  if (file == NULL || digits_step_save(state, saved, sizeof saved) ||
      fwrite(saved, 1, sizeof saved, file) != sizeof saved) {
    fprintf(stderr, "%s: can't be written\n", argv[1]);
    status = 1;
  }
  if (file != NULL && fclose(file)) status = 1;
  return status != 0;
}
