// kernels/hmi_kernels/modules/modules.cu compiled for the CPU: the threads of a block run one after another, in either
// direction, and shared memory begins with rubbish, as on a device.

#include <cmath>
#include <vector>

#include "twin.h"

#include "modules.cu"

// The threads of a block run one after another, in either direction; what each keeps lies in an array.
struct Block {
    int threads;
    bool backwards;
    template <class T>
    struct Own {
        std::vector<T> all;
        explicit Own(const Block& block) : all(block.threads) { std::memset(all.data(), 0xA5, sizeof(T) * all.size()); }
        T& operator[](int thread) { return all.at(thread); }
    };
    template <class Phase>
    void each(Phase phase) const {
        for (int t = 0; t < threads; t++) phase(backwards ? threads - 1 - t : t);
    }
    template <class Phase>
    void run(Phase phase) const {
        each(phase);
    }
    template <class T, class Part>
    float of(const Own<T>& own, int thread, Part T::* part, int i) const {
        return (own.all.at(thread).*part).number(i);
    }
};

// What ops.py takes these to be.
static_assert(sizeof(Change) == 8 * CHANGE_WORDS && sizeof(Piece) == 8 * PIECE_WORDS);
static_assert(sizeof(Copy) == 8 * COPY_WORDS && COPY_THREADS == HOST_COPY_THREADS);
static_assert(ROWS == HOST_ROWS && RANKS == HOST_RANKS && ABREAST * COLS == HOST_COLS);
static_assert(RELU == HOST_RELU && SILU == HOST_SILU && BFLOAT == HOST_BFLOAT && FLOAT == HOST_FLOAT);
static_assert(DOWN_THREADS == HOST_DOWN_THREADS && UP_THREADS == HOST_UP_THREADS);

extern "C" void module_down(i64 blocks, i64 backwards, const Change* changes, const Piece* pieces, i64 chunks, void* x,
                            i64 x_kind, i64 x_stride, i64 size_in, i64 kind, void* h, i64 h_stride) {
    for (i64 b = 0; b < blocks; b++) {
        Shared shared;
        std::memset(&shared, 0xA5, sizeof shared);
        go_down(changes, pieces, b / chunks, b % chunks, Matrix{x, x_kind, x_stride}, size_in, kind,
                Matrix{h, FLOAT, h_stride}, Block{DOWN_THREADS, backwards != 0}, shared);
    }
}

extern "C" void module_up(i64 blocks, i64 backwards, const Change* changes, const Piece* pieces, i64 chunks, void* h,
                          i64 h_stride, i64 size_out, i64 kind, void* y, i64 y_kind, i64 y_stride) {
    for (i64 b = 0; b < blocks; b++) {
        go_up(changes, pieces, b / chunks, b % chunks, Matrix{h, FLOAT, h_stride}, size_out, kind,
              Matrix{y, y_kind, y_stride}, Block{UP_THREADS, backwards != 0});
    }
}

extern "C" void module_copy(i64 blocks, i64 backwards, const Copy* copies, i64 shares) {
    for (i64 b = 0; b < blocks; b++)
        go_copy(copies[b / shares], b % shares, shares, Block{COPY_THREADS, backwards != 0});
}
