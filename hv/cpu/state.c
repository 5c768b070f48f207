#include <string.h>

#include "hv/cpu/engine.h"

static struct cpu_segment real_segment(uint16_t selector, uint64_t base, unsigned type)
{
    return (struct cpu_segment){selector, (uint16_t)(type | CPU_SEG_S | CPU_SEG_P), 0xffff, base};
}

void cpu_state_reset(struct cpu_state *s)
{
    memset(s, 0, sizeof *s);
    for (unsigned n = 0; n < CPU_SEGS; n++)
        s->seg[n] = real_segment(0, 0, 3);
    s->seg[CPU_CS] = real_segment(0xf000, 0xffff0000, 0xb);
    s->ldtr = (struct cpu_segment){0, CPU_SEG_P | 2, 0xffff, 0};
    s->tr = (struct cpu_segment){0, CPU_SEG_P | 0xb, 0xffff, 0};
    s->gdt_limit = s->idt_limit = 0xffff;
    s->rip = 0xfff0;
    s->rflags = 2;
    s->cr0 = 0x60000010;
    s->dr[6] = 0xffff0ff0;
    s->dr[7] = 0x400;
    s->pat = UINT64_C(0x0007040600070406);
    s->apic_base = 0xfee00900;
    s->fx[0] = 0x7f; /* FCW 0x037f, MXCSR 0x1f80 */
    s->fx[1] = 0x03;
    s->fx[24] = 0x80;
    s->fx[25] = 0x1f;
    s->fx[28] = s->fx[29] = 0xff; /* bits of MXCSR that exist */
}
