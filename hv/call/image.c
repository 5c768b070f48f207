/* vm_image: the files that a VM boots from are read one behind the other, each in bounded steps. */
#include <string.h>
#include <unistd.h>

#include "hv/call/call.h"

static void image_end(struct call *c)
{
    if (c->u.image.fd >= 0)
        close(c->u.image.fd);
    c->u.image.fd = -1;
    boot_set_destroy(c->u.image.set, &c->core->vmm.images);
    c->u.image.set = NULL;
}

static void image_abandon(struct call *c)
{
    boot_read_abort(&c->u.image.read);
    image_end(c);
}

static enum mf_status check_lengths(struct call *c, const struct mf_args_vm_image *a)
{
    uint64_t modules = 0;

    if (a->nr_modules > MF_MODULES_MAX)
        return error_set(&c->err, MF_E_RANGE, "nr_modules", "%u, possible are %u", a->nr_modules,
                         MF_MODULES_MAX);
    for (unsigned i = 0; i < MF_MODULES_MAX; i++) {
        if (i >= a->nr_modules && a->module_len[i])
            return error_set(&c->err, MF_E_RESERVED, "module_len", "module %u is not there", i);
        modules += a->module_len[i];
    }
    if (a->cmdline_len >= MF_CMDLINE_MAX)
        return error_set(&c->err, MF_E_RANGE, "cmdline", "%u bytes, possible are %u",
                         a->cmdline_len, MF_CMDLINE_MAX - 1);
    if (modules >= MF_CMDLINE_MAX)
        return error_set(&c->err, MF_E_RANGE, "module_len", "%llu bytes, possible are %u",
                         (unsigned long long)modules, MF_CMDLINE_MAX - 1);
    if (a->setup_len > MF_SETUP_MAX)
        return error_set(&c->err, MF_E_RANGE, "setup_len", "%u bytes, possible are %u",
                         a->setup_len, MF_SETUP_MAX);
    if (a->cmdline_len + modules + a->setup_len != c->req.tail_len)
        return error_set(&c->err, MF_E_SIZE, "cmdline_len",
                         "command lines and setup header have %llu bytes, but %u follow",
                         (unsigned long long)(a->cmdline_len + modules + a->setup_len),
                         c->req.tail_len);
    if (memchr(c->req.tail, 0, a->cmdline_len + (size_t)modules))
        return error_set(&c->err, MF_E_MALFORMED, "cmdline", "the command line has a zero byte");
    return MF_OK;
}

/* The set without its images. */
static enum mf_status make_set(struct call *c, const struct mf_args_vm_image *a)
{
    struct boot_set *s =
        boot_set_create((const char *)c->req.tail, a->cmdline_len, a->nr_modules, a->module_len);

    if (!s)
        return error_set(&c->err, MF_E_NO_MEMORY, "cmdline",
                         "no host memory for the command lines");
    memcpy(s->setup, c->req.tail + c->req.tail_len - a->setup_len, a->setup_len);
    s->setup_len = a->setup_len;
    c->u.image.set = s;
    return MF_OK;
}

/* The next file's read begins; MF_OK: it is over already. */
static enum mf_status begin_file(struct call *c, struct vm *vm, struct boot_image **img)
{
    struct boot_ram ram = boot_ram_layout(vm->config.memory);
    bool kernel = !c->u.image.set->kernel;

    c->u.image.fd = call_take_fd(c);
    if (c->u.image.fd < 0)
        return error_set(&c->err, MF_E_MALFORMED, "fd", "the file of the %s did not come along",
                         kernel ? "kernel" : "next module");
    return boot_read_begin(&c->u.image.read, &c->core->vmm.images, c->u.image.fd,
                           kernel ? BOOT_FILE_KERNEL : BOOT_FILE_MODULE, &ram, img, &c->err);
}

/* A file is read: its image goes into the set. False: that was the last one. */
static bool take_file(struct call *c, struct boot_image *img)
{
    struct boot_set *s = c->u.image.set;

    close(c->u.image.fd);
    c->u.image.fd = -1;
    if (!s->kernel)
        s->kernel = img;
    else
        s->module[c->u.image.have++] = img;
    return c->u.image.have < s->nr_modules;
}

/* Goes on with `st` of the read under way; with MF_OK as long as files come out of the cache. */
static enum mf_status read_files(struct call *c, struct vm *vm, struct boot_image *img,
                                 enum mf_status st)
{
    while (!st && take_file(c, img))
        st = begin_file(c, vm, &img);
    return st;
}

static enum mf_status image_begin(struct call *c, struct vm *vm)
{
    const struct mf_args_vm_image *a = c->req.args;
    struct boot_image *img = NULL;
    enum mf_status st = check_lengths(c, a);

    if (st)
        return st;
    if (!vm_state_off(vm_get_state(vm)))
        return error_set(&c->err, MF_E_STATE, NULL, "the VM is %s: its image cannot change",
                         vm_state_word(vm_get_state(vm)));
    st = make_set(c, a);
    if (st)
        return st;
    c->abandon = image_abandon;
    st = begin_file(c, vm, &img);
    return read_files(c, vm, img, st);
}

enum mf_status handle_VM_IMAGE(struct call *c)
{
    const struct mf_args_vm_image *a = c->req.args;
    struct vm *vm = call_vm(c, c->resumed ? c->u.image.vm : a->vm);
    enum mf_status st;

    if (!c->resumed) {
        if (!vm)
            return MF_E_NOT_FOUND;
        c->u.image.vm = vm->id;
        c->u.image.fd = -1;
        c->u.image.began = host_now_ns();
        st = image_begin(c, vm);
    } else if (!vm) { /* it went meanwhile */
        image_abandon(c);
        return MF_E_NOT_FOUND;
    } else {
        struct boot_image *img = NULL;

        st = boot_read_step(&c->u.image.read, &c->core->vmm.images, &img, &c->err);
        st = read_files(c, vm, img, st);
    }
    if (st == MF_AGAIN)
        return st;
    if (!st)
        st = vm_set_boot(vm, c->u.image.set, host_now_ns() - c->u.image.began, &c->err);
    if (!st)
        c->u.image.set = NULL;
    image_end(c);
    if (!st)
        call_reply(c, sizeof(struct mf_reply_none));
    return st;
}
