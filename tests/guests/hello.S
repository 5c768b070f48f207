/*
 * The smallest whole life of a VM: greet on COM1, switch the power off. One page of code and data,
 * no stack, no tables of its own. Two forms from one body: with HELLO_PVH the 32-bit PVH entry,
 * otherwise an ELF64 entered in 64-bit mode with an identity map.
 */
#include "lib/pvh.inc"

#define COM1_DATA   0x3f8
#define COM1_LSR    0x3fd
#define LSR_THRE    0x20
#define POWER_PORT  0x604
#define POWER_OFF   0x2000
#define DEBUG_EXIT  0xf4

        .section .text.start, "ax", @progbits
        .globl start
#ifdef HELLO_PVH
PVH_NOTE(start)
        .code32
start:
        cld
        cmpl    $PVH_MAGIC, (%ebx)
        jne     no_start_info
#else
        .code64
start:
        cld
#endif
        movl    $text, %esi
        movl    $(text_end - text), %ecx
next:
        movl    $COM1_LSR, %edx
wait:
        inb     %dx, %al
        testb   $LSR_THRE, %al
        jz      wait
        movl    $COM1_DATA, %edx
        lodsb
        outb    %al, %dx
        decl    %ecx
        jnz     next

        movl    $POWER_PORT, %edx
        movl    $POWER_OFF, %eax
        outw    %ax, %dx
stop:
        cli
        hlt
        jmp     stop

#ifdef HELLO_PVH
no_start_info:
        movl    $DEBUG_EXIT, %edx
        movl    $0x3e, %eax
        outb    %al, %dx
        jmp     stop
#endif

text:
        .ascii  "Hello world!\n"
text_end:
