/*
 * The way into a 64-bit C guest: from the 32-bit PVH entry, or from an ELF64 loader that enters in
 * 64-bit mode. Both end in guest_main with a stack, flat segments and the first GiB mapped to
 * itself by 2 MiB pages.
 */
#include "lib/pvh.inc"

#define CR0_PG     0x80000000
#define CR0_WP     0x00010000
#define CR4_PAE    0x20
#define MSR_EFER   0xc0000080
#define EFER_LME   0x100
#define PTE_TABLE  0x03
#define PTE_LARGE  0x83

PVH_NOTE(start)

        .section .text.start, "ax", @progbits
        .code32
        .globl start
start:
        cld
        movl    $stack_top, %esp
        movl    %ebx, %ebp
        cmpl    $PVH_MAGIC, (%ebx)
        jne     no_start_info

        movl    $(pdpt + PTE_TABLE), pml4
        movl    $(pd + PTE_TABLE), pdpt
        movl    $pd, %edi
        movl    $PTE_LARGE, %eax
fill:
        movl    %eax, (%edi)
        addl    $0x200000, %eax
        addl    $8, %edi
        cmpl    $(pd + 4096), %edi
        jb      fill

        movl    %cr4, %eax
        orl     $CR4_PAE, %eax
        movl    %eax, %cr4
        movl    $pml4, %eax
        movl    %eax, %cr3
        movl    $MSR_EFER, %ecx
        rdmsr
        orl     $EFER_LME, %eax
        wrmsr
        movl    %cr0, %eax
        orl     $(CR0_PG | CR0_WP), %eax
        movl    %eax, %cr0
        lgdt    gdt_pointer
        ljmp    $0x08, $in_long_mode

no_start_info:
        movl    $0x3e, %eax
        outb    %al, $0xf4
        cli
        hlt

        .code64
        .globl start_elf64
start_elf64:
        cld
        movq    $stack_top, %rsp
        lgdt    gdt_pointer
        pushq   $0x08
        pushq   $in_long_mode_elf
        lretq
in_long_mode_elf:
        /* A loader may give start information here as well, in RBX: take it when it is some. */
        xorl    %ebp, %ebp
        testq   %rbx, %rbx
        jz      in_long_mode
        testb   $3, %bl
        jnz     in_long_mode
        movq    %rbx, %rax
        shrq    $30, %rax
        jnz     in_long_mode
        cmpl    $PVH_MAGIC, (%rbx)
        jne     in_long_mode
        movl    %ebx, %ebp
in_long_mode:
        movl    $0x10, %eax
        movl    %eax, %ds
        movl    %eax, %es
        movl    %eax, %ss
        movl    %eax, %fs
        movl    %eax, %gs
        movl    $stack_top, %esp
        movl    %ebp, %edi
        movl    %ebp, %ebx
        xorl    %ebp, %ebp
        call    cmdline_init
        movl    %ebx, %edi
        call    guest_main
        call    guest_poweroff

        .data
        .balign 8
gdt:
        .quad   0
        .quad   0x00af9b000000ffff      /* 0x08: 64-bit code */
        .quad   0x00cf93000000ffff      /* 0x10: data */
gdt_pointer:
        .word   gdt_pointer - gdt - 1
        .quad   gdt

        .bss
        .balign 4096
pml4:   .skip   4096
pdpt:   .skip   4096
pd:     .skip   4096
        .skip   16384
stack_top:

        .section .note.GNU-stack, "", @progbits
