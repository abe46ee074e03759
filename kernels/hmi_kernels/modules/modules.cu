// Tenants' low-rank changes on packed rows: y += up · act(down · x + bias) + bias, each segment of rows with weights of
// its own, of any rank. Weights, x and y are bfloat16 or float; sums are float.
//
//   module_down   h = act(down · x + bias), in scratch memory. A block takes ROWS rows and RANKS ranks, a warp of it
//                 every WARPS-th group of GROUP numbers of the sum, by matrix instructions; then the warps' sums meet.
//   module_up     y += up · h + bias. A block takes ROWS rows, a thread of it TALL of them and COLS columns.
//
//   module_copy   modules from the host's pinned memory to the device's, many at once: the host would take longer to
//                 ask for each than the bus takes to carry it.
//
// All are bound by memory, so a thread asks for many bytes at once, wherever addresses and sizes allow it.
// The tests also compile this file for the CPU, so it includes nothing, and threads communicate only through the
// block: `run` ends with a barrier, `each` does not, and `Own` is what a thread keeps in its registers.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr int ROWS = 16, RANKS = 32;
constexpr int TALL = 8, COLS = 4;  // rows and columns of a thread of module_up
constexpr int WARP = 32, WARPS = 8, DOWN_THREADS = WARP * WARPS;
constexpr int ABREAST = 96, UP_THREADS = ABREAST * (ROWS / TALL);  // ABREAST: threads side by side
constexpr int DEEP = 4, COPY_THREADS = 256;  // DEEP: packs that a thread of module_copy asks for at once
constexpr int GROUP = 32;      // numbers of a sum that a warp multiplies at once: 8 for each of 4 threads of a row
constexpr int TILE = 8;        // ranks of one matrix instruction
constexpr int TILES = RANKS / TILE;
constexpr int ANY = -1, BFLOAT = 0, FLOAT = 1;
constexpr int RELU = 1, SILU = 2;

#ifdef __CUDACC__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL
#endif

// The structs that ops.py writes. Every field has 8 bytes; addresses are the device's.
struct Change {  // of one segment at one site
    const void *down, *up;            // [rank, in] and [out, rank]
    const void *down_bias, *up_bias;  // [rank] and [out]; null: none
    i64 rank, activation;             // rank 0: the segment has no change here
};
struct Piece {  // up to ROWS rows of one segment
    i64 change, begin, end;
};
struct Copy {  // of bytes that begin at multiples of 16, as many as a multiple of 16
    const void* from;
    void* to;
    i64 bytes;
};
struct Matrix {
    void* at;
    i64 kind, stride;  // stride: numbers from one row to the next
};

// The sums of a block of module_down, of each warp.
struct Shared {
    float sum[WARPS][ROWS][RANKS + 1];  // padded, so that neighbouring rows lie in different banks
};

// --- numbers -----------------------------------------------------------------------------------------------------

template <class Number, int N>
struct alignas(sizeof(Number) * N) Pack {  // read or written with one instruction
    Number at[N];
};

__device__ i64 size_of(i64 kind) { return kind == FLOAT ? 4 : 2; }

__device__ void* shifted(const void* at, i64 kind, i64 index) { return (char*)at + index * size_of(kind); }

// Whether all rows of `stride` numbers begin at a multiple of 16 bytes.
__device__ bool even(const void* at, i64 kind, i64 stride) {
    return (u64)at % 16 == 0 && stride * size_of(kind) % 16 == 0;
}

__device__ float from_bfloat(u32 bits) { return __uint_as_float(bits << 16); }

