// The fused look-up on a CUDA device: cut windows, probe, back off, gather, dequantise, sum. reference.py defines the
// result, which is the same to the bit: compile with -fmad=false, so that no product is fused into a sum.
//
// A block serves TILE neighbouring tokens. Between two barriers all its threads run the same phase:
//   cut    the windows that contain these tokens, a thread for each window
//   seek   the n-grams that a step of the back-off needs, a thread for each, in the step's levels one after another
//   fill   the windows' positions from the n-grams found, a thread for each window
//   add    the vectors, a thread for each group of columns of a token
// Slots are read from a file, so each value is checked against its bounds before it is used. Rows were checked when
// they were uploaded. The tests also compile this file for the CPU, so it includes nothing, and threads communicate
// only through `Tile`.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr int MAX_N = 5;
constexpr int TILE = 8;
constexpr int WINDOWS = TILE + MAX_N - 1;   // a token lies in up to n windows
constexpr int GRAMS = WINDOWS + MAX_N - 1;  // n-grams begin up to n - 1 tokens after a window does
constexpr int COVER = 3;                    // the most n-grams of one order that cover a position (n = 5, order 3)
constexpr int FIELD_BITS = 21, WORD_IDS = 3, TAG_SHIFT = 62;
constexpr u64 EMPTY_SLOT = ~0ull;
constexpr u64 LOW_HALF = 0xFFFFFFFFull;

// The structs that cuda_upload.py writes. Every field has 8 bytes; addresses are the device's.
struct Segment {
    const u8* rows;
    i64 count;
};
struct Level {  // one index
    const u64* slots;
    i64 cap, first, segments;  // its segments are segment[first : first + segments]
    i64 shift, direct;         // a row id is (ordinal of the segment << shift) | row
    i64 kind, depth;           // storage type: 0 int8, 1 fp16, 2 fp32; the version's place in the chain, 0 = nearest
    i64 stride, scales, header;  // bytes of a row; where its scales and its vectors begin
    u64 salt;                    // odd; decides an n-gram's home slot
    i64 reach;                   // the number of slots to search, from the home slot on
};
struct Step {
    i64 order, lo, hi;  // try level[lo : hi]
};
struct Table {
    i64 n, dim, steps;
    i64 causal;  // a window ends with its token, and only that position is filled; else it is centred
    const Step* step;
    const Level* level;
    const Segment* segment;
    i64 position[MAX_N];  // the positions of a window, in the order in which their vectors are added
};
struct Batch {
    const int* tokens;
    i64 total;
    const i64* offsets;
    i64 texts, vocab;
    void* out;
    i64 half, wide;  // out holds bfloat16, not float32; columns are added by fours
    signed char* order;
    short* depth;
    int* wrong;  // [0] is set if the offsets are wrong, [1] if a token is
};

// What the threads of a block share.
struct Found {
    const u8* row;  // null if no version has it
    int level;
};
struct Term {
    const u8* vector;
    float scale;
    int kind;
};
struct Tile {
    int text[WINDOWS];     // -1: no token of the tile needs this window
    u32 ids[WINDOWS][MAX_N];
    u32 inside[WINDOWS];   // bit p: position p holds a token of the text
    u32 filled[WINDOWS];   // bit p: position p has its terms
    int order[WINDOWS], depth[WINDOWS];
    Term terms[WINDOWS][MAX_N][COVER];
    int count[WINDOWS][MAX_N];
    Found found[GRAMS];
};

// --- cut ---------------------------------------------------------------------------------------------------------

// The position of a window's own token.
__device__ int before(const Table& table) { return (int)(table.causal ? table.n - 1 : (table.n - 1) / 2); }

// A block's windows are those around the tokens origin, origin + 1, ... Token i of the tile is position p of window
// i + n - 1 - p; the window around it is i + n - 1 - before.
__device__ i64 origin(const Table& table, i64 tile) { return tile * TILE + before(table) - (table.n - 1); }

// The text of a token: the last one that begins at or before it. In 0..texts-1 even if the offsets are wrong.
__device__ i64 text_of(const Batch& batch, i64 token) {
    i64 lo = 0, hi = batch.texts;
    while (hi - lo > 1) {
        const i64 middle = (lo + hi) / 2;
        if (batch.offsets[middle] <= token) lo = middle;
        else hi = middle;
    }
    return lo;
}

