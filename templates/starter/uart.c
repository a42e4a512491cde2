/* uart.c - the first UART of qemu's boards, Arm's CMSDK (DDI 0479). Other boards need one of their own. */
#include "uart.h"

#include <stdint.h>

#ifndef UART
#error "write uart.c for your board: uart_open, uart_read and uart_write of uart.h"
#else

enum { DATA, STATE, CONTROL, BAUD = 4 };
enum { TRANSMIT_FULL = 1, RECEIVE_FULL = 2, ENABLE_BOTH = 3 };

static volatile uint32_t *const uart = (volatile uint32_t *)UART;

void uart_open(void)
{
  uart[BAUD] = 217; /* 115200 of 25 MHz; qemu takes any */
  uart[CONTROL] = ENABLE_BOTH;
}

unsigned char uart_read(void)
{
  while ((uart[STATE] & RECEIVE_FULL) == 0) {
  }
  return (unsigned char)(uart[DATA] & 0xffu);
}

void uart_write(unsigned char byte)
{
  while ((uart[STATE] & TRANSMIT_FULL) != 0) {
  }
  uart[DATA] = byte;
}

#endif
