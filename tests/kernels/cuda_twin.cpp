// kernels/hmi_kernels/lookup/lookup.cu compiled for the CPU: the threads of a block run one after another, in either direction, and
// shared memory begins with rubbish, as on a device.

#include "twin.h"

#include "lookup.cu"

// What kernels/hmi_kernels/lookup/cuda_upload.py and kernels/hmi_kernels/lookup/cuda.py take these to be.
static_assert(sizeof(Table) == 8 * TABLE_WORDS && sizeof(Step) == 8 * STEP_WORDS);
static_assert(sizeof(Level) == 8 * LEVEL_WORDS && sizeof(Segment) == 8 * SEGMENT_WORDS);
static_assert(TILE == HOST_TILE);

extern "C" void launch(i64 blocks, i64 threads, i64 backwards, const Table* table, const int* tokens, i64 total,
                       const i64* offsets, i64 texts, i64 vocab, void* out, i64 half, i64 wide, signed char* order,
                       short* depth, int* wrong) {
    const Batch batch = {tokens, total, offsets, texts, vocab, out, half, wide, order, depth, wrong};
    for (i64 index = 0; index < blocks; index++) {
        Tile shared;
        std::memset(&shared, 0xA5, sizeof shared);
        look_up_all(*table, batch, index, blocks, CpuBlock{(int)threads, backwards != 0}, shared);
    }
}
