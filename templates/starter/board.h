/* board.h - what the starter's programs need of a board: a way to say something, and files. */
#ifndef BOARD_H
#define BOARD_H

#include <stddef.h>

/* Write a text where somebody reads it. */
void board_print(const char *text);

/* End the program; the status reaches the shell that started it. */
void board_exit(int status);

/* Read or write `size` bytes of a file from an offset on; 0 if that can't be done. What is written from its
 * begin on is a new file. */
int board_load(const char *path, size_t offset, void *data, size_t size);
int board_store(const char *path, size_t offset, const void *data, size_t size);

#endif