// The nearest bfloat, ties to even.
__device__ u32 to_bfloat(float value) {
    const u32 bits = __float_as_uint(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bits >> 16 | 0x40u;  // stays a NaN
    return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}

// Two bfloats in one word, the first in its lower half.
__device__ u32 two_bfloats(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
#else
    return to_bfloat(first) | to_bfloat(second) << 16;
#endif
}

__device__ float load(const void* at, i64 kind, i64 index) {
    return kind == FLOAT ? ((const float*)at)[index] : from_bfloat(((const u16*)at)[index]);
}

// Four numbers from `index` on. KIND: theirs, which are read at once; ANY: `kind` is theirs, and of those beyond the
// first `count` 0 is read.
template <i64 KIND>
__device__ Pack<float, 4> four(const void* at, i64 kind, int index, int count) {
    Pack<float, 4> found = {};
    if constexpr (KIND == FLOAT) return *(const Pack<float, 4>*)((const float*)at + index);
    if constexpr (KIND == BFLOAT) {
        const auto bits = *(const Pack<u16, 4>*)((const u16*)at + index);
        UNROLL for (int i = 0; i < 4; i++) found.at[i] = from_bfloat(bits.at[i]);
    }
    if constexpr (KIND == ANY) {
        for (int i = 0; i < 4; i++) if (i < count) found.at[i] = load(at, kind, index + i);
    }
    return found;
}

// Write what `four` reads.
template <i64 KIND>
__device__ void put_four(void* at, i64 kind, int index, int count, const Pack<float, 4>& values) {
    if constexpr (KIND == FLOAT) *(Pack<float, 4>*)((float*)at + index) = values;
    if constexpr (KIND == BFLOAT) {
        const auto v = values.at;
        *(Pack<u32, 2>*)((u16*)at + index) = {{two_bfloats(v[0], v[1]), two_bfloats(v[2], v[3])}};
    }
    if constexpr (KIND == ANY) {
        for (int i = 0; i < 4; i++) {
            if (i >= count) continue;
            if (kind == FLOAT) ((float*)at)[index + i] = values.at[i];
            else ((u16*)at)[index + i] = (u16)to_bfloat(values.at[i]);
        }
    }
}

// Eight numbers as a product takes them.
template <bool BFLOATS>
struct Eight {
    float at[8];
    __device__ float number(int i) const { return at[i]; }
};
template <>
struct Eight<true> {
    u32 at[4];
    __device__ float number(int i) const { return from_bfloat(at[i / 2] >> 16 * (i % 2) & 0xFFFFu); }
};

// Eight numbers from `index` on, read as by `four`.
template <bool BFLOATS, i64 KIND>
__device__ Eight<BFLOATS> eight(const void* at, i64 kind, int index, int count) {
    Eight<BFLOATS> found;
    if constexpr (BFLOATS && KIND == BFLOAT) {
        const auto bits = *(const Pack<u32, 4>*)((const u16*)at + index);
        UNROLL for (int i = 0; i < 4; i++) found.at[i] = bits.at[i];
    } else {
        const Pack<float, 4> both[2] = {four<KIND>(at, kind, index, count),
                                        four<KIND>(at, kind, index + 4, count - 4)};
        if constexpr (BFLOATS) {
            UNROLL for (int i = 0; i < 4; i++)
                found.at[i] = two_bfloats(both[i / 2].at[i % 2 * 2], both[i / 2].at[i % 2 * 2 + 1]);
        } else {
            UNROLL for (int i = 0; i < 8; i++) found.at[i] = both[i / 4].at[i % 4];
        }
    }
    return found;
}

__device__ float activated(float value, i64 activation) {
    if (activation == RELU) return value < 0.0f ? 0.0f : value;  // a NaN stays one
    return activation == SILU ? value / (1.0f + expf(-value)) : value;
}

// --- down --------------------------------------------------------------------------------------------------------

// A warp's product of 16 rows and 8 ranks has the layout of the matrix instruction m16n8k16: thread 4 g + t holds
// the sums of the rows g and g + 8 and the ranks 2 t and 2 t + 1. Its eight numbers of each row, and of rank g, are
// those from 8 t on. The instruction would order them otherwise, but a sum has no order.
struct Sums {
    float at[TILES][4];
};
template <bool BFLOATS>
struct Parts {
    Eight<BFLOATS> top, bottom, rank;  // rows g and g + 8, rank g
};

// sums[tile] += rows · ranks, by exchanging numbers between the threads of a warp.
template <bool BFLOATS, class Block, class Own, class OwnParts>
__device__ void multiply_plainly(const Block& block, Own& sums, const OwnParts& parts, int tile) {
    block.each([&](int thread) {
        const int lane = thread % WARP, first = thread - lane, row = lane / 4, rank = lane % 4 * 2;
        float* sum = sums[thread].at[tile];
        for (int from = 0; from < 4; from++) {
            UNROLL for (int i = 0; i < 8; i++) {
                const float top = block.of(parts, first + row * 4 + from, &Parts<BFLOATS>::top, i);
                const float bottom = block.of(parts, first + row * 4 + from, &Parts<BFLOATS>::bottom, i);
                UNROLL for (int j = 0; j < 2; j++) {
                    const float w = block.of(parts, first + (rank + j) * 4 + from, &Parts<BFLOATS>::rank, i);
                    sum[j] += top * w;
                    sum[2 + j] += bottom * w;
                }
            }
        }
    });
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// The same by two matrix instructions.
__device__ void multiply(float* sum, const Parts<true>& p) {
    UNROLL for (int i = 0; i < 4; i += 2)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(p.top.at[i]), "r"(p.bottom.at[i]), "r"(p.top.at[i + 1]), "r"(p.bottom.at[i + 1]),
              "r"(p.rank.at[i]), "r"(p.rank.at[i + 1]));
}
#endif

template <bool BFLOATS, class Block, class Own, class OwnParts>
__device__ void multiply(const Block& block, Own& sums, const OwnParts& parts, int tile) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (BFLOATS) {
        multiply(sums[0].at[tile], parts[0]);
        return;
    }
#endif
    multiply_plainly<BFLOATS>(block, sums, parts, tile);
}

