/*
 * What the checked process may ask of the operating system: little while the plugin is loaded, and
 * afterwards only memory, time and the other thread. Anything else raises SIGSYS. Not in a
 * sanitizer build, whose runtime asks for more.
 */
#ifndef MAYFLY_CONFORM_SANDBOX_H
#define MAYFLY_CONFORM_SANDBOX_H

#include <stdbool.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CONFORM_SANITIZED 1
#else
#define CONFORM_SANITIZED 0
#endif

/* Both for all threads. False: errno. */
bool sandbox_loading(void);
bool sandbox_running(void);

#endif