__device__ void cut_window(const Table& table, const Batch& batch, i64 tile, int w, Tile& shared) {
    const int n = (int)table.n;
    const i64 token = origin(table, tile) + w, first = tile * TILE, last = first + TILE;
    shared.text[w] = -1;
    shared.inside[w] = 0;
    shared.filled[w] = (1u << n) - 1;  // so that an unused window wants no n-grams
    shared.order[w] = 0;
    shared.depth[w] = -1;
    for (int p = 0; p < n; p++) shared.count[w][p] = 0;
    if (token < 0 || token >= batch.total || batch.texts < 1) return;
    const i64 text = text_of(batch, token);
    const i64 lo = batch.offsets[text] > 0 ? batch.offsets[text] : 0;
    const i64 hi = batch.offsets[text + 1] < batch.total ? batch.offsets[text + 1] : batch.total;
    if (hi <= first || lo >= last) return;  // its text has no token in this tile
    shared.text[w] = (int)text;
    shared.filled[w] = table.causal ? (1u << (n - 1)) - 1 : 0;
    for (int p = 0; p < n; p++) {
        const i64 at = token + p - before(table);
        const u32 id = at >= lo && at < hi ? (u32)batch.tokens[at] : 0;
        shared.ids[w][p] = id;
        if (id != 0 || p == before(table)) shared.inside[w] |= 1u << p;
    }
}

// Sets batch.wrong if the batch is malformed; all blocks share the work.
__device__ void check_batch(const Batch& batch, i64 thread, i64 threads) {
    for (i64 t = thread; t <= batch.texts; t += threads) {
        const i64 previous = t == 0 ? 0 : batch.offsets[t - 1];
        if (batch.offsets[t] < previous || (t == 0 && batch.offsets[0] != 0)) batch.wrong[0] = 1;
        if (t == batch.texts && batch.offsets[t] != batch.total) batch.wrong[0] = 1;
    }
    for (i64 i = thread; i < batch.total; i += threads) {
        if (batch.tokens[i] < 0 || batch.tokens[i] >= batch.vocab) batch.wrong[1] = 1;
    }
}

// --- seek --------------------------------------------------------------------------------------------------------

struct Key {
    u64 low, high;
    int words;
};

__device__ Key pack_key(const u32* ids, int order) {
    Key key = {0, 0, order <= WORD_IDS ? 1 : 2};
    for (int j = 0; j < order; j++) {
        const u64 id = ids[order - 1 - j];
        if (j < WORD_IDS) key.low |= id << (FIELD_BITS * j);
        else key.high |= id << (FIELD_BITS * (j - WORD_IDS));
    }
    if (key.words == 1) key.low |= (u64)order << TAG_SHIFT;
    return key;
}

__device__ u64 mix(u64 k) {
    k ^= k >> 32;
    k *= 0xD6E8FEB86659FD93ull;
    k ^= k >> 32;
    k *= 0xD6E8FEB86659FD93ull;
    return k ^ (k >> 32);
}

// The row that a slot leads to, or null if the level has no such row or the row has another key.
__device__ const u8* row_of(const Table& table, const Level& level, u64 slot, const Key& key) {
    const i64 id = (i64)(slot & LOW_HALF), ordinal = id >> level.shift, row = id - (ordinal << level.shift);
    if (ordinal >= level.segments) return nullptr;
    const Segment& segment = table.segment[level.first + ordinal];
    if (row >= segment.count) return nullptr;
    const u8* at = segment.rows + row * level.stride;
    const u64* words = (const u64*)at;
    return words[0] == key.low && (key.words == 1 || words[1] == key.high) ? at : nullptr;
}

__device__ const u8* seek_direct(const Table& table, const Level& level, const Key& key) {
    const i64 token = (i64)(key.low & ((1ull << FIELD_BITS) - 1));
    if (token >= level.cap) return nullptr;
    const u64 slot = level.slots[token];
    return slot <= LOW_HALF ? row_of(table, level, slot, key) : nullptr;
}

__device__ const u8* seek_hashed(const Table& table, const Level& level, const Key& key, u64 hashed) {
    const u64 salted = (hashed ^ (level.salt >> 1)) * level.salt;
    i64 p = (i64)(((salted >> 32) * (u64)level.cap) >> 32);
    for (i64 step = 0; step < level.reach; step++) {
        const u64 slot = level.slots[p];
        if (slot == EMPTY_SLOT) return nullptr;
        if ((slot >> 32) == (hashed & LOW_HALF)) {
            const u8* row = row_of(table, level, slot, key);
            if (row) return row;
        }
        p = p + 1 == level.cap ? 0 : p + 1;
    }
    return nullptr;
}