// h [rows, stride] = act(down · x + bias) of one piece, ranks first .. first + RANKS. W and X: how `down` and x are read.
// BFLOATS: `down` is of bfloats, to which x is rounded.
template <i64 W, i64 X, bool BFLOATS, class Block>
__device__ void go_down(const Piece& piece, const Change& change, i64 first, const Matrix& x, i64 depth, i64 kind,
                        const Matrix& h, const Block& block, Shared& shared) {
    const int ranks = (int)(change.rank - first < RANKS ? change.rank - first : RANKS);
    const int last = (int)(piece.end - piece.begin) - 1, stride = (int)x.stride, deep = (int)depth;
    const void *from = shifted(x.at, x.kind, piece.begin * x.stride), *down = shifted(change.down, kind, first * depth);
    typename Block::template Own<Sums> sums(block);
    typename Block::template Own<Parts<BFLOATS>> parts(block);
    block.each([&](int thread) {
        UNROLL for (int i = 0; i < TILES * 4; i++) sums[thread].at[i / 4][i % 4] = 0.0f;
    });
    for (int begin = 0; begin < deep; begin += GROUP * WARPS) {
        block.each([&](int thread) {
            const int k = begin + thread / WARP * GROUP + thread % 4 * 8, row = thread % WARP / 4, left = deep - k;
            parts[thread] = {};
            if (left <= 0) return;
            // Beyond the piece's last row that row again: what becomes of it is not stored.
            const int top = row < last ? row : last, bottom = row + 8 < last ? row + 8 : last;
            parts[thread].top = eight<BFLOATS, X>(from, x.kind, top * stride + k, left);
            parts[thread].bottom = eight<BFLOATS, X>(from, x.kind, bottom * stride + k, left);
        });
        UNROLL for (int tile = 0; tile < TILES; tile++) {
            if (tile * TILE >= ranks) continue;  // the same for all threads of the block
            block.each([&](int thread) {
                const int k = begin + thread / WARP * GROUP + thread % 4 * 8, wanted = tile * TILE + thread % WARP / 4;
                const int rank = wanted < ranks ? wanted : ranks - 1;
                if (k < deep) parts[thread].rank = eight<BFLOATS, W>(down, kind, rank * deep + k, deep - k);
            });
            multiply<BFLOATS>(block, sums, parts, tile);
        }
    }
    block.run([&](int thread) {
        const int row = thread % WARP / 4, rank = thread % 4 * 2;
        UNROLL for (int i = 0; i < TILES * 4; i++) {
            const int column = i / 4 * TILE + rank + i % 2;
            shared.sum[thread / WARP][row + i % 4 / 2 * 8][column] = sums[thread].at[i / 4][i % 4];
        }
    });
    block.run([&](int thread) {
        for (int i = thread; i < ROWS * RANKS; i += DOWN_THREADS) {
            const int row = i / RANKS, column = i % RANKS;
            if (row > last || column >= ranks) continue;
            float sum = change.down_bias ? load(change.down_bias, kind, first + column) : 0.0f;
            UNROLL for (int warp = 0; warp < WARPS; warp++) sum += shared.sum[warp][row][column];
            ((float*)h.at)[(piece.begin + row) * h.stride + first + column] = activated(sum, change.activation);
        }
    });
}

