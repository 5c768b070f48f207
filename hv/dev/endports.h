/*
 * The ports by which a guest ends its life: ACPI power-off (0x604), debug-exit (0xf4), the reset
 * line of the keyboard controller (0x64) and of the chipset (0xcf9). And port 0x80, which guests
 * write to pass time.
 */
#ifndef MAYFLY_DEV_ENDPORTS_H
#define MAYFLY_DEV_ENDPORTS_H

#include "hv/dev/bus.h"

#define PORT_ACPI_PM1A  0x604u
#define PORT_DEBUG_EXIT 0xf4u
#define PORT_I8042_DATA 0x60u
#define PORT_I8042_CMD  0x64u
#define PORT_RESET      0xcf9u
#define PORT_DELAY      0x80u

enum end_kind { END_KIND_POWEROFF, END_KIND_DEBUG_EXIT, END_KIND_RESET };

struct end_ports;
/* A device of the group, so that each has its own range. */
struct end_port {
    struct bus_device device; /* first */
    struct end_ports *group;
};

struct end_ports {
    struct end_port acpi, debug_exit, i8042_data, i8042_cmd, reset, delay;
    /* The guest asks for its end; on the thread of the vCPU. The access answers BUS_STOP. */
    void (*end)(void *arg, enum end_kind kind, uint64_t code);
    void *arg;
};

/* Claims all its ports; a status of bus_claim_ports. */
enum mf_status end_ports_init(struct end_ports *p, struct bus *b,
                              void (*end)(void *arg, enum end_kind kind, uint64_t code), void *arg);

#endif
