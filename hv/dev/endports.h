/*
 * Ports by which a guest ends its life and that are nothing else: debug-exit (0xf4) and the reset
 * control of the chipset (0xcf9). And port 0x80, which guests write to pass time. ACPI power-off
 * and the keyboard controller's reset line: dev/chipset.h.
 */
#ifndef MAYFLY_DEV_ENDPORTS_H
#define MAYFLY_DEV_ENDPORTS_H

#include "hv/dev/bus.h"

#define PORT_DEBUG_EXIT 0xf4u
#define PORT_RESET      0xcf9u
#define PORT_DELAY      0x80u

enum end_kind { END_KIND_DEBUG_EXIT, END_KIND_RESET };

struct end_ports;
/* A device of the group, so that each has its own range. */
struct end_port {
    struct bus_device device; /* first */
    struct end_ports *group;
};

struct end_ports {
    struct end_port debug_exit, reset, delay;
    /* The guest asks for its end; on the thread of the vCPU. The access answers BUS_STOP. */
    void (*end)(void *arg, enum end_kind kind, uint64_t code);
    void *arg;
};

/* Claims all its ports; a status of bus_claim_ports. */
enum mf_status end_ports_init(struct end_ports *p, struct bus *b,
                              void (*end)(void *arg, enum end_kind kind, uint64_t code), void *arg);

#endif
