/* A plugin of qemu (API 1): how many instructions ran, in all and by function.
 *
 * cc -O2 -shared -fPIC count.c -o count.so; qemu-system-arm ... -plugin ./count.so -d plugin -D FILE
 * Distributions leave out the header, so that what is used of it is declared here.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct qemu_info_t qemu_info_t;
enum inline_op { ADD_U64 };

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, enum inline_op, void *,
                                              uint64_t);
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const char *qemu_plugin_insn_symbol(const struct qemu_plugin_insn *);
void qemu_plugin_outs(const char *);

#define PUBLIC __attribute__((visibility("default")))
PUBLIC int qemu_plugin_version = 1;
PUBLIC int qemu_plugin_install(plugin_id id, const qemu_info_t *info, int argc, char **argv);

struct counter {
  struct counter *next;
  uint64_t count;
  char name[200];
};
static struct counter *all;

static struct counter *counter_of(const char *name)
{
  for (struct counter *c = all; c != NULL; c = c->next)
    if (strcmp(c->name, name) == 0) return c;
  struct counter *const c = calloc(1, sizeof *c);
  snprintf(c->name, sizeof c->name, "%s", name);
  c->next = all;
  return all = c;
}

static void translated(plugin_id id, struct qemu_plugin_tb *block)
{
  const char *const name = qemu_plugin_insn_symbol(qemu_plugin_tb_get_insn(block, 0));
  struct counter *const c = counter_of(name != NULL ? name : "?");
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &c->count, qemu_plugin_tb_n_insns(block));
}

static void finished(plugin_id id, void *data)
{
  char line[300];
  (void)id, (void)data;
  for (struct counter *c = all; c != NULL; c = c->next) {
    snprintf(line, sizeof line, "%" PRIu64 " %s\n", c->count, c->name);
    qemu_plugin_outs(line);
  }
}

int qemu_plugin_install(plugin_id id, const qemu_info_t *info, int argc, char **argv)
{
  (void)info, (void)argc, (void)argv;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, finished, NULL);
  return 0;
}
