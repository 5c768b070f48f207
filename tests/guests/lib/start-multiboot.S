/*
 * The way into a 32-bit C guest by multiboot 1: EAX is the magic, EBX the information. With
 * MB_PLACES the header names all addresses, so that a flat image of it can be loaded.
 */
#ifdef MB_PLACES
#define MB_FLAGS 0x10003
#else
#define MB_FLAGS 0x3
#endif

        .section .text.start, "ax", @progbits
        .balign 4
header:
        .long   0x1badb002
        .long   MB_FLAGS
        .long   -(0x1badb002 + MB_FLAGS)
#ifdef MB_PLACES
        .long   header
        .long   guest_first
        .long   guest_data_end
        .long   guest_end
        .long   start
#endif
        .globl start
start:
        cld
        movl    $stack_top, %esp
        lgdt    gdt_pointer
        ljmp    $0x08, $flat
flat:
        movl    $0x10, %ecx
        movl    %ecx, %ds
        movl    %ecx, %es
        movl    %ecx, %ss
        movl    %ecx, %fs
        movl    %ecx, %gs
        xorl    %ebp, %ebp
        pushl   %ebx
        pushl   %eax
        call    multiboot_main
        call    guest_poweroff

        .data
        .balign 8
gdt:
        .quad   0
        .quad   0x00cf9b000000ffff
        .quad   0x00cf93000000ffff
gdt_pointer:
        .word   gdt_pointer - gdt - 1
        .long   gdt

        .bss
        .balign 4096
        .skip   8192
stack_top:

        .section .note.GNU-stack, "", @progbits
