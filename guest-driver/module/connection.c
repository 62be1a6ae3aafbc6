// SPDX-License-Identifier: GPL-2.0
/*
 * Names of what belongs to a TCP connection.
 *
 * A program gives its descriptor of a connected socket and what the object is (TG_NAME_OF_CONNECTION).
 * Its name has the two ends of the connection, that of the exporter first:
 *
 *   tcp:10.84.0.1:5201-10.84.0.2:33112:WHAT
 *
 * and the driver takes no such name from a program. So only holders of one end export it, and only
 * holders of the other end import it: what two processes need to agree on, without a message,
 * that both are at the ends of this connection. Addresses of other network namespaces could be
 * those of any process; of those no name is made.
 */
#include <linux/file.h>
#include <linux/kernel.h>
#include <linux/net.h>
#include <net/inet_sock.h>
#include <net/ipv6.h>
#include <net/tcp_states.h>

#include "compat.h"
#include "driver.h"

/* Whether it connects two addresses of IPv4, as a socket of IPv6 may, too. */
static bool tg_connection_is_ipv4(const struct sock *sk)
{
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6)
		return ipv6_addr_v4mapped(&sk->sk_v6_daddr);
#endif
	return sk->sk_family == AF_INET;
}

/* The ends of a connection, as a name has them; 0, or -ENOTCONN. */
static int tg_connection_name(const struct sock *sk, bool import, const char *what, u8 name[64])
{
	const struct inet_sock *inet = inet_sk(sk);
	__be32 ends[2];
	u16 ports[2];
	int own = import;

	if (sk->sk_protocol != IPPROTO_TCP || !net_eq(sock_net(sk), &init_net) ||
	    !tg_connection_is_ipv4(sk))
		return -ENOTCONN;
	if (!((1 << READ_ONCE(sk->sk_state)) & (TCPF_ESTABLISHED | TCPF_CLOSE_WAIT |
						TCPF_FIN_WAIT1 | TCPF_FIN_WAIT2)))
		return -ENOTCONN;
	ends[own] = inet->inet_saddr;
	ports[own] = ntohs(inet->inet_sport);
	ends[!own] = inet->inet_daddr;
	ports[!own] = ntohs(inet->inet_dport);
	memset(name, 0, 64);
	snprintf(name, 64, TG_CONNECTION_PREFIX "%pI4:%u-%pI4:%u:%s",
		 &ends[0], ports[0], &ends[1], ports[1], what);
	return 0;
}

/**
 * tg_name_of_connection() - makes the name of what belongs to a connection
 * @name: What it is, a valid name; then its name.
 * @fd: The caller's descriptor of the connection.
 * @import: Whether the caller imports what the other end exports.
 *
 * Return: 0; -EINVAL for anything but up to TG_CONNECTION_WHAT small letters; -EBADF or -ENOTSOCK
 * for the descriptor; -ENOTCONN if that is not a connected TCP socket of IPv4, in the first network
 * namespace.
 */
int tg_name_of_connection(u8 name[64], int fd, bool import)
{
	char what[TG_CONNECTION_WHAT + 1];
	struct socket *socket;
	size_t i;
	int err;

	for (i = 0; name[i]; i++) {
		if (i == TG_CONNECTION_WHAT || name[i] < 'a' || name[i] > 'z')
			return -EINVAL;
	}
	strscpy(what, name, sizeof(what));
	socket = sockfd_lookup(fd, &err);
	if (!socket)
		return err;
	err = tg_connection_name(socket->sk, import, what, name);
	sockfd_put(socket);
	return err;
}
