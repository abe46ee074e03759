// kernels/hmi_kernels/modules/modules.cu compiled for the CPU: the threads of a block run one after another, in either
// direction, and shared memory begins with rubbish, as on a device.

#include <cmath>
#include "twin.h"

#include "modules.cu"

// What ops.py takes these to be.
static_assert(sizeof(Change) == 8 * CHANGE_WORDS && sizeof(Piece) == 8 * PIECE_WORDS);
static_assert(ROWS == HOST_ROWS && COLS == HOST_COLS);
static_assert(RELU == HOST_RELU && SILU == HOST_SILU);

extern "C" void module_down(i64 blocks, i64 threads, i64 backwards, const Change* changes, const Piece* pieces,
                            i64 chunks, void* x, i64 x_kind, i64 x_stride, i64 size_in, i64 kind, void* h,
                            i64 h_stride) {
    for (i64 b = 0; b < blocks; b++) {
        Tile tile;
        std::memset(&tile, 0xA5, sizeof tile);
        go_down(changes, pieces, b / chunks, b % chunks, Matrix{x, x_kind, x_stride}, size_in, kind,
                Matrix{h, FLOAT, h_stride}, CpuBlock{(int)threads, backwards != 0}, tile);
    }
}

extern "C" void module_up(i64 blocks, i64 threads, i64 backwards, const Change* changes, const Piece* pieces,
                          i64 chunks, void* h, i64 h_stride, i64 size_out, i64 kind, void* y, i64 y_kind,
                          i64 y_stride) {
    for (i64 b = 0; b < blocks; b++) {
        Tile tile;
        std::memset(&tile, 0xA5, sizeof tile);
        go_up(changes, pieces, b / chunks, b % chunks, Matrix{h, FLOAT, h_stride}, size_out, kind,
              Matrix{y, y_kind, y_stride}, CpuBlock{(int)threads, backwards != 0}, tile);
    }
}
