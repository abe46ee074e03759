// Tenants' low-rank changes on packed rows: y += up · act(down · x + bias) + bias, each segment of rows with weights of
// its own, of any rank. Weights, x and y are bfloat16, half or float; sums are float.
//
// Two kernels, each a tiled product of some rows with some columns of one segment's matrix:
//   module_down   h = act(down · x + bias), in scratch memory
//   module_up     y += up · h + bias
// A block computes ROWS rows by COLS columns. Between two barriers all its threads run the same phase:
//   load   DEPTH numbers of each row and column into shared memory
//   mac    add their products to the sums
//   store  the sums, with what follows them
// The tests also compile this file for the CPU, so it includes nothing, and threads communicate only through `Tile`.

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

constexpr int ROWS = 16, COLS = 32, DEPTH = 64;
constexpr int GROUP = 4;  // rows whose sums a thread keeps at once
constexpr int BFLOAT = 0, HALF = 1, FLOAT = 2;
constexpr int RELU = 1, SILU = 2;

// The structs that ops.py writes. Every field has 8 bytes; addresses are the device's.
struct Change {  // of one segment at one site
    const void *down, *up;            // [rank, in] and [out, rank]
    const void *down_bias, *up_bias;  // [rank] and [out]; null: none
    i64 rank, activation;             // rank 0: the segment has no change here
};
struct Piece {  // up to ROWS rows of one segment
    i64 change, begin, end;
};
struct Matrix {
    void* at;
    i64 kind, stride;  // stride: numbers from one row to the next
};

struct Tile {
    float row[ROWS][DEPTH];
    float col[COLS][DEPTH + 1];  // padded, so that neighbouring threads read from different banks
    float sum[ROWS][COLS];
};

// --- numbers -----------------------------------------------------------------------------------------------------

// A half as a float, exact; infinities and NaNs stay what they are. Subnormal halves go through an integer, since
// cupy compiles with -ftz=true, which takes subnormal floats as 0.
__device__ float from_half(u16 bits) {
    const u32 magnitude = (u32)(bits & 0x7FFFu) << 13, sign = (u32)(bits & 0x8000u) << 16;
    if ((bits & 0x7C00u) == 0x7C00u) return __uint_as_float(sign | magnitude | 0x7F800000u);
    const float found = bits & 0x7C00u ? __uint_as_float(magnitude) * 5.192296858534828e33f            // 2**112
                                       : (float)(bits & 0x3FFu) * 5.9604644775390625e-8f;              // 2**-24
    return __uint_as_float(sign | __float_as_uint(found));
}

__device__ float load(const void* at, i64 kind, i64 index) {
    if (kind == FLOAT) return ((const float*)at)[index];
    const u16 bits = ((const u16*)at)[index];
    return kind == HALF ? from_half(bits) : __uint_as_float((u32)bits << 16);
}

