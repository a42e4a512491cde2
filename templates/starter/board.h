/* board.h - what the starter's programs need of a board: a way to say something, and files. */
#ifndef BOARD_H
#define BOARD_H

#include <stddef.h>

/* Write a text where somebody reads it. */
void board_print(const char *text);

/* End the program; the status reaches the shell that started it. */
void board_exit(int status);

/* Read or write a file of just `size` bytes; 0 if that can't be done. */
int board_load(const char *path, void *data, size_t size);
int board_store(const char *path, const void *data, size_t size);

#endif
