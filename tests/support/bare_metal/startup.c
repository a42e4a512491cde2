/* Starts a program on a Cortex-M that qemu emulates; files are semihosting's, through newlib. */
#include <stdint.h>
#include <stdlib.h>

extern uint32_t stack_top, data_from, data_start, data_end, bss_start, bss_end;
int main(int argc, char **argv);
void initialise_monitor_handles(void);
void reset(void);

static void halt(void)
{
  static const uint32_t block[2] = {0x20026u, 99u}; /* ADP_Stopped_ApplicationExit */
  register uint32_t r0 __asm__("r0") = 0x20u;       /* SYS_EXIT_EXTENDED */
  register const void *r1 __asm__("r1") = block;
  for (;;) __asm__ volatile("bkpt 0xab" : : "r"(r0), "r"(r1) : "memory");
}

void reset(void)
{
  static char *arguments[] = {"program", "before", "after", 0};
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
  *(volatile uint32_t *)0xE000ED88u |= 0xFu << 20; /* CPACR: floats and vectors */
  __asm__ volatile("dsb\n isb");
#endif
#if defined(__ARM_FEATURE_MVE)
  *(volatile uint32_t *)0xE000ED14u |= 1u << 19; /* CCR: loops without overhead */
#endif
  for (uint32_t *to = &data_start, *from = &data_from; to < &data_end;) *to++ = *from++;
  for (uint32_t *to = &bss_start; to < &bss_end;) *to++ = 0;
  initialise_monitor_handles();
  exit(main(3, arguments));
}

union vector {
  uint32_t *stack;
  void (*handler)(void);
};
__attribute__((section(".vectors"), used)) const union vector vectors[16] = {
  {.stack = &stack_top}, {.handler = reset}, {.handler = halt}, {.handler = halt},
  {.handler = halt},     {.handler = halt},  {.handler = halt},
};