// The row of an n-gram in the first of a step's levels that has it.
__device__ Found seek(const Table& table, const Step& step, const Key& key) {
    const u64 hashed = mix(key.words == 1 ? key.low : key.low ^ mix(key.high));
    for (i64 l = step.lo; l < step.hi; l++) {
        const Level& level = table.level[l];
        const u8* row = level.direct ? seek_direct(table, level, key) : seek_hashed(table, level, key, hashed);
        if (row) return {row, (int)l};
    }
    return {nullptr, -1};
}

// Whether a window wants the n-gram of this order at this place: it lies inside the text and covers an unfilled
// position.
__device__ bool is_wanted(const Table& table, const Tile& shared, int w, u32 filled, int place, int order) {
    const u32 mask = ((1u << order) - 1) << place;
    const bool whole = order == table.n && !table.causal;  // a whole centred window may contain zeros
    const bool inside = whole || (shared.inside[w] & mask) == mask;
    return inside && (mask & ~filled) != 0;
}

// Seek n-gram g of the block, which begins at token origin - before + g and so has place g - w in window w. Sets
// found[g] if a window wants the n-gram; other elements are never read.
__device__ void seek_gram(const Table& table, const Step& step, int g, Tile& shared) {
    const int n = (int)table.n, order = (int)step.order, windows = TILE + n - 1;
    for (int place = 0; place <= n - order; place++) {
        const int w = g - place;
        if (w >= 0 && w < windows && is_wanted(table, shared, w, shared.filled[w], place, order)) {
            shared.found[g] = seek(table, step, pack_key(shared.ids[w] + place, order));
            return;
        }
    }
}

// --- fill --------------------------------------------------------------------------------------------------------

// Give each unfilled position of a window a term for each n-gram found that covers it.
__device__ void fill_window(const Table& table, const Step& step, int w, Tile& shared) {
    const int n = (int)table.n, order = (int)step.order;
    const u32 was = shared.filled[w];
    for (int place = 0; place <= n - order; place++) {
        const Found& found = shared.found[w + place];
        if (!is_wanted(table, shared, w, was, place, order) || !found.row) continue;
        const Level& level = table.level[found.level];
        const float* scales = (const float*)(found.row + level.scales);
        for (int j = 0; j < order; j++) {
            const int p = place + j, role = table.causal ? 0 : place * order + j;
            if (was >> p & 1) continue;
            const u8* vector = found.row + level.header + role * (table.dim << level.kind);
            shared.terms[w][p][shared.count[w][p]++] = {vector, scales[role], (int)level.kind};
            shared.filled[w] |= 1u << p;
        }
        if (order > shared.order[w]) shared.order[w] = order;
        if (shared.depth[w] < 0 && order > 1) shared.depth[w] = (int)level.depth;
    }
}

// --- add ---------------------------------------------------------------------------------------------------------

// WIDE neighbouring numbers, read or written with one instruction.
template <class Number, int WIDE>
struct alignas(sizeof(Number) * WIDE) Pack {
    Number at[WIDE];
};

// A finite half as a float, exact. Subnormal halves go through an integer, since cupy compiles with -ftz=true,
// which takes subnormal floats as 0.
__device__ float from_half(u16 bits) {
    const float magnitude = bits & 0x7C00u ? __uint_as_float((bits & 0x7FFFu) << 13) * 5.192296858534828e33f  // 2**112
                                           : (float)(bits & 0x3FFu) * 5.9604644775390625e-8f;                 // 2**-24
    return bits & 0x8000u ? -magnitude : magnitude;
}

