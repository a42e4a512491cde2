/* The first sector of a disk: reads kernel.c to 2 MB and starts it with 32-bit addresses. The BIOS
 * reads (INT 13h, 42h) and copies above 1 MB (INT 15h, 87h), 32 KB at a time. bochs.py writes
 * behind the code what to read: number of the first sector, count of sectors, address; a count of
 * 0 ends it. */
  .code16
  .globl start
start:
  cli
  xorw %ax, %ax
  movw %ax, %ds
  movw %ax, %es
  movw %ax, %ss
  movw $0x7c00, %sp
  sti
  movb %dl, drive
  movw $0x2401, %ax /* address line 20 on */
  int $0x15
  movw $extents, %bx
next:
  movl 4(%bx), %ecx
  testl %ecx, %ecx
  jz launch
  movl (%bx), %eax
  movl %eax, sector
  movl 8(%bx), %eax
  movl %eax, target
part: /* %ecx sectors are left */
  movl $64, %eax
  cmpl %eax, %ecx
  jae whole
  movl %ecx, %eax
whole:
  movw %ax, count
  pushl %ecx
  pushw %bx
  movw $packet, %si
  movb drive, %dl
  movb $0x42, %ah
  int $0x13
  jc failed
  movl target, %eax
  movw %ax, to + 2
  shrl $16, %eax
  movb %al, to + 4
  movb %ah, to + 7
  movw count, %cx
  shlw $8, %cx /* words */
  movw $table, %si
  movb $0x87, %ah
  int $0x15
  jc failed
  popw %bx
  popl %ecx
  movzwl count, %eax
  subl %eax, %ecx
  addl %eax, sector
  shll $9, %eax
  addl %eax, target
  testl %ecx, %ecx
  jnz part
  addw $12, %bx
  jmp next
launch:
  cli
  lgdt flat
  movl %cr0, %eax
  orb $1, %al
  movl %eax, %cr0
  movw $16, %ax
  movw %ax, %ds
  movw %ax, %es
  movw %ax, %ss
  ljmpl $8, $0x200000
failed:
  hlt
  jmp failed

drive: .byte 0
packet: .byte 16, 0
count: .word 0, 0, 0x1000 /* to 0x10000 */
sector: .long 0, 0
target: .long 0
table: /* descriptors: two empty, source, target, two of the BIOS */
  .fill 16
  .word 0xffff, 0
  .byte 1, 0x93, 0, 0
to: .word 0xffff, 0
  .byte 0, 0x93, 0, 0
  .fill 16
flat: /* the place of descriptors: none, code and data of 4 GB */
  .word 23
  .long descriptors
descriptors:
  .quad 0, 0x00cf9a000000ffff, 0x00cf92000000ffff
  .globl extents
extents:
