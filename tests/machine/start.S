/* The way from 32-bit addresses to kernel.c, its system calls and its exceptions. Memory is mapped
 * to itself, 4 GB in pages of 2 MB, but for the first page: a null pointer is caught. */
  .section .start, "ax"
  .code32
  .globl start
start:
  movl $stack_end, %esp
  movl $page_directories, %edi
  movl $0x83, %eax /* present, writable, 2 MB */
  movl $2048, %ecx
1:
  movl %eax, (%edi)
  addl $0x200000, %eax
  addl $8, %edi
  loop 1b
  movl $0, page_directories
  movl $page_directories + 3, %eax
  movl $page_pointers, %edi
  movl $4, %ecx
2:
  movl %eax, (%edi)
  addl $4096, %eax
  addl $8, %edi
  loop 2b
  movl $page_pointers + 3, page_root
  movl $page_root, %eax
  movl %eax, %cr3
  movl %cr4, %eax
  orl $0x620, %eax /* physical address extension; SSE and its exceptions */
  movl %eax, %cr4
  movl $0xc0000080, %ecx
  rdmsr
  orl $0x101, %eax /* long mode, syscall */
  wrmsr
  movl %cr0, %eax
  andl $~4, %eax /* the FPU isn't emulated */
  orl $0x80000022, %eax
  movl %eax, %cr0
  lgdt long_place
  ljmp $8, $3f
  .code64
3:
  movw $16, %ax
  movw %ax, %ds
  movw %ax, %es
  movw %ax, %ss
  xorl %eax, %eax
  movw %ax, %fs
  movw %ax, %gs
  call kernel_main
4:
  hlt
  jmp 4b

  .text
/* Programs run with the kernel's privileges, on their own stack. */
  .globl system_call
system_call:
  movq %rsp, program_stack(%rip)
  leaq calls_end(%rip), %rsp
  pushq %rcx
  pushq %r11
  pushq %rdi
  pushq %rsi
  pushq %rdx
  pushq %r8
  pushq %r9
  pushq %r10
  pushq program_stack(%rip)
  pushq %rax
  movq %rsp, %rdi
  call handle_system_call /* of the registers; the result is in rax */
  addq $8, %rsp
  popq program_stack(%rip)
  popq %r10
  popq %r9
  popq %r8
  popq %rdx
  popq %rsi
  popq %rdi
  popq %r11
  popq %rcx
  movq program_stack(%rip), %rsp
  jmpq *%rcx

/* int enter_program(entry, stack): returns what leave_program is given. */
  .globl enter_program
enter_program:
  pushq %rbx
  pushq %rbp
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, kernel_stack(%rip)
  movq %rsi, %rsp
  xorl %edx, %edx
  xorl %ebp, %ebp
  jmpq *%rdi
  .globl leave_program
leave_program:
  movl %edi, %eax
  movq kernel_stack(%rip), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbp
  popq %rbx
  ret

/* Exceptions: those without an error code get a zero. */
  .align 16
  .globl exception_handlers
exception_handlers:
  .altmacro
  .macro handler number
  .align 16
  .if !((\number == 8) || (\number >= 10 && \number <= 14) || (\number == 17) || (\number == 21))
  pushq $0
  .endif
  pushq $\number
  jmp exception
  .endm
  .set next, 0
  .rept 32
  handler %next
  .set next, next + 1
  .endr
exception:
  movq %rsp, %rdi
  leaq calls_end(%rip), %rsp
  movq %cr2, %rsi
  call handle_exception /* of { number, error code, address, ... }, address; does not return */

  .data
  .align 8
long_place:
  .word 23
  .quad long_descriptors
long_descriptors:
  .quad 0, 0x00209a0000000000, 0x0000920000000000

  .bss
  .align 4096
page_root: .skip 4096
page_pointers: .skip 4096
page_directories: .skip 4 * 4096
  .skip 65536
stack_end:
  .skip 65536
calls_end:
program_stack: .skip 8
kernel_stack: .skip 8
  .section .note.GNU-stack, "", @progbits
