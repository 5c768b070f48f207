/*
 * Reads a plugin's manifest out of the bytes of its file without running any of its code: finds
 * the ELF note that MF_PLUGIN_DECLARE wrote (plugin.h) and checks it. Freestanding; every offset is
 * checked against the buffer, whose content may be hostile.
 */
#ifndef MAYFLY_PLUGIN_NOTE_H
#define MAYFLY_PLUGIN_NOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plugin.h"
#include "status.h"

/* The largest plugin file that anybody here reads. */
#define MF_PLUGIN_FILE_MAX (16u << 20)

static inline uint64_t mf_note_get(const uint8_t *p, unsigned bytes)
{
    uint64_t v = 0;

    for (unsigned i = bytes; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

/* True when the `max` bytes at s hold a zero and nothing but zeros behind it. */
static inline bool mf_note_string_ok(const char *s, size_t max)
{
    size_t i = 0;

    while (i < max && s[i])
        i++;
    if (i == max)
        return false;
    for (; i < max; i++)
        if (s[i])
            return false;
    return true;
}

/* [a-z][a-z0-9-]*, terminated and padded within MF_NAME_MAX. */
static inline bool mf_strategy_name_ok(const char name[MF_NAME_MAX])
{
    if (!mf_note_string_ok(name, MF_NAME_MAX) || name[0] < 'a' || name[0] > 'z')
        return false;
    for (size_t i = 1; name[i]; i++)
        if (!((name[i] >= 'a' && name[i] <= 'z') || (name[i] >= '0' && name[i] <= '9') ||
              name[i] == '-'))
            return false;
    return true;
}

static inline bool mf_note_printable(const char *s, size_t max)
{
    if (!mf_note_string_ok(s, max))
        return false;
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e)
            return false;
    return true;
}

static inline enum mf_status mf_note_check(const struct mf_plugin_note *n, const char **why)
{
    if (n->abi != MF_PLUGIN_ABI) {
        *why = "the plugin was built for another version of the plugin ABI";
        return MF_E_ABI;
    }
    if (n->size != sizeof *n)
        *why = "the note's size is not that of its ABI version";
    else if (n->kind != MF_PLUGIN_ALLOCATOR && n->kind != MF_PLUGIN_TEARDOWN)
        *why = "the note names a kind of plugin that does not exist";
    else if (n->reserved)
        *why = "a reserved field of the note is not zero";
    else if (!mf_strategy_name_ok(n->name))
        *why = "the name in the note is not of the form [a-z][a-z0-9-]*";
    else if (!mf_note_printable(n->version, sizeof n->version))
        *why = "the version in the note is not a printable string";
    else if (!mf_note_printable(n->summary, sizeof n->summary))
        *why = "the summary in the note is not a printable string";
    else
        return MF_OK;
    return MF_E_PLUGIN;
}

/*
 * One PT_NOTE segment. `found` counts Mayfly notes; the last one's first bytes are in *out,
 * whatever its size says (mf_note_check compares). False: the segment is malformed.
 */
static inline bool mf_note_scan(const uint8_t *p, uint64_t n, uint64_t align, unsigned *found,
                                struct mf_plugin_note *out, bool *short_desc)
{
    uint64_t at = 0;

    while (n - at >= 12) {
        uint64_t namesz = mf_note_get(p + at, 4);
        uint64_t descsz = mf_note_get(p + at + 4, 4);
        uint64_t type = mf_note_get(p + at + 8, 4);
        uint64_t desc = (12 + namesz + align - 1) & ~(align - 1);

        if (desc > n - at || descsz > n - at - desc)
            return false;
        if (type == MF_PLUGIN_NOTE_TYPE && namesz == sizeof MF_PLUGIN_NOTE_NAME &&
            !__builtin_memcmp(p + at + 12, MF_PLUGIN_NOTE_NAME, sizeof MF_PLUGIN_NOTE_NAME)) {
            uint8_t *dst = (uint8_t *)out;

            ++*found;
            for (size_t i = 0; i < sizeof *out; i++)
                dst[i] = i < descsz ? p[at + desc + i] : 0;
            *short_desc = descsz < 8;
        }
        desc = (desc + descsz + align - 1) & ~(align - 1);
        at = desc > n - at ? n : at + desc;
    }
    return true;
}

static inline const char *mf_note_check_elf(const uint8_t *buf, size_t size)
{
    if (size < 64)
        return "the file is too short for an ELF file";
    if (buf[0] != 0x7f || buf[1] != 'E' || buf[2] != 'L' || buf[3] != 'F')
        return "the file is not an ELF file";
    if (buf[4] != 2 || buf[5] != 1)
        return "the file is not a 64-bit little-endian ELF file";
    if (mf_note_get(buf + 16, 2) != 3)
        return "the file is not a shared object";
    if (mf_note_get(buf + 18, 2) != 62)
        return "the file is not for x86-64";
    if (mf_note_get(buf + 54, 2) != 56)
        return "the program headers have an unknown size";
    return NULL;
}

/*
 * Finds and checks the manifest in the `size` bytes of a plugin's file. MF_OK: *out is whole and
 * well formed. MF_E_ABI: *out holds what the note says. MF_E_PLUGIN: not a plugin. *why (static
 * string) is set on every failure.
 */
static inline enum mf_status mf_plugin_note_find(const uint8_t *buf, size_t size,
                                                 struct mf_plugin_note *out, const char **why)
{
    unsigned found = 0;
    bool short_desc = false;

    *why = mf_note_check_elf(buf, size);
    if (*why)
        return MF_E_PLUGIN;
    uint64_t phoff = mf_note_get(buf + 32, 8);
    uint64_t phnum = mf_note_get(buf + 56, 2);
    if (phoff > size || phnum * 56 > size - phoff) {
        *why = "the program headers lie outside the file";
        return MF_E_PLUGIN;
    }
    for (uint64_t i = 0; i < phnum; i++) {
        const uint8_t *ph = buf + phoff + i * 56;
        uint64_t off = mf_note_get(ph + 8, 8), n = mf_note_get(ph + 32, 8);

        if (mf_note_get(ph, 4) != 4)
            continue;
        if (off > size || n > size - off ||
            !mf_note_scan(buf + off, n, mf_note_get(ph + 48, 8) == 8 ? 8 : 4, &found, out,
                          &short_desc)) {
            *why = "a note segment lies outside the file or is malformed";
            return MF_E_PLUGIN;
        }
    }
    if (found != 1 || short_desc) {
        *why = !found       ? "the file has no Mayfly plugin note"
               : short_desc ? "the Mayfly plugin note is truncated"
                            : "the file has more than one Mayfly plugin note";
        return MF_E_PLUGIN;
    }
    return mf_note_check(out, why);
}

#endif
