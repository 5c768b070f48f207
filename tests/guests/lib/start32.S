/* The way into a 32-bit C guest by the PVH entry: segments of our own, a stack, guest_main. */
#include "lib/pvh.inc"

PVH_NOTE(start)

        .section .text.start, "ax", @progbits
        .globl start
start:
        cld
        movl    $stack_top, %esp
        cmpl    $PVH_MAGIC, (%ebx)
        jne     no_start_info
        lgdt    gdt_pointer
        ljmp    $0x08, $flat
flat:
        movl    $0x10, %eax
        movl    %eax, %ds
        movl    %eax, %es
        movl    %eax, %ss
        movl    %eax, %fs
        movl    %eax, %gs
        xorl    %ebp, %ebp
        pushl   %ebx
        call    cmdline_init
        movl    %ebx, (%esp)            /* the callee owns its argument */
        call    guest_main
        call    guest_poweroff

no_start_info:
        movl    $0x3e, %eax
        outb    %al, $0xf4
        cli
        hlt

        .data
        .balign 8
gdt:
        .quad   0
        .quad   0x00cf9b000000ffff      /* 0x08: code */
        .quad   0x00cf93000000ffff      /* 0x10: data */
gdt_pointer:
        .word   gdt_pointer - gdt - 1
        .long   gdt

        .bss
        .balign 4096
        .skip   8192
stack_top:

        .section .note.GNU-stack, "", @progbits
