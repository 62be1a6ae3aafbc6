// SPDX-License-Identifier: MIT OR Apache-2.0
// A ring and an all-to-all, for any MPI; what arrives is compared with what was sent. Rank 0 prints what they took.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 50
#define BLOCK 16384
#define EXCHANGES 22
// Of these, the first pay for what is done once for a connection.
#define UNTIMED 2

static int rank, size, errors;

static void expect(const char *what, long value, long expected)
{
	if (value == expected)
		return;
	if (errors++ < 5)
		fprintf(stderr, "rank %d: %s is %ld, expected %ld\n", rank, what, value, expected);
}

// A number goes round; each rank adds its own. Microseconds from a rank to the next.
static double ring(void)
{
	int next = (rank + 1) % size, previous = (rank + size - 1) % size, round;
	long number = 0, sum = (long)size * (size - 1) / 2;
	double begun = MPI_Wtime();

	for (round = 0; round < ROUNDS; round++) {
		if (rank == 0) {
			MPI_Send(&number, 1, MPI_LONG, next, round, MPI_COMM_WORLD);
			MPI_Recv(&number, 1, MPI_LONG, previous, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			expect("the number after a round", number, (round + 1) * sum);
		} else {
			MPI_Recv(&number, 1, MPI_LONG, previous, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			number += rank;
			MPI_Send(&number, 1, MPI_LONG, next, round, MPI_COMM_WORLD);
		}
	}
	return (MPI_Wtime() - begun) * 1e6 / ROUNDS / size;
}

static int word(int from, int to, int exchange, int at)
{
	return ((from * 64 + to) * 64 + exchange) * 7919 + at;
}

// Every rank sends a block to each. Milliseconds of an exchange.
static double all_to_all(void)
{
	int *out = malloc(sizeof(int) * BLOCK * size), *in = malloc(sizeof(int) * BLOCK * size);
	double took = 0;
	int exchange, other, i;

	if (!out || !in)
		MPI_Abort(MPI_COMM_WORLD, 2);
	for (exchange = 0; exchange < EXCHANGES; exchange++) {
		for (other = 0; other < size; other++)
			for (i = 0; i < BLOCK; i++) {
				out[other * BLOCK + i] = word(rank, other, exchange, i);
				in[other * BLOCK + i] = -1;
			}
		MPI_Barrier(MPI_COMM_WORLD);
		if (exchange == UNTIMED)
			took = 0;
		took -= MPI_Wtime();
		MPI_Alltoall(out, BLOCK, MPI_INT, in, BLOCK, MPI_INT, MPI_COMM_WORLD);
		took += MPI_Wtime();
		for (other = 0; other < size; other++)
			for (i = 0; i < BLOCK; i++)
				expect("a word of the all-to-all", in[other * BLOCK + i], word(other, rank, exchange, i));
	}
	free(out);
	free(in);
	return took * 1e3 / (EXCHANGES - UNTIMED);
}

int main(int argc, char **argv)
{
	int all = 0;
	double hop, exchange;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	expect("the number of ranks", size, argc > 1 ? atoi(argv[1]) : 0);
	hop = ring();
	exchange = all_to_all();
	MPI_Allreduce(&errors, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0 && !all)
		printf("RING %.1f\nALLTOALL %.1f\n", hop, exchange);
	MPI_Finalize();
	return all ? 1 : 0;
}
