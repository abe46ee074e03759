// What device code needs of CUDA, on the CPU.

#include <cstring>

#define __device__

static float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

static unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

// A block of threads, which run each phase one after another, in either direction.
struct CpuBlock {
    int threads;
    bool backwards;
    template <class Phase>
    void run(Phase phase) const {
        for (int t = 0; t < threads; t++) phase(backwards ? threads - 1 - t : t, threads);
    }
};