template <class Block>
__device__ void go_down(const Change* changes, const Piece* pieces, i64 piece_index, i64 chunk, const Matrix& x,
                        i64 depth, i64 kind, const Matrix& h, const Block& block, Shared& shared) {
    const Piece piece = pieces[piece_index];
    const Change change = changes[piece.change];
    const i64 first = chunk * RANKS;
    if (first >= change.rank) return;  // the same for all threads of the block
    const bool all = even(x.at, x.kind, x.stride) && even(change.down, kind, depth) && depth % 8 == 0;
    if (all && kind == BFLOAT && x.kind == BFLOAT)
        go_down<BFLOAT, BFLOAT, true>(piece, change, first, x, depth, kind, h, block, shared);
    else if (all && kind == BFLOAT)
        go_down<BFLOAT, FLOAT, true>(piece, change, first, x, depth, kind, h, block, shared);
    else if (all && x.kind == FLOAT)
        go_down<FLOAT, FLOAT, false>(piece, change, first, x, depth, kind, h, block, shared);
    else if (kind == BFLOAT)
        go_down<ANY, ANY, true>(piece, change, first, x, depth, kind, h, block, shared);
    else
        go_down<ANY, ANY, false>(piece, change, first, x, depth, kind, h, block, shared);
}

// --- up ----------------------------------------------------------------------------------------------------------

// y += up · h + bias of the first `live` of TALL rows, columns col .. col + COLS. W and Y: how `up` and y are read.
template <i64 W, i64 Y>
__device__ void add_columns(const Change& change, i64 row, i64 live, i64 col, const Matrix& h, i64 size_out, i64 kind,
                            const Matrix& y) {
    constexpr i64 H = W == ANY ? ANY : FLOAT;
    const int last = (int)live - 1, rank = (int)change.rank, count = (int)(size_out - col);
    const int stride = (int)y.stride, deep = (int)h.stride;
    const void *from = shifted(h.at, FLOAT, row * h.stride), *up = shifted(change.up, kind, col * rank);
    void* to = shifted(y.at, y.kind, row * y.stride + col);
    Pack<float, 4> sum[TALL];  // begins as y, so that all of it is asked for at once
    UNROLL for (int r = 0; r < TALL; r++) sum[r] = four<Y>(to, y.kind, (r < last ? r : last) * stride, count);
    if (change.up_bias) {
        const auto bias = four<ANY>(shifted(change.up_bias, kind, col), kind, 0, count);
        UNROLL for (int r = 0; r < TALL; r++)
            UNROLL for (int c = 0; c < COLS; c++) sum[r].at[c] += bias.at[c];
    }
    for (int k = 0; k < rank; k += 4) {
        Pack<float, 4> w[COLS];
        UNROLL for (int c = 0; c < COLS; c++)
            w[c] = four<W>(up, kind, c * rank + k, c < count ? rank - k : 0);
        UNROLL for (int r = 0; r < TALL; r++) {
            const auto its = four<H>(from, FLOAT, (r < last ? r : last) * deep + k, rank - k);
            UNROLL for (int c = 0; c < COLS; c++)
                UNROLL for (int i = 0; i < 4; i++) sum[r].at[c] += its.at[i] * w[c].at[i];
        }
    }
    UNROLL for (int r = 0; r < TALL; r++)
        if (r <= last) put_four<Y>(to, y.kind, r * stride, count, sum[r]);
}

