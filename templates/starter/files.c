/* files.c - board.h for a system that has files. */
#include "board.h"

#include <stdio.h>
#include <stdlib.h>

void board_print(const char *text) { fputs(text, stdout); }

void board_exit(int status) { exit(status); }

int board_load(const char *path, size_t offset, void *data, size_t size)
{
  FILE *const file = fopen(path, "rb");
  int fits;

  if (file == NULL) return 0;
  fits = fseek(file, (long)offset, SEEK_SET) == 0 && fread(data, 1, size, file) == size;
  fclose(file);
  return fits;
}

int board_store(const char *path, size_t offset, const void *data, size_t size)
{
  FILE *const file = fopen(path, offset > 0 ? "r+b" : "wb");
  int fits;

  if (file == NULL) return 0;
  fits = fseek(file, (long)offset, SEEK_SET) == 0 && fwrite(data, 1, size, file) == size;
  return fclose(file) == 0 && fits;
}