// The nearest bfloat, ties to even.
__device__ u16 to_bfloat(float value) {
    const u32 bits = __float_as_uint(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (u16)(bits >> 16 | 0x40u);  // stays a NaN
    return (u16)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

__device__ void add_to(const Matrix& y, i64 index, float value) {  // bfloat or float
    if (y.kind == FLOAT) ((float*)y.at)[index] += value;
    else ((u16*)y.at)[index] = to_bfloat(load(y.at, BFLOAT, index) + value);
}

__device__ float activated(float value, i64 activation) {
    if (activation == RELU) return value < 0.0f ? 0.0f : value;  // a NaN stays one
    return activation == SILU ? value / (1.0f + expf(-value)) : value;
}

// --- the product of a tile ---------------------------------------------------------------------------------------

// tile.sum = rows of `a` [rows, depth] times columns first.. of `weights` [columns, depth], transposed.
template <class Block>
__device__ void product(const Matrix& a, const Piece& piece, const void* weights, i64 kind, i64 first, i64 columns,
                        i64 depth, const Block& block, Tile& tile) {
    block.run([&](int thread, int threads) {
        for (int i = thread; i < ROWS * COLS; i += threads) tile.sum[i / COLS][i % COLS] = 0.0f;
    });
    for (i64 begin = 0; begin < depth; begin += DEPTH) {
        const int deep = (int)(depth - begin < DEPTH ? depth - begin : DEPTH);
        block.run([&](int thread, int threads) {
            for (int i = thread; i < ROWS * DEPTH; i += threads) {
                const int row = i / DEPTH, k = i % DEPTH;
                const bool inside = piece.begin + row < piece.end && k < deep;
                tile.row[row][k] = inside ? load(a.at, a.kind, (piece.begin + row) * a.stride + begin + k) : 0.0f;
            }
            for (int i = thread; i < COLS * DEPTH; i += threads) {
                const int col = i / DEPTH, k = i % DEPTH;
                const bool inside = first + col < columns && k < deep;
                tile.col[col][k] = inside ? load(weights, kind, (first + col) * depth + begin + k) : 0.0f;
            }
        });
        block.run([&](int thread, int threads) {
            for (int i = thread; i < COLS * (ROWS / GROUP); i += threads) {
                const int col = i % COLS, row = i / COLS * GROUP;
                float sum[GROUP];
                for (int r = 0; r < GROUP; r++) sum[r] = tile.sum[row + r][col];
                for (int k = 0; k < deep; k++)
                    for (int r = 0; r < GROUP; r++) sum[r] += tile.row[row + r][k] * tile.col[col][k];
                for (int r = 0; r < GROUP; r++) tile.sum[row + r][col] = sum[r];
            }
        });
    }
}

// --- a block -----------------------------------------------------------------------------------------------------

// h [rows, stride] = act(down · x + bias) of one piece, ranks first .. first + COLS.
template <class Block>
__device__ void go_down(const Change* changes, const Piece* pieces, i64 piece_index, i64 chunk, const Matrix& x,
                        i64 size_in, i64 kind, const Matrix& h, const Block& block, Tile& tile) {
    const Piece piece = pieces[piece_index];
    const Change change = changes[piece.change];
    const i64 first = chunk * COLS;
    if (first >= change.rank) return;  // the same for all threads of the block
    product(x, piece, change.down, kind, first, change.rank, size_in, block, tile);
    block.run([&](int thread, int threads) {
        for (int i = thread; i < ROWS * COLS; i += threads) {
            const i64 row = piece.begin + i / COLS, rank = first + i % COLS;
            if (row >= piece.end || rank >= change.rank) continue;
            const float bias = change.down_bias ? load(change.down_bias, kind, rank) : 0.0f;
            ((float*)h.at)[row * h.stride + rank] = activated(tile.sum[i / COLS][i % COLS] + bias, change.activation);
        }
    });
}

// y += up · h + bias of one piece, columns first .. first + COLS.
template <class Block>
__device__ void go_up(const Change* changes, const Piece* pieces, i64 piece_index, i64 chunk, const Matrix& h,
                      i64 size_out, i64 kind, const Matrix& y, const Block& block, Tile& tile) {
    const Piece piece = pieces[piece_index];
    const Change change = changes[piece.change];
    const i64 first = chunk * COLS;
    if (change.rank == 0 || first >= size_out) return;
    product(h, piece, change.up, kind, first, size_out, change.rank, block, tile);
    block.run([&](int thread, int threads) {
        for (int i = thread; i < ROWS * COLS; i += threads) {
            const i64 row = piece.begin + i / COLS, col = first + i % COLS;
            if (row >= piece.end || col >= size_out) continue;
            const float bias = change.up_bias ? load(change.up_bias, kind, col) : 0.0f;
            add_to(y, row * y.stride + col, tile.sum[i / COLS][i % COLS] + bias);
        }
    });
}

#ifdef __CUDACC__
struct CudaBlock {
    template <class Phase>
    __device__ void run(Phase phase) const {
        phase((int)threadIdx.x, (int)blockDim.x);
        __syncthreads();
    }
};

// A block for each piece and chunk of ranks. kind: of the weights. The grid has pieces · chunks blocks.
extern "C" __global__ void module_down(const Change* changes, const Piece* pieces, i64 chunks, void* x, i64 x_kind,
                                       i64 x_stride, i64 size_in, i64 kind, void* h, i64 h_stride) {
    __shared__ Tile tile;
    go_down(changes, pieces, blockIdx.x / chunks, blockIdx.x % chunks, Matrix{x, x_kind, x_stride}, size_in, kind,
            Matrix{h, FLOAT, h_stride}, CudaBlock(), tile);
}

// A block for each piece and chunk of columns of y.
extern "C" __global__ void module_up(const Change* changes, const Piece* pieces, i64 chunks, void* h, i64 h_stride,
                                     i64 size_out, i64 kind, void* y, i64 y_kind, i64 y_stride) {
    __shared__ Tile tile;
    go_up(changes, pieces, blockIdx.x / chunks, blockIdx.x % chunks, Matrix{h, FLOAT, h_stride}, size_out, kind,
          Matrix{y, y_kind, y_stride}, CudaBlock(), tile);
}
#endif
