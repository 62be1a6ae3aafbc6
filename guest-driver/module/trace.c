// SPDX-License-Identifier: GPL-2.0
/* The code of the tracepoints. */
#include "driver.h"

#define CREATE_TRACE_POINTS
#include "trace.h"
