/* find_speech.c - says where somebody speaks: find_speech [-p] [-t THRESHOLD] [FILE...]
 *
 * A file is a WAV file of one channel, 16 bits and 16 kHz, or such samples without a header; without
 * files they are read from the standard input, as from a microphone:
 *
 *     arecord -q -t raw -f S16_LE -r 16000 | out/find_speech/find_speech
 *
 * Each frame of 32 ms is one run of the detector, which keeps what it must remember in its arena;
 * before the next file it is reset. Speech begins where the probability reaches the threshold (0.5)
 * and ends where it falls 0.15 below and doesn't reach it again for 128 ms; what is shorter than
 * 256 ms is none. With -p the probability of each frame is printed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vad.h"

#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#endif

enum { RATE = 16000, FRAME = 512 };
enum { SILENT = 4, SHORTEST = 8 }; /* frames that end speech, and that it has at least */
enum { TO_THE_END = -1 };

static const float MARGIN = 0.15f;

typedef struct sound {
  FILE *file;
  unsigned char begin[4]; /* bytes that were read to see whether this is a WAV file */
  size_t held;            /* of them */
  long long left;         /* bytes of samples, or TO_THE_END */
} sound;

static unsigned long little_endian(const unsigned char *bytes, int count)
{
  unsigned long number = 0;
  while (count-- > 0) number = number << 8 | bytes[count];
  return number;
}

static int skip(FILE *file, unsigned long count)
{
  while (count > 0 && getc(file) != EOF) count--;
  return count == 0;
}

/* Read a WAV file up to its samples; NULL, or what is wrong with it. */
static const char *open_wav(sound *s)
{
  unsigned char head[16];
  int known = 0;

  if (fread(head, 1, 8, s->file) != 8 || memcmp(head + 4, "WAVE", 4) != 0) return "not a WAV file";
  while (fread(head, 1, 8, s->file) == 8) {
    const unsigned long size = little_endian(head + 4, 4);

    if (memcmp(head, "data", 4) == 0) { /* who can't go back writes 0 or -1 and samples to the end */
      s->left = size == 0 || size == 0xfffffffful ? TO_THE_END : (long long)size;
      return known ? NULL : "its format doesn't stand before its samples";
    }
    if (memcmp(head, "fmt ", 4) == 0 && size >= 16) {
      if (fread(head, 1, 16, s->file) != 16) break;
      known = little_endian(head, 2) == 1 && little_endian(head + 2, 2) == 1 &&
              little_endian(head + 4, 4) == RATE && little_endian(head + 14, 2) == 16;
      if (!known) return "not PCM of one channel, 16 bits and 16 kHz";
      if (!skip(s->file, size - 16 + size % 2)) break;
    } else if (!skip(s->file, size + size % 2)) {
      break;
    }
  }
  return "it ends before its samples";
}

/* Prepare to read samples; NULL, or what is wrong with them. */
static const char *open_sound(sound *s, FILE *file)
{
  s->file = file;
  s->left = TO_THE_END;
  s->held = fread(s->begin, 1, sizeof s->begin, file);
  if (s->held < sizeof s->begin || memcmp(s->begin, "RIFF", 4) != 0) return NULL;
  s->held = 0;
  return open_wav(s);
}

/* Read the next frame as numbers from -1 to 1, zeros behind the end; return its samples. */
static int read_frame(sound *s, float *samples)
{
  unsigned char bytes[2 * FRAME];
  size_t wanted = sizeof bytes, count = s->held;

  if (s->left >= 0 && (unsigned long long)s->left < wanted) wanted = (size_t)s->left;
  memcpy(bytes, s->begin, s->held);
  s->held = 0;
  if (count < wanted) count += fread(bytes + count, 1, wanted - count, s->file);
  if (s->left >= 0) s->left -= (long long)count;
  for (size_t k = 0; k < FRAME; k++) {
    const long number = k < count / 2 ? (long)little_endian(bytes + 2 * k, 2) : 0;
    samples[k] = (float)(number < 32768 ? number : number - 65536) / 32768.0f;
  }
  return (int)(count / 2);
}

static void print_speech(const char *path, long begin, long end)
{
  if (end - begin < SHORTEST) return;
  printf("%s: %.2f s to %.2f s\n", path, (double)begin * FRAME / RATE, (double)end * FRAME / RATE);
  fflush(stdout);
}

/* Print where somebody speaks in a sound. */
static int find_speech(vad_context *ctx, sound *s, const char *path, float threshold, int verbose)
{
  float samples[FRAME], probability;
  long frame = 0, begin = -1, silence = -1; /* where speech began, and where it fell silent, or -1 */

  for (; read_frame(s, samples) > 0; frame++) {
    const int status = vad_run(ctx, samples, &probability);

    if (status != VAD_OK) return status;
    if (verbose) printf("%.6f\n", (double)probability);
    if (probability >= threshold) {
      if (begin < 0) begin = frame;
      silence = -1;
    } else if (begin >= 0 && silence < 0 && probability < threshold - MARGIN) {
      silence = frame;
    }
    if (silence >= 0 && frame + 1 - silence >= SILENT) {
      print_speech(path, begin, silence);
      begin = silence = -1;
    }
  }
  if (begin >= 0) print_speech(path, begin, silence < 0 ? frame : silence);
  return VAD_OK;
}

/* Open a file, or the standard input for "-", and print where somebody speaks in it; 0 if all went well. */
static int listen(vad_context *ctx, const char *path, float threshold, int verbose)
{
  FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
  const char *wrong = "can't be opened";
  sound s;

#ifdef _WIN32
  if (file == stdin) _setmode(_fileno(stdin), _O_BINARY);
#endif
  if (file != NULL) wrong = open_sound(&s, file);
  if (wrong == NULL) {
    int status = vad_reset(ctx);
    if (status == VAD_OK) status = find_speech(ctx, &s, path, threshold, verbose);
    if (status != VAD_OK) wrong = vad_status_string(status);
    if (ferror(file)) wrong = "can't be read";
  }
  if (file != NULL && file != stdin) fclose(file);
  if (wrong != NULL) fprintf(stderr, "%s: %s\n", path, wrong);
  return wrong != NULL;
}

static int read_threshold(const char *text, float *threshold)
{
  char *end;

  *threshold = strtof(text, &end);
  return end != text && *end == '\0' && *threshold > 0 && *threshold < 1;
}

int main(int argc, char **argv)
{
  static vad_arena arena;
  vad_context ctx;
  float threshold = 0.5f;
  int verbose = 0, failed = 0, k = 1;
  const int status = vad_init(&ctx, &arena, sizeof arena);

  if (status != VAD_OK) {
    fprintf(stderr, "vad: %s\n", vad_status_string(status));
    return 1;
  }
  for (; k < argc && argv[k][0] == '-' && argv[k][1] != '\0'; k++) {
    if (strcmp(argv[k], "-p") == 0) {
      verbose = 1;
    } else if (strcmp(argv[k], "-t") == 0 && k + 1 < argc && read_threshold(argv[k + 1], &threshold)) {
      k++;
    } else {
      fprintf(stderr, "usage: %s [-p] [-t THRESHOLD] [FILE...]\n", argv[0]);
      return 2;
    }
  }
  if (k == argc) return listen(&ctx, "-", threshold, verbose);
  for (; k < argc; k++) failed |= listen(&ctx, argv[k], threshold, verbose);
  return failed;
}
