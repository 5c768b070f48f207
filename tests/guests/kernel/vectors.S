/* Entries of the interrupt table, the way into ring 3 and back. */

/* One stub of 16 bytes for each of the first 32 vectors: makes the frames alike. */
        .text
        .balign 16
        .globl  vector_stubs
vector_stubs:
        .set    vec, 0
        .rept   32
        .balign 16
        .if     (vec == 8) || (vec == 10) || (vec == 11) || (vec == 12) || (vec == 13) || (vec == 14) || (vec == 17)
        .else
        pushq   $0
        .endif
        pushq   $vec
        jmp     common
        .set    vec, vec + 1
        .endr

/* Interrupts of devices: 16 vectors from 0x30 on. */
        .balign 16
        .globl  vector_stubs_irq
vector_stubs_irq:
        .set    vec, 0x30
        .rept   16
        .balign 16
        pushq   $0
        pushq   $vec
        jmp     common
        .set    vec, vec + 1
        .endr

        .balign 16
        .globl  vector_stub_user
vector_stub_user:
        pushq   $0
        pushq   $0x80

common:
        pushq   %rax
        pushq   %rbx
        pushq   %rcx
        pushq   %rdx
        pushq   %rsi
        pushq   %rdi
        pushq   %rbp
        pushq   %r8
        pushq   %r9
        pushq   %r10
        pushq   %r11
        pushq   %r12
        pushq   %r13
        pushq   %r14
        pushq   %r15
        cld
        movq    %rsp, %rdi
        call    trap_entry
        popq    %r15
        popq    %r14
        popq    %r13
        popq    %r12
        popq    %r11
        popq    %r10
        popq    %r9
        popq    %r8
        popq    %rbp
        popq    %rdi
        popq    %rsi
        popq    %rdx
        popq    %rcx
        popq    %rbx
        popq    %rax
        addq    $16, %rsp
        iretq

/* user_enter(rip, rsp): runs ring 3 code until a trap goes to user_leave, which returns here. */
        .globl  user_enter
user_enter:
        pushq   %rbx
        pushq   %rbp
        pushq   %r12
        pushq   %r13
        pushq   %r14
        pushq   %r15
        movq    %rsp, kernel_rsp
        pushq   $0x1b
        pushq   %rsi
        pushq   $0x2
        pushq   $0x23
        pushq   %rdi
        iretq
        .globl  user_leave
user_leave:
        movq    kernel_rsp, %rsp
        popq    %r15
        popq    %r14
        popq    %r13
        popq    %r12
        popq    %rbp
        popq    %rbx
        ret

/* stack_gone(bad_rsp): takes an exception on a stack that cannot be written. */
        .globl  stack_gone
stack_gone:
        movq    %rsp, trap_resume_rsp
        movq    $stack_back, trap_resume
        movq    %rdi, %rsp
        ud2
stack_back:
        ret

/*
 * Runs in ring 3: a call with arguments, a read of kernel memory, a privileged instruction, then
 * a call that ends it. RBX counts the traps that came back.
 */
        .globl  user_code, user_code_end
user_code:
        movl    $1, %eax
        movl    $0x1234, %edi
        int     $0x80
        movq    %rax, %rsi              /* what the kernel answered */
        movl    $2, %eax
        movq    %rsp, %rdi
        pushq   %rsi
        popq    %rdx
        int     $0x80
        movl    $0x100000, %ecx
        movb    (%rcx), %al             /* #PF, user, present: skipped by the kernel (2 bytes) */
        hlt                             /* #GP: skipped by the kernel (1 byte) */
        movl    $3, %eax
        int     $0x80
        ud2
user_code_end:

/*
 * Where a further CPU starts: copied to the page that SIPI names, in real mode with CS there. The
 * words at its end are filled by ap_prepare.
 */
        .globl  ap_blob, ap_blob_end, ap_blob_data
        .code16
ap_blob:
        cli
        movw    %cs, %ax
        movw    %ax, %ds
        lgdtl   ap_gdt - ap_blob
        movl    ap_cr4 - ap_blob, %eax
        movl    %eax, %cr4
        movl    ap_cr3 - ap_blob, %eax
        movl    %eax, %cr3
        movl    $0xc0000080, %ecx
        movl    ap_efer - ap_blob, %eax
        xorl    %edx, %edx
        wrmsr
        movl    ap_rsp - ap_blob, %ebp
        movl    $0x80010031, %eax
        movl    %eax, %cr0
        ljmpl   $0x08, $ap_long
        .balign 4
ap_blob_data:
ap_rsp:  .long  0
ap_cr3:  .long  0
ap_cr4:  .long  0
ap_efer: .long  0
ap_gdt:  .word  0
         .long  0
ap_blob_end:

        .code64
ap_long:
        movl    $0x10, %eax
        movl    %eax, %ds
        movl    %eax, %es
        movl    %eax, %ss
        movl    %ebp, %esp
        xorl    %ebp, %ebp
        lidt    idt_pointer
        call    ap_main
        ud2

        .bss
        .balign 8
kernel_rsp:
        .skip   8
        .section .note.GNU-stack, "", @progbits
