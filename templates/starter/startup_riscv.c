/* startup.c - a RISC-V core from its reset to main: stack, traps, memory, the floating-point unit. */
#include "board.h"

#include <stdint.h>

extern uint32_t start_of_data[], end_of_data[], stored_data[], start_of_bss[], end_of_bss[];

int main(void);
void reset(void);
void start(void);
void fault(void);

/* Any exception; interrupts of yours would come here, too. ESP32-C3 ignores the address' last 8 bits. */
__attribute__((aligned(256))) void fault(void)
{
  board_print("fault\n");
  board_exit(99);
}

#if defined(ESP32C3)
/* The boot ROM leaves them on (manual, 12.2 and 12.3): the timer group's, the RTC's, and the super
 * watchdog, which can only be told to feed itself.
 */
static void stop_watchdogs(void)
{
  volatile uint32_t *const group = (volatile uint32_t *)0x6001f000, *const rtc = (volatile uint32_t *)0x60008000;

  group[0x64 / 4] = 0x50d83aa1u; /* the key to write */
  group[0x48 / 4] = 0;
  group[0x64 / 4] = 0;
  rtc[0xa8 / 4] = 0x50d83aa1u;
  rtc[0x90 / 4] = 0;
  rtc[0xa8 / 4] = 0;
  rtc[0xb0 / 4] = 0x8f1d312au;
  rtc[0xac / 4] |= 0x80000000u;
  rtc[0xb0 / 4] = 0;
}
#endif

void start(void)
{
  const uint32_t *from = stored_data;

#if defined(ESP32C3)
  stop_watchdogs();
#endif
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
#if defined(__riscv_vector)
      "li t0, 0x200\n" /* mstatus.VS: vectors are on */
      "csrs mstatus, t0\n"
#endif
      ".option pop\n"
      "j start\n");
}