// y += up · h + bias of one piece, the columns of a block's threads.
template <class Block>
__device__ void go_up(const Change* changes, const Piece* pieces, i64 piece_index, i64 chunk, const Matrix& h,
                      i64 size_out, i64 kind, const Matrix& y, const Block& block) {
    const Piece piece = pieces[piece_index];
    const Change change = changes[piece.change];
    if (change.rank == 0) return;
    const bool rows = even(y.at, y.kind, y.stride) && even(h.at, FLOAT, h.stride) && size_out % COLS == 0;
    const bool all = rows && (u64)change.up % 16 == 0 && change.rank % 4 == 0;
    block.each([&](int thread) {
        const i64 col = (chunk * ABREAST + thread % ABREAST) * COLS, row = piece.begin + thread / ABREAST * TALL;
        const i64 live = piece.end - row < TALL ? piece.end - row : TALL;
        if (col >= size_out || live <= 0) return;
        if (all && kind == BFLOAT && y.kind == BFLOAT)
            add_columns<BFLOAT, BFLOAT>(change, row, live, col, h, size_out, kind, y);
        else if (all && kind == FLOAT && y.kind == FLOAT)
            add_columns<FLOAT, FLOAT>(change, row, live, col, h, size_out, kind, y);
        else
            add_columns<ANY, ANY>(change, row, live, col, h, size_out, kind, y);
    });
}

// --- copy --------------------------------------------------------------------------------------------------------

// The block's share of a copy: of its packs of 16 bytes, DEEP for each thread, every `shares`-th such stretch.
template <class Block>
__device__ void go_copy(const Copy copy, i64 share, i64 shares, const Block& block) {
    typedef Pack<u32, 4> Bytes;
    block.each([&](int thread) {
        const i64 packs = copy.bytes / (i64)sizeof(Bytes);
        const Bytes* from = (const Bytes*)copy.from;
        for (i64 at = share * DEEP * COPY_THREADS + thread; at < packs; at += shares * DEEP * COPY_THREADS) {
            Bytes some[DEEP];
            UNROLL for (int i = 0; i < DEEP; i++)
                if (at + i * COPY_THREADS < packs) some[i] = from[at + i * COPY_THREADS];
            UNROLL for (int i = 0; i < DEEP; i++)
                if (at + i * COPY_THREADS < packs) ((Bytes*)copy.to)[at + i * COPY_THREADS] = some[i];
        }
    });
}

#ifdef __CUDACC__
struct CudaBlock {
    template <class T>
    struct Own {
        T own;
        __device__ explicit Own(const CudaBlock&) {}
        __device__ T& operator[](int) { return own; }
        __device__ const T& operator[](int) const { return own; }
    };
    template <class Phase>
    __device__ void each(Phase phase) const {
        phase((int)threadIdx.x);
    }
    template <class Phase>
    __device__ void run(Phase phase) const {
        phase((int)threadIdx.x);
        __syncthreads();
    }
    // A number that another thread of the warp keeps. All threads of the warp must ask.
    template <class T, class Part>
    __device__ float of(const Own<T>& own, int thread, Part T::* part, int i) const {
        return __shfl_sync(0xFFFFFFFFu, (own.own.*part).number(i), thread % WARP);
    }
};

// A block for each piece and chunk of ranks. kind: of the weights. The grid has pieces · chunks blocks.
extern "C" __global__ void __launch_bounds__(DOWN_THREADS)
    module_down(const Change* changes, const Piece* pieces, i64 chunks, void* x, i64 x_kind, i64 x_stride,
                i64 size_in, i64 kind, void* h, i64 h_stride) {
    __shared__ Shared shared;
    go_down(changes, pieces, blockIdx.x / chunks, blockIdx.x % chunks, Matrix{x, x_kind, x_stride}, size_in, kind,
            Matrix{h, FLOAT, h_stride}, CudaBlock(), shared);
}

// A block for each piece and chunk of columns of y.
extern "C" __global__ void __launch_bounds__(UP_THREADS)
    module_up(const Change* changes, const Piece* pieces, i64 chunks, void* h, i64 h_stride, i64 size_out, i64 kind,
              void* y, i64 y_kind, i64 y_stride) {
    go_up(changes, pieces, blockIdx.x / chunks, blockIdx.x % chunks, Matrix{h, FLOAT, h_stride}, size_out, kind,
          Matrix{y, y_kind, y_stride}, CudaBlock());
}

// A block for each copy and share of it.
extern "C" __global__ void __launch_bounds__(COPY_THREADS) module_copy(const Copy* copies, i64 shares) {
    go_copy(copies[blockIdx.x / shares], blockIdx.x % shares, shares, CudaBlock());
}
#endif
