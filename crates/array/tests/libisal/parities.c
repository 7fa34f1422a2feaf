/* Parities as ISA-L makes them, with its Cauchy matrix. For each set on the standard input (numbers of shards
 * of data and of parity, and bytes of a shard, as 32-bit words of the machine; then the shards of data) the
 * parities go to the standard output. */
#include <isa-l/erasure_code.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { MEMBERS_MAX = 32 };

static void fail(const char *why)
{
    fprintf(stderr, "parities: %s\n", why);
    exit(1);
}

int main(void)
{
    static unsigned char matrix[MEMBERS_MAX * MEMBERS_MAX], tables[32 * MEMBERS_MAX * MEMBERS_MAX];
    uint32_t set[3];
    while (fread(set, sizeof set, 1, stdin) == 1) {
        uint32_t data = set[0], parities = set[1], bytes = set[2];
        unsigned char *shards[MEMBERS_MAX];
        if (data == 0 || parities == 0 || data > MEMBERS_MAX || parities > MEMBERS_MAX - data)
            fail("no such set");
        for (uint32_t shard = 0; shard < data + parities; shard++) {
            if (!(shards[shard] = malloc(bytes)))
                fail("out of memory");
            if (shard < data && fread(shards[shard], 1, bytes, stdin) != bytes)
                fail("the data ends early");
        }
        gf_gen_cauchy1_matrix(matrix, data + parities, data);
        ec_init_tables(data, parities, matrix + data * data, tables);
        ec_encode_data(bytes, data, parities, tables, shards, shards + data);
        for (uint32_t shard = 0; shard < data + parities; shard++) {
            if (shard >= data && fwrite(shards[shard], 1, bytes, stdout) != bytes)
                fail("the parities cannot be written");
            free(shards[shard]);
        }
        if (fflush(stdout) != 0)
            fail("the parities cannot be written");
    }
    return 0;
}
