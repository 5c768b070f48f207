/*
 * A teardown plugin with one thing wrong, chosen by BAD:
 *   1 ABI of another version   2 incomplete ops table   3 name differs from the note
 *   4 no symbol                5 unknown flag           6 named like a shipped one ("single")
 *   7 kind differs             8 declaration too small  9 ops table too small
 *  10 well formed, but its step says it is done without doing anything
 *  11 well formed, but it never makes progress
 */
#include "proto/plugin.h"

#if BAD == 6
#define NAME "single"
#elif BAD == 10
#define NAME "bad-lazy"
#elif BAD == 11
#define NAME "bad-stuck"
#else
#define NAME "bad"
#endif

static int bad_begin(struct mf_zap *z, void *state)
{
    (void)z;
    (void)state;
    return MF_PL_OK;
}

static int bad_step(struct mf_zap *z, void *state, uint32_t budget)
{
    (void)z;
    (void)state;
    (void)budget;
    return BAD == 11 ? MF_PL_AGAIN : MF_PL_OK;
}

static const struct mf_teardown_ops bad_ops = {
    .size = BAD == 9 ? 16 : sizeof(struct mf_teardown_ops),
    .flags = BAD == 5 ? 0x80000000u : 0,
    .begin = bad_begin,
    .step = BAD == 2 ? 0 : bad_step,
};

__attribute__((section(".note.mayfly"), used,
               aligned(4))) static const struct mf_plugin_note_elf bad_note = {
    .namesz = sizeof(MF_PLUGIN_NOTE_NAME),
    .descsz = sizeof(struct mf_plugin_note),
    .type = MF_PLUGIN_NOTE_TYPE,
    .name = MF_PLUGIN_NOTE_NAME,
    .desc = {sizeof(struct mf_plugin_note), BAD == 1 ? MF_PLUGIN_ABI + 1 : MF_PLUGIN_ABI,
             MF_PLUGIN_TEARDOWN, 0, NAME, "0", "has a fault"},
};

#if BAD != 4
__attribute__((visibility("default"))) extern const struct mf_plugin mayfly_plugin;
const struct mf_plugin mayfly_plugin = {
    .size = BAD == 8 ? 8 : sizeof(struct mf_plugin),
    .abi = MF_PLUGIN_ABI,
    .kind = BAD == 7 ? MF_PLUGIN_ALLOCATOR : MF_PLUGIN_TEARDOWN,
    .name = BAD == 3 ? "other" : NAME,
    .ops = {.teardown = &bad_ops},
};
#else
const void *bad_unused(void);
const void *bad_unused(void)
{
    return &bad_ops;
}
#endif
