/* startup.c - a Cortex-M from its reset to main: vectors, memory, the floating-point unit. */
#include "board.h"

#include <stdint.h>

extern uint32_t start_of_data[], end_of_data[], stored_data[], start_of_bss[], end_of_bss[];
extern uint32_t end_of_stack[];

int main(void);
void reset(void);
void fault(void);

void fault(void)
{
  board_print("fault\n");
  board_exit(99);
}

void reset(void)
{
  const uint32_t *from = stored_data;

#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
  *(volatile uint32_t *)0xe000ed88u |= 0xfu << 20; /* CPACR: let programs use coprocessors 10, 11 */
  __asm__ volatile("dsb\n\tisb" ::: "memory");
#endif
#if defined(__ARM_FEATURE_MVE)
  *(volatile uint32_t *)0xe000ed14u |= 1u << 19; /* CCR.LOB: loops without overhead */
  __asm__ volatile("dsb\n\tisb" ::: "memory");
#endif
  for (volatile uint32_t *to = start_of_data; to < end_of_data;) *to++ = *from++;
  for (volatile uint32_t *to = start_of_bss; to < end_of_bss;) *to++ = 0;
  board_exit(main());
}

/* The first word is the stack's end; interrupts of yours follow the sixteen of the core. */
__attribute__((section(".vectors"), used)) static const uintptr_t vectors[16] = {
  (uintptr_t)end_of_stack, (uintptr_t)reset, (uintptr_t)fault, (uintptr_t)fault,
  (uintptr_t)fault,        (uintptr_t)fault, (uintptr_t)fault,
};