// The bits of the bfloat16 nearest to a finite float, ties to even.
__device__ u16 to_bfloat(float value) {
    const u32 bits = __float_as_uint(value);
    return (u16)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

template <int WIDE>
__device__ void load(const Term& term, i64 column, float* values) {
    if (term.kind == 0) {
        const auto stored = *(const Pack<signed char, WIDE>*)(term.vector + column);
        for (int k = 0; k < WIDE; k++) values[k] = (float)stored.at[k] * term.scale;
    } else if (term.kind == 1) {
        const auto stored = *(const Pack<u16, WIDE>*)(term.vector + 2 * column);
        for (int k = 0; k < WIDE; k++) values[k] = from_half(stored.at[k]) * term.scale;
    } else {
        const auto stored = *(const Pack<float, WIDE>*)(term.vector + 4 * column);
        for (int k = 0; k < WIDE; k++) values[k] = stored.at[k] * term.scale;
    }
}

// Add the mean of a position's terms to sum.
template <int WIDE>
__device__ void add_position(const Term* terms, int count, i64 column, float* sum) {
    const float weight = 1.0f / (float)count;
    float mean[WIDE] = {}, values[WIDE];
    for (int t = 0; t < count; t++) {
        load<WIDE>(terms[t], column, values);
        for (int k = 0; k < WIDE; k++) mean[k] += values[k] * weight;
    }
    for (int k = 0; k < WIDE; k++) sum[k] += mean[k];
}

template <int WIDE>
__device__ void store(const Batch& batch, i64 at, const float* sum) {
    Pack<float, WIDE> single;
    Pack<u16, WIDE> half;
    for (int k = 0; k < WIDE; k++) {
        single.at[k] = sum[k];
        half.at[k] = to_bfloat(sum[k]);
    }
    if (batch.half) *(Pack<u16, WIDE>*)((u16*)batch.out + at) = half;
    else *(Pack<float, WIDE>*)((float*)batch.out + at) = single;
}

// Sum WIDE columns of token i of the tile over all windows of its text that contain it.
template <int WIDE>
__device__ void add_columns(const Table& table, const Batch& batch, i64 tile, int i, i64 column, const Tile& shared) {
    const int n = (int)table.n, text = shared.text[i + n - 1 - before(table)];
    float sum[WIDE] = {};
    for (int k = 0; k < n; k++) {
        const int p = (int)table.position[k], w = i + n - 1 - p;
        if (shared.text[w] == text && shared.count[w][p] > 0)
            add_position<WIDE>(shared.terms[w][p], shared.count[w][p], column, sum);
    }
    store<WIDE>(batch, (tile * TILE + i) * table.dim + column, sum);
}

template <int WIDE>
__device__ void add_tile(const Table& table, const Batch& batch, i64 tile, int thread, int threads,
                         const Tile& shared) {
    const i64 left = batch.total - tile * TILE, parts = table.dim / WIDE, live = left < TILE ? left : TILE;
    for (i64 work = thread; work < live * parts; work += threads)
        add_columns<WIDE>(table, batch, tile, (int)(work / parts), work % parts * WIDE, shared);
    const int n = (int)table.n;
    for (i64 i = thread; i < live; i += threads) {
        batch.order[tile * TILE + i] = (signed char)shared.order[i + n - 1 - before(table)];
        batch.depth[tile * TILE + i] = (short)shared.depth[i + n - 1 - before(table)];
    }
}

// --- a block -----------------------------------------------------------------------------------------------------

// Look up one tile. block.run(phase) runs phase(thread, threads) on all threads of the block and waits for them.
template <class Block>
__device__ void look_up(const Table& table, const Batch& batch, i64 tile, const Block& block, Tile& shared) {
    const int n = (int)table.n, windows = TILE + n - 1;
    block.run([&](int thread, int threads) {
        for (int w = thread; w < windows; w += threads) cut_window(table, batch, tile, w, shared);
    });
    for (i64 s = 0; s < table.steps; s++) {
        const Step step = table.step[s];
        block.run([&](int thread, int threads) {
            for (int g = thread; g < windows + n - step.order; g += threads) seek_gram(table, step, g, shared);
        });
        block.run([&](int thread, int threads) {
            for (int w = thread; w < windows; w += threads) fill_window(table, step, w, shared);
        });
    }
    block.run([&](int thread, int threads) {
        if (batch.wide) add_tile<4>(table, batch, tile, thread, threads, shared);
        else add_tile<1>(table, batch, tile, thread, threads, shared);
    });
}

// Look up a block's share of a batch: every blocks-th tile.
template <class Block>
__device__ void look_up_all(const Table& table, const Batch& batch, i64 block_index, i64 blocks, const Block& block,
                            Tile& shared) {
    block.run([&](int thread, int threads) {
        check_batch(batch, block_index * threads + thread, blocks * threads);
    });
    for (i64 tile = block_index; tile * TILE < batch.total; tile += blocks) look_up(table, batch, tile, block, shared);
}

#ifdef __CUDACC__
struct CudaBlock {
    template <class Phase>
    __device__ void run(Phase phase) const {
        phase((int)threadIdx.x, (int)blockDim.x);
        __syncthreads();
    }
};

// All pointers are device addresses. For the arguments see `Batch`.
extern "C" __global__ void plot_lookup(const Table* table, const int* tokens, i64 total, const i64* offsets, i64 texts,
                                       i64 vocab, void* out, i64 half, i64 wide, signed char* order, short* depth,
                                       int* wrong) {
    __shared__ Tile shared;
    const Batch batch = {tokens, total, offsets, texts, vocab, out, half, wide, order, depth, wrong};
    look_up_all(*table, batch, blockIdx.x, gridDim.x, CudaBlock(), shared);
}
#endif
