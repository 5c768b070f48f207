/*
 * The way into a 64-bit C guest by Linux's 64-bit entry: RSI points to boot_params, CS is 0x10, the
 * data segments 0x18, and all memory is mapped to itself. The note says "Linux", as a vmlinux's does.
 */
        .pushsection .note.kernel, "a", @note
        .balign 4
        .long   6
        .long   4
        .long   0x101
        .asciz  "Linux"
        .balign 4
        .long   0
        .popsection

        .section .text.start, "ax", @progbits
        .code64
        .globl start
start:
        cld
        movl    $stack_top, %esp
        movl    %cs, %eax
        cmpl    $0x10, %eax
        jne     wrong
        movl    %ss, %eax
        cmpl    $0x18, %eax
        jne     wrong
        xorl    %ebp, %ebp
        movq    %rsi, %rdi
        call    linux_main
        call    guest_poweroff
wrong:
        movl    $0x3e, %eax
        outb    %al, $0xf4
        cli
        hlt

        .bss
        .balign 4096
        .skip   16384
stack_top:

        .section .note.GNU-stack, "", @progbits
