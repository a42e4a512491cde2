/* startup.c - a RISC-V core from its reset to main: stack, traps, memory, the floating-point unit. */
#include "board.h"

#include <stdint.h>

extern uint32_t start_of_data[], end_of_data[], stored_data[], start_of_bss[], end_of_bss[];

int main(void);
void reset(void);
void start(void);
void fault(void);

/* Any exception; interrupts of yours would come here, too. */
__attribute__((aligned(4))) void fault(void)
{
  board_print("fault\n");
  board_exit(99);
}

void start(void)
{
  const uint32_t *from = stored_data;

  for (volatile uint32_t *to = start_of_data; to < end_of_data;) *to++ = *from++;
  for (volatile uint32_t *to = start_of_bss; to < end_of_bss;) *to++ = 0;
  board_exit(main());
}

/* Where the core begins: registers that C counts on. */
__attribute__((naked, section(".vectors"), used)) void reset(void)
{
  __asm__ volatile(
      ".option push\n"
      ".option arch, +zicsr\n"
      ".option norelax\n"
      "la gp, __global_pointer$\n"
      "la sp, end_of_stack\n"
      "la t0, fault\n"
      "csrw mtvec, t0\n"
#if defined(__riscv_flen)
      "li t0, 0x2000\n" /* mstatus.FS: floating point is on */
      "csrs mstatus, t0\n"
#endif
      ".option pop\n"
      "j start\n");
}
