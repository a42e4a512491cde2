/* read_digits.c - prints which digit each image shows: read_digits image.pgm...
 *
 * Images are plain PGM files (P2) of 28 x 28 pixels, white on black. The network brings no memory
 * of its own and the program allocates none: all of it is static here.
 */
#include <stdio.h>

#include "digits.h"

enum { SIDE = 28, DIGITS = 10 };

static digits_arena arena;

/* Read an image as numbers from 0 to 1; 0 if the file isn't one. */
static int read_image(const char *path, float *image)
{
  FILE *file = fopen(path, "r");
  int width, height, largest, value, count = 0;

  if (file == NULL) return 0;
  if (fscanf(file, "P2 %d %d %d", &width, &height, &largest) == 3 && width == SIDE &&
      height == SIDE && largest > 0) {
    while (count < SIDE * SIDE && fscanf(file, "%d", &value) == 1) {
      image[count++] = (float)value / (float)largest;
    }
  }
  fclose(file);
  return count == SIDE * SIDE;
}

int main(int argc, char **argv)
{
  digits_context ctx;
  float image[SIDE * SIDE], scores[DIGITS];
  int status = digits_init(&ctx, &arena, sizeof arena);
  int failed = 0;

  for (int k = 1; k < argc && status == DIGITS_OK; ++k) {
    int best = 0;

    if (!read_image(argv[k], image)) {
      fprintf(stderr, "%s: not a plain PGM file of 28 x 28 pixels\n", argv[k]);
      failed = 1;
      continue;
    }
    status = digits_run(&ctx, image, scores);
    for (int digit = 1; digit < DIGITS; ++digit) {
      if (scores[digit] > scores[best]) best = digit;
    }
    printf("%s: %d (%.1f %%)\n", argv[k], best, 100.0 * (double)scores[best]);
  }
  if (status != DIGITS_OK) {
    fprintf(stderr, "digits: %s\n", digits_status_string(status));
    failed = 1;
  }
  return failed;
}
