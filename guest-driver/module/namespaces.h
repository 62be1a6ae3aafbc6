/* SPDX-License-Identifier: GPL-2.0 */
/* The namespaces of the symbols exported to telegraphos_lab.ko, and to clients. */
#ifndef TELEGRAPHOS_NAMESPACES_H
#define TELEGRAPHOS_NAMESPACES_H

#include <linux/export.h>

#ifdef TG_NAMESPACE_IS_TOKEN
#define TG_LAB_NS TELEGRAPHOS_LAB
#define TG_CLIENT_NS TELEGRAPHOS_CLIENT
#else
#define TG_LAB_NS "TELEGRAPHOS_LAB"
#define TG_CLIENT_NS "TELEGRAPHOS_CLIENT"
#endif

#endif /* TELEGRAPHOS_NAMESPACES_H */
