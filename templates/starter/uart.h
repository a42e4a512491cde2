/* uart.h - what serial.c needs of a board: a line for bytes. */
#ifndef UART_H
#define UART_H

void uart_open(void);

/* Wait for a byte; write one. */
unsigned char uart_read(void);
void uart_write(unsigned char byte);

#endif
