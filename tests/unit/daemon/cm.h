/* cmocka with what it needs in front. */
#ifndef TESTS_UNIT_DAEMON_CM_H
#define TESTS_UNIT_DAEMON_CM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
